"""Interleaved rounds: the protocol that decides who runs when, how often, and when there is enough.

Each round runs a block of every implementation once, in random order, so that a moment's noise meets all of them
and cancels in the ratios of that round. The protocol knows nothing of torch: it takes calls and a stopwatch.

*Looks.* After 80, 160, 320, ... rounds the pairs are compared, and if every one of them is resolved, sampling
ends. No look comes before 80, for stopping early inflates effects. Every interval's level is corrected for the
number of looks that may be taken, the last one (whenever sampling ends) included, and for the number of pairs.

*Time.* A cell's budget ends the sampling too, but not before there are enough rounds for a finite interval at the
corrected level (and at least 9), unless that would take `OVERDRAFT` times the budget.
"""

from __future__ import annotations

import gc
import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.measurement.stopwatch import Block, Call, Stopwatch
from harness.records import Samples
from harness.registry import one_line
from harness.statistics import ERROR_RATE, compare

BLOCK_S = 0.005
"""What a block lasts at least: a thousand times the cost and resolution of reading the clocks."""
WARM_UP_S = 0.05
WARM_UP_BLOCKS = 5
"""The fastest of these sets the repeats: a first block that met with noise would otherwise make blocks too short."""
WARM_UP_AT_MOST_S = 0.1
"""A call whose first run took longer gets none: it ran once before, and what it gains by running again is small beside
itself. Where that run was slow for once only (a compiler's), the first round shows it, and is run again."""
FIRST_LOOK = 80
LEAST_ROUNDS = 9
ROUNDS_AT_ANY_COST = 3
OVERDRAFT = 32.0
"""How many budgets a cell may take for the rounds that a finite interval needs: without one, even a tenfold
difference stays unresolved, and all the rounds so far were for nothing."""

StopReason = Literal["verdict", "max_rounds", "time_budget"]


@dataclass(frozen=True)
class Plan:
    """How long to sample, and what for."""

    cell_seconds: float
    """Time budget of the rounds of one cell."""
    max_rounds: int
    resolution: float
    """Half-width of the band of ratios called tied, e.g. 0.02."""
    seed: int
    """Of the order within rounds."""


@dataclass(frozen=True)
class Timing:
    """Raw samples of one cell, and how they came about."""

    samples: Mapping[str, Samples]
    repeats: Mapping[str, int]
    """Calls per block."""
    failures: Mapping[str, str]
    """Those whose call raised, with the error in one line; they have no samples."""
    stopped_by: StopReason
    looks: int
    pairs: int
    warm_up_s: float
    timed_s: float


def measure(
    calls: Mapping[str, Call], plan: Plan, stopwatch: Stopwatch, first_call_s: Mapping[str, float] | None = None
) -> Timing:
    """Time calls side by side.

    Args:
        calls: by name; each was called at least once before.
        plan: budget, limits and seed.
        stopwatch: what runs and times a block.
        first_call_s: what that first call took, where it is known: slow ones are not warmed up again.
    """
    contest = _Contest(calls, plan, stopwatch, first_call_s or {})
    begin = stopwatch.now()
    contest.warm_up()
    gc.collect()
    warm = stopwatch.now()
    stopped_by = contest.run()
    return Timing(
        samples={name: contest.columns[name].samples() for name in contest.calls},
        repeats={name: contest.repeats[name] for name in contest.calls},
        failures=contest.failures,
        stopped_by=stopped_by,
        looks=contest.looks,
        pairs=contest.pairs,
        warm_up_s=warm - begin,
        timed_s=stopwatch.now() - warm,
    )


def rounds_needed(looks: int, pairs: int) -> int:
    """The fewest rounds that can give a finite interval at the corrected level.

    The widest interval that n data can give reaches from the least to the largest, and misses the median if all
    lie on one side of it: twice 2^-n, which must stay below each interval's share of the error.
    """
    return math.ceil(math.log2(2 * max(1, looks * pairs) / ERROR_RATE))


@dataclass
class _Columns:
    """Samples of one implementation as they come."""

    rounds: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    def samples(self) -> Samples:
        return Samples(
            round=tuple(self.rounds),
            wall_s=tuple(block.wall_s for block in self.blocks),
            cpu_s=tuple(block.cpu_s for block in self.blocks),
            involuntary_switches=tuple(block.involuntary_switches for block in self.blocks),
        )


class _Contest:
    def __init__(
        self, calls: Mapping[str, Call], plan: Plan, stopwatch: Stopwatch, first_call_s: Mapping[str, float]
    ) -> None:
        self.calls = dict(calls)
        self.plan = plan
        self.stopwatch = stopwatch
        self.random = random.Random(plan.seed)  # noqa: S311 - an order of rounds is no secret
        self.columns = {name: _Columns() for name in calls}
        self.repeats: dict[str, int] = {}
        self.block_s: dict[str, float] = {}
        self.failures: dict[str, str] = {}
        self.unwarmed = {name: s for name, s in first_call_s.items() if name in calls and s > WARM_UP_AT_MOST_S}
        self.pairs = math.comb(len(calls), 2)
        self.looks_at: tuple[int, ...] = ()

    @property
    def looks(self) -> int:
        """How many looks may be taken: the planned ones, and the last one whenever sampling ends."""
        return len(self.looks_at) + 1

    def warm_up(self) -> None:
        """Settle caches, thread pools and lazy set-up, find everybody's repeats, and plan the looks."""
        for name in list(self.calls):
            if name in self.unwarmed:
                self.repeats[name], self.block_s[name] = 1, self.unwarmed[name]
            else:
                self._warm_up(name)
        round_s = sum(self.block_s.values())
        affordable = min(self.plan.max_rounds, self.plan.cell_seconds / round_s if round_s else 0)
        doubling = (FIRST_LOOK * 2**n for n in itertools.count())
        self.looks_at = tuple(itertools.takewhile(lambda rounds: rounds < affordable, doubling))

    def _warm_up(self, name: str) -> None:
        blocks, repeats, spent, fastest = 0, 1, 0.0, math.inf
        while spent < (WARM_UP_S if blocks >= WARM_UP_BLOCKS else WARM_UP_AT_MOST_S):
            block = self._block(name, repeats)
            if block is None:
                return
            blocks += 1
            spent += block.wall_s * repeats
            fastest = min(fastest, block.wall_s)
            enough = max(1, math.ceil(BLOCK_S / fastest))
            repeats = min(2 * repeats, enough)
        self.repeats[name] = enough
        self.block_s[name] = fastest * enough

    def run(self) -> StopReason:
        """Run rounds until there is a reason to stop."""
        begin, done = self.stopwatch.now(), 0
        while (reason := self._reason_to_stop(done, self.stopwatch.now() - begin)) is None:
            self._round(done)
            done += 1
            if done == 1 and self._warm_up_the_misjudged():
                self.columns = {name: _Columns() for name in self.calls}
                done = 0
        return reason

    def _warm_up_the_misjudged(self) -> bool:
        """Warm up what was taken for slow and is not; whether there was any, so that the round does not count."""
        blocks = {name: self.columns[name].blocks for name in self.unwarmed if name in self.calls}
        misjudged = [name for name, (block,) in blocks.items() if block.wall_s < BLOCK_S]
        self.unwarmed.clear()
        for name in misjudged:
            self._warm_up(name)
        return bool(misjudged)

    def _reason_to_stop(self, done: int, spent_s: float) -> StopReason | None:
        if done in self.looks_at and self._all_resolved():
            return "verdict"
        if done >= self.plan.max_rounds or not self.calls:
            return "max_rounds"
        if done < ROUNDS_AT_ANY_COST:
            return None
        enough = done >= max(LEAST_ROUNDS, rounds_needed(self.looks, self.pairs))
        budget_s = self.plan.cell_seconds * (1.0 if enough else OVERDRAFT)
        return "time_budget" if spent_s * (done + 1) / done > budget_s else None

    def _round(self, number: int) -> None:
        order = list(self.calls)
        self.random.shuffle(order)
        for name in order:
            block = self._block(name, self.repeats[name])
            if block is not None:
                self.columns[name].rounds.append(number)
                self.columns[name].blocks.append(block)

    def _block(self, name: str, repeats: int) -> Block | None:
        """Time one block; a call that raises takes its implementation, and no other, out of the contest."""
        try:
            return self.stopwatch.block(self.calls[name], repeats)
        except Exception as error:  # noqa: BLE001 - whatever a foreign call raises becomes a recorded failure
            self.failures[name] = one_line(error)
            del self.calls[name]
            return None

    def _all_resolved(self) -> bool:
        samples = {name: self.columns[name].samples() for name in self.calls}
        return all(
            self._verdict(first, second) != "unresolved"
            for first, second in itertools.combinations(samples.values(), 2)
        )

    def _verdict(self, first: Samples, second: Samples) -> str:
        resolution = self.plan.resolution
        return compare(first, second, looks=self.looks, pairs=self.pairs, resolution=resolution).verdict
