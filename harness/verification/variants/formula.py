"""The right formula of one call, in steps that a variant replaces, and the register of variants.

Shapes: B batch, H heads, S sequence, d_k head dim, d_model = H * d_k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812 - the field's own alias
from torch import Tensor

from harness.verification.inputs import causal_mask
from harness.verification.recording import Call
from implementations.spec import FullyMaskedRow

EMPTY_ROW_WEIGHT = {"zero": 0.0, "nan": math.nan}


class Formula:
    """The right formula of one call, in steps that a variant may replace."""

    def __init__(self, call: Call, fully_masked_row: FullyMaskedRow, *, differentiable: bool = False) -> None:
        self.call = call
        self.x = call.x.detach().double().requires_grad_(differentiable)
        self.w = {n: weight.detach().double().requires_grad_(differentiable) for n, weight in call.weights.items()}
        self.num_heads = call.num_heads
        self.batch_size, self.seq_len, self.d_model = self.x.shape
        self.head_dim = self.d_model // self.num_heads
        self.dtype = call.x.dtype
        self.mask = call.mask
        self.is_causal = call.is_causal
        self.fully_masked_row = fully_masked_row
        self.future = causal_mask(self.seq_len, self.x.device)
        self.hidden = call.hidden
        self.q, self.k, self.v = (self.split(self.project(letter)) for letter in "qkv")
        self.logits = self.q @ self.k.mT / math.sqrt(self.head_dim)

    def project(self, letter: str, x: Tensor | None = None) -> Tensor:
        """(B, S, d_model) to (B, S, d_model)."""
        return F.linear(self.x if x is None else x, self.w[f"W_{letter}.weight"], self.w[f"W_{letter}.bias"])

    def split(self, projected: Tensor) -> Tensor:
        """(B, S, d_model) to (B, H, S, d_k)."""
        return projected.reshape(*projected.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        """(B, H, S, d_k) to (B, S, d_model)."""
        return heads.transpose(1, 2).flatten(2)

    def output(self, merged: Tensor) -> Tensor:
        """W_o and b_o."""
        return F.linear(merged, self.w["W_o.weight"], self.w["W_o.bias"])

    def emptied(self, weights: Tensor, hidden: Tensor | None) -> Tensor:
        """Weights whose rows without any key are as the fully masked row is declared."""
        if hidden is None:
            return weights
        uniform = 1.0 / max(1, self.seq_len)
        empty = hidden.all(dim=-1, keepdim=True)
        return torch.where(empty, EMPTY_ROW_WEIGHT.get(self.fully_masked_row, uniform), weights)

    def softmax(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        """Weights (B, H, S, S) of these logits."""
        if hidden is None:
            return logits.softmax(dim=-1)
        empty = hidden.all(dim=-1, keepdim=True)  # -inf throughout would be NaN in the backward pass
        return self.emptied(logits.masked_fill(hidden & ~empty, -math.inf).softmax(dim=-1), hidden)

    def finish(self, weights: Tensor, v: Tensor | None = None) -> Tensor:
        """The output of these weights."""
        return self.output(self.merge(weights @ (self.v if v is None else v)))

    def hiding(self, hidden: Tensor | None) -> Tensor:
        """The output if this, and nothing else, were hidden."""
        return self.finish(self.softmax(self.logits, hidden))

    def reading(self, x: Tensor) -> Tensor:
        """The output if this were read in the place of x."""
        return Formula(replace(self.call, x=x), self.fully_masked_row).hiding(self.hidden)

    def masking(self, mask: Tensor | None) -> Tensor:
        """The output under another mask, with the causal flag as it is."""
        if not self.is_causal:
            return self.hiding(mask)
        return self.hiding(self.future if mask is None else mask | self.future)

    def attending(self, q: Tensor | None = None, k: Tensor | None = None, v: Tensor | None = None) -> Tensor:
        """The output of other queries, keys or values."""
        q, k = self.q if q is None else q, self.k if k is None else k
        return self.finish(self.softmax(q @ k.mT / math.sqrt(self.head_dim), self.hidden), v)

    def shaping(self, logits: Tensor) -> Tensor:
        """The output of other logits."""
        return self.finish(self.softmax(logits, self.hidden))

    def adding(self, bias: float) -> Tensor:
        """The output if hidden logits had this added, instead of being -inf."""
        assert self.hidden is not None
        return self.finish((self.logits + bias * self.hidden).softmax(dim=-1))

    def filling(self, value: float) -> Tensor:
        """The output if hidden logits were set to this, instead of -inf."""
        assert self.hidden is not None
        return self.finish(self.logits.masked_fill(self.hidden, value).softmax(dim=-1))


Variant = Callable[[Formula], Tensor | None]
VARIANTS: dict[Variant, str] = {}
"""All variants of the output, in the order in which they are written, and what each is about."""


def variant(about: str) -> Callable[[Variant], Variant]:
    """Register a variant that is about this."""

    def register(function: Variant) -> Variant:
        VARIANTS[function] = about
        return function

    return register


def in_words(variant: Callable[..., object]) -> str:
    """The fault that a variant is: its docstring without the full stop."""
    words = " ".join((variant.__doc__ or "").split()).rstrip(".")
    return words[0].lower() + words[1:] if words[1:2].islower() else words
