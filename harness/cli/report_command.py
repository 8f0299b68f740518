"""`mha report`: render the report of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from reports import Rendered


@click.command("report")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="Folder for the report; the run's own by default.")
def command(run: Path | None, output: Path | None) -> None:
    """Render the report of a run again; without RUN, of the newest one under results/."""
    from harness.runs import newest_run
    from reports import render

    rendered = render(run or newest_run(), output)
    print_verdict(rendered)


def print_verdict(rendered: Rendered) -> None:
    """Each workload's verdict, and at the end, where a terminal is read, what to use and where the report is."""
    for line in rendered.verdict_lines:
        click.echo(line)
    click.echo()
    for line in rendered.headline_lines:
        click.echo(line)
    click.echo(f"report: {rendered.html}")
