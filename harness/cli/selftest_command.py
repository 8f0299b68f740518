"""`mha selftest`: does the verifier catch wrong implementations on this machine, and leave right ones alone?"""

from __future__ import annotations

import string
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.console import console, progress, write_json
from harness.cli.options import seed_option

if TYPE_CHECKING:
    from rich.text import Text

    from harness.verification.selftest import Mutant, Verdict

_LETTERS = string.ascii_lowercase + string.ascii_uppercase


@click.command("selftest")
@seed_option("weights, inputs and masks")
@click.option("--mutant", "mutants", multiple=True, help="Only this wrong implementation; may be repeated.")
@click.option(
    "--right",
    "right",
    multiple=True,
    metavar="NAME",
    help="Look for false alarms on this implementation only; may be repeated.",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the result to this file, - for stdout."
)
@click.option(
    "--faults",
    is_flag=True,
    help="Only print, as Markdown, faults of public attention code and the wrong implementations that stand for them.",
)
def command(seed: int, mutants: tuple[str, ...], right: tuple[str, ...], json_file: Path | None, faults: bool) -> int:
    """Run the shared checks on wrong implementations: does the verifier catch them?

    Also runs them on all registered implementations, where a failure is a false alarm. Exit code 1 if a wrong
    implementation survives or a right one is accused.
    """
    from harness.registry import load_registry, select
    from harness.verification.selftest import faults_page, load_zoo, self_test

    zoo = load_zoo()
    if faults:
        click.echo(faults_page(zoo), nl=False)
        return 0
    chosen = select(load_registry(), right)
    start = time.monotonic()
    with progress("testing the verifier") as advance:
        verdict = self_test(
            zoo.only(mutants) if mutants else zoo,
            chosen,
            seed,
            on_progress=lambda done, total, now: advance(done, total, now, None),
        )
    if json_file is not None:
        write_json(verdict.as_json(), json_file)
    if json_file is None or str(json_file) != "-":
        print_verdict(verdict)
        click.echo(f"seed {seed}, {time.monotonic() - start:.0f} s")
    return 0 if verdict.is_good else 1


def print_verdict(verdict: Verdict) -> None:
    """The kill matrix, what each check is good for, and everything that needs a reader."""
    from rich.text import Text

    screen = console()
    letters = _letters()
    screen.print(Text("Kill matrix (X: the check meant to name it, x: another check that fails on it)\n", "bold"))
    for line in _matrix(verdict, letters):
        screen.print(line, no_wrap=True)
    screen.print()
    for line in _checks(verdict, letters):
        screen.print(line)
    _print_equivalent(verdict)
    _print_margins(verdict)
    _print_troubles(verdict)
    caught = len(verdict.wrong) - len(verdict.survivors)
    score = f"{caught} of {len(verdict.wrong)} wrong implementations caught, {len(verdict.false_alarms)} false alarms"
    screen.print(Text(f"\n{score}", "bold green" if verdict.is_good else "bold red"))


def _letters() -> dict[str, str]:
    """A letter for each check, in the suite's order."""
    from harness.verification.suite import CHECK_NAMES

    return dict(zip(CHECK_NAMES, _LETTERS, strict=False))


def _matrix(verdict: Verdict, letters: dict[str, str]) -> list[Text]:
    """A line for each wrong implementation, with a column for each check."""
    from rich.text import Text

    width = max((len(mutant.name) for mutant in verdict.wrong), default=0)
    lines = [Text(f"{'':{width}}  {''.join(letters.values())}", "dim")]
    for group, mutants in groupby(verdict.wrong, key=lambda mutant: mutant.group):
        lines.append(Text(group.replace("_", " "), "bold"))
        lines += [Text(f"{mutant.name:{width}}  {_marks(verdict, mutant, letters)}") for mutant in mutants]
    return lines


def _marks(verdict: Verdict, mutant: Mutant, letters: dict[str, str]) -> str:
    outcome = verdict.outcomes[mutant.name]
    if not outcome.caught_by:
        return f"SURVIVES{f': {outcome.died}' if outcome.died else ''}"
    marks = "".join(
        "·" if check not in outcome.caught_by else "X" if check == mutant.expected_check else "x" for check in letters
    )
    dtypes = "" if outcome.dtypes == ("float32",) else f"  only in {', '.join(outcome.dtypes)}"
    return f"{marks}  {len(outcome.caught_by)}{dtypes}"


def _checks(verdict: Verdict, letters: dict[str, str]) -> list[Text]:
    """A line for each check: how many it caught, and which ones nobody else did."""
    from rich.text import Text

    lines = [Text("Checks (letter, wrong implementations caught, those that no other check catches)\n", "bold")]
    for check, letter in letters.items():
        caught = [mutant for mutant in verdict.wrong if check in verdict.outcomes[mutant.name].caught_by]
        alone = [mutant.name for mutant in caught if mutant in verdict.caught_once]
        lines.append(Text(f"{letter} {check} {len(caught)}{': ' if alone else ''}{', '.join(alone)}"))
    return lines


def _print_equivalent(verdict: Verdict) -> None:
    from rich.text import Text

    screen = console()
    screen.print(Text("\nEquivalent: changed, and right all the same\n", "bold"))
    for mutant in verdict.equivalent:
        screen.print(Text(f"{mutant.name}: {mutant.equivalent}"))


def _print_margins(verdict: Verdict) -> None:
    """How near right implementations come to their budget, and how far numeric faults are beyond it."""
    from rich.text import Text

    screen = console()
    screen.print(Text("\nMargins: largest error over the budget for it\n", "bold"))
    for dtype, record in verdict.closest.items():
        where = f"{record.implementation}, {record.check}, {record.case}"
        screen.print(Text(f"right implementations in {dtype}: at most {record.budget_used:.2f} ({where})"))
    for name, excess in list(verdict.excesses.items())[:1]:
        where = f"{name} in {excess.dtype}"
        screen.print(Text(f"{len(verdict.excesses)} faults of accuracy: at least {excess.factor:.3g} ({where})"))


def _print_troubles(verdict: Verdict) -> None:
    """Survivors, false alarms, and mutants that were caught by other checks than the one meant to."""
    from rich.text import Text

    screen = console()
    for mutant in verdict.survivors:
        screen.print(Text(f"\n{mutant.name} survives: {mutant.stands_for}", "bold red"))
        screen.print(Text(f"  again: mha verify {mutant.name} --plugin {verdict.zoo.file}", "dim"))
    for record in verdict.false_alarms:
        screen.print(Text(f"\nfalse alarm: {record.check} {record.status} on {record.case}", "bold red"))
        for reason in (record.implementation, *record.reasons, f"again: {record.reproduce}"):
            screen.print(Text(f"  {reason}"))
    for mutant in verdict.misnamed:
        screen.print(Text(f"\n{mutant.name} is not caught by {mutant.expected_check}, which is meant to name it"))
