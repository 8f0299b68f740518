"""Checks of the softmax, also for kernels that return no weights: they are read through the projections.

Shapes: B batch, H heads, S sequence, d_k head dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from harness.verification.check import CORE, Check, CheckFailedError, Evidence, Trial, core, evidence, one
from harness.verification.inputs import Inputs
from harness.verification.rounding import Comparison


def check_softmax_rows_sum_to_one(trial: Trial) -> Evidence:
    """The weights of every row sum to 1.

    With W_v = 0, b_v = 1, W_o = I and b_o = 0 the output *is* the row sums. Catches a softmax over the wrong axis
    and dropout that is active in eval.
    """
    weights = _with_identity_output(trial.inputs)
    weights["W_v.weight"] = torch.zeros_like(weights["W_v.weight"])
    weights["W_v.bias"] = torch.ones_like(weights["W_v.bias"])
    inputs = replace(trial.inputs, weights=weights)
    seen = trial.compare_output(inputs, trial.prepare(inputs).infer(inputs))
    return replace(seen, comparisons=tuple(replace(c, tensor="row sums") for c in seen.comparisons))


def check_attention_weights_match_the_oracle(trial: Trial) -> Evidence:
    """Every single weight is the formula's: none negative, masked ones exactly 0.

    Values that are one-hot in the key's position bring the weights to the output, d_k keys at a time.
    """
    comparisons: list[Comparison] = []
    set_by = ""
    for inputs, columns in _reading_passes(trial.inputs):
        output = trial.prepare(inputs).infer(inputs)
        expectation = trial.expect(inputs)
        seen = evidence(expectation, {"output": output})
        comparisons += [
            replace(c, tensor=f"weights of keys {columns.start} to {columns.stop - 1}") for c in seen.comparisons
        ]
        set_by = seen.set_by
        _require_possible(inputs, output, columns)
    return Evidence(tuple(comparisons), set_by)


def _require_possible(inputs: Inputs, output: Tensor, columns: slice) -> None:
    """No negative weight, and none at all on a masked key."""
    case = inputs.case
    weights = output.unflatten(-1, (case.num_heads, case.head_dim)).transpose(1, 2)  # type: ignore[no-untyped-call]
    weights = weights[..., : columns.stop - columns.start]  # (B, H, S, keys of this pass)
    if bool((weights < 0).any()):
        raise CheckFailedError(f"a weight is negative: {float(weights.min()):.3g}")
    if inputs.hidden is not None:
        shape = (case.batch_size, case.num_heads, case.seq_len, case.seq_len)
        on_masked = weights[inputs.hidden.expand(shape)[..., columns]]
        if bool((on_masked != 0).any()):
            raise CheckFailedError(f"a masked key has weight {float(on_masked.abs().max()):.3g}, expected exactly 0")


def _reading_passes(inputs: Inputs) -> Iterator[tuple[Inputs, slice]]:
    """Inputs whose output is the weights of d_k keys at a time, and which keys these are.

    The first d_k channels of x say which key a token is; W_q and W_k ignore them, so the logits stay the same from
    pass to pass.
    """
    case = inputs.case
    size = case.head_dim
    weights = _with_identity_output(inputs)
    for name in ("W_q.weight", "W_k.weight"):
        weights[name] = weights[name].clone()
        weights[name][:, :size] = 0.0
    select = torch.zeros_like(weights["W_v.weight"])
    for head in range(case.num_heads):
        select[head * size : (head + 1) * size, :size] = torch.eye(size, dtype=select.dtype, device=select.device)
    weights |= {"W_v.weight": select, "W_v.bias": torch.zeros_like(weights["W_v.bias"])}
    for start in range(0, case.seq_len, size):
        columns = slice(start, min(start + size, case.seq_len))
        x = inputs.x.clone()
        x[..., :size] = 0.0
        for channel, token in enumerate(range(columns.start, columns.stop)):
            x[:, token, channel] = 1.0
        yield replace(inputs, x=x, weights=weights), columns


def _with_identity_output(inputs: Inputs) -> dict[str, Tensor]:
    """Weights with W_o = I and b_o = 0."""
    weights = dict(inputs.weights)
    w_o = weights["W_o.weight"]
    weights["W_o.weight"] = torch.eye(len(w_o), dtype=w_o.dtype, device=w_o.device)
    weights["W_o.bias"] = torch.zeros_like(weights["W_o.bias"])
    return weights


CHECKS = (
    Check(check_softmax_rows_sum_to_one, core()),
    Check(check_attention_weights_match_the_oracle, core()),
    Check(check_attention_weights_match_the_oracle, one(replace(CORE, seq_len=30, mask="per_head"))),
)
