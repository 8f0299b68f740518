"""A run as two pandas frames, one for each kind of record: what every table and plot is made from.

A number that is NaN in a record (a kernel that gave NaN) is infinite in a frame, for a frame's NaN means that
there is no number: an error that is not a number must not vanish from a maximum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import UserError
from harness.records import CheckRecord, Measurement, Roof, RunFolder, RunInfo, SemanticsRecord, Workload
from reports import work

ERROR_FIELDS = ("max_error", "budget", "budget_used", "error_over_baseline")
WORKLOAD_FIELDS = tuple(Workload.model_fields)
MEASUREMENT_FIELDS = tuple(field for field in Measurement.model_fields if field != "workload")
DERIVED_FIELDS = ("median_s", "q1_s", "q3_s", "min_s", "rounds", "flops_per_s", *work.FIELDS)
"""Columns computed from the samples: median, quartiles, minimum and number of wall times, rates, and the roofline."""
_NUMBERS = (
    *("max_error", "budget_used", "error_over_baseline", "first_call_s"),
    *("peak_bytes", "output_bytes", "saved_bytes", "workspace_bytes", "flops", "flops_unmasked", "bytes_moved"),
    *DERIVED_FIELDS,
)


@dataclass(frozen=True)
class Run:
    """Everything that a report says comes from here."""

    info: RunInfo
    checks: pd.DataFrame
    """A row for each check record; columns are the fields of `CheckRecord`."""
    measurements: pd.DataFrame
    """A row for each measurement: its fields, its workload's fields and key, and `DERIVED_FIELDS`."""
    superseded: int
    """Records left out because a later one, after a resumed run, answers the same question."""
    semantics: tuple[SemanticsRecord, ...] = ()
    """Answers of the probes, declared and seen."""


def read(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        UserError: not a run folder, another format version, a line that is no record, or a record that says
            ``measured`` and has no samples.
    """
    files = RunFolder(folder)
    info = files.info()
    all_checks, all_measurements = files.checks(), files.measurements()
    checks = list({(r.implementation, r.check, r.case): r for r in all_checks}.values())
    measurements = list({(r.implementation, r.workload.key): r for r in all_measurements}.values())
    for record in measurements:
        if record.status == "measured" and record.samples is None:
            raise UserError(
                f"{folder}: {record.implementation} on {record.workload.key} is `measured` without samples; "
                "delete that line and run `mha bench` again"
            )
    semantics = {(r.implementation, r.probe): r for r in files.semantics()}
    dropped = len(all_checks) + len(all_measurements) - len(checks) - len(measurements)
    frame = measurements_frame(measurements, info.roofs)
    return Run(info, checks_frame(checks), frame, dropped, tuple(semantics.values()))


def checks_frame(records: Iterable[CheckRecord]) -> pd.DataFrame:
    """One row for each check."""
    rows = [_without_nan(dict(record)) for record in records]
    frame = pd.DataFrame(rows, columns=list(CheckRecord.model_fields))
    return frame.astype(dict.fromkeys(ERROR_FIELDS, float))


def measurements_frame(records: Iterable[Measurement], roofs: Sequence[Roof] = ()) -> pd.DataFrame:
    """One row for each measurement, with its workload's fields and what follows from its samples."""
    known = work.by_dtype_and_threads(roofs)
    rows = [_measurement_row(record, known) for record in records]
    frame = pd.DataFrame(rows, columns=["key", *MEASUREMENT_FIELDS, "workload", *WORKLOAD_FIELDS, *DERIVED_FIELDS])
    return frame.astype(dict.fromkeys(_NUMBERS, float))


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a time."""
    return frame[frame["status"] == "measured"]


def _measurement_row(record: Measurement, roofs: Mapping[tuple[str, int], Roof]) -> dict[str, object]:
    return {
        **_without_nan(dict(record)),
        **dict(record.workload),
        "key": record.workload.key,
        **_derived(record, roofs),
    }


def _without_nan(row: dict[str, object]) -> dict[str, object]:
    for field in ERROR_FIELDS:
        value = row.get(field)
        if isinstance(value, float) and math.isnan(value):
            row[field] = math.inf
    return row


def _derived(record: Measurement, roofs: Mapping[tuple[str, int], Roof]) -> dict[str, float]:
    if record.status != "measured" or record.samples is None:
        return {}
    ordered = sorted(record.samples.wall_s)
    low, middle, high = (_quantile(ordered, share) for share in (0.25, 0.5, 0.75))
    return {
        "median_s": middle,
        "q1_s": low,
        "q3_s": high,
        "min_s": ordered[0],
        "rounds": len(ordered),
        "flops_per_s": record.flops / middle if record.flops is not None else math.nan,
        **work.roofline(record, middle, roofs),
    }


def _quantile(ordered: Sequence[float], share: float) -> float:
    """As numpy's, interpolated linearly; a hundredth of its time, and a large report has tens of thousands."""
    below, part = divmod(share * (len(ordered) - 1), 1.0)
    low = ordered[int(below)]
    return low + part * (ordered[min(int(below) + 1, len(ordered) - 1)] - low)


def groups(frame: pd.DataFrame, columns: list[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Rows with equal values in these columns, in order of appearance."""
    for key, rows in frame.groupby(columns, sort=False):
        yield tuple(key), rows
