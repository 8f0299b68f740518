"""The error budget: wide enough for every right computation, narrow enough for wrong ones."""

import dataclasses
import math

import pytest
import torch

from harness.verification.inputs import DTYPES, make_inputs
from harness.verification.rounding import baseline_error, expect, hold_against, pooled, unit_roundoff
from implementations.spec import Case

CASE = Case(batch_size=2, seq_len=33, d_model=32, num_heads=4, mask="causal")


def expectation_for(dtype: str, scale: float = 1.0):
    inputs = make_inputs(dataclasses.replace(CASE, dtype=dtype))
    inputs = dataclasses.replace(inputs, x=inputs.x * scale)
    return inputs, expect(inputs.problem("zero", gradients=True), DTYPES[dtype])


@pytest.mark.parametrize(
    ("dtype", "roundoff"), [("float64", 2**-53), ("float32", 2**-24), ("float16", 2**-11), ("bfloat16", 2**-8)]
)
def test_unit_roundoff_is_half_an_ulp_of_one(dtype: str, roundoff: float) -> None:
    assert unit_roundoff(DTYPES[dtype]) == roundoff


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_the_budget_is_in_proportion_to_the_unit_roundoff(dtype: str) -> None:
    _, expectation = expectation_for(dtype)
    relative = expectation.budgets["output"].mean() / expectation.solution.output.abs().mean()
    assert 5 < float(relative) / unit_roundoff(DTYPES[dtype]) < 500


def test_larger_logits_widen_the_budget() -> None:
    _, small = expectation_for("float32")
    _, large = expectation_for("float32", scale=4.0)
    growth = (large.budgets["output"] / large.solution.output.abs().mean()).mean() / (
        small.budgets["output"] / small.solution.output.abs().mean()
    ).mean()
    assert float(growth) > 3
    assert large.solution.largest_logit > 10 * small.solution.largest_logit


def test_budgets_are_the_same_in_every_run() -> None:
    _, first = expectation_for("bfloat16")
    _, second = expectation_for("bfloat16")
    assert all(torch.equal(first.budgets[name], second.budgets[name]) for name in first.budgets)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_a_careful_computation_uses_little_of_the_budget(dtype: str) -> None:
    inputs, expectation = expectation_for(dtype)
    problem = inputs.problem("zero", gradients=False)
    assert baseline_error(problem, expectation.solution) < 0.5 * float(expectation.budgets["output"].max())


@pytest.mark.parametrize("fault", ["key dropped", "scale off by 1e-3", "half precision inside"])
def test_a_numeric_fault_in_float32_is_far_beyond_the_budget(fault: str) -> None:
    inputs, expectation = expectation_for("float32")
    q, k, v = (
        (inputs.x @ inputs.weights[f"W_{p}.weight"].T + inputs.weights[f"W_{p}.bias"])
        .unflatten(-1, (4, 8))
        .transpose(1, 2)
        for p in "qkv"
    )
    hidden = inputs.hidden.clone()
    logits = q @ k.transpose(-1, -2) / math.sqrt(8)
    if fault == "key dropped":
        hidden[-1, 5] = True
    elif fault == "scale off by 1e-3":
        logits = logits * 1.001
    else:
        logits = logits.half().float()
    heads = logits.masked_fill(hidden, -math.inf).softmax(-1) @ v
    output = heads.transpose(1, 2).flatten(2) @ inputs.weights["W_o.weight"].T + inputs.weights["W_o.bias"]
    held = hold_against("output", output, expectation.tensors["output"], expectation.budgets["output"])
    assert held.budget_used > 2


def compare(got: list[float], expected: list[float], budget: float = 0.1):
    wide = torch.tensor(expected, dtype=torch.float64)
    return hold_against("output", torch.tensor(got), wide, torch.full_like(wide, budget))


def test_a_comparison_names_the_element_that_is_furthest_beyond_its_budget() -> None:
    held = compare([1.0, 2.5, 3.05], [1.0, 2.0, 3.0])
    assert (held.at, held.passed) == ((1,), False)
    assert (held.got, held.expected, held.max_error) == (2.5, 2.0, 0.5)
    assert held.budget_used == pytest.approx(5.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_passes(value: float) -> None:
    held = compare([1.0, value], [1.0, 2.0])
    assert not held.passed
    assert held.at == (1,)


def test_an_expected_nan_must_come_and_nothing_else_may_be_nan() -> None:
    assert compare([math.nan, 2.0], [math.nan, 2.0]).passed
    assert not compare([0.0, 2.0], [math.nan, 2.0]).passed


def test_a_budget_that_zeros_would_meet_is_no_evidence() -> None:
    assert not compare([0.01, 0.02], [0.05, 0.05]).is_evidence
    assert compare([0.05, 0.3], [0.05, 0.3]).is_evidence
    assert compare([0.0, 0.0], [0.0, 0.0]).is_evidence  # zeros are the right answer


def test_a_shape_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2,\), expected \(3,\)"):
        compare([1.0, 2.0], [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    "places",
    [[(3, slice(None))], [(slice(None), 7)], [(3, slice(None)), (slice(None), 7)]],
    ids=["row", "column", "both"],
)
def test_the_spread_follows_a_large_row_or_column(places: list[tuple[int | slice, int | slice]]) -> None:
    true = torch.ones(40, 50, dtype=torch.float64)
    for place in places:
        true[place] *= 100.0
    noise = torch.randn(true.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    spread = pooled((true * noise).abs())
    assert bool((spread > 0.3 * true).all())
    assert bool((spread[:3, :7] < 20.0).all())


def test_the_spread_ignores_rows_expected_to_be_nan() -> None:
    spread = torch.tensor([[math.nan, math.nan], [2.0, 2.0]], dtype=torch.float64)
    assert bool(pooled(spread).isfinite().all())
    assert 2.0 <= float(pooled(spread)[1, 0]) < 4.0


def test_rows_of_exact_zeros_do_not_widen_the_spread_beside_them() -> None:
    spread = torch.zeros(20, 6, dtype=torch.float64)
    spread[10] = 1e-9
    assert float(pooled(spread).max()) < 3e-9
    assert float(pooled(spread)[9].max()) == 0.0


def test_a_row_is_not_taken_to_spread_less_than_its_neighbours() -> None:
    spread = torch.ones(20, 3, dtype=torch.float64)
    spread[10] = 1e-6  # both samples hit a row's one rounding near zero
    assert float(pooled(spread)[10].min()) > 0.1


def test_a_tiny_answer_has_a_budget_of_its_own_size() -> None:
    spread = torch.full((4, 3), 1e-170, dtype=torch.float64)
    assert 1e-170 <= float(pooled(spread).min()) < 3e-170


def test_an_empty_tensor_is_within_any_budget() -> None:
    empty = torch.empty(0, 5, 8, dtype=torch.float64)
    assert hold_against("output", empty, empty, empty).passed
