"""What commands that make a run share: its steps with progress, and what went wrong in it."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import click

from harness.cli.console import progress

if TYPE_CHECKING:
    from harness.bench import Bench


def carry_out(run: Bench, *, ask: bool, seconds: float | None = None) -> None:
    """Verify, see semantics if asked to, sense the machine, and measure.

    Args:
        run: begun, and locked by the caller.
        ask: whether to put the cheap probes.
        seconds: in which to end from now on, verification included; None for as long as it takes.
    """
    start = perf_counter()
    click.echo(f"run folder: {run.folder.path}", err=True)
    try:
        with progress("verifying") as advance:
            run.verify(advance)
        if ask:
            with progress("asking") as advance:
                run.ask(advance)
        with progress("sensing the machine"):
            unknown = run.sense_machine()
        if unknown:
            click.echo(f"the machine's noise and roofs were not measured: {unknown}", err=True)
        with progress("measuring") as advance:
            run.measure(advance, None if seconds is None else seconds - (perf_counter() - start))
    except KeyboardInterrupt:
        click.echo(f"interrupted; nothing that was finished is lost: mha bench --resume {run.folder.path}", err=True)
        raise


def print_faults(run: Bench) -> bool:
    """Name every failed check, and every answer other than declared; whether there was any."""
    from harness.records import BAD_CHECK_STATUSES

    failed = [record for record in run.folder.checks() if record.status in BAD_CHECK_STATUSES]
    for record in failed:
        click.echo(f"{record.implementation}: {record.check} {record.status}: {record.reproduce}")
    differing = [record for record in run.folder.semantics() if record.status == "differs"]
    for answer in differing:
        click.echo(f"{answer.implementation}: {answer.probe} differs: {answer.reproduce}")
    return bool(failed or differing)
