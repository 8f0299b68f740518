"""Where the winner changes: between which lengths, or batch sizes, one implementation overtakes another.

Workloads that differ in one axis alone form a series. Along it, two implementations cross where one is shown to be
faster at some value, the other at a larger one, and neither in between. The crossing lies between those two values:
what was tied or unresolved there belongs to the uncertainty, and so does everything that was not measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import statistics
from harness.statistics import Comparison
from reports.frames import WORKLOAD_FIELDS, measured
from reports.judgement import Judgement, corrections
from reports.tables import Cell, Column, Names, Table
from reports.titles import AXES, Titles

ALONG = ("seq_len", "batch_size")
"""Axes along which winners change."""


@dataclass(frozen=True)
class Crossover:
    """One implementation overtaking another."""

    series: str
    """What the workloads share, in words."""
    axis: str
    """Field of `Workload` along which they differ."""
    before: str
    """Faster at smaller values."""
    after: str
    """Faster at larger ones."""
    last: int
    """Largest value at which `before` was shown to be faster, below the crossing."""
    first: int
    """Smallest value at which `after` was."""
    undecided: tuple[int, ...]
    """Measured values in between, where neither was."""
    estimate: float
    """Where a straight line through the two log-ratios, over the logarithm of the axis, says that both are equal."""


def crossovers(judgement: Judgement, resolution: float) -> list[Crossover]:
    """All crossings between implementations of which each is the fastest somewhere in its series."""
    rows: list[Any] = list(measured(judgement.measurements).itertuples(index=False))
    return [found for axis in ALONG for found in _along(axis, rows, judgement.titles, resolution)]


_Cell = dict[str, Any]
"""Rows of a workload by implementation."""


def _along(axis: str, rows: Sequence[Any], titles: Titles, resolution: float) -> Iterator[Crossover]:
    others = [field for field in WORKLOAD_FIELDS if field not in (axis, "label", "padded_share")]
    series: dict[tuple[object, ...], dict[int, _Cell]] = {}
    for row in rows:
        cells = series.setdefault(tuple(getattr(row, field) for field in others), {})
        cells.setdefault(getattr(row, axis), {})[row.implementation] = row
    for cells in series.values():
        fastest = [min(cell.values(), key=lambda row: row.median_s) for cell in cells.values()]
        title = titles.of(fastest[0].workload, leaving_out=(axis,))
        for one, other in itertools.combinations(sorted({row.implementation for row in fastest}), 2):
            yield from _crossings(title, axis, one, other, _ratios(cells, one, other, resolution))


def _ratios(cells: Mapping[int, _Cell], one: str, other: str, resolution: float) -> dict[int, Comparison]:
    """One against the other at each value at which both have a time, smallest first."""
    found = {}
    for value in sorted(cells):
        cell = cells[value]
        if one in cell and other in cell:
            how: dict[str, Any] = {**corrections(list(cell.values())), "resolution": resolution}
            found[value] = statistics.compare(cell[one].samples, cell[other].samples, **how)
    return found


def _crossings(title: str, axis: str, one: str, other: str, held: Mapping[int, Comparison]) -> Iterator[Crossover]:
    decided = [value for value, comparison in held.items() if comparison.verdict in ("faster", "slower")]
    for low, high in itertools.pairwise(decided):
        if held[low].verdict != held[high].verdict:
            before, after = (one, other) if held[low].verdict == "faster" else (other, one)
            yield Crossover(
                series=title,
                axis=axis,
                before=before,
                after=after,
                last=low,
                first=high,
                undecided=tuple(value for value in held if low < value < high),
                estimate=_estimate(low, high, held[low].ratio, held[high].ratio),
            )


def _estimate(low: int, high: int, ratio_low: float, ratio_high: float) -> float:
    start, end = math.log(ratio_low), math.log(ratio_high)
    share = start / (start - end)
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))


def table(found: Sequence[Crossover], names: Names) -> Table:
    """Where the winner changes, a crossing in each row."""
    headings = {axis.field: axis.heading for axis in AXES}
    return Table(
        slug="crossovers",
        title="Where the winner changes",
        columns=(
            Column("workloads", wide=True),
            Column("up to", number=True),
            Column("use"),
            Column("from", number=True),
            Column("use"),
            Column("about equal at", number=True),
            Column("in between"),
        ),
        rows=[
            (
                Cell(each.series),
                Cell(f"{headings[each.axis]} {each.last}", sort=each.last),
                names.cell(each.before),
                Cell(f"{headings[each.axis]} {each.first}", sort=each.first),
                names.cell(each.after),
                Cell(f"{headings[each.axis]} {each.estimate:.0f}", sort=each.estimate),
                Cell(_in_between(each)),
            )
            for each in found
        ],
        note="Up to and from are where one was shown to be faster than the other; the crossing lies between the two. "
        "The estimate is a straight line between their log-ratios there.",
    )


def _in_between(crossover: Crossover) -> str:
    if not crossover.undecided:
        return "not measured"
    return "tied or unresolved at " + ", ".join(map(str, crossover.undecided))
