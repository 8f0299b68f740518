"""`mha list`: the registry as a table or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harness.cli.console import console, plugin_option, write_json

if TYPE_CHECKING:
    from harness.records import ImplementationInfo
    from harness.registry import Plugin


@click.command("list")
@plugin_option
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    type=click.Choice(["cpu", "cuda"]),
    help="Device type to say availability for.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each implementation.")
def command(plugins: tuple[Plugin, ...], device: str, as_json: bool) -> None:
    """What is registered, what it supports, and whether it can run here."""
    from harness.describe import describe_all
    from harness.plugins import load_with_plugins

    described = describe_all(load_with_plugins(plugins).values(), device)
    if as_json:
        write_json([info.model_dump(mode="json") for info in described])
    else:
        _print(described, device)


def _print(described: tuple[ImplementationInfo, ...], device: str) -> None:
    from rich import box
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"Implementations on {device}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True, style="bold")
    for heading in ("dtypes", "backward", "fully masked row", "memory", "timed here"):
        table.add_column(heading)
    for info in described:
        hazard = info.fully_masked_row == "nan"
        table.add_row(
            Text(info.name),
            _dtypes(info),
            "yes" if info.gradients else "no",
            Text("nan (hazard)", "bold red") if hazard else info.fully_masked_row,
            info.memory_growth,
            _timed(info),
        )
    screen = console()
    screen.print(table)
    for info in described:
        screen.print(Text.assemble((info.name, "bold"), f": {info.summary}"))
        for line in _notes(info):
            screen.print(Padding(Text(line, "dim"), (0, 0, 0, 2)))


def _dtypes(info: ImplementationInfo) -> str:
    from implementations.spec import ALL_DTYPES

    return "all" if set(info.dtypes) == set(ALL_DTYPES) else ", ".join(info.dtypes)


def _timed(info: ImplementationInfo) -> str:
    if info.unavailable:
        return "unavailable"
    return "verified only" if info.verify_only else "yes"


def _notes(info: ImplementationInfo) -> tuple[str, ...]:
    """What the table has no room for: why it is not timed, and everything that is declared."""
    reasons = [f"unavailable: {info.unavailable}"] if info.unavailable else []
    reasons += [f"verified only: {info.verify_only}"] if info.verify_only else []
    return (*reasons, *info.declared)
