"""How much of the machine a call uses, and whether the kernel ran that was declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.records import ImplementationInfo, Measurement, Roof

FIELDS = ("unmasked_flops_per_s", "roof_flops_per_s", "roof_share")
"""Columns of a frame of measurements that `roofline` fills."""


def roofline(record: Measurement, median_s: float, roofs: Mapping[tuple[str, int], Roof]) -> dict[str, float]:
    """A measurement held against the roofline of its dtype and thread count.

    The roof is the lower one of two: the rate of a large matrix product, and what memory can feed at this call's
    operations for each byte. Operations are those that the mask leaves, so that skipping the masked half of a causal
    square counts as no feat, and computing it as a waste.
    """
    workload = record.workload
    roof = roofs.get((workload.dtype, workload.threads)) if workload.device == "cpu" else None
    if record.flops_unmasked is None:
        return {}
    rate = record.flops_unmasked / median_s
    if roof is None or not record.bytes_moved:
        return {"unmasked_flops_per_s": rate}
    height = min(roof.flops_per_s, record.flops_unmasked / record.bytes_moved * roof.bytes_per_s)
    return {"unmasked_flops_per_s": rate, "roof_flops_per_s": height, "roof_share": rate / height}


def by_dtype_and_threads(roofs: Sequence[Roof]) -> dict[tuple[str, int], Roof]:
    """Roofs by what they hold for."""
    return {(roof.dtype, roof.threads): roof for roof in roofs}


class DeclaredKernels:
    """Tells which measurements ran none of the operators that their implementation declares."""

    def __init__(self, implementations: Sequence[ImplementationInfo]) -> None:
        self._declared = {info.name: info.kernels for info in implementations}

    def missed(self, row: Any) -> tuple[str, ...]:  # noqa: ANN401 - a pandas row
        """What was declared where something else ran; empty where one of them ran, or none is declared."""
        declared = self._declared.get(row.implementation, ())
        if row.status != "measured" or not row.kernels or set(declared) & set(row.kernels):
            return ()
        return declared
