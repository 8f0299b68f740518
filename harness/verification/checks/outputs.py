"""Checks of the output itself: its form, and its values against the oracle."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from harness.verification.check import (
    CORE,
    Check,
    CheckFailedError,
    Evidence,
    Trial,
    core,
    evidence,
    one,
    require_shape,
    thorough,
)
from harness.verification.rounding import SAFETY, Comparison, Expectation, baseline_error


def check_output_is_like_the_input(trial: Trial) -> Evidence:
    """The output has the shape, dtype and device of x, and is finite."""
    x, output = trial.inputs.x, trial.subject.answer(trial.inputs, trial.case.mode).output
    require_shape("the output", output, x)
    if (output.dtype, output.device) != (x.dtype, x.device):
        raise CheckFailedError(f"the output is {output.dtype} on {output.device}, x {x.dtype} on {x.device}")
    if not bool(output.isfinite().all()):
        raise CheckFailedError(f"{int((~output.isfinite()).sum())} of {output.numel()} outputs are not finite")
    return Evidence()


def check_matches_the_oracle(trial: Trial) -> Evidence:
    """The output equals the formula's, solved in float64, up to the rounding of the dtype."""
    expectation = trial.expect(trial.inputs)
    seen = evidence(expectation, {"output": trial.subject.infer(trial.inputs)})
    problem = trial.inputs.problem(trial.implementation.fully_masked_row, gradients=False)
    careful = baseline_error(problem, expectation.solution)
    return replace(seen, error_over_baseline=seen.comparisons[0].max_error / careful if careful else None)


MANY_ELEMENTS = 500
"""From here on, the root mean square over a tensor says more than any single element."""
SHARE_OF_SPREAD = {"float64": 0.67, "float32": 0.67, "bfloat16": 0.4, "float16": 0.4}
"""How large errors may be on the whole, as a share of the simulated spread.

Stored values are simulated with errors of up to 2 u and real ones have at most u, so right implementations come to a
half at most; 16-bit ones, whose sums are taken in float32 and round only when stored, to a quarter.
"""


def check_errors_are_small_on_the_whole(trial: Trial) -> Evidence:
    """Over all elements together, errors are well below what rounding in the dtype is simulated to make of them.

    Catches intermediates that are stored some bits short: the budget of a single element has to leave room for the
    largest error of a right implementation, their mean does not.
    """
    training = trial.case.mode == "training"
    expectation = trial.expect(trial.inputs, gradients=training)
    answer = trial.subject.answer(trial.inputs, trial.case.mode)
    for name, got in answer.tensors.items():
        require_shape(name, got, expectation.tensors[name])
    dtype = trial.implementation.rounds_like.get(trial.case.dtype, trial.case.dtype)
    comparisons = (
        on_the_whole(name, got, expectation, SHARE_OF_SPREAD[dtype])
        for name, got in answer.tensors.items()
        if got.numel() >= MANY_ELEMENTS
    )
    return Evidence(tuple(comparisons), expectation.set_by)


def on_the_whole(name: str, got: Tensor, expectation: Expectation, share: float) -> Comparison:
    """Hold the root mean square of a tensor's errors against that of the simulated rounding's."""
    expected, spread = expectation.tensors[name], expectation.budgets[name] / SAFETY
    error = got.to(expected.dtype) - expected
    used = _root_mean_square(error / spread) / share
    allowed = _root_mean_square(spread) * share
    return Comparison(
        tensor=f"root mean square of the error of {name}",
        max_error=_root_mean_square(error),
        budget_used=used if math.isfinite(used) else math.inf,
        at=(),
        got=_root_mean_square(error),
        expected=0.0,
        budget=allowed,
        is_evidence=_root_mean_square(expected) > allowed,
    )


def _root_mean_square(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())


def check_large_logits_leave_other_items_alone(trial: Trial) -> Evidence:
    """One batch item with logits 300 times as large disturbs neither itself nor the others.

    Catches a softmax that subtracts no maximum, or one maximum for the whole tensor.
    """
    x = trial.inputs.x.clone()
    x[1] *= math.sqrt(300.0)
    inputs = replace(trial.inputs, x=x)
    answer = trial.subject.answer(inputs, trial.case.mode)
    return evidence(trial.expect(inputs, gradients=trial.case.mode == "training"), answer.tensors)


def check_an_empty_batch_gives_an_empty_output(trial: Trial) -> Evidence:
    """B = 0 gives an output of shape (0, S, d_model), whatever the mask."""
    require_shape("the output", trial.subject.infer(trial.inputs), trial.inputs.x)
    return Evidence()


def check_any_strides_are_accepted(trial: Trial) -> Evidence:
    """X may be transposed, sliced with a step or expanded: the output is that of its contiguous copy."""
    comparisons = []
    set_by = ""
    x = trial.inputs.x
    forms = {
        "transposed": x.transpose(0, 1).contiguous().transpose(0, 1),
        "every second channel": torch.stack([x, -x], dim=-1).flatten(-2)[..., ::2],
        "one item expanded": x[:1].expand(x.shape[0], -1, -1),
    }
    for form, strided in forms.items():
        inputs = replace(trial.inputs, x=strided)
        seen = trial.compare_output(replace(inputs, x=strided.contiguous()), trial.subject.infer(inputs))
        comparisons += [replace(c, tensor=f"output of x {form}") for c in seen.comparisons]
        set_by = seen.set_by
    return Evidence(tuple(comparisons), set_by)


CHECKS = (
    Check(check_output_is_like_the_input, core(("none", "causal"), modes=("inference", "training"))),
    Check(check_matches_the_oracle, thorough("inference")),
    Check(check_errors_are_small_on_the_whole, core(("none", "dense"), modes=("inference", "training"))),
    Check(
        check_large_logits_leave_other_items_alone,
        core(("none", "causal", "padding"), modes=("inference", "training")),
    ),
    Check(
        check_an_empty_batch_gives_an_empty_output,
        one(replace(CORE, batch_size=0), masks=("none", "causal", "causal_mask", "padding", "dense")),
        bars_timing=False,
    ),
    Check(check_any_strides_are_accepted, core(("none", "causal"))),
)
