"""Probes of what the contract leaves open about masks: empty rows, NaN, fills, masks that are not bool, empty inputs.

Weights are rigged so that the answer can be read off the output: W_o = I and b_o = 0 lay the heads open.
Shapes: B batch, H heads, S sequence, d_model = H * d_k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from harness.verification.check import Trial
from harness.verification.inputs import Inputs
from harness.verification.probe import Finding, Probe, Questioned, ask, held

MASKED_ROW = 2
"""The row of item 0 that has no key left."""
BEYOND_FILLS = 4e9
"""Magnitude of logits below -1e9, the lowest fill in common use."""


def probe_fully_masked_row(on: Questioned) -> Finding:
    """What does a row give whose keys are all masked?"""
    return ask(
        {
            "in inference": lambda: _fully_masked_row(on.trial(mask="dense")),
            "in training": lambda: _fully_masked_row(on.trial(mask="dense", mode="training")),
        }
    )


def _fully_masked_row(trial: Trial) -> Finding:
    inputs = _with_an_empty_row(_rigged(trial.inputs, **_open_heads(trial)))
    row = trial.prepare(inputs).answer(inputs, trial.case.mode).output[0, MASKED_ROW].double()
    weight, bias = (inputs.weights[f"W_v.{kind}"].double() for kind in ("weight", "bias"))
    mean = inputs.x[0].double().mean(dim=0) @ weight.T + bias
    return Finding(_kind_of_row(row, mean), f"elements from {float(row.min()):.3g} to {float(row.max()):.3g}")


def _kind_of_row(row: Tensor, mean: Tensor) -> str:
    if bool(row.isnan().all()):
        return "NaN"
    if not row.any():
        return "0"
    return "mean of V" if torch.allclose(row, mean, rtol=1e-4, atol=1e-5) else "something else"


def probe_gradient_of_a_fully_masked_row(on: Questioned) -> Finding:
    """Are all gradients finite when a row's keys are all masked?"""
    return ask(
        {
            "with the row in the loss": lambda: _gradients_of_an_empty_row(on, 1.0),
            "with the row left out of the loss": lambda: _gradients_of_an_empty_row(on, 0.0),
        }
    )


def _gradients_of_an_empty_row(on: Questioned, share: float) -> Finding:
    trial = on.trial(mask="dense", mode="training")
    inputs = _with_an_empty_row(trial.inputs)
    cotangent = inputs.cotangent.clone()
    cotangent[0, MASKED_ROW] *= share
    gradients = trial.subject.train(replace(inputs, cotangent=cotangent)).gradients
    spoilt = [name for name, gradient in gradients.items() if not bool(gradient.isfinite().all())]
    return Finding("not finite", f"NaN in the gradients of {', '.join(spoilt)}") if spoilt else Finding("finite")


def probe_nan_in_a_masked_key(on: Questioned) -> Finding:
    """Does NaN in a masked token reach rows that cannot see it?"""
    return ask(
        {
            "in inference": lambda: _nan_in_a_masked_key(on.trial(mask="padding")),
            "in training": lambda: _nan_in_a_masked_key(on.trial(mask="padding", mode="training")),
        }
    )


def _nan_in_a_masked_key(trial: Trial) -> Finding:
    x = trial.inputs.x.clone()
    x[:, -1] = math.nan
    inputs = replace(trial.inputs.with_mask(_only_last_key_masked(trial)), x=x)
    rows = trial.subject.answer(inputs, trial.case.mode).output[:, :-1].isnan().any(dim=-1)
    return Finding("it leaks" if bool(rows.any()) else "it stays out", f"NaN in {int(rows.sum())} of {rows.numel()}")


def probe_nan_query(on: Questioned) -> Finding:
    """What does a row give whose query is NaN?"""
    return ask(
        {
            "without a mask": lambda: _nan_query(on.trial()),
            "with a mask": lambda: _nan_query(on.trial(mask="padding")),
            "in training": lambda: _nan_query(on.trial(mode="training")),
        }
    )


def _nan_query(trial: Trial) -> Finding:
    """NaN in the bias of W_q makes every query of the first head NaN, and no key or value."""
    case = trial.case
    bias = trial.inputs.weights["W_q.bias"].clone()
    bias[: case.head_dim] = math.nan
    inputs = _rigged(trial.inputs, **_open_heads(trial), **{"W_q.bias": bias})
    if inputs.mask is not None:
        inputs = inputs.with_mask(_only_last_key_masked(trial))
    head = trial.prepare(inputs).answer(inputs, case.mode).output[..., : case.head_dim]
    spoilt = f"{int(head.isnan().sum())} of {head.numel()} elements are NaN"
    if bool(head.isnan().all()):
        return Finding("NaN", spoilt)
    return Finding("something else" if head.any() else "0", spoilt)


def probe_float16_with_a_mask(on: Questioned) -> Finding:
    """What does a mask do in float16, which cannot hold -1e9?"""
    return ask(
        {
            "with padding": lambda: _against_the_oracle(on.trial(dtype="float16", mask="padding", limits=False)),
            "with a dense mask": lambda: _against_the_oracle(on.trial(dtype="float16", mask="dense", limits=False)),
        }
    )


def _against_the_oracle(trial: Trial) -> Finding:
    return held(trial.expect(trial.inputs), {"output": trial.subject.infer(trial.inputs)})


def probe_logits_below_a_finite_fill(on: Questioned) -> Finding:
    """What weight do masked keys get when all allowed logits are about -4e9?"""
    trial = on.trial(mask="padding")
    case = trial.case
    # Only the first channel of each head counts, so that every logit is one product and exact.
    first = torch.arange(case.d_model) % case.head_dim == 0
    key = torch.where(first, -BEYOND_FILLS * math.sqrt(case.head_dim), 0.0)
    nothing = torch.zeros(case.d_model, case.d_model)
    biases = {"W_q.bias": first.float(), "W_k.bias": key, "W_v.bias": torch.zeros(case.d_model)}
    matrices = {"W_q.weight": nothing, "W_k.weight": nothing, "W_v.weight": torch.eye(case.d_model)}
    inputs = _rigged(trial.inputs, **_open_heads(trial), **matrices, **biases)
    # Values of 1 in the masked key and of 0 elsewhere: the output is the weight that the masked key gets.
    x = torch.zeros_like(inputs.x)
    x[:, -1] = 1.0
    inputs = replace(inputs.with_mask(_only_last_key_masked(trial)), x=x)
    weight = trial.prepare(inputs).infer(inputs)
    words = "none" if not weight.any() else "all of it" if bool((weight > 0.99).all()) else "some"
    return Finding(words, f"from {float(weight.min()):.3g} to {float(weight.max()):.3g}")


def probe_additive_mask(on: Questioned) -> Finding:
    """What becomes of a mask of numbers, where bool is asked for?"""
    return ask(
        {
            "with 0 and -inf": lambda: _mask_of_numbers(on.trial(mask="padding"), -math.inf),
            "with 0 and 1": lambda: _mask_of_numbers(on.trial(mask="padding"), 1.0),
        }
    )


def _mask_of_numbers(trial: Trial, masked: float) -> Finding:
    boolean = _only_last_key_masked(trial)
    numbers = torch.zeros(boolean.shape, dtype=trial.inputs.x.dtype, device=trial.case.device)
    try:
        output = trial.subject.infer(trial.inputs.with_mask(numbers.masked_fill(boolean, masked)))
    except (TypeError, ValueError, RuntimeError) as refusal:
        return Finding(f"refused by {type(refusal).__name__}", str(refusal).strip().splitlines()[0])
    by_bool = trial.subject.infer(trial.inputs.with_mask(boolean))
    distance = float((output - by_bool).abs().max())
    same = distance <= 1e-5
    return Finding("read like bool" if same else "read otherwise", f"{distance:.2g} from the output of the bool mask")


def probe_empty_input(on: Questioned) -> Finding:
    """What does an empty batch or an empty sequence give?"""
    return ask(
        {
            "for B = 0": lambda: _empty_input(on.trial(batch_size=0, limits=False)),
            "for S = 0": lambda: _empty_input(on.trial(seq_len=0, limits=False)),
        }
    )


def _empty_input(trial: Trial) -> Finding:
    output = trial.subject.infer(trial.inputs)
    return Finding("empty output" if output.shape == trial.inputs.x.shape else "wrong shape", str(tuple(output.shape)))


def _rigged(inputs: Inputs, **weights: Tensor) -> Inputs:
    """The same inputs with some weights replaced."""
    x = inputs.x
    placed: Mapping[str, Tensor] = {name: w.to(device=x.device, dtype=x.dtype) for name, w in weights.items()}
    return replace(inputs, weights={**inputs.weights, **placed})


def _open_heads(trial: Trial) -> dict[str, Tensor]:
    """Weights that make the output the heads, side by side."""
    d_model = trial.case.d_model
    return {"W_o.weight": torch.eye(d_model), "W_o.bias": torch.zeros(d_model)}


def _with_an_empty_row(inputs: Inputs) -> Inputs:
    assert inputs.mask is not None
    mask = inputs.mask.clone()
    mask[0, :, MASKED_ROW] = True
    return inputs.with_mask(mask)


def _only_last_key_masked(trial: Trial) -> Tensor:
    """(B, 1, 1, S), so that every row keeps a key."""
    mask = torch.zeros(trial.case.batch_size, 1, 1, trial.case.seq_len, dtype=torch.bool, device=trial.case.device)
    mask[..., -1] = True
    return mask


PROBES = (
    Probe(probe_fully_masked_row),
    Probe(probe_gradient_of_a_fully_masked_row),
    Probe(probe_nan_in_a_masked_key),
    Probe(probe_nan_query),
    Probe(probe_float16_with_a_mask),
    Probe(probe_logits_below_a_finite_fill),
    Probe(probe_additive_mask),
    Probe(probe_empty_input),
)
