"""Two runs held against each other: what changed in correctness, in exact figures, and in time.

*Exact* figures (peak bytes, operations, kernels) are compared as they are. *Times* of two runs are never compared: an
hour later the same machine is another one. What is compared is each implementation's time over the baseline's in the
same rounds, in either run; the change is the ratio of these two ratios, and its interval comes from both runs'
intervals, each at the level that half of the error leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness import statistics
from harness.errors import UserError
from harness.records import BAD_CHECK_STATUSES, RunInfo
from harness.statistics import Comparison
from reports import text
from reports.frames import Run, measured, read
from reports.titles import Titles

Change = Literal["regressed", "improved", "unchanged", "unresolved"]
NOT_RUN = "not run"
"""What a check did in a run that has no record of it."""
ERROR_GREW = 1.5
"""By what factor an error over its budget has to differ to be told: equal code gives equal bits on equal machines."""


@dataclass(frozen=True)
class TimeChange:
    """One implementation on one workload, in two runs."""

    implementation: str
    workload: str
    """Its title."""
    key: str
    change: Change
    ratio: float
    """Of the head's ratio to the baseline over the base's: above 1, it became slower beside the baseline."""
    low: float
    high: float
    processes: tuple[float, ...] = ()
    """The ratio in each process, where several measured the two side by side."""


@dataclass(frozen=True)
class FigureChange:
    """Something exact that is another one now."""

    implementation: str
    where: str
    """Workload's title, or check and case."""
    what: str
    before: str
    after: str
    is_worse: bool
    fails: bool = False
    """Whether it makes a gate fail."""


@dataclass(frozen=True)
class RunComparison:
    """Everything that differs between two runs."""

    base: str
    """Name of the run, or of the version, before the change."""
    head: str
    threshold: float
    times: tuple[TimeChange, ...]
    verification: tuple[FigureChange, ...]
    figures: tuple[FigureChange, ...]
    errors: tuple[FigureChange, ...]
    only_in: tuple[str, ...]
    """What one of the two has and the other lacks, a sentence each."""
    notes: tuple[str, ...]
    """What a reader has to know, such as that the machines differ."""

    def count(self, change: Change) -> int:
        """Times that changed so."""
        return sum(each.change == change for each in self.times)

    def regressions(self, *, strict: bool = False) -> tuple[str, ...]:
        """What makes a gate fail, a line each.

        Slower or larger beyond the threshold, no time where there was one, or wrong where it was right.
        """
        slower = [each for each in self.times if each.change == "regressed" or (strict and each.change == "unresolved")]
        nothing = ("no time could be compared",) if strict and not self.times else ()
        return (*nothing, *map(time_line, slower), *map(figure_line, self.failing_figures))

    @property
    def failing_figures(self) -> tuple[FigureChange, ...]:
        """Checks and exact figures that make a gate fail."""
        return tuple(each for each in (*self.verification, *self.figures) if each.fails)


def compare_runs(base: Path, head: Path, threshold: float, *, across_machines: bool = False) -> RunComparison:
    """Compare two run folders.

    Args:
        base: the run before the change.
        head: the run after it.
        threshold: by how much the ratio to the baseline has to change, e.g. 0.02.
        across_machines: whether runs of different machines, torch builds or thread counts may be compared.

    Raises:
        UserError: a folder is no run, or the two cannot be compared; says which property differs.
    """
    old, new = read(base), read(head)
    differing = _different_surroundings(old.info, new.info)
    if differing and not across_machines:
        raise UserError(
            f"{base} and {head} differ in {'; '.join(differing)}: their times say nothing about the code; "
            "--across-machines compares their ratios all the same"
        )
    if old.info.baseline != new.info.baseline:
        raise UserError(
            f"{base} has the baseline {old.info.baseline} and {head} has {new.info.baseline}: their ratios have "
            "nothing in common; run one of them again with the other's --baseline"
        )
    titles = Titles([*old.info.workloads, *new.info.workloads])
    cells = Cells(old), Cells(new)
    return RunComparison(
        base=old.info.run_id,
        head=new.info.run_id,
        threshold=threshold,
        times=tuple(_times(*cells, titles, threshold)),
        verification=tuple(changed_checks(old, new)),
        figures=tuple(changed_figures(*cells, titles, threshold)),
        errors=tuple(changed_errors(*cells, titles)),
        only_in=tuple(only_in(old, new)),
        notes=tuple(f"The runs differ in {each}: only ratios are compared." for each in differing),
    )


def _different_surroundings(old: RunInfo, new: RunInfo) -> list[str]:
    """What makes times of two runs incomparable, with both values."""
    one, other = old.environment, new.environment
    threads = [" and ".join(map(str, sorted({w.threads for w in info.workloads}))) for info in (old, new)]
    properties = {
        "machine": (f"{one.machine_id} ({one.processor})", f"{other.machine_id} ({other.processor})"),
        "torch": (one.packages.get("torch", ""), other.packages.get("torch", "")),
        "cores": (str(one.cores), str(other.cores)),
        "threads": (threads[0], threads[1]),
    }
    return [f"{name}: {before} and {after}" for name, (before, after) in properties.items() if before != after]


class Cells:
    """A run's measured rows by workload and implementation."""

    def __init__(self, run: Run) -> None:
        self.info = run.info
        self.rows: dict[tuple[str, str], Any] = {
            (str(row.key), str(row.implementation)): row for row in measured(run.measurements).itertuples(index=False)
        }
        self.outcomes: dict[tuple[str, str], Any] = {
            (str(row.key), str(row.implementation)): row for row in run.measurements.itertuples(index=False)
        }
        """Of all planned ones, measured or not."""

    def against_baseline(self, key: str, name: str, resolution: float) -> Comparison | None:
        """One implementation's times over the baseline's; None where either has none."""
        row, baseline = self.rows.get((key, name)), self.rows.get((key, self.info.baseline))
        if row is None or baseline is None or name == self.info.baseline:
            return None
        # Half of the error for each run: looks and pairs enter as in a report, and each once more for the other run.
        looks, pairs = int(row.looks or 1), max(1, int(row.pairs or 1))
        return statistics.compare(row.samples, baseline.samples, looks=2 * looks, pairs=pairs, resolution=resolution)


def _times(old: Cells, new: Cells, titles: Titles, threshold: float) -> Iterator[TimeChange]:
    for (key, name), row in new.rows.items():
        before, after = (cells.against_baseline(key, name, threshold) for cells in (old, new))
        if before is None or after is None:
            continue
        low = after.low / before.high if before.high else 0.0
        high = after.high / before.low if before.low else math.inf
        yield TimeChange(
            implementation=name,
            workload=titles.of(row.workload),
            key=key,
            change=change_of(low, high, threshold),
            ratio=after.ratio / before.ratio,
            low=low,
            high=high,
        )


def change_of(low: float, high: float, threshold: float) -> Change:
    """The verdict on an interval of a change, 1 being none."""
    band = 1 + threshold
    if low > band:
        return "regressed"
    if high < 1 / band:
        return "improved"
    return "unchanged" if 1 / band <= low and high <= band else "unresolved"


def changed_checks(old: Run, new: Run) -> Iterator[FigureChange]:
    """Checks that end otherwise now, and those that fail now and were not run before."""
    statuses = [
        {
            (str(row.implementation), str(row.check), str(row.case)): str(row.status)
            for row in run.checks.itertuples(index=False)
        }
        for run in (old, new)
    ]
    for (name, check, case), after in statuses[1].items():
        before = statuses[0].get((name, check, case), NOT_RUN)
        worse = after in BAD_CHECK_STATUSES and before not in BAD_CHECK_STATUSES
        if worse or before not in (after, NOT_RUN):
            yield FigureChange(name, f"{check} on {case}", "check", before, after, worse, fails=worse)


def changed_figures(old: Cells, new: Cells, titles: Titles, threshold: float) -> Iterator[FigureChange]:
    """Measurements that end otherwise now, and exact figures of those that have a time."""
    for place, row in new.outcomes.items():
        before = old.outcomes[place].status if place in old.outcomes else row.status
        if before != row.status:
            where, lost = titles.of(row.workload), before == "measured"
            yield FigureChange(place[1], where, "status", before, row.status, row.status != "measured", fails=lost)
    for place, row in new.rows.items():
        earlier = old.rows.get(place)
        if earlier is None:
            continue
        title = titles.of(row.workload)
        if earlier.peak_bytes != row.peak_bytes and not math.isnan(row.peak_bytes):
            sizes = (text.mebibytes(earlier.peak_bytes), text.mebibytes(row.peak_bytes))
            grew = row.peak_bytes > earlier.peak_bytes * (1 + threshold)
            yield FigureChange(place[1], title, "peak memory", *sizes, row.peak_bytes > earlier.peak_bytes, fails=grew)
        if earlier.flops != row.flops and not math.isnan(row.flops):
            counts = (text.significant(earlier.flops / 1e9), text.significant(row.flops / 1e9))
            yield FigureChange(place[1], title, "GFLOP", *counts, row.flops > earlier.flops)
        if tuple(earlier.kernels) != tuple(row.kernels):
            kernels = (", ".join(earlier.kernels), ", ".join(row.kernels))
            yield FigureChange(place[1], title, "kernels", *kernels, is_worse=False)


def changed_errors(old: Cells, new: Cells, titles: Titles) -> Iterator[FigureChange]:
    """Errors that became larger or smaller by a factor that equal code does not give."""
    for place, row in new.rows.items():
        earlier = old.rows.get(place)
        if earlier is None or not (earlier.budget_used > 0 and row.budget_used > 0):
            continue
        factor = row.budget_used / earlier.budget_used
        if max(factor, 1 / factor) >= ERROR_GREW:
            used = (text.multiple(earlier.budget_used), text.multiple(row.budget_used))
            yield FigureChange(place[1], titles.of(row.workload), "error over its budget", *used, factor > 1)


def only_in(old: Run, new: Run) -> Iterator[str]:
    """What one of the two lacks."""
    names = [{each.name for each in run.info.implementations} for run in (old, new)]
    for what, values in (
        ("implementation", names),
        ("workload", [{each.key for each in run.info.workloads} for run in (old, new)]),
        ("check", [_checks_of(run, names[0] & names[1]) for run in (old, new)]),
    ):
        for where, missing in (("base", values[0] - values[1]), ("head", values[1] - values[0])):
            if missing:
                some = text.listed(sorted(missing)[:3]) + (" and more" if len(missing) > 3 else "")
                yield f"{text.plural(len(missing), what)} only in the {where}: {some}."


def _checks_of(run: Run, names: AbstractSet[str]) -> set[str]:
    rows = run.checks[run.checks["implementation"].isin(names)].itertuples(index=False)
    return {f"{row.implementation}, {row.check} on {row.case}" for row in rows}


def time_line(each: TimeChange) -> str:
    """A time's change as a line."""
    interval = "no interval" if not each.low or math.isinf(each.high) else f"[{each.low:.3f}, {each.high:.3f}]"
    apart = f"; in each process: {', '.join(f'{ratio:.3f}' for ratio in each.processes)}" if each.processes else ""
    line = f"{each.implementation} {each.change} on {each.workload}: {each.ratio:.3f}x its time before {interval}"
    return line + apart


def figure_line(each: FigureChange) -> str:
    """A figure's change as a line."""
    return f"{each.implementation}, {each.where}: {each.what} {each.before} before, {each.after} now"
