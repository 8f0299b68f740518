"""Writes all files of a report."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import UserError
from reports import Rendered, exports, html, markdown, overview_plots, plots
from reports.advice import verdict_lines
from reports.content import compose
from reports.frames import Run, read
from reports.judgement import Judgement, judge

HTML_FILE = "report.html"
MARKDOWN_FILE = "report.md"
PLOTS_FOLDER = "plots"


def render_all(folder: Path, out: Path) -> Rendered:
    """See `reports.render`."""
    with _collector_paused():
        return _render(folder, out)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Nearly everything that is made for a report lives until it is written: looking for cycles takes a tenth of it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _render(folder: Path, out: Path) -> Rendered:
    run = read(folder)
    judgement = judge(run)
    content = compose(run, judgement)
    drawn = plots.draw(judgement, content.names, [i.name for i in run.info.implementations], run.info.resolution)
    drawn = overview_plots.added(drawn, judgement.measurements, content.names, run.info.roofs)
    try:
        out.mkdir(parents=True, exist_ok=True)
        pages = _write_pages(out, {HTML_FILE: html.render(content, drawn), MARKDOWN_FILE: markdown.render(content)})
        files = [*pages, *_write_exports(run, judgement, out), *_write_plots(drawn, out / PLOTS_FOLDER)]
    except OSError as error:
        raise UserError(f"{out}: the report cannot be written there ({error}); name another folder") from None
    return Rendered(
        html=out / HTML_FILE,
        files=tuple(files),
        verdicts=judgement.verdicts,
        verdict_lines=verdict_lines(run, judgement),
        headline_lines=content.advice.lines(),
    )


def _write_pages(out: Path, pages: dict[str, str]) -> list[Path]:
    for name, content in pages.items():
        (out / name).write_text(content, encoding="utf-8")
    return [out / name for name in pages]


def _write_exports(run: Run, judgement: Judgement, out: Path) -> list[Path]:
    results, checks, junit = out / "results.csv", out / "checks.csv", out / "junit.xml"
    benchmark, action = out / "pytest-benchmark.json", out / "benchmark-action.json"
    exports.results_csv(judgement, results)
    exports.checks_csv(run.checks, checks)
    exports.junit_xml(run.checks, run.info.created, junit)
    exports.pytest_benchmark_json(run, judgement, benchmark)
    exports.benchmark_action_json(judgement, action)
    return [results, checks, junit, benchmark, action]


def _write_plots(drawn: plots.Plots, folder: Path) -> list[Path]:
    if not drawn.drawn:
        return []
    folder.mkdir(exist_ok=True)
    files = []
    for plot in drawn.drawn:
        svg, png = folder / f"{plot.slug}.svg", folder / f"{plot.slug}.png"
        svg.write_text(plot.svg, encoding="utf-8")
        png.write_bytes(plot.png)
        files += [svg, png]
    return files
