"""Do the score and the absence of false alarms hold over many seeds, and how wide are the margins of the budget?

``python tests/benchmarks/selftest_seeds.py --seeds 20`` runs, for each seed, every wrong implementation against the
check that is meant to name it (and against the others if that one passes), and every registered implementation
against the whole suite. In one process and on one thread: a seed takes two to three minutes of one core, most of it
for the interpreted kernel, which ``--without`` leaves out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import click
import torch

from harness.records import BAD_CHECK_STATUSES, CheckRecord
from harness.registry import load_registry
from harness.verification.selftest import ALL_CHECKS, Mutant, Stage, failures, load_zoo
from harness.verification.suite import Selection, plan, run_item
from implementations.spec import ALL_DTYPES, Implementation

CLEARLY_BEYOND = 2.0
"""Error over budget that every numeric mutant should reach in some check."""


@dataclass
class Margins:
    """The budget's margins over all seeds so far."""

    of_right: dict[str, CheckRecord] = field(default_factory=dict)
    """By dtype: the passed check that used most of its budget."""
    of_numeric: dict[str, tuple[float, str]] = field(default_factory=dict)
    """By numeric mutant: its largest error over the budget, at the seed where that is smallest, and the dtype."""

    def add_right(self, record: CheckRecord) -> None:
        worst = self.of_right.get(record.dtype)
        if record.budget_used is not None and (worst is None or record.budget_used > (worst.budget_used or 0.0)):
            self.of_right[record.dtype] = record

    def in_short(self) -> str:
        """Both margins in a few words, so that a run cut short has shown them."""
        share = max(record.budget_used or 0.0 for record in self.of_right.values())
        least = min(self.of_numeric.values())[0]
        return f"so far right ones use up to {share:.2f} of a budget, numeric mutants at least {least:.2f}"

    def add_numeric(self, name: str, excess: tuple[float, str]) -> None:
        self.of_numeric[name] = min(excess, self.of_numeric.get(name, (math.inf, "")))


def is_caught(mutant: Mutant, seed: int) -> bool:
    """Whether any check fails on it; the one meant to name it is asked first."""
    for checks in ((mutant.expected_check,), ()):
        if any(True for stage in mutant.stages for _ in failures(mutant, stage, seed, checks)):
            return True
    return False


def excess(mutant: Mutant, seed: int) -> tuple[float, str]:
    """Largest error over budget in any check, and the dtype; further dtypes only until it is clearly beyond."""
    largest = 0.0, ""
    for stage in (ALL_CHECKS, *(stage for stage in mutant.stages if stage.dtype != ALL_CHECKS.dtype)):
        used = [record.budget_used for record in records(mutant.implementation, stage, seed)]
        largest = max([largest, *((share, stage.dtype) for share in used if share is not None)])
        if largest[0] > CLEARLY_BEYOND:
            break
    return largest


def records(implementation: Implementation, stage: Stage, seed: int) -> Iterator[CheckRecord]:
    """Everything that the suite says of an implementation in one dtype."""
    selection = Selection(dtypes=(stage.dtype,), seed=seed)
    for item in plan(implementation, selection):
        if item.case.seq_len in stage.lengths:
            yield run_item(implementation, item, selection)


def right_records(seed: int, without: Sequence[str]) -> Iterator[CheckRecord]:
    """The whole suite on all registered implementations and on the equivalent mutants."""
    for registered in load_registry().values():
        if registered.implementation.name not in without:
            for dtype in ALL_DTYPES:
                yield from records(registered.implementation, Stage(dtype, range(10**6)), seed)
    for mutant in load_zoo().mutants:
        if mutant.equivalent:
            for stage in mutant.stages:
                yield from records(mutant.implementation, stage, seed)


def run_seed(seed: int, without: Sequence[str], margins: Margins) -> tuple[int, int]:
    """Mutants that survive and false alarms of one seed, each printed as it is found."""
    survivors = alarms = 0
    for mutant in load_zoo().mutants:
        torch.manual_seed(seed)  # for mutants that draw
        if not mutant.equivalent and not is_caught(mutant, seed):
            survivors += 1
            click.echo(f"seed {seed}: {mutant.name} survives")
        if mutant.numeric:
            margins.add_numeric(mutant.name, excess(mutant, seed))
    for record in right_records(seed, without):
        if record.status in BAD_CHECK_STATUSES:
            alarms += 1
            click.echo(f"seed {seed}: false alarm: {record.reproduce}: {'; '.join(record.reasons)}")
        elif record.status == "passed":
            margins.add_right(record)
    return survivors, alarms


@click.command()
@click.option("--seeds", default=20, show_default=True, help="How many seeds, from --first on.")
@click.option("--first", default=0, show_default=True)
@click.option("--without", multiple=True, help="Registered implementation to leave out; may be repeated.")
def main(seeds: int, first: int, without: tuple[str, ...]) -> None:
    """Print score and false alarms for each seed, and the margins over all of them."""
    torch.set_num_threads(1)
    margins = Margins()
    wrong = sum(not mutant.equivalent for mutant in load_zoo().mutants)
    good = True
    for seed in range(first, first + seeds):
        start = time.monotonic()
        survivors, alarms = run_seed(seed, without, margins)
        good = good and not survivors and not alarms
        duration = time.monotonic() - start
        score = f"{wrong - survivors} of {wrong} caught, {alarms} false alarms"
        click.echo(f"seed {seed}: {score}, {duration:.0f} s; {margins.in_short()}")
    click.echo("\nright implementations: the largest share of a budget")
    for dtype, worst in margins.of_right.items():
        click.echo(f"  {dtype}: {worst.budget_used:.2f} ({worst.implementation}, {worst.check}, {worst.case})")
    click.echo("\nnumeric mutants: largest error / budget, at the seed where it is smallest")
    for name, (factor, dtype) in sorted(margins.of_numeric.items(), key=lambda entry: entry[1]):
        click.echo(f"  {name}: {factor:.3g} ({dtype})")
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
