"""Do the score and the absence of false alarms hold over many seeds, and how wide are the margins of the budget?

``python tests/benchmarks/selftest_seeds.py --seeds 20`` runs, for each seed, every wrong implementation against the
check that is meant to name it (and against the others if that one passes), and every registered implementation
against the whole suite. A seed takes two to three minutes of one core, most of it for the interpreted kernel, which
``--without xformers`` leaves out; ``--jobs`` says how many seeds run side by side.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from multiprocessing import get_context

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
class Result:
    """What one seed gave, or several together."""

    survivors: list[str] = field(default_factory=list)
    """Mutants that no check failed on."""
    alarms: list[str] = field(default_factory=list)
    """Failures of what is right, each with the command that repeats it."""
    closest: dict[str, CheckRecord] = field(default_factory=dict)
    """By dtype: the passed check that used most of its budget."""
    excesses: dict[str, Excess] = field(default_factory=dict)
    """By numeric mutant: its largest error over the budget, at the seed where that is smallest."""
    duration_s: float = 0.0

    def add(self, other: Result) -> None:
        """Take another seed's result in."""
        self.survivors += other.survivors
        self.alarms += other.alarms
        self.closest = closest_by_dtype([*self.closest.values(), *other.closest.values()])
        for name, excess in other.excesses.items():
            self.excesses[name] = min(excess, self.excesses.get(name, excess))

    def in_short(self) -> str:
        """Both margins in a few words, so that a run cut short has shown them."""
        share = max(record.budget_used or 0.0 for record in self.closest.values())
        least = min(self.excesses.values()).factor
        return f"so far right ones use up to {share:.2f} of a budget, numeric mutants at least {least:.2f}"


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


def run_seed(seed: int, without: Sequence[str]) -> Result:
    """Everything about one seed, on one thread."""
    torch.set_num_threads(1)
    start = time.monotonic()
    result = Result()
    for mutant in load_zoo().mutants:
        torch.manual_seed(seed)  # for mutants that draw
        if not mutant.equivalent and not is_caught(mutant, seed):
            result.survivors.append(mutant.name)
        if mutant.numeric:
            result.excesses[mutant.name] = excess_of(mutant, seed)
    records = list(right_records(seed, without))
    result.closest = closest_by_dtype(records)
    result.alarms = [
        f"{record.reproduce}: {'; '.join(record.reasons)}" for record in records if record.status in BAD_CHECK_STATUSES
    ]
    result.duration_s = time.monotonic() - start
    return result


@click.command()
@click.option("--seeds", default=20, show_default=True, help="How many seeds, from --first on.")
@click.option("--first", default=0, show_default=True)
@click.option("--without", multiple=True, help="Registered implementation to leave out; may be repeated.")
@click.option("--jobs", default=2, show_default=True, help="Seeds that run side by side.")
def main(seeds: int, first: int, without: tuple[str, ...], jobs: int) -> None:
    """Print score and false alarms for each seed, and the margins over all of them."""
    wrong = sum(not mutant.equivalent for mutant in load_zoo().mutants)
    together = Result()
    numbers = range(first, first + seeds)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for seed, result in zip(numbers, pool.map(run_seed, numbers, repeat(without)), strict=True):
            together.add(result)
            for name in result.survivors:
                click.echo(f"seed {seed}: {name} survives")
            for alarm in result.alarms:
                click.echo(f"seed {seed}: false alarm: {alarm}")
            score = f"{wrong - len(result.survivors)} of {wrong} caught, {len(result.alarms)} false alarms"
            click.echo(f"seed {seed}: {score}, {result.duration_s:.0f} s; {together.in_short()}")
    click.echo("\nright implementations: the largest share of a budget")
    for dtype, closest in together.closest.items():
        click.echo(f"  {dtype}: {closest.budget_used:.2f} ({closest.implementation}, {closest.check}, {closest.case})")
    click.echo("\nnumeric mutants: largest error / budget, at the seed where it is smallest")
    for name, excess in sorted(together.excesses.items(), key=lambda entry: entry[1]):
        click.echo(f"  {name}: {excess.factor:.3g} ({excess.dtype})")
    raise SystemExit(1 if together.survivors or together.alarms else 0)


if __name__ == "__main__":
    main()
