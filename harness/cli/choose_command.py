"""`mha choose`: verify, measure one workload, and say which implementation to use for it, and why not the others."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.console import console, output_option, plugin_option, write_json
from harness.cli.options import Percent, Size, seed_option
from harness.cli.run_steps import carry_out, print_faults
from harness.cli.workload_options import preset_from, workload_options

if TYPE_CHECKING:
    from harness.registry import Plugin
    from reports.choice import Candidate, Choice


@click.command("choose")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@plugin_option
@workload_options
@click.option("--memory-limit", type=Size(), help="What a call may allocate at its peak, such as 2GiB.")
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Of timed rounds.")
@click.option("--resolution", type=Percent(), default="2%", show_default=True, help="Differences below this are a tie.")
@seed_option("inputs, weights and the order within rounds")
@click.option("--output", type=click.Path(path_type=Path), help="Run folder; a new one under results/ by default.")
@output_option("--json", "json_file", "Write the choice to this file, - for stdout.", dash=True)
def command(
    names: tuple[str, ...],
    plugins: tuple[Plugin, ...],
    seconds: float,
    resolution: float,
    memory_limit: int | None,
    seed: int,
    output: Path | None,
    json_file: Path | None,
    **workload: Any,  # noqa: ANN401 - the options that describe the workload
) -> int:
    """Which implementation for exactly this workload, and why not the others.

    Verifies what the workload needs, measures it, and prints a ranking and a recommendation. Without NAMEs, all
    registered implementations take part. Exit code 1 if a check fails or nothing can be recommended.
    """
    from harness import bench
    from harness.runs import locked, new_run_folder
    from reports.choice import choose

    request = bench.Request(
        names=names,
        plugins=plugins,
        preset_name="choose",
        preset=preset_from(workload, seconds),
        baseline=names[0] if names and "sdpa" not in names else "sdpa",
        resolution=resolution,
        max_rounds=None,
        seed=seed,
        command=shlex.join(["mha", *sys.argv[1:]]),
    )
    now = datetime.now().astimezone()
    run = bench.begin(request, output or new_run_folder("choose", now), now)
    with locked(run.folder.path):
        carry_out(run, ask=False)
    choice = choose(run.folder.path, memory_limit)
    faulty = print_faults(run)
    if json_file is not None:
        write_json({**asdict(choice), "workload": choice.workload.model_dump(mode="json")}, json_file)
    if str(json_file) != "-":
        _print(choice, plugins)
    return 1 if faulty or not choice.recommended else 0


def _print(choice: Choice, plugins: tuple[Plugin, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    from reports import text

    screen = console()
    table = Table(title=_title(choice), title_justify="left")
    for heading in ("implementation", "verdict"):
        table.add_column(heading, no_wrap=True)
    for heading in ("median", "peak memory", "error / baseline's", "of the roof"):
        table.add_column(heading, justify="right")
    table.add_column("kernels that ran", overflow="fold")
    for each in choice.candidates:
        style = "bold green" if each.verdict == "recommended" else "" if each.place else "dim"
        table.add_row(
            Text(each.name, style),
            Text(_verdict(each), style),
            *map(Text, _figures(each)),
            Text(", ".join(each.kernels)),
        )
    screen.print(table)
    screen.print(Text(choice.sentence, "bold"))
    for caution in choice.cautions:
        screen.print(Text(caution, "yellow"))
    for why in dict.fromkeys(each.why for each in choice.candidates if each.why):
        alike = text.listed(each.name for each in choice.candidates if each.why == why)
        screen.print(Text(f"{alike}: {text.clip(why, 300)}", "dim"))
    if choice.recommended:
        screen.print(Text(f"\n{choice.code([str(plugin) for plugin in plugins])}"), soft_wrap=True)


def _title(choice: Choice) -> str:
    from reports.text import plural
    from reports.titles import purpose

    w = choice.workload
    return (
        f"{w.label}: B {w.batch_size}, S {w.seq_len}, d_model {w.d_model}, {w.num_heads} heads, "
        f"{'no' if w.mask == 'none' else w.mask} mask, {w.dtype}, {purpose(w)}, {plural(w.threads, 'thread')}"
    )


def _verdict(candidate: Candidate) -> str:
    return candidate.against_recommended or candidate.verdict


def _figures(candidate: Candidate) -> tuple[str, ...]:
    from reports import text

    def written(value: float | None, words: Any) -> str:  # noqa: ANN401 - a function of `text`
        return "" if value is None else words(value)

    return (
        written(candidate.median_s, text.latency),
        written(candidate.peak_bytes, text.mebibytes),
        written(candidate.error_over_baseline, text.multiple),
        written(candidate.roof_share, lambda share: f"{share:.0%}"),
    )
