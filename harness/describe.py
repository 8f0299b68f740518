"""From an implementation's own description to the record that a run keeps of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from harness.records import ImplementationInfo
from harness.registry import Registered
from implementations.spec import Case, Implementation


def describe_all(registered: Iterable[Registered], device: str) -> tuple[ImplementationInfo, ...]:
    """What each implementation says of itself, for one device type."""
    return tuple(_describe(each, device) for each in registered)


def _describe(registered: Registered, device: str) -> ImplementationInfo:
    implementation = registered.implementation
    limits = [f"not supported: {limit.reason}" for limit in implementation.limits]
    less_precise = [f"{dtype} is only as precise as {like}" for dtype, like in implementation.rounds_like.items()]
    failures = [
        f"known failure of {failure.check}: {failure.reason} ({failure.source})"
        for failure in implementation.known_failures
    ]
    return ImplementationInfo(
        name=implementation.name,
        summary=implementation.summary,
        source=implementation.source,
        origin=registered.origin,
        source_hash=_hash_of(registered.origin),
        dtypes=implementation.dtypes,
        devices=implementation.devices,
        mask_kinds=implementation.mask_kinds,
        gradients=_trains(implementation, device),
        fully_masked_row=implementation.fully_masked_row,
        memory_growth=implementation.memory_growth,
        kernels=implementation.kernels.get(device, ()),
        verify_only=implementation.verify_only.get(device, ""),
        unavailable=implementation.missing_on(device),
        declared=(*limits, *less_precise, *failures),
    )


def _trains(implementation: Implementation, device: str) -> bool:
    """Whether it has a backward on this device type: a small case served in inference is served in training too."""
    case = Case(2, 16, 64, 4, implementation.dtypes[0], device=device)
    lost = set(implementation.why_not(replace(case, mode="training"))) - set(implementation.why_not(case))
    return not lost


def _hash_of(origin: str) -> str:
    path = Path(origin)
    return sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""
