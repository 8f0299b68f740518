"""Many runs as trends: each implementation's time beside the baseline, run after run, with the steps marked.

A *step* is a run whose whole interval lies beyond the threshold from the median of the runs since the last step, and
whose successor does so too, on the same side; a newest run has no successor yet, and its step is unconfirmed. A run
that stands alone is noise of that run, and no step. Only what is comparable is held together: a series breaks where
the machine, torch, the cores or the baseline change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

from harness.errors import UserError
from harness.records import RUN_FILE, RunInfo, Workload
from reports.comparison import Cells, Change, change_of
from reports.frames import read
from reports.titles import Titles

Step = Literal["", "slower", "faster"]


@dataclass(frozen=True)
class Point:
    """One run's word on one implementation and workload."""

    run: str
    """Its folder, beneath the one that was asked for."""
    created: str
    """ISO 8601."""
    commit: str
    ratio: float
    """Of the time to the baseline's."""
    low: float
    high: float
    peak_bytes: int | None
    step: Step = ""
    is_confirmed: bool = False
    """Whether the run after it says the same."""


@dataclass(frozen=True)
class Series:
    """What can be held together, in order of time."""

    implementation: str
    workload: str
    """Its title."""
    key: str
    baseline: str
    surroundings: str
    """Machine, cores and torch."""
    points: tuple[Point, ...]

    @property
    def steps(self) -> tuple[Point, ...]:
        """Where it changed."""
        return tuple(point for point in self.points if point.step)

    @property
    def change(self) -> float:
        """Of the newest ratio over the oldest."""
        return self.points[-1].ratio / self.points[0].ratio


@dataclass(frozen=True)
class History:
    """All series of a folder."""

    runs: tuple[str, ...]
    """Names, oldest first."""
    threshold: float
    series: tuple[Series, ...]

    def sentence(self) -> str:
        """What happened, in short."""
        stepped = sum(bool(each.steps) for each in self.series)
        runs = f"{len(self.runs)} run{'s' if len(self.runs) != 1 else ''}, {len(self.series)} series"
        if len(self.runs) < 2:
            return f"{runs}: a step needs at least two runs."
        return f"{runs}: {stepped} with a step beyond {self.threshold:.1%}."


def history(folder: Path, threshold: float) -> History:
    """Read all runs in a folder, and those in its folders.

    Args:
        folder: where runs are, at any depth.
        threshold: by how much a ratio has to change to be a step, e.g. 0.05.

    Raises:
        UserError: there is no run, or one that does not fit.
    """
    paths = sorted(path.parent for path in folder.rglob(RUN_FILE))
    if not paths:
        raise UserError(f"no run in {folder} or its folders; `mha bench` makes one under results/")
    points: dict[tuple[str, ...], list[Point]] = {}
    workloads: dict[str, Workload] = {}
    runs: dict[str, str] = {}
    for path in paths:
        run = read(path)
        name = str(path.relative_to(folder)) if path != folder else run.info.run_id
        runs[name] = run.info.created
        cells = Cells(run)
        workloads |= {key: row.workload for (key, _), row in cells.rows.items()}
        for (key, implementation), point in _points(cells, run.info, name):
            where = _surroundings(run.info)
            points.setdefault((implementation, key, run.info.baseline, where), []).append(point)
    titles = Titles(workloads.values())
    series = [
        Series(name, titles.of(workloads[key]), key, baseline, where, tuple(mark_steps(found, threshold)))
        for (name, key, baseline, where), found in points.items()
    ]
    in_time = tuple(sorted(runs, key=lambda name: runs[name]))
    return History(in_time, threshold, tuple(sorted(series, key=_loudest_first)))


def _points(cells: Cells, info: RunInfo, name: str) -> Iterator[tuple[tuple[str, str], Point]]:
    for (key, implementation), row in cells.rows.items():
        held = cells.against_baseline(key, implementation, info.resolution)
        if held is not None:
            peak = None if math.isnan(row.peak_bytes) else int(row.peak_bytes)
            commit = info.environment.commit
            yield (key, implementation), Point(name, info.created, commit, held.ratio, held.low, held.high, peak)


def _surroundings(info: RunInfo) -> str:
    environment = info.environment
    torch = environment.packages.get("torch", "")
    return f"machine {environment.machine_id}, {environment.cores} cores, torch {torch}"


def mark_steps(points: Sequence[Point], threshold: float) -> Iterator[Point]:
    """The points in order of time, steps marked."""
    ordered = sorted(points, key=lambda point: point.created)
    since: list[float] = []
    for point, after in zip(ordered, [*ordered[1:], None], strict=True):
        change = _against(since, point, threshold)
        lasts = after is None or _against(since, after, threshold) == change
        if change in ("regressed", "improved") and lasts:
            since = [point.ratio]
            step: Step = "slower" if change == "regressed" else "faster"
            yield replace(point, step=step, is_confirmed=after is not None)
        else:
            if change not in ("regressed", "improved"):
                since.append(point.ratio)
            yield point


def _against(since: Sequence[float], point: Point, threshold: float) -> Change:
    if not since:
        return "unchanged"
    level = median(since)
    return change_of(point.low / level, point.high / level, threshold)


def _loudest_first(series: Series) -> tuple[bool, float]:
    return (not series.steps, -abs(math.log(series.change)))
