"""Attention written as two Einstein sums: the formula, index by index.

Letters: b batch, h heads, q query position, k key position, d head dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from implementations.spec import Behaviour, Implementation


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, is_causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(d_k)) v; the arguments are those of `implementations.spec.Attend`.

    A masked logit is -inf, so its weight is exactly 0 whatever the other logits are. A row without any key left
    would be 0/0: its weights are set to 0 before the softmax's NaN can spread, forward or backward.
    """
    logits = torch.einsum("bhqd,bhkd->bhqk", q / math.sqrt(q.shape[-1]), k)
    hidden = hidden_keys(mask, logits, is_causal=is_causal)
    if hidden is None:
        return torch.einsum("bhqk,bhkd->bhqd", logits.softmax(dim=-1), v)
    empty_row = hidden.all(dim=-1, keepdim=True)
    weights = logits.masked_fill(hidden & ~empty_row, -math.inf).softmax(dim=-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights.masked_fill(empty_row, 0.0), v)


def hidden_keys(mask: Tensor | None, logits: Tensor, *, is_causal: bool) -> Tensor | None:
    """Union of the mask and causality, broadcastable to logits (B, H, S_q, S_k); None if nothing is hidden."""
    if not is_causal:
        return mask
    future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(diagonal=1)
    return future if mask is None else mask | future


IMPLEMENTATION = Implementation(
    name="einsum",
    summary="The formula as two Einstein sums; materialises the (B, H, S, S) weights",
    source="https://docs.pytorch.org/docs/stable/generated/torch.einsum.html",
    attend=attend,
    fully_masked_row="zero",
    memory_growth="O(S^2)",
    semantics=(
        Behaviour(
            answers={"nan_in_a_masked_key": "it leaks"},
            source="0 * NaN is NaN: https://github.com/pytorch/pytorch/issues/101967",
        ),
        Behaviour(
            answers={
                "nan_query": "NaN",
                "float16_with_a_mask": "right",
                "logits_below_a_finite_fill": "none",
                "additive_mask": "refused by TypeError",
                "empty_input": "empty output",
                "double_backward": "right",
                "forward_mode": "right",
                "vmap": "right",
                "autocast": "right, in bfloat16",
                "copies": "same bits",
                "compile": "right",
                "compile_bfloat16": "right",
                "export": "right",
            },
            source="seen on torch 2.13",
            devices=("cpu",),
        ),
    ),
)
