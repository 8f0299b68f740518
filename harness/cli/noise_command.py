"""`mha noise`: how fine a difference this machine can see right now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.console import output_option, progress, write_json
from harness.cli.options import Percent, seed_option
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.records import Noise


@click.command("noise")
@click.option("--trials", type=click.IntRange(1), default=10, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=3.0, show_default=True, help="Of timed rounds in each trial."
)
@click.option("--threads", type=click.IntRange(1), help="Of torch; as many as there are cores by default.")
@click.option("--resolution", type=Percent(), default="2%", show_default=True, help="Differences below this are a tie.")
@seed_option("inputs and of the order within rounds")
@output_option("--json", "json_file", "Write the trials to this file, - for stdout.", dash=True)
def command(
    trials: int, seconds: float, threads: int | None, resolution: float, seed: int, json_file: Path | None
) -> None:
    """How fine a difference this machine can see right now.

    One implementation is timed against itself, as different ones would be: what is called different is called so
    falsely, and the intervals' width is what a true difference has to exceed.
    """
    from harness.children import Children, Died, Task
    from harness.measurement.noise import NoiseTask, all_threads, measure_noise

    task = NoiseTask(trials, seconds, threads or all_threads(), resolution, seed)
    with progress(f"timing one implementation against itself, {trials} times") as advance, Children(1) as children:
        noise = children.run(Task(measure_noise, (task,), 60.0 + 10.0 * trials * seconds))
        advance(trials, trials, "", None)
    if isinstance(noise, Died):
        raise UserError(f"the trials' process gave no result: {noise.reason}")
    if json_file is not None:
        write_json({**noise.model_dump(mode="json"), "resolves": noise.resolves, "worst": noise.worst}, json_file)
    if json_file is None or str(json_file) != "-":
        _print(noise)


def _print(noise: Noise) -> None:
    """Verdicts on what is equal, and what that says of differences."""
    from reports.text import noise_sentence, plural

    total = len(noise.trials)
    click.echo(
        f"{plural(total, 'trial')} of {noise.seconds:g} s, {plural(noise.threads, 'thread')}, nothing different:"
    )
    for words, verdicts in (
        ("called different", ("faster", "slower")),
        ("tied", ("tied",)),
        ("unresolved", ("unresolved",)),
    ):
        number = noise.count(*verdicts)
        click.echo(f"  {words:16} {number:4}  {number / total:4.0%}")
    click.echo(noise_sentence(noise))
