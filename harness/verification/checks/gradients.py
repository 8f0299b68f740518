"""Checks of the backward pass: x and all eight parameters."""

from __future__ import annotations

from dataclasses import replace

from harness.verification.check import Check, CheckFailedError, Evidence, Trial, core, evidence, one, thorough
from harness.verification.inputs import make_inputs
from implementations.spec import Case


def check_gradients_match_the_oracle(trial: Trial) -> Evidence:
    """The gradients of x and of all eight parameters, for a random cotangent, are the formula's."""
    expectation = trial.expect(trial.inputs, gradients=True)
    return evidence(expectation, trial.subject.train(trial.inputs).tensors)


def check_masked_keys_get_no_gradient(trial: Trial) -> Evidence:
    """Tokens that no counted row can see get a gradient of exactly 0."""
    inputs = trial.inputs
    assert inputs.mask is not None
    padded = inputs.mask.reshape(inputs.x.shape[:2])
    cotangent = inputs.cotangent.masked_fill(padded[..., None], 0.0)
    gradient = trial.subject.train(replace(inputs, cotangent=cotangent)).gradients["x"][padded]
    if bool((gradient != 0).any()):
        raise CheckFailedError(
            f"a masked token has a gradient of {float(gradient.abs().max()):.3g}, expected exactly 0"
        )
    return Evidence()


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


WIDE_HEADS = Case(batch_size=2, seq_len=9, d_model=192, num_heads=3, mode="training")
"""d_k = 64 and an odd number of heads."""

CHECKS = (
    Check(check_gradients_match_the_oracle, thorough("training")),
    Check(check_gradients_match_the_oracle, one(WIDE_HEADS)),
    Check(check_an_earlier_call_can_still_be_differentiated, core(("none", "padding"), modes=("training",))),
    Check(check_masked_keys_get_no_gradient, core(("padding",), modes=("training",))),
)
