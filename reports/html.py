"""The report as one HTML page that loads nothing: jinja2 with autoescape, figures inline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from markupsafe import escape as escape_html

from reports import svg, text
from reports.content import Content
from reports.plots import Plot, Plots
from reports.tables import HAZARD_MARK, HAZARD_MEANING, Cell

MAX_ROWS = 500
"""Rows of one table; the CSV files have all of them."""
MAX_CASES = 25
"""Failing cases shown of one check of one implementation."""
MAX_FAILURES = 60
"""Kinds of failure shown, a kind being one check of one implementation."""
FACETS = ("implementation", "dtype", "mask", "pass")
"""Headings of columns that the page's filter knows."""
MAX_TEXT = 1500
"""Characters of a cell."""


def render(content: Content, plots: Plots) -> str:
    """The whole page."""
    environment = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    marks = {name: style.mark for name, style in plots.styles.items()}
    environment.globals.update(
        facets=FACETS, marks=marks, colours={style.mark: style.colour for style in plots.styles.values()}
    )
    environment.filters.update(flagged=_flagged, sort_value=_sort_value, plural=text.plural)
    return environment.get_template("report.html.j2").render(
        content=content,
        figures=[_Figure(_inline(plot), plot.facets) for plot in plots.drawn],
        figures_left_out=plots.left_out,
        max_rows=MAX_ROWS,
        max_cases=MAX_CASES,
        max_failures=MAX_FAILURES,
    )


@dataclass(frozen=True)
class _Figure:
    svg: Markup
    facets: Mapping[str, str]


def _inline(plot: Plot) -> Markup:
    element = svg.inline(plot.svg, plot.slug, plot.title, plot.description)
    return Markup(element)  # noqa: S704 - escaped by the XML serialiser that wrote it


def _flagged(value: str) -> Markup:
    """Escaped text in which the hazard mark explains itself."""
    if HAZARD_MARK not in value:
        return escape_html(text.clip(value, MAX_TEXT))
    mark = Markup('<abbr class="hazard" title="{}">{}</abbr>').format(HAZARD_MEANING, HAZARD_MARK)
    return escape_html(text.clip(value, MAX_TEXT)).replace(escape_html(HAZARD_MARK), mark)


def _sort_value(cell: Cell) -> str | None:
    """Value of the ``data-sort`` attribute; None where the text itself will do."""
    if cell.sort is None or str(cell.sort) == cell.text:
        return None
    if isinstance(cell.sort, float) and not math.isfinite(cell.sort):
        return "Infinity"
    return f"{cell.sort:.6g}" if isinstance(cell.sort, float) else str(cell.sort)
