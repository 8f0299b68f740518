"""From raw samples to verdicts: paired log-ratios, order-statistics intervals, four verdicts.

Samples of two implementations taken in the same round share that moment's noise, so their ratio is far
steadier than either time. For a pair i, j the data are ``d_r = log(t_i,r / t_j,r)`` over the rounds r; the
estimate is their median and the interval comes from order statistics (no assumption on the distribution).
This module imports no torch: reports derive their statistics with it from the stored samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Literal

from harness.records import Samples

Verdict = Literal["faster", "slower", "tied", "unresolved"]

ERROR_RATE = 0.01
"""Chance, over a whole cell, that any interval misses its median: shared out over all looks and pairs."""


@dataclass(frozen=True)
class Comparison:
    """One implementation held against another on one workload."""

    ratio: float
    """Median over the rounds of time(first)/time(second): below 1, the first is faster."""
    low: float
    """Lower end of the interval; 0 where too few rounds give no finite interval."""
    high: float
    """Upper end of the interval; infinite where too few rounds give no finite interval."""
    verdict: Verdict
    """Of the first against the second; ``unresolved`` never means "no difference"."""
    rounds: int
    level: float
    """Confidence level of the interval, after correction for looks and pairs."""


def corrected_level(looks: int, pairs: int) -> float:
    """Level of each interval so that a whole cell errs in at most `ERROR_RATE` of all runs (Bonferroni)."""
    return 1.0 - ERROR_RATE / max(1, looks * pairs)


def compare(first: Samples, second: Samples, *, looks: int, pairs: int, resolution: float) -> Comparison:
    """Hold two implementations against each other on the rounds that they share.

    Args:
        first: samples of the implementation that the verdict is about.
        second: samples of the one it is held against.
        looks: how often the stopping rule may have looked at the data.
        pairs: how many pairs the cell compares.
        resolution: half-width of the band of ratios called tied, e.g. 0.02.

    Raises:
        ValueError: the two share no round.
    """
    pairs_of_times = _side_by_side(first, second)
    if not pairs_of_times:
        raise ValueError("the two sets of samples share no round: they were not measured side by side")
    differences = [math.log(mine / theirs) for mine, theirs in pairs_of_times]
    return compare_differences(differences, level=corrected_level(looks, pairs), resolution=resolution)


def _side_by_side(first: Samples, second: Samples) -> list[tuple[float, float]]:
    """Times of both in the rounds that they share."""
    if first.round == second.round:  # as nearly always; a large report makes tens of thousands of comparisons
        return list(zip(first.wall_s, second.wall_s, strict=True))
    mine = dict(zip(first.round, first.wall_s, strict=True))
    theirs = dict(zip(second.round, second.wall_s, strict=True))
    return [(mine[r], theirs[r]) for r in sorted(mine.keys() & theirs.keys())]


def compare_differences(differences: Sequence[float], *, level: float, resolution: float) -> Comparison:
    """The verdict on paired log-ratios, one for each round."""
    low, high = median_interval(sorted(differences), level=level)
    return Comparison(
        ratio=math.exp(median(differences)),
        low=math.exp(low),
        high=math.exp(high),
        verdict=_verdict(low, high, math.log1p(resolution)),
        rounds=len(differences),
        level=level,
    )


def median_interval(ordered: Sequence[float], *, level: float) -> tuple[float, float]:
    """Interval for a median from a sorted sample; an end that too few data leave open is infinite.

    Equal to `scipy.stats.quantile_test(...).confidence_interval`; but the quantiles of the binomial
    distribution are looked up once for each number of rounds: a report makes thousands of these intervals.
    """
    below, above = _order_statistics(len(ordered), level)
    low = ordered[below] if below >= 0 else -math.inf
    high = ordered[above] if above < len(ordered) else math.inf
    return low, high


@cache
def _order_statistics(count: int, level: float) -> tuple[int, int]:
    # The median lies below the k-th smallest of n data with the probability that a fair coin thrown n times
    # shows fewer than k heads: the ranks are quantiles of that distribution, half of the error on each side.
    # `scipy.special` in place of `scipy.stats`, whose import alone takes most of a second.
    from scipy.special import bdtr, bdtrik

    tail = (1.0 - level) / 2
    lowest = math.ceil(bdtrik(tail, count, 0.5)) if bdtr(0, count, 0.5) < tail else 0
    while lowest > 0 and bdtr(lowest - 1, count, 0.5) >= tail:  # the inverse is continuous, and rounded
        lowest -= 1
    while bdtr(lowest, count, 0.5) < tail:
        lowest += 1
    # Heads and tails have the same distribution; where a rank hits the tail exactly, the upper one is a rank lower.
    return lowest - 1, count - lowest - int(bdtr(lowest, count, 0.5) == tail)


def _verdict(low: float, high: float, band: float) -> Verdict:
    if high < -band:
        return "faster"
    if low > band:
        return "slower"
    if -band <= low and high <= band:
        return "tied"
    return "unresolved"


def median_s(samples: Samples) -> float:
    """Median wall time of one call in seconds."""
    return median(samples.wall_s)


@dataclass(frozen=True)
class Standing:
    """One implementation's place in a workload's ranking."""

    name: str
    group: int
    """1 is the best group. Members of a group were not shown to be slower than its first, fastest member."""
    median_s: float
    against_leader: Comparison
    """Held against the first member of its own group (itself for the first: ratio 1, tied)."""


def rank(samples: Mapping[str, Samples], *, looks: int, pairs: int, resolution: float) -> list[Standing]:
    """Order implementations by median time, and put together those that cannot be told apart.

    A group is opened by the fastest one left and takes every one left whose verdict against that leader is not
    ``slower``, also one whose median lies behind another's that is; so a group may hold both ``tied`` and
    ``unresolved`` members, each says which it is, and whoever is alone in the first group was shown to be ahead of
    every other.
    """
    left = sorted(samples, key=lambda name: median_s(samples[name]))
    standings: list[Standing] = []
    group = 0
    while left:
        leader, group = left[0], group + 1
        level = corrected_level(looks, pairs)
        held = {leader: Comparison(1.0, 1.0, 1.0, "tied", len(samples[leader].round), level)}
        for name in left[1:]:
            held[name] = compare(samples[name], samples[leader], looks=looks, pairs=pairs, resolution=resolution)
        together = [name for name in left if held[name].verdict != "slower"]
        standings += [Standing(name, group, median_s(samples[name]), held[name]) for name in together]
        left = [name for name in left if name not in together]
    return standings
