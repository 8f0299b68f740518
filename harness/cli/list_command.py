"""`mha list`: the registry as a table or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.console import console, plugin_option, write_json

if TYPE_CHECKING:
    from harness.records import ImplementationInfo


@click.command("list")
@plugin_option
@click.option("--device", default="cpu", show_default=True, help="Device type to say availability for.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each implementation.")
def command(plugins: tuple[Path, ...], device: str, as_json: bool) -> None:
    """What is registered, what it supports, and whether it can run here."""
    from harness.describe import describe_all
    from harness.plugins import load_with_plugins

    described = describe_all(load_with_plugins(plugins).values(), device)
    if as_json:
        write_json([info.model_dump(mode="json") for info in described])
    else:
        _print(described, device)


def _print(described: tuple[ImplementationInfo, ...], device: str) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"Implementations on {device}", title_justify="left", show_lines=True)
    for heading in ("name", "what it is", "dtypes", "backward", "fully masked row", "memory", "timed here"):
        table.add_column(heading, overflow="fold")
    for info in described:
        policy = Text(f"{info.fully_masked_row} (hazard)", "bold red") if info.fully_masked_row == "nan" else None
        table.add_row(
            Text(info.name, "bold"),
            Text(info.summary),
            ", ".join(info.dtypes),
            "yes" if info.gradients else "no",
            policy or info.fully_masked_row,
            info.memory_growth,
            Text(_timed(info)),
        )
    screen = console()
    screen.print(table)
    for info in described:
        for line in info.declared:
            screen.print(Text(f"{info.name}: {line}"), style="dim")


def _timed(info: ImplementationInfo) -> str:
    if info.unavailable:
        return f"unavailable: {info.unavailable}"
    return f"verified only: {info.verify_only}" if info.verify_only else "yes"
