"""Verdicts from paired samples."""

import math

import numpy as np
import pytest
from scipy.stats import quantile_test

from harness.records import Samples
from harness.statistics import compare, compare_differences, corrected_level, rank


def samples(times: np.ndarray, rounds: range | None = None) -> Samples:
    numbers = tuple(rounds or range(len(times)))
    return Samples(
        round=numbers,
        wall_s=tuple(float(t) for t in times),
        cpu_s=tuple(float(t) for t in times),
        involuntary_switches=(0,) * len(times),
    )


def noisy(factor: float, count: int, seed: int, spread: float = 0.02) -> Samples:
    """Times around `factor` milliseconds; what all of them share comes from seed 0."""
    shared = np.random.default_rng(0).normal(0.0, 0.3, count)
    own = np.random.default_rng(seed).normal(0.0, spread, count)
    return samples(1e-3 * factor * np.exp(shared + own))


def verdict(first: Samples, second: Samples, resolution: float = 0.02) -> str:
    return compare(first, second, looks=4, pairs=1, resolution=resolution).verdict


def test_a_clear_difference_is_seen_through_noise_that_both_share() -> None:
    assert verdict(noisy(1.0, 80, 1), noisy(1.2, 80, 2)) == "faster"
    assert verdict(noisy(1.2, 80, 1), noisy(1.0, 80, 2)) == "slower"


def test_equal_times_are_tied_once_the_interval_fits_the_band() -> None:
    assert verdict(noisy(1.0, 80, 1, spread=0.005), noisy(1.0, 80, 2, spread=0.005)) == "tied"


def test_equal_times_under_heavy_noise_are_unresolved_not_tied() -> None:
    assert verdict(noisy(1.0, 80, 1, spread=0.3), noisy(1.0, 80, 2, spread=0.3)) == "unresolved"


def test_too_few_rounds_for_a_finite_interval_are_unresolved_however_large_the_difference() -> None:
    comparison = compare(noisy(1.0, 7, 1), noisy(5.0, 7, 2), looks=1, pairs=1, resolution=0.02)
    assert comparison.verdict == "unresolved"
    assert (comparison.low, comparison.high) == (0.0, math.inf)


def test_only_shared_rounds_count() -> None:
    first = samples(np.full(10, 1e-3), range(10))
    second = samples(np.full(10, 2e-3), range(5, 15))
    comparison = compare(first, second, looks=1, pairs=1, resolution=0.02)
    assert comparison.rounds == 5
    assert comparison.ratio == pytest.approx(0.5)


def test_samples_that_were_not_measured_side_by_side_are_refused() -> None:
    with pytest.raises(ValueError, match="share no round"):
        compare(samples(np.ones(5)), samples(np.ones(5), range(10, 15)), looks=1, pairs=1, resolution=0.02)


def test_the_interval_is_that_of_the_quantile_test() -> None:
    data = np.random.default_rng(3).normal(0.01, 0.05, 41)
    level = corrected_level(4, 10)
    expected = quantile_test(data, q=0.0, p=0.5).confidence_interval(level)
    comparison = compare_differences(list(data), level=level, resolution=0.02)
    assert comparison.low == pytest.approx(math.exp(expected.low))
    assert comparison.high == pytest.approx(math.exp(expected.high))


def test_more_looks_and_pairs_demand_a_higher_level() -> None:
    assert corrected_level(1, 1) == pytest.approx(0.99)
    assert corrected_level(4, 10) == pytest.approx(1 - 0.01 / 40)


def test_ranking_puts_what_cannot_be_told_apart_together() -> None:
    times = {"slow": noisy(2.0, 80, 1), "fast": noisy(1.0, 80, 2, 0.005), "equal": noisy(1.0, 80, 3, 0.005)}
    standings = rank(times, looks=4, pairs=3, resolution=0.02)
    groups = {standing.name: standing.group for standing in standings}
    assert groups["fast"] == groups["equal"] == 1
    assert groups["slow"] == 2
    assert standings[-1].name == "slow"
    assert [s.group for s in standings] == sorted(s.group for s in standings)


def test_nobody_is_alone_in_front_of_one_that_was_not_shown_to_be_slower() -> None:
    steady = samples(np.full(80, 1.0e-3))
    slower = samples(np.full(80, 1.05e-3))
    torn = samples(np.where(np.arange(80) % 5 < 2, 0.9e-3, 1.06e-3))  # its median lies behind `slower`
    standings = rank({"steady": steady, "slower": slower, "torn": torn}, looks=4, pairs=3, resolution=0.02)
    assert {s.name: s.group for s in standings} == {"steady": 1, "torn": 1, "slower": 2}


def test_false_verdicts_on_identical_times_stay_below_the_stated_rate() -> None:
    generator = np.random.default_rng(11)
    wrong = 0
    for _ in range(400):
        differences = generator.normal(0.0, 0.06, 80)
        verdict = compare_differences(list(differences), level=corrected_level(4, 1), resolution=0.0)
        wrong += verdict.verdict in ("faster", "slower")
    assert wrong <= 4
