"""How cases are drawn: within bounds, and with everything odd now and then."""

from random import Random

from hypothesis import HealthCheck, find, given, settings

from harness.registry import load_registry
from harness.verification.fuzz.strategies import LONGEST_WHERE_SLOW, WORK, Space, cases
from implementations.spec import ALL_DTYPES

SPACE = Space(("float32", "bfloat16"), ("inference", "training"), is_slow=False, device="cpu")
SLOW = Space(("float32",), ("inference",), is_slow=True, device="cpu")
QUIET = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck), max_examples=5000)


@settings(QUIET, max_examples=200)
@given(cases(SPACE))
def test_a_case_costs_no_more_than_it_may(case) -> None:
    assert case.batch_size * case.num_heads * case.seq_len**2 <= WORK


@settings(QUIET, max_examples=100)
@given(cases(SLOW))
def test_what_is_slow_gets_short_sequences(case) -> None:
    assert case.seq_len <= LONGEST_WHERE_SLOW


def test_the_simplest_case_is_as_plain_as_can_be() -> None:
    case = find(cases(SPACE), lambda case: case.batch_size > 0, settings=QUIET)
    assert case.words.startswith("B 1, S 1, H 1, d_k 1; float32 on cpu, inference; without the causal flag; no mask;")


def test_shrinking_does_not_end_where_a_larger_size_leaves_fewer_choices() -> None:
    for number in (15, 25, 37, 45):  # where it ended at S 190 or above while the heads' bounds followed from S
        case = find(cases(SPACE), lambda case: case.batch_size > 0, settings=QUIET, random=Random(number))
        assert case.words.startswith("B 1, S 1,")


def test_long_odd_and_strided_cases_come_up() -> None:
    find(cases(SPACE), lambda case: case.seq_len > 500, settings=QUIET)
    find(cases(SPACE), lambda case: case.head_dim == 33 and case.dtype == "bfloat16", settings=QUIET)
    find(cases(SPACE), lambda case: case.mask is not None and case.mask.axes == "b1q1", settings=QUIET)
    find(cases(SPACE), lambda case: case.x_layout == "expanded" and case.item_scale == 300.0, settings=QUIET)


def test_a_space_has_what_the_implementation_supports_and_the_user_asks_for() -> None:
    registry = load_registry()
    assert Space.of(registry["sdpa"].implementation, ALL_DTYPES, "cpu").dtypes[0] == "float32"
    assert Space.of(registry["sdpa"].implementation, ("float16",), "cpu").dtypes == ("float16",)
    assert Space.of(registry["xformers"].implementation, ("float64",), "cpu").dtypes == ()
    assert Space.of(registry["xformers"].implementation, ALL_DTYPES, "cpu").is_slow
