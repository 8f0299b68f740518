"""`mha explain`: the document's table of shapes, from a forward pass that really runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from harness.cli.console import console, write_json

if TYPE_CHECKING:
    from harness.explain import Language


@click.command("explain")
@click.option("--batch-size", type=int, default=2, show_default=True)
@click.option("--seq-len", type=int, default=10, show_default=True)
@click.option("--d-model", type=int, default=512, show_default=True)
@click.option("--num-heads", type=int, default=8, show_default=True)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of the table.")
@click.option("--json", "as_json", is_flag=True, help="The rows as JSON.")
def command(batch_size: int, seq_len: int, d_model: int, num_heads: int, lang: str, as_json: bool) -> None:
    """The shape of every step of multi-head attention, from a forward pass that really runs."""
    from harness.explain import explain, explain_rows_json, render

    steps = explain(batch_size, seq_len, d_model, num_heads)
    if as_json:
        write_json(explain_rows_json(steps))
    else:
        console().print(render(steps, cast("Language", lang)))
