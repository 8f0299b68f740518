"""Figures over the sequence length: latency, peak memory and ratio side by side, one figure for each series.

A series is a set of workloads that differ in S alone. Workloads without a partner get a figure of ratios.
Every implementation has one colour and one marker in all figures.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from harness.records import Workload
from reports import text
from reports.frames import groups
from reports.growth import SERIES
from reports.judgement import Judgement
from reports.tables import Names

MAX_FIGURES = 12
"""Series beyond these are left to the tables: nobody scrolls through fifty plots."""
FIGURES_OF_MANY = 4
"""Drawn where there are more series than `MAX_FIGURES`: such a run is read by its tables, and drawing takes longest."""
MAX_ROWS = 24
"""Workloads in one figure of ratios."""
MAX_TICKS = 9
"""Sequence lengths labelled on an axis."""

# Okabe and Ito's colours, which the common kinds of colour blindness keep apart; their yellow, hardly visible
# on white, is darkened and comes last.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#A89B00")
# As many markers as share no factor with the number of colours: a pair repeats only after 72 implementations.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_LINES = ("-", "--", ":", "-.")

_COLUMNS = (
    *("key", "workload", "seq_len", *SERIES, "implementation", "median_s", "q1_s", "q3_s", "peak_bytes"),
    *("ratio", "low", "high", "verdict", "reference"),
)

_RC: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",  # text stays text: small files, searchable, read aloud
    "svg.hashsalt": "mha-harness",  # equal runs give equal files
    "text.parse_math": False,  # a dollar sign in a name is no formula
}


@dataclass(frozen=True)
class Style:
    """How one implementation is drawn."""

    colour: str
    marker: str
    line: str
    size: float
    """Markers of later ones are smaller, so that equal values leave a rim of the one beneath."""
    mark: str
    """Of everything that is drawn for it, so that a page's filter finds it: ``i0`` for the first."""


@dataclass(frozen=True)
class Plot:
    """A drawn figure."""

    slug: str
    """File name without ending."""
    title: str
    description: str
    """What it shows, for those who cannot see it."""
    svg: str
    png: bytes
    facets: Mapping[str, str] = field(default_factory=dict)
    """What a page can filter it by: dtype, mask and pass; empty for a figure of many workloads."""


@dataclass(frozen=True)
class Plots:
    """All figures of a run."""

    drawn: tuple[Plot, ...]
    left_out: int
    """Figures that were not drawn, being too many."""
    styles: Mapping[str, Style]
    """How each implementation is drawn."""


def styles(implementations: Iterable[str]) -> dict[str, Style]:
    """A colour, marker and line for each name, the same in every figure."""
    return {
        name: Style(
            _COLOURS[i % len(_COLOURS)],
            _MARKERS[i % len(_MARKERS)],
            _LINES[i // len(_COLOURS) % len(_LINES)],
            max(3.5, 8.0 - 0.9 * i),
            f"i{i}",
        )
        for i, name in enumerate(implementations)
    }


def draw(judgement: Judgement, names: Names, implementations: Iterable[str], resolution: float) -> Plots:
    """Draw every figure of a run; of more than `MAX_FIGURES`, the first `FIGURES_OF_MANY`."""
    known = dict.fromkeys([*implementations, *judgement.measurements["implementation"]])
    draft = _Draft(judgement, names, styles(known), resolution)
    planned = [*draft.series(), *draft.singles()]
    shown = planned if len(planned) <= MAX_FIGURES else planned[:FIGURES_OF_MANY]
    with drawing():
        drawn = tuple(_render(number, sketch) for number, sketch in enumerate(shown, 1))
    return Plots(drawn, len(planned) - len(shown), draft.style)


@dataclass(frozen=True)
class _Sketch:
    slug: str
    """Which of the run's series it is; a file name's safe characters only."""
    title: str
    description: str
    rows: pd.DataFrame
    draft: _Draft
    over_lengths: bool
    facets: Mapping[str, str] = field(default_factory=dict)


class _Draft:
    """What is drawn, and with which styles; drawing itself is done by functions below."""

    def __init__(self, judgement: Judgement, names: Names, style: Mapping[str, Style], resolution: float) -> None:
        frame = judgement.measurements
        drawable = frame["median_s"].notna() | frame["peak_bytes"].gt(0)
        self.frame = frame.loc[drawable, list(_COLUMNS)]
        self.titles = judgement.titles
        self.names = names
        self.style = style
        self.resolution = resolution

    def series(self) -> Iterator[_Sketch]:
        """A sketch for each set of workloads that differ in S alone."""
        drawable = self.frame[self.frame["seq_len"] > 0]
        for _, rows in groups(drawable, list(SERIES)):
            lengths = sorted(rows["seq_len"].unique())
            if len(lengths) > 1:
                workload = rows["workload"].iloc[0]
                title = self.titles.of(workload, leaving_out=("seq_len",))
                yield _Sketch(
                    slug=_slug(workload),
                    title=title,
                    description=_describe(title, rows, lengths),
                    rows=rows,
                    draft=self,
                    over_lengths=True,
                    facets={"mask": workload.mask, "dtype": workload.dtype, "pass": workload.mode},
                )

    def singles(self) -> Iterator[_Sketch]:
        """Sketches of ratios for workloads with a single S, so many in each figure."""
        timed = self.frame[self.frame["ratio"].notna()]
        lengths = timed.groupby(list(SERIES))["seq_len"].transform("nunique")
        alone = timed[lengths < 2]
        keys = list(alone["key"].unique())
        for start in range(0, len(keys), MAX_ROWS):
            rows = alone[alone["key"].isin(keys[start : start + MAX_ROWS])]
            title = "Time relative to the reference, workloads with a single sequence length"
            yield _Sketch(f"ratios-{start // MAX_ROWS + 1}", title, title, rows, self, over_lengths=False)


def _slug(workload: Workload) -> str:
    """A series in a file name. Masks and devices are anybody's text: a slash must not lead elsewhere."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", workload.key.replace(f"-s{workload.seq_len}-", "-", 1))


def _describe(title: str, rows: pd.DataFrame, lengths: Sequence[int]) -> str:
    at_end = rows[(rows["seq_len"] == lengths[-1]) & rows["median_s"].notna()].sort_values("median_s")
    medians = ", ".join(
        f"{name} {text.latency(median)}"
        for name, median in zip(at_end["implementation"], at_end["median_s"], strict=True)
    )
    return (
        f"Latency, peak memory and relative time over S {lengths[0]} to {lengths[-1]}: {title}. "
        f"Median latencies at S {lengths[-1]}: {medians or 'none'}."
    )


def _render(number: int, sketch: _Sketch) -> Plot:
    figure = _series_figure(sketch) if sketch.over_lengths else _ratios_figure(sketch)
    slug = f"{number:02d}-{sketch.slug}"
    return Plot(slug, sketch.title, sketch.description, *saved(figure), facets=sketch.facets)


@contextmanager
def drawing() -> Iterator[None]:
    """How all figures look."""
    with mpl.rc_context(_RC), warnings.catch_warnings():
        # A name in a script that the font lacks: the SVG has it as text, the PNG shows boxes.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        yield


def saved(figure: Figure) -> tuple[str, bytes]:
    """A figure as SVG and as PNG."""
    svg, png = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    figure.savefig(png, format="png", dpi=110)
    numbers = itertools.count()
    unique = re.sub(r'(?<= id=")i\d+(?=")', lambda mark: f"{mark[0]}-{next(numbers)}", svg.getvalue())
    return unique, png.getvalue()


def marked(artists: Iterable[Any], style: Style) -> None:
    """Give artists of one implementation an id that says so; `saved` makes it unique."""
    for artist in artists:
        artist.set_gid(style.mark)


def _series_figure(sketch: _Sketch) -> Figure:
    figure = Figure(figsize=(13, 4.4))
    latency, memory, ratio = figure.subplots(1, 3)
    figure.subplots_adjust(left=0.055, right=0.985, bottom=0.12, top=0.8, wspace=0.24)
    figure.suptitle(text.printable(sketch.title), x=0.055, y=0.985, ha="left", fontsize=11, fontweight="bold")
    _latency_panel(latency, sketch)
    _memory_panel(memory, sketch)
    _ratio_panel(ratio, sketch)
    lengths = sorted(sketch.rows["seq_len"].unique())
    for axes in (latency, memory, ratio):
        _length_axis(axes, lengths)
    _legend(figure, sketch)
    return figure


def _latency_panel(axes: Axes, sketch: _Sketch) -> None:
    timed = sketch.rows[sketch.rows["median_s"].notna()]
    for name, rows in _by_implementation(timed):
        median = rows["median_s"] * 1e3
        spread = [median - rows["q1_s"] * 1e3, rows["q3_s"] * 1e3 - median]
        style = sketch.draft.style[name]
        marked(axes.errorbar(rows["seq_len"], median, yerr=spread, **look(style)).get_children(), style)
    logarithmic(axes, timed["median_s"] * 1e3)
    _guides(axes, timed["seq_len"], timed["median_s"] * 1e3)
    axes.set_title("latency in ms (median, quartiles)", loc="left")


def _memory_panel(axes: Axes, sketch: _Sketch) -> None:
    known = sketch.rows[sketch.rows["peak_bytes"] > 0]
    for name, rows in _by_implementation(known):
        style = sketch.draft.style[name]
        marked(axes.plot(rows["seq_len"], rows["peak_bytes"] / text.MEBIBYTE, **look(style)), style)
    logarithmic(axes, known["peak_bytes"] / text.MEBIBYTE)
    _guides(axes, known["seq_len"], known["peak_bytes"] / text.MEBIBYTE)
    axes.set_title("peak memory in MiB", loc="left")


def _ratio_panel(axes: Axes, sketch: _Sketch) -> None:
    held = sketch.rows[sketch.rows["ratio"].notna()]
    band = 1 + sketch.draft.resolution
    axes.axhspan(1 / band, band, color="#999999", alpha=0.35, linewidth=0)
    present = list(dict.fromkeys(held["implementation"]))
    for place, (name, rows) in enumerate(_by_implementation(held)):
        # Beside each other, or intervals of different implementations would hide one another.
        shifted = rows.assign(at=rows["seq_len"] * 1.025 ** (place - (len(present) - 1) / 2))
        _ratio_marks(axes, shifted, "at", "ratio", sketch.draft.style[name])
    logarithmic(axes, held["ratio"])
    references = text.listed(dict.fromkeys(held["reference"]))
    axes.set_title(text.printable(f"time relative to {references}, below 1 is faster"), loc="left")


def _ratios_figure(sketch: _Sketch) -> Figure:
    keys = list(sketch.rows["key"].unique())
    figure = Figure(figsize=(13, 1.5 + 0.32 * len(keys)))
    axes = figure.subplots()
    height = figure.get_figheight()
    figure.subplots_adjust(left=0.34, right=0.985, bottom=0.45 / height, top=1 - 0.75 / height)
    figure.suptitle(sketch.title, x=0.02, y=1 - 0.08 / height, ha="left", fontsize=11, fontweight="bold")
    band = 1 + sketch.draft.resolution
    axes.axvspan(1 / band, band, color="#999999", alpha=0.35, linewidth=0)
    for place, (name, rows) in enumerate(_by_implementation(sketch.rows)):
        shift = 0.09 * (place - (sketch.rows["implementation"].nunique() - 1) / 2)
        shifted = rows.assign(at=[keys.index(key) + shift for key in rows["key"]])
        _ratio_marks(axes, shifted, "ratio", "at", sketch.draft.style[name])
    workloads = sketch.rows.drop_duplicates("key")["workload"]
    labels = [text.printable(sketch.draft.titles.of(workload)) for workload in workloads]
    axes.set_yticks(range(len(keys)), labels)
    axes.set_ylim(len(keys) - 0.5, -0.5)
    axes.set_xscale("log")
    log_ticks(axes.xaxis, sketch.rows["ratio"])
    _legend(figure, sketch)
    return figure


def _ratio_marks(axes: Axes, rows: pd.DataFrame, x: str, y: str, style: Style) -> None:
    """Ratios with their intervals; hollow where unresolved, without a bar where there is no interval."""
    if y == "ratio":  # rows of workloads have no order that a line could follow
        marked(axes.plot(rows[x], rows[y], color=style.colour, linestyle=style.line, linewidth=0.7, alpha=0.5), style)
    finite = rows["low"].gt(0) & np.isfinite(rows["high"])
    spread = [(rows["ratio"] - rows["low"]).where(finite, 0), (rows["high"] - rows["ratio"]).where(finite, 0)]
    bars: dict[str, Any] = {"xerr" if x == "ratio" else "yerr": spread}
    drawn = axes.errorbar(rows[x], rows[y], **bars, fmt="none", ecolor=style.colour, elinewidth=1.2, capsize=2)
    marked(drawn.get_children(), style)
    for resolved, face in ((True, style.colour), (False, "white")):
        some = rows[rows["verdict"].ne("unresolved") == resolved]
        points = axes.plot(
            some[x],
            some[y],
            linestyle="none",
            marker=style.marker,
            markersize=max(4.5, style.size - 1),
            markerfacecolor=face,
            markeredgecolor=style.colour,
        )
        marked(points, style)


def _by_implementation(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for (name,), group in groups(rows, ["implementation"]):
        yield name, group.sort_values("seq_len")


def look(style: Style) -> dict[str, Any]:
    """A line with markers, as matplotlib's arguments."""
    return {
        "color": style.colour,
        "marker": style.marker,
        "linestyle": style.line,
        "markersize": style.size,
        "linewidth": style.size / 3,
    }


def _length_axis(axes: Axes, lengths: Sequence[int]) -> None:
    axes.set_xscale("log")
    step = math.ceil(len(lengths) / MAX_TICKS)
    shown = lengths[::-step][::-1]  # the longest is always labelled
    axes.set_xticks(shown, [str(length) for length in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("S")


def logarithmic(axes: Axes, values: pd.Series[float]) -> None:
    """A logarithmic upright axis, labelled for these values."""
    axes.set_yscale("log")
    if len(values):
        log_ticks(axes.yaxis, values)


def log_ticks(axis: Any, values: pd.Series[float]) -> None:  # noqa: ANN401 - either kind of axis
    """Few ticks, as plain numbers: 1, 2, 5, 10 over a wide range, evenly spaced ones over a narrow range."""
    wide = values.max() / values.min() > 8
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12) if wide else MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:,.6g}"))


def _guides(axes: Axes, lengths: pd.Series[int], values: pd.Series[float]) -> None:
    """Lines of slope 1 and 2 from the lowest point at the smallest S, clipped to the range of the data."""
    if lengths.nunique() < 2:
        return
    limits = axes.get_ylim()
    start = lengths.min()
    base = values[lengths == start].min()
    for power, label in ((1, "O(S)"), (2, "O(S²)")):
        end = min(lengths.max(), start * (limits[1] / base) ** (1 / power))
        axes.plot([start, end], [base, base * (end / start) ** power], color="#777777", linestyle=(0, (1, 2)))
        axes.annotate(
            label,
            (end, base * (end / start) ** power),
            xytext=(6, 0),
            textcoords="offset points",
            ha="left",
            va="center",
            color="#555555",
            fontsize=8,
            annotation_clip=False,
        )
    axes.set_ylim(limits)


def _legend(figure: Figure, sketch: _Sketch) -> None:
    present = set(sketch.rows["implementation"])
    legend(figure, {name: style for name, style in sketch.draft.style.items() if name in present}, sketch.draft.names)


def legend(figure: Figure, shown: Mapping[str, Style], names: Names) -> None:
    """Who is who, beneath the title."""
    handles = [Line2D([], [], **look(style)) for style in shown.values()]
    labels = [text.clip(text.printable(names.text(name)), 40) for name in shown]
    figure.legend(
        handles,
        [str(number) for number in range(len(labels))],
        loc="upper left",
        bbox_to_anchor=(0.045, 1 - 0.28 / figure.get_figheight()),
        ncols=min(len(labels), 7) or 1,
        frameon=False,
        handlelength=2.2,
        columnspacing=1.4,
    )
    # Set afterwards: a legend leaves out labels that begin with an underscore.
    for entry, label in zip(figure.legends[0].get_texts(), labels, strict=True):
        entry.set_text(label)
