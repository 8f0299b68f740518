"""A verdict over several processes needs all of them."""

import math

import pytest

from harness.errors import UserError
from harness.statistics import Comparison
from reports.comparison import change_of
from reports.versions import Names, compare_versions, hull

PAIR = (Names("mine", "mine(old)", "mine(new)"),)
VERSIONS = ("mine(old)", "mine(new)")


def process(low: float, high: float) -> Comparison:
    return Comparison(math.sqrt(low * high), low, high, "unresolved", 80, 0.99)


@pytest.mark.parametrize(
    ("processes", "change"),
    [
        ([(1.03, 1.07), (1.04, 1.06), (1.03, 1.05)], "regressed"),
        ([(1.03, 1.07), (1.04, 1.06), (1.00, 1.05)], "unresolved"),
        ([(0.99, 1.01), (0.99, 1.01), (1.00, 1.01)], "unchanged"),
        ([(0.99, 1.01), (1.04, 1.06), (1.04, 1.06)], "unresolved"),
        ([(0.90, 0.95), (0.93, 0.97), (0.90, 0.96)], "improved"),
        ([(0.90, 0.95), (1.04, 1.06), (1.04, 1.06)], "unresolved"),
        ([(1.03, 1.07), (1.04, 1.06), (0.0, math.inf)], "unresolved"),
    ],
)
def test_a_change_is_told_only_if_every_process_tells_it(processes, change):
    assert change_of(*hull([process(*ends) for ends in processes]), 0.02) == change


@pytest.fixture
def folders(make_run):
    """``folders(a, b, c)`` builds a run for each process, in which the new version's attention takes so much longer."""

    def make(*ratios, first=1, **changes):
        return [
            make_run(
                f"process-{number}",
                **{"implementations": VERSIONS, "speed": {"mine(old)": 1.0, "mine(new)": ratio}, "seed": number}
                | {"noise": 0.002, "rounds": 160, "baseline": "mine(old)", "lengths": (128,)}
                | changes,
            )
            for number, ratio in enumerate(ratios, start=first)
        ]

    return make


def test_the_ratio_is_the_middle_of_the_processes_and_each_is_shown(folders):
    found = compare_versions(folders(2.0, 2.0, 3.0), PAIR, 0.02)
    (time,) = found.times
    assert time.implementation == "mine"
    assert time.change == "regressed"
    first, second, third = time.processes
    assert first == pytest.approx(second, rel=0.01)
    assert third > 1.05 * first
    assert time.ratio == pytest.approx((first * second * third) ** (1 / 3))
    assert f"; in each process: {first:.3f}, {second:.3f}, {third:.3f}" in found.regressions()[0]


def test_two_versions_that_are_both_untimed_compared_nothing_and_that_is_no_pass(folders):
    untimed = {(name, "float32"): ("unverified", "it is wrong") for name in VERSIONS}
    with pytest.raises(UserError, match=r"no version could be timed: mine\(old\) is unverified: it is wrong"):
        compare_versions(folders(1.0, untimed=untimed), PAIR, 0.02)


def test_a_process_that_lost_a_version_leaves_the_time_unresolved_and_fails(folders):
    whole = folders(1.0, 1.0)
    lost = folders(1.0, first=3, untimed={("mine(new)", "float32"): ("crashed", "killed")})
    found = compare_versions([*whole, *lost], PAIR, 0.02)
    assert [each.change for each in found.times] == ["unresolved"]
    assert [(each.what, each.after) for each in found.failing_figures] == [("status", "crashed")]
