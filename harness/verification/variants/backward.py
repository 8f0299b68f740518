"""Backward passes gone wrong: the output is right, and what autograd makes of it is not."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harness.verification.variants.formula import Formula, Variant


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    """The same values, with a gradient `factor` times as large."""
    return tensor * factor + (tensor * (1.0 - factor)).detach()


BACKWARD_VARIANTS: list[Variant] = []
"""Variants with the right output and another gradient."""


def _backward(function: Variant) -> Variant:
    BACKWARD_VARIANTS.append(function)
    return function


@_backward
def values_detached(f: Formula) -> Tensor:
    """No gradient flows through the values."""
    return f.attending(v=f.v.detach())


@_backward
def keys_detached(f: Formula) -> Tensor:
    """No gradient flows through the keys."""
    return f.attending(k=f.k.detach())


@_backward
def queries_detached(f: Formula) -> Tensor:
    """No gradient flows through the queries."""
    return f.attending(q=f.q.detach())


@_backward
def weights_detached(f: Formula) -> Tensor:
    """No gradient flows through the attention weights, so Q and K get none."""
    return f.finish(f.softmax(f.logits, f.hidden).detach())


@_backward
def x_detached_from_queries(f: Formula) -> Tensor:
    """The input x gets no gradient through the queries, though W_q does."""
    return f.attending(q=f.split(f.project("q", f.x.detach())))


@_backward
def x_detached_from_keys(f: Formula) -> Tensor:
    """The input x gets no gradient through the keys, though W_k does."""
    return f.attending(k=f.split(f.project("k", f.x.detach())))


@_backward
def x_detached_from_values(f: Formula) -> Tensor:
    """The input x gets no gradient through the values, though W_v does."""
    return f.attending(v=f.split(f.project("v", f.x.detach())))


@_backward
def scale_missing_in_backward(f: Formula) -> Tensor:
    """The backward pass lacks the factor 1/sqrt(d_k)."""
    return f.shaping(_scaled(f.logits, math.sqrt(f.head_dim)))


@_backward
def scale_twice_in_backward(f: Formula) -> Tensor:
    """The backward pass applies the factor 1/sqrt(d_k) twice."""
    return f.shaping(_scaled(f.logits, 1.0 / math.sqrt(f.head_dim)))


@_backward
def mask_forgotten_in_backward(f: Formula) -> Tensor | None:
    """The backward pass computes the weights without the mask."""
    if f.hidden is None:
        return None
    unmasked = f.logits.softmax(dim=-1)
    return f.finish(unmasked + (f.softmax(f.logits, f.hidden) - unmasked).detach())


def _with_softmax_gradient(f: Formula, factor: Tensor | float) -> Tensor:
    """Right weights, whose gradient reaches the logits times a factor."""
    weights = f.softmax(f.logits, f.hidden).detach()
    visible = f.logits if f.hidden is None else f.logits.masked_fill(f.hidden, 0.0)
    return f.finish(weights + factor * (visible - visible.detach()))


@_backward
def softmax_passed_through(f: Formula) -> Tensor:
    """The backward of the softmax hands the gradient on as it is."""
    return _with_softmax_gradient(f, 1.0)


@_backward
def softmax_without_row_sum(f: Formula) -> Tensor:
    """The backward of the softmax is P dP, without the row sum of P dP subtracted."""
    return _with_softmax_gradient(f, f.softmax(f.logits, f.hidden).detach())


def _merged(f: Formula) -> Tensor:
    return f.merge(f.softmax(f.logits, f.hidden) @ f.v)


@_backward
def gradient_doubled(f: Formula) -> Tensor:
    """Everything before W_o gets twice its gradient."""
    return f.output(_scaled(_merged(f), 2.0))


@_backward
def only_first_item_learns(f: Formula) -> Tensor:
    """Only the first batch item's gradient gets through."""
    merged = _merged(f)
    return f.output(torch.cat([merged[:1], merged[1:].detach()]))


@_backward
def gradient_clipped(f: Formula) -> Tensor:
    """The gradient of the merged heads is clipped to +-1."""
    merged = _merged(f)
    if merged.requires_grad:
        merged.register_hook(lambda gradient: gradient.clamp(-1.0, 1.0))  # type: ignore[no-untyped-call]
    return f.output(merged)
