"""Two figures of all workloads at once: what accuracy costs, and how near each call comes to the machine's roofs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.records import Roof
from reports import text
from reports.frames import groups, measured
from reports.plots import Plot, Plots, Style, drawing, legend, log_ticks, logarithmic, marked, saved
from reports.tables import Names

MAX_POINTS = 600
"""Of a panel: the first ones are drawn, so that a page of thousands of measurements stays small."""
MAX_PANELS = 4


def added(plots: Plots, measurements: pd.DataFrame, names: Names, roofs: Sequence[Roof]) -> Plots:
    """The figures of a run, and behind them those of this module that have something to show.

    Args:
        plots: what was drawn of the run.
        measurements: of a judgement.
        names: writes implementations' names.
        roofs: what the machine does at most; may be empty.
    """
    timed = measured(measurements)
    with drawing():
        more = [_accuracy(timed, plots.styles, names, len(plots.drawn) + 1)]
        more.append(_roofline(timed, plots.styles, names, roofs, len(plots.drawn) + 2))
    return replace(plots, drawn=(*plots.drawn, *(plot for plot in more if plot is not None)))


def _accuracy(timed: pd.DataFrame, style: Mapping[str, Style], names: Names, number: int) -> Plot | None:
    known = timed[timed["error_over_baseline"].gt(0) & np.isfinite(timed["error_over_baseline"])]
    panels = [(str(dtype), rows) for (dtype,), rows in groups(known, ["dtype"])][:MAX_PANELS]
    if not panels:
        return None
    title = "Error against latency, a mark for each workload"
    figure = _panels(title, len(panels))
    for axes, (dtype, rows) in zip(figure.axes, panels, strict=True):
        fastest = rows.groupby("key")["median_s"].transform("min")
        points = rows.assign(slower=rows["median_s"] / fastest).head(MAX_POINTS)
        _scatter(axes, points, "slower", "error_over_baseline", style)
        axes.axhline(1.0, color="#777777", linewidth=0.8)
        axes.set_title(f"{dtype}: error / careful baseline's", loc="left")
        axes.set_xlabel("time / the fastest's on the same workload")
    return _plot(figure, f"{number:02d}-accuracy", title, known, style, names)


def _roofline(
    timed: pd.DataFrame, style: Mapping[str, Style], names: Names, roofs: Sequence[Roof], number: int
) -> Plot | None:
    known = timed[timed["unmasked_flops_per_s"].gt(0) & timed["bytes_moved"].gt(0)]
    known = known.assign(intensity=known["flops_unmasked"] / known["bytes_moved"])
    panels: list[tuple[Roof, pd.DataFrame]] = []
    for roof in roofs:
        rows = known[(known["dtype"] == roof.dtype) & (known["threads"] == roof.threads) & (known["device"] == "cpu")]
        if len(rows):
            panels.append((roof, rows.head(MAX_POINTS)))
    panels = panels[:MAX_PANELS]
    if not panels:
        return None
    title = "Roofline, a mark for each workload"
    figure = _panels(title, len(panels))
    for axes, (roof, rows) in zip(figure.axes, panels, strict=True):
        points = rows.assign(gflops=rows["unmasked_flops_per_s"] / 1e9)
        x = np.geomspace(points["intensity"].min() / 2, points["intensity"].max() * 2, 50)
        axes.plot(x, np.minimum(roof.flops_per_s, x * roof.bytes_per_s) / 1e9, color="#555555", linewidth=1.5)
        _scatter(axes, points, "intensity", "gflops", style)
        threads = f"{roof.threads} thread{'' if roof.threads == 1 else 's'}"
        axes.set_title(f"{roof.dtype}, {threads}: GFLOP/s", loc="left")
        axes.set_xlabel("operations for each byte moved")
    return _plot(figure, f"{number:02d}-roofline", title, pd.concat([rows for _, rows in panels]), style, names)


def _panels(title: str, count: int) -> Figure:
    figure = Figure(figsize=(13, 4.4))
    figure.subplots(1, count, squeeze=False)
    figure.subplots_adjust(left=0.055, right=0.985, bottom=0.14, top=0.8, wspace=0.24)
    figure.suptitle(title, x=0.055, y=0.985, ha="left", fontsize=11, fontweight="bold")
    return figure


def _scatter(axes: Axes, points: pd.DataFrame, x: str, y: str, style: Mapping[str, Style]) -> None:
    for (name,), rows in groups(points, ["implementation"]):
        look: dict[str, Any] = {"color": style[name].colour, "marker": style[name].marker, "alpha": 0.7}
        marked(axes.plot(rows[x], rows[y], linestyle="none", markersize=4.5, **look), style[name])
    axes.set_xscale("log")
    log_ticks(axes.xaxis, points[x])
    logarithmic(axes, points[y])


def _plot(figure: Figure, slug: str, title: str, rows: pd.DataFrame, style: Mapping[str, Style], names: Names) -> Plot:
    present = set(rows["implementation"])
    legend(figure, {name: look for name, look in style.items() if name in present}, names)
    said = f"{title}: {text.plural(rows['key'].nunique(), 'workload')} of {text.listed(sorted(present))}."
    return Plot(slug, title, said, *saved(figure))
