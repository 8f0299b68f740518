"""Checks of the backward pass: x and all eight parameters."""

from __future__ import annotations

from dataclasses import replace

from harness.verification.check import Check, CheckFailedError, Evidence, Trial, core, evidence, thorough


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


CHECKS = (
    Check(check_gradients_match_the_oracle, thorough("training")),
    Check(check_masked_keys_get_no_gradient, core(("padding",), modes=("training",))),
)
