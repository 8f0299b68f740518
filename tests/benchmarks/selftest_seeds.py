"""Do the score and the absence of false alarms hold over many seeds, and how wide are the margins of the budget?

``python tests/benchmarks/selftest_seeds.py --seeds 20`` runs, for each seed, every wrong implementation against the
check that is meant to name it (and against the others if that one passes), and every registered implementation
against the whole suite. In one process and on one thread: a seed takes two to three minutes of one core, most of it
for the interpreted kernel, which ``--without`` leaves out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import click
import torch

from harness.records import BAD_CHECK_STATUSES, CheckRecord
from harness.registry import load_registry
from harness.verification.selftest import (
    Excess,
    Mutant,
    Stage,
    closest_by_dtype,
    excess_of,
    failures,
    load_zoo,
    records_of,
)
from implementations.spec import ALL_DTYPES


@dataclass
class Margins:
    """The budget's margins over all seeds so far."""

    of_right: dict[str, CheckRecord] = field(default_factory=dict)
    """By dtype: the passed check that used most of its budget."""
    of_numeric: dict[str, Excess] = field(default_factory=dict)
    """By numeric mutant: its largest error over the budget, at the seed where that is smallest."""

    def add_right(self, record: CheckRecord) -> None:
        self.of_right = closest_by_dtype([*self.of_right.values(), record])

    def in_short(self) -> str:
        """Both margins in a few words, so that a run cut short has shown them."""
        share = max(record.budget_used or 0.0 for record in self.of_right.values())
        least = min(self.of_numeric.values()).factor
        return f"so far right ones use up to {share:.2f} of a budget, numeric mutants at least {least:.2f}"

    def add_numeric(self, name: str, excess: Excess) -> None:
        self.of_numeric[name] = min(excess, self.of_numeric.get(name, excess))


def is_caught(mutant: Mutant, seed: int) -> bool:
    """Whether any check fails on it; the one meant to name it is asked first."""
    for checks in ((mutant.expected_check,), ()):
        if any(True for stage in mutant.stages for _ in failures(mutant, stage, seed, checks)):
            return True
    return False


def right_records(seed: int, without: Sequence[str]) -> Iterator[CheckRecord]:
    """The whole suite on all registered implementations and on the equivalent mutants."""
    for registered in load_registry().values():
        if registered.implementation.name not in without:
            for dtype in ALL_DTYPES:
                yield from records_of(registered.implementation, Stage(dtype, range(10**6)), seed)
    for mutant in load_zoo().mutants:
        if mutant.equivalent:
            for stage in mutant.stages:
                yield from records_of(mutant.implementation, stage, seed)


def run_seed(seed: int, without: Sequence[str], margins: Margins) -> tuple[int, int]:
    """Mutants that survive and false alarms of one seed, each printed as it is found."""
    survivors = alarms = 0
    for mutant in load_zoo().mutants:
        torch.manual_seed(seed)  # for mutants that draw
        if not mutant.equivalent and not is_caught(mutant, seed):
            survivors += 1
            click.echo(f"seed {seed}: {mutant.name} survives")
        if mutant.numeric:
            margins.add_numeric(mutant.name, excess_of(mutant, seed))
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
    for name, excess in sorted(margins.of_numeric.items(), key=lambda entry: entry[1]):
        click.echo(f"  {name}: {excess.factor:.3g} ({excess.dtype})")
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
