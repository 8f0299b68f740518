"""`mha bench`: verify, measure, render, and say which implementation to use here."""

from __future__ import annotations

import shlex
import sys
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click

from harness.cli.console import plugin_option
from harness.cli.options import Percent, seed_option
from harness.cli.report_command import print_verdict
from harness.cli.run_steps import carry_out, print_faults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.bench import Bench
    from harness.registry import Plugin

NEWEST = "newest"
LEAST_SHARE = 0.005
"""Phases of a run that took a smaller share are not told."""


@click.command("bench")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@plugin_option
@click.option("--preset", "preset_name", default="default", show_default=True, metavar="NAME|FILE.toml")
@click.option("--baseline", default="sdpa", show_default=True, help="Implementation that ratios are shown against.")
@click.option("--resolution", type=Percent(), default="2%", show_default=True, help="Differences below this are a tie.")
@click.option("--max-rounds", type=click.IntRange(9, 1280), help="Most rounds of a cell; the preset's by default.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MINUTES",
    help="End in time: workloads that would not fit are left out, and named.",
)
@seed_option("inputs, weights and the order within rounds")
@click.option("--output", type=click.Path(path_type=Path), help="Run folder; a new one under results/ by default.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value=NEWEST,
    metavar="[RUN]",
    help="Go on with an interrupted run: that folder, or the newest one under results/.",
)
def command(
    names: tuple[str, ...],
    plugins: tuple[Plugin, ...],
    preset_name: str,
    baseline: str,
    resolution: float,
    max_rounds: int | None,
    budget: float | None,
    seed: int,
    output: Path | None,
    resume: str | None,
) -> int:
    """Verify, time and measure memory, and write the report: which one to use here?

    Without NAMEs, all registered implementations take part. Exit code 1 if a check fails, or if an answer
    differs from what is declared.
    """
    from harness import bench
    from harness.measurement.presets import load_preset
    from harness.records import RunFolder
    from harness.runs import locked, new_run_folder, newest_run

    start = perf_counter()
    now = datetime.now().astimezone()
    if resume is not None:
        folder = newest_run() if resume == NEWEST else Path(resume)
        RunFolder(folder).info()  # what is no run folder gets no lock file either
        with locked(folder):
            return _carry_out(bench.resume(folder), start, budget)
    request = bench.Request(
        names=names,
        plugins=plugins,
        preset_name=preset_name,
        preset=load_preset(preset_name),
        baseline=baseline,
        resolution=resolution,
        max_rounds=max_rounds,
        seed=seed,
        command=shlex.join(["mha", *sys.argv[1:]]),
    )
    run = bench.begin(request, output or new_run_folder(preset_name, now), now)
    with locked(run.folder.path):
        return _carry_out(run, start, budget)


def _carry_out(run: Bench, start: float, budget: float | None) -> int:
    from reports import render

    left_s = None if budget is None else 60.0 * budget - (perf_counter() - start)
    carry_out(run, ask=True, seconds=left_s)
    rendered = render(run.folder.path)
    faulty = print_faults(run)
    _tell_left_out(run)
    click.echo(f"took {_duration(perf_counter() - start)}{_shares(run.folder.info().phases_s)}")
    print_verdict(rendered)
    return 1 if faulty else 0


def _tell_left_out(run: Bench) -> None:
    """What the time did not allow."""
    titles = {workload.key: f"{workload.label} {workload.key}" for workload in run.info.workloads}
    left_out = run.folder.info().left_out
    for key, why in left_out.items():
        click.echo(f"left out to end in time: {titles[key]}: {why}")
    if left_out:
        click.echo(f"measure what was left out: mha bench --resume {run.folder.path}")


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} seconds"


def _shares(phases_s: Mapping[str, float]) -> str:
    """Where the run's time went, largest first: a sweep's time should be spent measuring."""
    total = sum(phases_s.values())
    largest = sorted(phases_s.items(), key=lambda phase: -phase[1])
    parts = [f"{name} {seconds / total:.0%}" for name, seconds in largest if seconds / total >= LEAST_SHARE]
    return f": {', '.join(parts)}" if parts else ""
