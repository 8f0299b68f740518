"""How memory grows with the sequence length: a fitted exponent, held against what was declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from reports.frames import WORKLOAD_FIELDS

MIN_LENGTHS = 3
"""Two points always lie on a line: an exponent needs at least three."""

TOLERANCE = 0.3
"""How far a fitted exponent may lie from the declared one: small S is dominated by terms linear in S."""

SERIES = tuple(field for field in WORKLOAD_FIELDS if field not in ("seq_len", "label", "padded_share"))
"""Fields that are equal for all workloads of a series over S."""

DECLARED = {"O(S)": 1.0, "O(S^2)": 2.0}

Growth = Literal["as declared", "faster than declared", "slower than declared", "too few lengths"]


@dataclass(frozen=True)
class Fit:
    """Growth of one implementation's peak memory over all its series."""

    implementation: str
    declared: str
    exponents: tuple[float, ...]
    """One least-squares slope of log(peak bytes) over log(S) for each series with enough lengths."""
    lengths: tuple[int, int]
    """Smallest and largest S in the fits; 0, 0 without one."""

    @property
    def exponent(self) -> float:
        """Median over the series."""
        return float(np.median(self.exponents))

    @property
    def growth(self) -> Growth:
        """The fit against the declaration."""
        if not self.exponents:
            return "too few lengths"
        difference = self.exponent - DECLARED.get(self.declared, self.exponent)
        if abs(difference) <= TOLERANCE:
            return "as declared"
        return "faster than declared" if difference > 0 else "slower than declared"


def fit(measurements: pd.DataFrame, declared: dict[str, str]) -> list[Fit]:
    """Fit every implementation that has a peak memory.

    Args:
        measurements: frame of measurements.
        declared: what each implementation declares, ``O(S)`` or ``O(S^2)``.
    """
    known = measurements[measurements["peak_bytes"].gt(0) & measurements["seq_len"].gt(0)]
    return [
        _fit_one(str(name), declared.get(str(name), ""), rows)
        for name, rows in known.groupby("implementation", sort=False)
    ]


def _fit_one(name: str, declared: str, rows: pd.DataFrame) -> Fit:
    series = [group for _, group in rows.groupby(list(SERIES)) if group["seq_len"].nunique() >= MIN_LENGTHS]
    lengths = [length for group in series for length in group["seq_len"]]
    return Fit(
        implementation=name,
        declared=declared,
        exponents=tuple(_slope(group) for group in series),
        lengths=(min(lengths), max(lengths)) if lengths else (0, 0),
    )


def _slope(group: pd.DataFrame) -> float:
    lengths, peaks = np.log(group[["seq_len", "peak_bytes"]].to_numpy(float)).T
    apart = lengths - lengths.mean()
    return float(apart @ peaks / (apart @ apart))
