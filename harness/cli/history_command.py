"""`mha history`: trends over many runs, with the steps marked."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.console import console, output_option, write_json, written
from harness.cli.options import Percent

if TYPE_CHECKING:
    from reports.history import History, Point, Series


@click.command("history")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("results"))
@click.option(
    "--threshold", type=Percent(), default="5%", show_default=True, help="A ratio that changes by more is a step."
)
@click.option("--all", "show_all", is_flag=True, help="Show the series without a step, too.")
@output_option("--plot", "plot_file", "Draw the series into this file, .svg, .png or .pdf.")
@output_option("--json", "json_file", "Write every series to this file, - for stdout.", dash=True)
def command(folder: Path, threshold: float, show_all: bool, plot_file: Path | None, json_file: Path | None) -> None:
    """How times developed over all runs in FOLDER, results by default, and where they made a step.

    A time is held as its ratio to the baseline in the same run. A step has to last for two runs; one of the newest run
    is unconfirmed. Series break where the machine, torch or the baseline changes.
    """
    from reports.history import history

    found = history(folder, threshold)
    if plot_file is not None:
        from reports.history_plot import FORMATS, draw

        if plot_file.suffix not in FORMATS:
            raise click.BadParameter(f"--plot {plot_file}: expected a name that ends in {' or '.join(FORMATS)}")
        with written(plot_file):
            draw(found, plot_file)
    if json_file is not None:
        write_json(asdict(found), json_file)
    if str(json_file) != "-":
        _print(found, show_all=show_all)


def _print(found: History, *, show_all: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    screen.print(Text(found.sentence(), "bold"))
    shown = [series for series in found.series if series.steps or show_all]
    if not shown:
        if found.series:
            screen.print(Text("--all shows the series.", "dim"))
        return
    table = Table()
    for heading in ("implementation", "workload"):
        table.add_column(heading, overflow="fold")
    for heading in ("runs", "first", "newest"):
        table.add_column(heading, justify="right")
    table.add_column("steps", overflow="fold")
    for series in shown:
        first, newest = series.points[0], series.points[-1]
        table.add_row(
            Text(series.implementation),
            Text(_where(series, found)),
            str(len(series.points)),
            f"{first.ratio:.3f}x",
            f"{newest.ratio:.3f}x",
            Text("\n".join(_step(point) for point in series.steps)),
        )
    screen.print(table)


def _where(series: Series, found: History) -> str:
    """The workload; and the surroundings, where there are several."""
    several = len({each.surroundings for each in found.series}) > 1
    baseline = f", against {series.baseline}"
    return f"{series.workload}{baseline}" + (f" ({series.surroundings})" if several else "")


def _step(point: Point) -> str:
    commit = f" at {point.commit[:12]}" if point.commit else ""
    doubt = "" if point.is_confirmed else ", unconfirmed"
    return f"{point.step} in {point.run}{commit}: {point.ratio:.3f}x [{point.low:.3f}, {point.high:.3f}]{doubt}"
