"""The oracle against torch's autograd, finite differences and itself."""

import dataclasses
import math

import pytest
import torch

from harness.verification import oracle
from harness.verification.inputs import make_inputs
from harness.verification.oracle import Problem, solve
from implementations.spec import PROJECTION_NAMES, Case

CASE = Case(batch_size=2, seq_len=5, d_model=12, num_heads=3, dtype="float64")


def problem_for(case: Case, **changes: object) -> Problem:
    problem = make_inputs(case).problem("zero", gradients=True)
    return dataclasses.replace(problem, **changes)


def formula(x: torch.Tensor, weights: dict[str, torch.Tensor], num_heads: int, hidden: torch.Tensor | None):
    """The formula in one piece, for autograd; written with other operations than the oracle's."""

    def project(name: str) -> torch.Tensor:
        flat = torch.nn.functional.linear(x, weights[f"W_{name}.weight"], weights[f"W_{name}.bias"])
        return torch.stack(flat.chunk(num_heads, dim=-1), dim=1)  # (B, H, S, d_k)

    q, k, v = project("q"), project("k"), project("v")
    logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if hidden is not None:
        logits = torch.where(hidden, torch.tensor(-torch.inf, dtype=logits.dtype), logits)
    exponentials = logits.exp()
    heads = torch.einsum("bhqk,bhkd->bhqd", exponentials / exponentials.sum(-1, keepdim=True), v)
    merged = torch.cat(list(heads.unbind(dim=1)), dim=-1)
    return torch.nn.functional.linear(merged, weights["W_o.weight"], weights["W_o.bias"])


@pytest.mark.parametrize("mask", ["none", "causal", "padding", "per_head", "dense"])
def test_output_and_gradients_are_those_of_autograd(mask: str) -> None:
    problem = problem_for(dataclasses.replace(CASE, mask=mask))
    x = problem.x.clone().requires_grad_()
    weights = {name: weight.clone().requires_grad_() for name, weight in problem.weights.items()}
    output = formula(x, weights, problem.num_heads, problem.hidden)
    output.backward(problem.cotangent)
    solution = solve(problem)
    torch.testing.assert_close(solution.output, output.detach(), rtol=1e-12, atol=1e-12)
    for name in PROJECTION_NAMES:
        torch.testing.assert_close(solution.gradients[name], weights[name].grad, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(solution.gradients["x"], x.grad, rtol=1e-11, atol=1e-12)


def test_gradients_are_those_of_finite_differences() -> None:
    problem = problem_for(dataclasses.replace(CASE, mask="padding_causal"))
    step = 1e-6
    direction = torch.randn(problem.x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss(shift: float) -> float:
        moved = dataclasses.replace(problem, x=problem.x + shift * direction)
        return float((solve(moved).output * problem.cotangent).sum())

    slope = (loss(step) - loss(-step)) / (2 * step)
    assert slope == pytest.approx(float((solve(problem).gradients["x"] * direction).sum()), rel=1e-7)


def test_chunks_of_rows_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_for(dataclasses.replace(CASE, seq_len=11, mask="dense"))
    whole = solve(problem)
    monkeypatch.setattr(oracle, "CHUNK_ELEMENTS", 1)
    chunked = solve(problem)
    torch.testing.assert_close(chunked.output, whole.output, rtol=1e-13, atol=1e-13)
    for name, gradient in whole.gradients.items():
        torch.testing.assert_close(chunked.gradients[name], gradient, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("policy", "expected"), [("zero", 0.0), ("uniform", None), ("nan", math.nan)])
def test_a_row_without_keys_is_what_the_policy_says(policy: str, expected: float | None) -> None:
    hidden = torch.zeros(1, 1, 5, 5, dtype=torch.bool)
    hidden[..., 3, :] = True
    identity = {"W_o.weight": torch.eye(12, dtype=torch.float64), "W_o.bias": torch.zeros(12, dtype=torch.float64)}
    problem = problem_for(CASE, hidden=hidden, fully_masked_row=policy)
    problem = dataclasses.replace(problem, weights={**problem.weights, **identity}, cotangent=None)
    row = solve(problem).output[:, 3]
    if expected is None:
        values = problem.x @ problem.weights["W_v.weight"].T + problem.weights["W_v.bias"]
        torch.testing.assert_close(row, values.mean(dim=1))
    else:
        torch.testing.assert_close(row, torch.full_like(row, expected), equal_nan=True)


def test_an_empty_row_keeps_all_gradients_finite() -> None:
    hidden = torch.zeros(2, 3, 5, 5, dtype=torch.bool)
    hidden[0, 1, 2] = True
    solution = solve(problem_for(CASE, hidden=hidden))
    assert all(bool(gradient.isfinite().all()) for gradient in solution.gradients.values())
