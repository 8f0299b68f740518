import itertools
import math
from collections import Counter

import pytest

from harness.measurement.stopwatch import Block
from harness.measurement.timing import FIRST_LOOK, OVERDRAFT, Plan, measure, rounds_needed
from harness.statistics import compare, corrected_level, median_interval


def plan(**changes):
    return Plan(**{"cell_seconds": 1e9, "max_rounds": 160, "resolution": 0.02, "seed": 0, **changes})


def fakes(*seconds):
    """Calls that say how long they took; each is an object of its own, so that the order can be told."""
    return {f"call {index}": (lambda value=value: value) for index, value in enumerate(seconds)}


def verdicts(timing, resolution=0.02):
    return {
        (one, other): compare(
            timing.samples[one], timing.samples[other], looks=timing.looks, pairs=timing.pairs, resolution=resolution
        ).verdict
        for one, other in itertools.permutations(timing.samples, 2)
    }


def rounds_of(order, calls, count):
    """The last `count` rounds of all that was run."""
    names = {call: name for name, call in calls.items()}
    run = [names[call] for call in order][-count * len(calls) :]
    return [tuple(run[start : start + len(calls)]) for start in range(0, len(run), len(calls))]


def test_every_round_runs_every_implementation_exactly_once(make_stopwatch):
    stopwatch, calls = make_stopwatch(), fakes(0.01, 0.02, 0.005)
    timing = measure(calls, plan(max_rounds=50), stopwatch)
    assert all(sorted(names) == sorted(calls) for names in rounds_of(stopwatch.order, calls, 50))
    assert all(samples.round == tuple(range(50)) for samples in timing.samples.values())


def test_the_order_within_rounds_is_random_and_repeats_with_its_seed(make_stopwatch):
    def orders(seed):
        stopwatch, calls = make_stopwatch(), fakes(0.01, 0.02, 0.005)
        measure(calls, plan(max_rounds=60, seed=seed), stopwatch)
        return rounds_of(stopwatch.order, calls, 60)

    counts = Counter(orders(0))
    assert len(counts) == 6, "all orders of three occur"
    assert max(counts.values()) < 25
    assert orders(0) == orders(0) != orders(1)


def test_a_call_of_twice_the_time_is_called_slower(make_stopwatch):
    timing = measure(fakes(0.01, 0.02), plan(), make_stopwatch(noise=0.15))
    assert verdicts(timing) == {("call 0", "call 1"): "faster", ("call 1", "call 0"): "slower"}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_identical_calls_are_never_called_faster_or_slower(make_stopwatch, noise, seed):
    timing = measure(fakes(0.01, 0.01, 0.01, 0.01), plan(seed=seed), make_stopwatch(noise=noise, seed=seed))
    assert set(verdicts(timing).values()) <= {"tied", "unresolved"}


def test_noise_leaves_a_small_difference_unresolved(make_stopwatch):
    timing = measure(fakes(0.01, 0.0102), plan(), make_stopwatch(noise=0.3))
    assert set(verdicts(timing).values()) == {"unresolved"}
    assert timing.stopped_by == "max_rounds"
    assert len(timing.samples["call 0"].round) == 160


def test_the_clearest_verdict_does_not_end_sampling_before_the_first_look(make_stopwatch):
    timing = measure(fakes(0.001, 1.0), plan(), make_stopwatch(noise=1e-6))
    assert timing.stopped_by == "verdict"
    assert len(timing.samples["call 0"].round) == FIRST_LOOK == 80


def test_the_level_is_corrected_for_all_looks_that_may_be_taken(make_stopwatch):
    assert measure(fakes(0.01, 0.02), plan(max_rounds=80), make_stopwatch()).looks == 1
    assert measure(fakes(0.01, 0.02), plan(max_rounds=160), make_stopwatch()).looks == 2
    timing = measure(fakes(0.01, 0.02, 0.03), plan(max_rounds=700), make_stopwatch())
    assert timing.looks == len([80, 160, 320, 640]) + 1
    assert timing.pairs == 3


def test_a_cell_that_cannot_afford_a_look_takes_only_the_last_one(make_stopwatch):
    timing = measure(fakes(0.1, 0.1), plan(cell_seconds=4.1), make_stopwatch(noise=0.001))
    assert (timing.looks, timing.stopped_by) == (1, "time_budget")
    assert len(timing.samples["call 0"].round) == 20


def test_a_slow_cell_gets_the_rounds_that_a_finite_interval_needs(make_stopwatch):
    calls = fakes(1.0, 1.0, 1.0, 1.0, 1.0)
    timing = measure(calls, plan(cell_seconds=20), make_stopwatch(noise=0.001))
    rounds = len(timing.samples["call 0"].round)
    assert rounds == rounds_needed(looks=1, pairs=10) == 11
    assert set(verdicts(timing).values()) == {"tied"}


def test_a_single_slow_implementation_gets_nine_rounds(make_stopwatch):
    timing = measure(fakes(1.0), plan(cell_seconds=3), make_stopwatch())
    assert len(timing.samples["call 0"].round) == 9
    assert timing.pairs == 0


def test_the_overdraft_for_a_finite_interval_is_limited(make_stopwatch):
    budget_s = 11.0 / OVERDRAFT
    timing = measure(fakes(1.0, 1.0), plan(cell_seconds=budget_s), make_stopwatch(noise=0.001))
    assert timing.stopped_by == "time_budget"
    assert len(timing.samples["call 0"].round) == 5
    assert timing.timed_s < OVERDRAFT * budget_s


@pytest.mark.parametrize(("looks", "pairs"), [(1, 1), (1, 10), (2, 10), (5, 21), (1, 0)])
def test_rounds_needed_is_the_least_number_with_a_finite_interval(looks, pairs):
    level, needed = corrected_level(looks, pairs), rounds_needed(looks, pairs)
    data = list(range(needed))
    assert all(math.isfinite(end) for end in median_interval(data, level=level))
    assert any(math.isinf(end) for end in median_interval(data[1:], level=level))


def test_each_has_repeats_of_its_own_so_that_a_block_lasts_five_milliseconds(make_stopwatch):
    timing = measure(fakes(0.0001, 0.002, 0.1), plan(max_rounds=9), make_stopwatch(noise=0.001))
    assert [round(timing.repeats[name] * seconds, 3) for name, seconds in
            zip(timing.samples, (0.0001, 0.002, 0.1), strict=True)] == [0.005, 0.006, 0.1]  # fmt: skip


def test_noise_in_the_first_blocks_of_the_warm_up_does_not_shorten_the_blocks(make_stopwatch):
    seconds = itertools.chain([0.06, 0.03], itertools.repeat(0.001))
    timing = measure({"only": lambda: next(seconds)}, plan(max_rounds=9), make_stopwatch(noise=1e-6))
    assert timing.repeats["only"] in (5, 6)


def test_raw_samples_are_kept_as_the_stopwatch_gave_them():
    class Counting:
        def __init__(self):
            self.count = 0

        def now(self):
            return 0.0

        def block(self, _call, _repeats):
            self.count += 1
            return Block(float(self.count), 10.0 * self.count, self.count)

    samples = measure({"only": lambda: None}, plan(max_rounds=9), Counting()).samples["only"]
    assert samples.wall_s == tuple(float(n) for n in range(2, 11)), "the first block was the warm-up"
    assert samples.cpu_s == tuple(10.0 * n for n in range(2, 11))
    assert samples.involuntary_switches == tuple(range(2, 11))


@pytest.mark.parametrize("raises_at", [1, 20])
def test_a_call_that_raises_leaves_and_the_others_go_on(make_stopwatch, raises_at):
    count = itertools.count(1)

    def broken():
        if next(count) >= raises_at:
            raise RuntimeError("boom\nand more")
        return 0.01

    timing = measure({**fakes(0.01, 0.02), "broken": broken}, plan(max_rounds=40), make_stopwatch())
    assert timing.failures == {"broken": "RuntimeError: boom"}
    assert set(timing.samples) == {"call 0", "call 1"}
    assert all(len(samples.round) == 40 for samples in timing.samples.values())


def test_a_call_whose_first_run_was_slow_is_not_run_again_to_warm_up(make_stopwatch):
    stopwatch, calls = make_stopwatch(noise=0.001), fakes(1.0, 1.0)
    timing = measure(calls, plan(max_rounds=10), stopwatch, dict.fromkeys(calls, 1.1))
    assert len(stopwatch.order) == 2 * 10
    assert timing.warm_up_s == 0.0
    assert set(timing.repeats.values()) == {1}
    assert timing.samples["call 0"].round == tuple(range(10))


def test_a_call_that_was_slow_only_once_is_warmed_up_and_no_round_of_before_counts(make_stopwatch):
    stopwatch, calls = make_stopwatch(noise=0.001), fakes(0.0001, 1.0)
    timing = measure(calls, plan(max_rounds=10), stopwatch, dict.fromkeys(calls, 3.0))
    assert timing.repeats["call 0"] >= 50, "blocks last about 5 ms"
    assert timing.repeats["call 1"] == 1
    assert [samples.round for samples in timing.samples.values()] == [tuple(range(10))] * 2
    assert all(seconds < 0.00011 for seconds in timing.samples["call 0"].wall_s)


def test_a_call_that_fails_in_the_first_round_is_not_warmed_up(make_stopwatch):
    def fails():
        raise RuntimeError("boom")

    calls = {**fakes(1.0), "fails": fails}
    timing = measure(calls, plan(max_rounds=10), make_stopwatch(), dict.fromkeys(calls, 1.0))
    assert timing.failures == {"fails": "RuntimeError: boom"}
    assert timing.samples.keys() == {"call 0"}
