"""Two versions of implementations, measured side by side in several runs: one comparison of all of them.

A process has its own bias (see `harness.versions`), and a verdict needs every process to give it: the interval of a
change reaches from the lowest end of the processes' intervals to the highest one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from harness import statistics
from harness.errors import UserError
from harness.records import RunInfo
from harness.statistics import Comparison
from reports.comparison import (
    Cells,
    FigureChange,
    RunComparison,
    TimeChange,
    change_of,
    changed_checks,
    changed_errors,
    changed_figures,
    only_in,
)
from reports.frames import Run, read
from reports.titles import Titles


@dataclass(frozen=True)
class Names:
    """The two versions of one implementation."""

    name: str
    old: str
    """In the records."""
    new: str


def compare_versions(folders: Sequence[Path], pairs: Sequence[Names], threshold: float) -> RunComparison:
    """Sum up what each process said of the new versions against the old ones.

    Args:
        folders: of the runs, one for each process.
        pairs: the versions that belong together.
        threshold: by how much a time has to change to be told, e.g. 0.02.

    Raises:
        UserError: a folder is no run, or one that does not fit; or neither version could be timed at all, for a gate
            that compared nothing must not look as if it had.
    """
    olds, news = {each.old: each.name for each in pairs}, {each.new: each.name for each in pairs}
    runs = [read(folder) for folder in folders]
    sides = [(_as_named(run, olds), _as_named(run, news)) for run in runs]
    cells = [(Cells(old), Cells(new)) for old, new in sides]
    titles = Titles(runs[0].info.workloads)
    figures: dict[FigureChange, None] = {}  # in order, each once: an exact figure is the same in every process
    for old, new in cells:
        figures |= dict.fromkeys(changed_figures(old, new, titles, threshold))
    times = tuple(_times(cells, titles, threshold))
    if not times and not any(each.fails for each in figures):
        raise UserError(f"no version could be timed: {_why_untimed(runs[0])}")
    return RunComparison(
        base=_origins(runs[0].info, olds),
        head=_origins(runs[0].info, news),
        threshold=threshold,
        times=times,
        verification=tuple(changed_checks(*sides[0])),
        figures=tuple(figures),
        errors=tuple(changed_errors(*cells[0], titles)),
        only_in=tuple(only_in(*sides[0])),
        notes=(),
    )


def _as_named(run: Run, names: Mapping[str, str]) -> Run:
    """A run as if only these implementations had been in it, under these names."""
    checks, measurements = (
        frame[frame["implementation"].isin(names)].replace({"implementation": dict(names)})
        for frame in (run.checks, run.measurements)
    )
    described = tuple(
        each.model_copy(update={"name": names[each.name]}) for each in run.info.implementations if each.name in names
    )
    info = run.info.model_copy(update={"implementations": described})
    return replace(run, info=info, checks=checks, measurements=measurements)


def _why_untimed(run: Run) -> str:
    """The first reason that a record gives."""
    rows: Iterator[Any] = run.measurements.itertuples(index=False)
    for row in rows:
        if row.reasons:
            return f"{row.implementation} is {row.status}: {row.reasons[0]}"
    return "nothing was measured"


def _origins(info: RunInfo, names: Mapping[str, str]) -> str:
    return ", ".join(dict.fromkeys(each.origin for each in info.implementations if each.name in names))


def _times(cells: Sequence[tuple[Cells, Cells]], titles: Titles, threshold: float) -> Iterator[TimeChange]:
    for key, name in cells[0][1].rows:
        held = [_held(old, new, (key, name), threshold) for old, new in cells]
        known = [each for each in held if each is not None]
        if not known:
            continue
        # A process without a time has no say, and so none of them has.
        low, high = hull(known) if len(known) == len(held) else (0.0, math.inf)
        yield TimeChange(
            implementation=name,
            workload=titles.of(cells[0][1].rows[key, name].workload),
            key=key,
            change=change_of(low, high, threshold),
            ratio=math.exp(fmean(math.log(each.ratio) for each in known)),
            low=low,
            high=high,
            processes=tuple(each.ratio for each in known),
        )


def hull(processes: Sequence[Comparison]) -> tuple[float, float]:
    """The interval that holds those of all processes: beyond the threshold only if each of them is."""
    return min(each.low for each in processes), max(each.high for each in processes)


def _held(old: Cells, new: Cells, place: tuple[str, str], threshold: float) -> Comparison | None:
    mine, theirs = new.rows.get(place), old.rows.get(place)
    if mine is None or theirs is None:
        return None
    looks, pairs = int(mine.looks or 1), max(1, int(mine.pairs or 1))
    return statistics.compare(mine.samples, theirs.samples, looks=looks, pairs=pairs, resolution=threshold)
