"""A table that HTML and Markdown both know how to draw: cells are text with a value to sort by and a tone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.records import ImplementationInfo, Workload
from reports.titles import Titles

Tone = Literal["", "good", "bad", "warn", "quiet"]

HAZARD_MARK = "⚠ NaN"
"""Stands behind the name of an implementation that gives NaN on a fully masked row."""
HAZARD_MEANING = "gives NaN in a row whose keys are all masked"


@dataclass(frozen=True)
class Cell:
    """One entry."""

    text: str
    sort: float | str | None = None
    """Value to sort by; the text if None."""
    tone: Tone = ""
    code: bool = False
    """Whether it is something to copy into a terminal or compare letter by letter."""
    detail: str = ""
    """A second, quieter line."""
    swatch: str = ""
    """Implementation whose colour stands before the text."""


MAX_ROWS = 1000
"""More rows than this are not made: pages show fewer, and the CSV files have all."""

EMPTY = Cell("", sort=math.inf)
"""No value: sorts behind every number."""


@dataclass(frozen=True)
class Column:
    """A heading and how its cells are set."""

    heading: str
    number: bool = False
    wide: bool = False
    """Whether it holds running text."""


@dataclass(frozen=True)
class Table:
    """A table with a title; `rows` may be cut short by whoever draws it, `full` says where the rest is."""

    slug: str
    """Anchor, unique within a report."""
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Cell, ...]]
    note: str = ""
    """What the figures mean."""
    full: str = ""
    """File that has all rows."""
    omitted: int = 0
    """Rows that were not even made, being more than any page shows."""


class Names:
    """Writes implementation names, and flags the hazardous ones wherever they appear."""

    def __init__(self, implementations: Iterable[ImplementationInfo]) -> None:
        self._hazardous = {i.name for i in implementations if i.fully_masked_row == "nan"}

    @property
    def hazardous(self) -> bool:
        """Whether any implementation is flagged."""
        return bool(self._hazardous)

    def text(self, name: str) -> str:
        """The name, with the mark if it is hazardous."""
        return f"{name} {HAZARD_MARK}" if name in self._hazardous else name

    def cell(self, name: str) -> Cell:
        """The name as the first cell of a row."""
        return Cell(self.text(name), sort=name)


def workload_columns(titles: Titles) -> tuple[Column, ...]:
    """Columns for the axes in which a run's workloads differ."""
    return tuple(Column(axis.heading, number=axis.number) for axis in titles.columns)


def workload_cells(titles: Titles, workload: Workload) -> tuple[Cell, ...]:
    """The cells under `workload_columns`."""
    values = [getattr(workload, axis.field) for axis in titles.columns]
    return tuple(Cell(str(value), sort=value) for value in values)


def reasons_cell(reasons: Iterable[str]) -> Cell:
    """All reasons, one behind the other."""
    return Cell("; ".join(reasons))
