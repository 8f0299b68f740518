"""Checks that need no oracle: how outputs for related inputs relate.

An implementation that is wrong in the same way as the oracle would still fail these.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.verification.check import Check, Evidence, Trial, core, evidence, same_as


def check_batch_items_are_independent(trial: Trial) -> Evidence:
    """An item alone gives what it gives within the batch."""
    inputs = trial.inputs
    budget = trial.expect(inputs).budgets["output"]
    together = trial.subject.infer(inputs)
    comparisons = []
    for item in range(inputs.case.batch_size):
        just = slice(item, item + 1)
        mask = inputs.mask if inputs.mask is None or inputs.mask.dim() < 4 else inputs.mask[just]
        alone = trial.subject.infer(replace(inputs, x=inputs.x[just], mask=mask))
        comparisons.append(same_as(f"output of item {item} alone", alone, together[just], budget[just]))
    return Evidence(tuple(comparisons))


def check_permuting_tokens_permutes_the_output(trial: Trial) -> Evidence:
    """Without a mask, another order of the tokens gives the same rows in that order."""
    inputs = trial.inputs
    order = torch.arange(inputs.case.seq_len, device=inputs.case.device).flip(0).roll(2)
    expected = trial.subject.infer(inputs)[:, order]
    got = trial.subject.infer(replace(inputs, x=inputs.x[:, order]))
    budget = trial.expect(inputs).budgets["output"][:, order]
    return Evidence((same_as("output of permuted tokens", got, expected, budget),))


def check_a_constant_in_b_k_changes_nothing(trial: Trial) -> Evidence:
    """Adding a constant to the key bias shifts all logits of a row alike, which softmax ignores."""
    inputs = trial.inputs
    weights = {**inputs.weights, "W_k.bias": inputs.weights["W_k.bias"] + 1.0}
    shifted = replace(inputs, weights=weights)
    expectation = trial.expect(shifted)
    got, before = trial.prepare(shifted).infer(shifted), trial.subject.infer(inputs)
    budget = expectation.budgets["output"]
    return Evidence((same_as("output with another b_k", got, before, budget),), expectation.set_by)


def check_duplicated_keys_count_twice(trial: Trial) -> Evidence:
    """A token that occurs twice weighs twice, and both occurrences give the same row.

    Catches kernels that keep one of several equal keys, and positions that leak into the logits.
    """
    x = trial.inputs.x.clone()
    x[:, -1] = x[:, 0]
    inputs = replace(trial.inputs, x=x)
    expectation = trial.expect(inputs)
    output, budget = trial.subject.infer(inputs), expectation.budgets["output"]
    seen = evidence(expectation, {"output": output})
    twins = same_as("output of a token's second occurrence", output[:, -1], output[:, 0], budget[:, 0])
    return Evidence((*seen.comparisons, twins), seen.set_by)


CHECKS = (
    Check(check_batch_items_are_independent, core(("none", "causal", "padding", "dense"))),
    Check(check_permuting_tokens_permutes_the_output, core(("none",))),
    Check(check_a_constant_in_b_k_changes_nothing, core(("none", "causal"))),
    Check(check_duplicated_keys_count_twice, core(("none",))),
)
