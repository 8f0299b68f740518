"""One generated case against an implementation: passed, a failure of some kind, or outside the contract."""

import dataclasses
from pathlib import Path

import pytest

from harness.verification.fuzz.cases import FuzzCase, MaskPlan
from harness.verification.fuzz.trial import run_case

CASE = FuzzCase(batch_size=2, seq_len=5, num_heads=3, head_dim=2, mode="training")
EXPANDED = MaskPlan("qk", "random", "kept", "expanded")


def outcome_of(name: str, plugins: tuple[Path, ...] = (), **changes: object):
    return run_case(name, plugins, dataclasses.replace(CASE, **changes), timeout_s=60.0)


@pytest.mark.parametrize("name", ["document", "einsum", "sdpa", "torch_mha", "torch_mha_weights"])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "step 2 in channels", "step 2 in tokens", "expanded"])
def test_a_right_implementation_passes_whatever_the_layout(name: str, layout: str) -> None:
    outcome = outcome_of(name, x_layout=layout, mask=EXPANDED, is_causal=True)
    assert (outcome.status, outcome.reasons) == ("passed", ())


def test_a_wrong_answer_says_what_came_and_what_was_expected(wrong_ones) -> None:
    (rare,) = wrong_ones("rare")
    outcome = outcome_of("rare", (rare.plugin,), mask=EXPANDED)
    assert (outcome.status, outcome.kind) == ("failed", "wrong output")
    assert outcome.reasons[0].startswith("output: got ")
    assert outcome.worst is not None
    assert outcome.worst.budget_used > 100
    assert "float32 rounding" in outcome.set_by


def test_an_error_is_a_failure_of_its_own_kind(wrong_ones) -> None:
    (raises,) = wrong_ones("raises")
    outcome = outcome_of("raises", (raises.plugin,), mask=MaskPlan("hqk", "random", "kept", "contiguous"))
    assert (outcome.status, outcome.kind) == ("failed", "IndexError")
    assert outcome.reasons == ("raised IndexError: three dimensions are one too few",)


def test_what_is_declared_to_fail_is_known() -> None:
    emptied = MaskPlan("qk", "nothing", "emptied", "contiguous")
    outcome = outcome_of("torch_mha", mask=emptied, mode="inference", num_heads=2)  # its fast path wants even heads
    assert outcome.status == "known_failure"
    assert "native fast path" in outcome.reasons[0]


def test_a_declared_nan_is_expected_and_its_gradients_are_not_judged() -> None:
    emptied = MaskPlan("qk", "nothing", "emptied", "contiguous")
    assert outcome_of("torch_mha_weights", mask=emptied).status == "passed"


@pytest.mark.parametrize("numbers", [0, 15, 36, 49])
def test_a_logit_off_by_more_than_1_multiplies_its_weight(numbers: int) -> None:
    """Only the last row keeps keys, and its logits are in the hundreds: tiny gradients, each off by a factor."""
    only_the_last_row = MaskPlan("q1", "future", "emptied", "contiguous")
    case = {"seq_len": 33, "num_heads": 1, "head_dim": 5, "dtype": "bfloat16", "logit_scale": 300.0}
    outcome = outcome_of("einsum", mask=only_the_last_row, numbers=numbers, **case)
    assert (outcome.status, outcome.reasons) == ("passed", ())


@pytest.mark.parametrize(
    ("name", "seq_len", "num_heads", "head_dim", "is_causal", "numbers"),
    [("einsum", 40, 3, 2, False, 31281), ("torch_mha", 16, 2, 3, False, 18627), ("torch_mha", 33, 3, 12, True, 76741)],
)
def test_logits_in_the_millions_leave_room_for_ties_and_for_rows_rebuilt_from_float32(
    name: str, seq_len: int, num_heads: int, head_dim: int, is_causal: bool, numbers: int
) -> None:
    scales = {"x_scale": 10.0, "item_scale": 17.3, "logit_scale": 300.0}
    shape = {"batch_size": 1, "seq_len": seq_len, "num_heads": num_heads, "head_dim": head_dim}
    outcome = outcome_of(name, dtype="bfloat16", is_causal=is_causal, numbers=numbers, **shape, **scales)
    assert outcome.reasons == ()
    assert outcome.status in ("passed", "no_evidence")


def test_numbers_too_large_for_the_dtype_are_out_of_scope() -> None:
    outcome = outcome_of("sdpa", dtype="float16", x_scale=10.0, item_scale=300.0, logit_scale=300.0)
    assert outcome.status == "out_of_scope"


def test_an_answer_that_rounding_drowns_is_no_evidence() -> None:
    drowned = {"batch_size": 1, "seq_len": 40, "mode": "inference", "logit_scale": 300.0}
    assert outcome_of("sdpa", dtype="bfloat16", **drowned).status == "no_evidence"
    assert outcome_of("sdpa", dtype="float64", **drowned).status == "passed"


FALSE_ALARMS = {
    "one key, so no gradient of the logits at all": FuzzCase(
        batch_size=1,
        seq_len=1,
        num_heads=3,
        head_dim=8,
        dtype="float64",
        mode="training",
        mask=MaskPlan("hqk", "nothing", "emptied", "contiguous"),
        x_scale=1e-3,
        item_scale=1e-3,
        logit_scale=10.0,
        numbers=146,
    ),
    "keys alike, so a row sum's error does not average out": FuzzCase(
        batch_size=1, seq_len=44, num_heads=1, head_dim=5, mode="training", item_scale=1e-3
    ),
    "a token that only its query reaches": FuzzCase(
        batch_size=3,
        seq_len=255,
        num_heads=1,
        head_dim=8,
        mode="training",
        is_causal=True,
        mask=MaskPlan("bhqk", "padding", "kept", "expanded"),
        x_layout="step 2 in tokens",
        x_scale=1e-3,
        logit_scale=0.1,
        numbers=132,
    ),
    "a long sum of one sign": FuzzCase(
        batch_size=4,
        seq_len=306,
        num_heads=1,
        head_dim=2,
        x_layout="expanded",
        item_scale=17.3,
        logit_scale=0.1,
        numbers=1,
    ),
    "a gradient so small that its square is zero": FuzzCase(
        batch_size=3,
        seq_len=11,
        num_heads=1,
        head_dim=5,
        dtype="float64",
        mode="training",
        mask=MaskPlan("qk", "nothing", "emptied", "contiguous"),
        logit_scale=300.0,
    ),
    "keys that are all alike": FuzzCase(
        batch_size=1, seq_len=410, num_heads=1, head_dim=5, x_scale=1e-3, item_scale=1e-3, numbers=65
    ),
    "rounding that the oracle's own float64 does not show": FuzzCase(
        batch_size=2,
        seq_len=204,
        num_heads=1,
        head_dim=1,
        dtype="float64",
        mode="training",
        logit_scale=10.0,
        numbers=169,
    ),
    "few channels and large logits": FuzzCase(
        batch_size=1, seq_len=436, num_heads=1, head_dim=3, mode="training", item_scale=17.3, logit_scale=0.1
    ),
}


@pytest.mark.parametrize("name", ["einsum", "sdpa", "torch_mha"])
@pytest.mark.parametrize("case", FALSE_ALARMS.values(), ids=FALSE_ALARMS)
def test_what_once_was_a_false_alarm_is_well_within_the_budget(name: str, case: FuzzCase) -> None:
    outcome = run_case(name, (), case, timeout_s=60.0)
    assert outcome.worst is not None
    assert outcome.worst.budget_used < 0.5
