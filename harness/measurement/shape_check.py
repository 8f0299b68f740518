"""Holds an answer against the oracle at the exact shape that is timed: passing at S = 130 says nothing of S = 4096."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from harness.subject import Answer
from harness.verification.inputs import DTYPES, Inputs
from harness.verification.rounding import Comparison, Expectation, baseline_error, expect, hold_against
from implementations.spec import Implementation


@dataclass(frozen=True)
class ShapeVerdict:
    """How an answer compares with the oracle's."""

    max_error: float | None
    """Of the output; None if its shape or dtype already is wrong."""
    budget_used: float | None
    """Largest error/budget over output and gradients."""
    error_over_baseline: float | None
    """Error of the output as a multiple of a careful computation's; None where that one has no error at all."""
    fault: str
    """What is wrong, in one line; empty if nothing is."""


class ShapeOracle:
    """The right answer at one cell's shape, solved once for each dtype whose rounding is allowed.

    The workloads' masks hide no row completely, so that the implementations' policies for such rows do not matter.
    """

    def __init__(self, inputs: Inputs, *, gradients: bool, seed: int) -> None:
        self._problem = inputs.problem("zero", gradients=gradients)
        self._seed = seed
        self._expectations: dict[str, Expectation] = {}
        self._baseline: float | None = None

    def judge(self, implementation: Implementation, answer: Answer) -> ShapeVerdict:
        """Compare an answer, and say what is wrong with it."""
        malformed = self._malformed(answer)
        if malformed:
            return ShapeVerdict(None, None, None, malformed)
        expectation = self._expectation(implementation)
        comparisons = [
            hold_against(name, tensor, expectation.tensors[name], expectation.budgets[name])
            for name, tensor in answer.tensors.items()
        ]
        worst = max(comparisons, key=lambda comparison: comparison.budget_used)
        output = next(comparison for comparison in comparisons if comparison.tensor == "output")
        return ShapeVerdict(
            max_error=output.max_error,
            budget_used=worst.budget_used,
            error_over_baseline=output.max_error / self._baseline if self._baseline else None,
            fault=_fault(worst, output, expectation),
        )

    def _malformed(self, answer: Answer) -> str:
        expected: dict[str, Tensor] = {"output": self._problem.x}
        if self._problem.cotangent is not None:
            expected |= {"x": self._problem.x, **self._problem.weights}
        for name, like in expected.items():
            got = answer.tensors.get(name)
            if got is None:
                return f"there is no gradient of {name}"
            if (got.shape, got.dtype) != (like.shape, like.dtype):
                what = f"{_title(name)} is {got.dtype} of shape {tuple(got.shape)}"
                return f"{what}, expected {like.dtype} of shape {tuple(like.shape)}"
        return ""

    def _expectation(self, implementation: Implementation) -> Expectation:
        own = str(self._problem.x.dtype).removeprefix("torch.")
        rounding = implementation.rounds_like.get(own, own)
        if rounding not in self._expectations:
            self._expectations[rounding] = expect(self._problem, DTYPES[rounding], seed=self._seed, samples=1)
        if self._baseline is None:
            forward = replace(self._problem, cotangent=None)
            self._baseline = baseline_error(forward, self._expectations[rounding].solution)
        return self._expectations[rounding]


def _title(tensor: str) -> str:
    return "the output" if tensor == "output" else f"the gradient of {tensor}"


def _fault(worst: Comparison, output: Comparison, expectation: Expectation) -> str:
    if not worst.passed:
        return (
            f"{_title(worst.tensor)} differs from the oracle at {worst.at}: got {worst.got:.6g}, expected "
            f"{worst.expected:.6g}; that is {worst.budget_used:.3g} times the allowed error of {worst.budget:.2g}, "
            f"set by {expectation.set_by}"
        )
    if not output.is_evidence:
        return f"the allowed error exceeds the answer itself, so nothing is shown: set by {expectation.set_by}"
    return ""
