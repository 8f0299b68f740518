"""The series of a history as small figures, one for each workload, with the steps marked."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reports import text
from reports.history import History, Series
from reports.plots import Style, drawing, styles

FORMATS = (".svg", ".png", ".pdf")
MAX_PANELS = 24
"""Workloads beyond these are in the JSON file."""
_COLUMNS = 2


def draw(found: History, file: Path) -> None:
    """Write the figure: ratio to the baseline over the runs, a panel for each workload.

    Args:
        found: what is drawn; series with the largest change come first.
        file: its ending says the format.

    Raises:
        OSError: the file cannot be written.
    """
    panels: dict[tuple[str, str], list[Series]] = {}
    for series in found.series:
        panels.setdefault((series.workload, series.baseline), []).append(series)
    shown = dict(list(panels.items())[:MAX_PANELS])
    style = styles(sorted({series.implementation for group in shown.values() for series in group}))
    places = {name: place for place, name in enumerate(found.runs)}
    rows = max(1, math.ceil(len(shown) / _COLUMNS))
    with drawing():
        figure = Figure(figsize=(11, 0.8 + 2.6 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        for number, ((workload, baseline), group) in enumerate(shown.items(), start=1):
            axes = figure.add_subplot(rows, _COLUMNS, number)
            for series in group:
                _line(axes, series, style[series.implementation], places)
            axes.set_title(text.printable(workload), loc="left")
            axes.set_ylabel(f"time / {text.printable(baseline)}'s")
            axes.set_xticks(range(len(found.runs)), [str(place + 1) for place in range(len(found.runs))])
            axes.set_xlabel("run, oldest first")
        if style:
            handles, labels = _legend(figure)
            figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False)
        figure.savefig(file)


def _line(axes: Axes, series: Series, style: Style, places: dict[str, int]) -> None:
    at = [places[point.run] for point in series.points]
    ratios = [point.ratio for point in series.points]
    low = [point.ratio - max(point.low, 0.0) for point in series.points]
    high = [min(point.high, 10 * point.ratio) - point.ratio for point in series.points]
    axes.errorbar(
        at,
        ratios,
        yerr=(low, high),
        label=text.printable(series.implementation),
        color=style.colour,
        marker=style.marker,
        markersize=4,
        linewidth=1.2,
        capsize=2,
    )
    for point in series.steps:
        axes.axvline(places[point.run] - 0.5, color=style.colour, linestyle=(0, (1, 2)))
        axes.annotate(
            f"{point.step}{'' if point.is_confirmed else '?'}",
            (places[point.run], point.ratio),
            xytext=(4, 6),
            textcoords="offset points",
            fontsize=8,
        )


def _legend(figure: Figure) -> tuple[list[Artist], list[str]]:
    """Each implementation once, whatever panel it is in."""
    found: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)
