"""The error budget: wide enough for every right computation, narrow enough for wrong ones."""

import dataclasses
import math

import pytest
import torch

from harness.verification.inputs import DTYPES, make_inputs
from harness.verification.rounding import (
    SimulatedRounding,
    baseline_error,
    expect,
    hold_against,
    pooled,
    unit_roundoff,
)
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


@pytest.mark.parametrize("row", [0, 10, 19])
def test_a_row_is_not_taken_to_spread_less_than_its_neighbours_on_either_side(row: int) -> None:
    spread = torch.ones(20, 3, dtype=torch.float64)
    spread[row] = 1e-6  # both samples hit a row's one rounding near zero
    assert float(pooled(spread)[row].min()) > 0.1


def test_a_tiny_answer_has_a_budget_of_its_own_size() -> None:
    spread = torch.full((4, 3), 1e-170, dtype=torch.float64)
    assert 1e-170 <= float(pooled(spread).min()) < 3e-170


def test_an_empty_tensor_is_within_any_budget() -> None:
    empty = torch.empty(0, 5, 8, dtype=torch.float64)
    held = hold_against("output", empty, empty, empty)
    assert held.passed
    assert (held.max_error, held.budget_used, held.budget, held.at) == (0.0, 0.0, 0.0, ())


TERMS = 4096


def moved_by(step: str, left: torch.Tensor, right: torch.Tensor, dtype: str = "float32") -> float:
    """Largest relative error, in units of the roundoff, that a simulated product gets."""
    rounding = SimulatedRounding(DTYPES[dtype], 0, torch.device("cpu"))
    exact = left @ right
    return float(((getattr(rounding, step)(left, right) - exact) / exact).abs().max()) / unit_roundoff(DTYPES[dtype])


def test_a_sum_of_one_sign_is_off_by_the_root_of_a_third_of_its_terms() -> None:
    drawn = torch.rand(8, TERMS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    few = moved_by("product", drawn[:, :16], drawn[:, :16].T.contiguous())
    many = moved_by("product", drawn, drawn.T.contiguous())
    assert 1.0 < few < 6.0
    assert 0.5 * math.sqrt(TERMS / 3) < many < 1.2 * math.sqrt(TERMS / 3)


def test_values_mixed_by_unlike_weights_are_off_by_the_root_of_a_third_of_the_keys() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(8, TERMS, generator=generator, dtype=torch.float64)
    values = torch.rand(TERMS, 8, generator=generator, dtype=torch.float64)
    assert 0.5 * math.sqrt(TERMS / 3) < moved_by("mixed", weights, values) < 1.2 * math.sqrt(TERMS / 3)


def test_terms_that_are_all_alike_are_off_by_a_sixth_of_their_number() -> None:
    alike = torch.full((8, TERMS), 1.0 / TERMS, dtype=torch.float64)
    values = torch.full((TERMS, 8), 3.0, dtype=torch.float64)
    assert 0.5 * TERMS / 6 < moved_by("mixed", alike, values) < 1.1 * TERMS / 6
    values[::2] *= 1.01
    assert moved_by("mixed", alike, values) < 0.1 * TERMS / 6


def test_16_bit_products_are_summed_in_float32() -> None:
    drawn = torch.rand(8, TERMS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert moved_by("product", drawn, drawn.T.contiguous(), "bfloat16") < 2.5


@pytest.mark.parametrize(("logit", "least", "most"), [(1.0, 0.01, 0.05), (200.0, 0.9, 2.1)])
def test_a_row_of_weights_moves_by_its_largest_logit_but_by_no_more_than_itself(logit, least, most) -> None:
    rounding = SimulatedRounding(torch.bfloat16, 0, torch.device("cpu"))
    rows = torch.full((500, 4), 0.25, dtype=torch.float64)
    moved = rounding.normalised(rows, 4, torch.full((500, 1), logit, dtype=torch.float64))
    ratio = moved / rows
    assert bool((ratio == ratio[:, :1]).all()), "a row moves as a whole"
    assert least * 0.5 <= float((ratio - 1).abs().min())
    assert float((ratio - 1).abs().max()) <= most


def test_a_token_that_nothing_uses_has_a_gradient_budget_at_the_size_of_its_neighbours() -> None:
    inputs, expectation = expectation_for("float32")
    assert not bool((expectation.tensors["x"] == 0).all(-1).any())
    cotangent = inputs.cotangent.clone()
    cotangent[:, -1] = 0.0  # the last token, which only its own query sees
    alone = dataclasses.replace(inputs, cotangent=cotangent)
    gradient = expect(alone.problem("zero", gradients=True), torch.float32)
    assert bool((gradient.tensors["x"][:, -1] == 0).all())
    budget = gradient.budgets["x"].amax(-1)
    assert float((budget[:, -1] / budget[:, -9:-1].median(-1).values).min()) > 0.5
    assert float((budget[:, -1] / budget[:, -9:-1].median(-1).values).max()) < 2.0
