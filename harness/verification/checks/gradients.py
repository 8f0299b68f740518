"""Checks of the backward pass: x and all eight parameters."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.verification.check import Check, CheckFailedError, Evidence, Trial, core, evidence, thorough
from harness.verification.inputs import DTYPES, Inputs, make_inputs
from harness.verification.rounding import unit_roundoff


def check_gradients_match_the_oracle(trial: Trial) -> Evidence:
    """The gradients of x and of all eight parameters, for a random cotangent, are the formula's."""
    expectation = trial.expect(trial.inputs, gradients=True)
    return evidence(expectation, trial.subject.train(trial.inputs).tensors)


ROUNDING_ULPS = 16.0
"""A gradient that is 0 but for rounding, in units of the roundoff of the largest gradient beside it."""


def check_masked_keys_get_no_gradient(trial: Trial) -> Evidence:
    """Tokens that no counted row can see get no gradient, but for the rounding of what cancels."""
    inputs = trial.inputs
    assert inputs.mask is not None
    padded = inputs.mask.reshape(inputs.x.shape[:2])
    cotangent = inputs.cotangent.masked_fill(padded[..., None], 0.0)
    gradient = trial.subject.train(replace(inputs, cotangent=cotangent)).gradients["x"].abs()
    dtype = trial.implementation.rounds_like.get(trial.case.dtype, trial.case.dtype)
    allowed = ROUNDING_ULPS * unit_roundoff(DTYPES[dtype]) * float(gradient[~padded].max())
    if not bool((gradient[padded] <= allowed).all()):
        raise CheckFailedError(
            f"a masked token has a gradient of {float(gradient[padded].max()):.3g}, expected 0 up to {allowed:.1g}"
        )
    return Evidence()


def check_eval_can_be_differentiated(trial: Trial) -> Evidence:
    """In eval mode with gradients enabled, the gradients are the formula's too.

    Catches fast paths for eval that keep no graph, as saliency maps and frozen layers need it.
    """
    trial.subject.module.eval()
    return _held(trial, trial.inputs, "in eval")


def check_frozen_parameters_leave_other_gradients_right(trial: Trial) -> Evidence:
    """Whichever parameters are frozen, and whether x wants a gradient or not, the others' gradients are the formula's.

    Catches kernels that ask one tensor whether gradients are wanted, and then leave out all of them.
    """
    trial.subject.module.train()
    parameters = dict(trial.subject.module.named_parameters())
    seen = [_held(trial, trial.inputs, "without x", x_wants_one=False)]
    for frozen in (*((name,) for name in parameters), tuple(parameters)):
        words = f"with {frozen[0]} frozen" if len(frozen) == 1 else "with all parameters frozen"
        for name, parameter in parameters.items():
            parameter.requires_grad_(name not in frozen)
        seen.append(_held(trial, trial.inputs, words, frozen=frozen))
    return Evidence(tuple(c for each in seen for c in each.comparisons), seen[0].set_by)


def check_cotangents_may_have_any_strides(trial: Trial) -> Evidence:
    """The gradient handed to the backward pass may be expanded (as that of a sum is) or transposed.

    Catches backward kernels that read its memory as if it were contiguous.
    """
    inputs, seen = trial.inputs, []
    forms = {
        "of a sum": inputs.x.new_ones(()).expand(inputs.x.shape),
        "transposed": inputs.cotangent.transpose(0, 1).contiguous().transpose(0, 1),
        "every second channel": torch.stack([inputs.cotangent, -inputs.cotangent], dim=-1).flatten(-2)[..., ::2],
    }
    for form, cotangent in forms.items():
        seen.append(_held(trial, replace(inputs, cotangent=cotangent), f"with a cotangent {form}"))
    return Evidence(tuple(c for each in seen for c in each.comparisons), seen[0].set_by)


def check_a_graph_can_be_used_twice(trial: Trial) -> Evidence:
    """A second backward pass through a graph that was kept gives the same gradients.

    Catches backward passes that overwrite what the forward saved for them.
    """
    trial.subject.module.train()
    return _held(trial, trial.inputs, "of a second backward", backwards=2)


def _held(
    trial: Trial,
    inputs: Inputs,
    words: str,
    *,
    frozen: tuple[str, ...] = (),
    x_wants_one: bool = True,
    backwards: int = 1,
) -> Evidence:
    """Gradients of one call in the module's present mode, of everything that wants one, against the oracle."""
    subject, module = trial.subject, trial.subject.module
    module.zero_grad(set_to_none=True)
    x = inputs.x.detach().clone().requires_grad_(x_wants_one)
    output = subject.call(x, inputs.mask, is_causal=inputs.is_causal)
    if not output.requires_grad:
        raise CheckFailedError(f"{words}, the output cannot be differentiated")
    for number in range(backwards):
        module.zero_grad(set_to_none=True)
        x.grad = None
        output.backward(inputs.cotangent, retain_graph=number < backwards - 1)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    own = dict(module.named_parameters())
    missing = [name for name, parameter in own.items() if parameter.grad is None and name not in frozen]
    if missing or (x_wants_one and x.grad is None):
        raise CheckFailedError(
            f"{words}, no gradient reaches {', '.join([*missing, *(['x'] if x.grad is None else [])])}"
        )
    unpack = trial.implementation.unpack
    gradients = unpack({name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in own.items()})
    is_frozen = unpack({name: torch.full_like(p, float(name in frozen)) for name, p in own.items()})
    got = {name: gradient for name, gradient in gradients.items() if not bool(is_frozen[name].any())}
    if x.grad is not None:
        got["x"] = x.grad
    seen = evidence(trial.expect(inputs, gradients=True), got)
    return Evidence(tuple(replace(c, tensor=f"{c.tensor} {words}") for c in seen.comparisons), seen.set_by)


def check_an_earlier_call_can_still_be_differentiated(trial: Trial) -> Evidence:
    """A second forward pass, before the first one's backward, leaves the first one's gradients right.

    Catches buffers for the backward pass that all calls share.
    """
    inputs, subject = trial.inputs, trial.subject
    other = make_inputs(trial.case, trial.seed + 1)
    subject.module.train()
    subject.module.zero_grad(set_to_none=True)
    x = inputs.x.detach().clone().requires_grad_()
    output = subject.call(x, inputs.mask, is_causal=inputs.is_causal)
    subject.call(other.x, inputs.mask, is_causal=inputs.is_causal)
    output.backward(inputs.cotangent)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return evidence(trial.expect(inputs, gradients=True), {"output": output.detach(), **subject.gradients(x)})


CHECKS = (
    Check(check_gradients_match_the_oracle, thorough("training")),
    Check(check_an_earlier_call_can_still_be_differentiated, core(("none", "padding"), modes=("training",))),
    Check(check_masked_keys_get_no_gradient, core(("padding",), modes=("training",))),
    Check(check_eval_can_be_differentiated, core(("none", "causal", "padding"), modes=("training",))),
    Check(check_frozen_parameters_leave_other_gradients_right, core(("none",), modes=("training",))),
    Check(check_cotangents_may_have_any_strides, core(("none", "padding"), modes=("training",))),
    Check(check_a_graph_can_be_used_twice, core(("none", "padding"), modes=("training",))),
)
