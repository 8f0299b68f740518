"""The oracle: the formula and its gradients, computed in float64 row by row.

    Q = x W_q^T + b_q, K and V alike;  P = softmax(Q K^T / sqrt(d_k), hidden keys at -inf);
    y = (P V) W_o^T + b_o

The gradients are written out (no autograd), so that one code serves both the exact solution and solutions with
simulated rounding (see `harness.verification.rounding`), and rows come in chunks, so that S = 4096 needs no
(B, H, S, S) tensor. Written from the formula, without looking at any implementation.

Shapes: B batch, H heads, S sequence, R rows of a chunk, d_k head dim, d_model = H * d_k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from implementations.spec import FullyMaskedRow

CHUNK_ELEMENTS = 1 << 20
"""Elements of one chunk of scores (B, H, R, S): 8 MiB in float64, which the allocator hands out again and again.

Larger ones are mapped and faulted in afresh for every temporary, which took most of the time."""


@dataclass(frozen=True)
class Problem:
    """Everything that determines the right answer; tensors are in the dtype under test."""

    x: Tensor
    """(B, S, d_model)."""
    weights: Mapping[str, Tensor]
    """By `implementations.spec.PROJECTION_NAMES`."""
    num_heads: int
    hidden: Tensor | None = None
    """bool, broadcastable to (B, H, S, S), True = masked; causality is part of it."""
    cotangent: Tensor | None = None
    """(B, S, d_model): gradient of the loss by y; None if no gradients are wanted."""
    fully_masked_row: FullyMaskedRow = "zero"
    """What a row without any unmasked key is expected to give."""


@dataclass(frozen=True)
class Solution:
    """The output and, where asked for, the gradients of x and of the eight parameters."""

    output: Tensor
    """(B, S, d_model)."""
    gradients: Mapping[str, Tensor]
    """By ``x`` and `implementations.spec.PROJECTION_NAMES`; empty without a cotangent."""
    largest_logit: float
    """Largest magnitude of an unmasked logit: what rounding errors of the weights scale with."""


class Rounding(Protocol):
    """Where a computation in low precision would round."""

    def store(self, value: Tensor) -> Tensor:
        """Round a result that is stored."""
        ...

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Left @ right, with the error of summing its terms and of storing the result."""
        ...

    def mixed(self, weights: Tensor, values: Tensor) -> Tensor:
        """P V: a product whose terms may all be alike."""
        ...

    def normalised(self, value: Tensor, length: int, largest: Tensor) -> Tensor:
        """Divide by a row's sum of `length` exponentials, of which `largest` is the largest exponent's magnitude."""
        ...

    def cancelled(self, value: Tensor, magnitude: Callable[[], Tensor]) -> Tensor:
        """Round a result whose terms cancel: the error scales with `magnitude`, the sum of their magnitudes."""
        ...

    def exponential(self, value: Tensor, log: Callable[[], Tensor], magnitude: Callable[[], Tensor]) -> Tensor:
        """What errors of the exponents, `cancelled` with this magnitude, do to weights beyond their first order.

        `log` gives the logarithms of the weights before those errors, also of those too small for a weight.
        """
        ...


class Exact:
    """No rounding at all."""

    def store(self, value: Tensor) -> Tensor:
        """The value itself."""
        return value

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Left @ right."""
        return left @ right

    def mixed(self, weights: Tensor, values: Tensor) -> Tensor:
        """P V."""
        return weights @ values

    def normalised(self, value: Tensor, length: int, largest: Tensor) -> Tensor:  # noqa: ARG002 - protocol
        """The value itself."""
        return value

    def cancelled(self, value: Tensor, magnitude: Callable[[], Tensor]) -> Tensor:  # noqa: ARG002 - protocol
        """The value itself."""
        return value

    def exponential(
        self,
        value: Tensor,
        log: Callable[[], Tensor],  # noqa: ARG002 - protocol
        magnitude: Callable[[], Tensor],  # noqa: ARG002 - protocol
    ) -> Tensor:
        """The value itself."""
        return value


EXACT = Exact()


def solve(problem: Problem, rounding: Rounding = EXACT, dtype: torch.dtype = torch.float64) -> Solution:
    """The right answer to a problem.

    Args:
        problem: inputs and weights; they are widened to `dtype`, not rounded again.
        rounding: what happens where a low-precision computation would round.
        dtype: of the computation; float64 for the oracle.
    """
    with torch.no_grad(), torch.autocast(problem.x.device.type, enabled=False):
        return _Solver(problem, rounding, dtype).solve()


class _Solver:
    def __init__(self, problem: Problem, rounding: Rounding, dtype: torch.dtype) -> None:
        self.problem = problem
        self.rounding = rounding
        self.x = problem.x.to(dtype)
        self.w = {name: tensor.to(dtype) for name, tensor in problem.weights.items()}
        self.batch_size, self.seq_len, self.d_model = self.x.shape
        self.num_heads = problem.num_heads
        self.scale = 1.0 / math.sqrt(self.d_model // self.num_heads)
        self.q, self.k, self.v = (self._project(name) for name in "qkv")
        self.largest_logit = 0.0

    def solve(self) -> Solution:
        dy = None if self.problem.cotangent is None else self.problem.cotangent.to(self.x.dtype)
        dheads = None if dy is None else self._split(self.rounding.product(dy, self.w["W_o.weight"]))
        heads, dprojected = self._attention(dheads)
        merged = self._merge(heads)
        output = self.rounding.product(merged, self.w["W_o.weight"].T) + self.w["W_o.bias"]
        gradients = {} if dy is None else self._gradients(dy, merged, dprojected)
        return Solution(self.rounding.store(output), gradients, self.largest_logit)

    def _attention(self, dheads: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """P V and, given its gradient, those of Q, K and V by name; all are (B, H, S, d_k).

        In one pass, so that the weights of a row are computed once.
        """
        heads = torch.empty_like(self.q)
        gradients = {} if dheads is None else {name: torch.zeros_like(self.q) for name in "qkv"}
        for rows in self._chunks():
            weights, empty = self._weights(rows)
            heads[:, :, rows] = self.rounding.mixed(weights, self.v)
            if dheads is not None:
                self._add_gradients(gradients, rows, weights, empty, heads[:, :, rows], dheads[:, :, rows])
        return heads, gradients

    def _project(self, name: str) -> Tensor:
        projected = self.rounding.product(self.x, self.w[f"W_{name}.weight"].T) + self.w[f"W_{name}.bias"]
        return self._split(self.rounding.store(projected))

    def _split(self, merged: Tensor) -> Tensor:
        head_dim = self.d_model // self.num_heads
        return merged.reshape(*merged.shape[:2], self.num_heads, head_dim).transpose(1, 2).contiguous()

    def _merge(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(2)

    def _chunks(self) -> Iterator[slice]:
        row_elements = max(1, self.batch_size * self.num_heads * self.seq_len)
        size = max(1, CHUNK_ELEMENTS // row_elements)
        for start in range(0, self.seq_len, size):
            yield slice(start, min(start + size, self.seq_len))

    def _hidden(self, rows: slice) -> Tensor | None:
        hidden = self.problem.hidden
        if hidden is None:
            return None
        return hidden if hidden.shape[-2] == 1 else hidden[..., rows, :]

    def _weights(self, rows: slice) -> tuple[Tensor, Tensor | None]:
        """P of some rows (B, H, R, S), and which of these rows have no key left (broadcastable, 1 at the end)."""
        q, k, hidden = self.q[:, :, rows], self.k.transpose(-1, -2), self._hidden(rows)
        magnitude = cache(lambda: q.abs() @ k.abs() * self.scale)
        unrounded = q @ k * self.scale
        logits = self.rounding.cancelled(unrounded, magnitude)
        empty, masked = None, None
        if hidden is not None:
            empty = hidden.all(dim=-1, keepdim=True)
            masked = hidden & ~empty
            logits = logits.masked_fill(masked, -math.inf)
        largest = logits.nan_to_num(neginf=0.0).abs_().amax(-1, keepdim=True) if logits.numel() else logits[..., :1]
        if largest.numel():
            self.largest_logit = max(self.largest_logit, float(largest.max()))
        weights = torch.softmax(logits, dim=-1)
        weights = self.rounding.exponential(weights, lambda: _log_weights(unrounded, masked), magnitude)
        weights = self.rounding.store(self.rounding.normalised(weights, weights.shape[-1], largest))
        if empty is not None:
            weights = torch.where(empty, self._empty_row_weight(), weights)
        return weights, empty

    def _empty_row_weight(self) -> Tensor:
        value = {"uniform": 1.0 / max(1, self.seq_len), "zero": 0.0, "nan": math.nan}
        return self.q.new_tensor(value[self.problem.fully_masked_row])

    def _gradients(self, dy: Tensor, merged: Tensor, dprojected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        gradients = self._parameter_gradients("o", dy, merged)
        gradients["x"] = torch.zeros_like(self.x)
        for name, d in dprojected.items():
            gradients |= self._parameter_gradients(name, self._merge(d), self.x)
            gradients["x"] += self.rounding.product(self._merge(d), self.w[f"W_{name}.weight"])
        return gradients

    def _parameter_gradients(self, name: str, d: Tensor, inputs: Tensor) -> dict[str, Tensor]:
        """Gradients of W_name and b_name from that of its output; sums run over batch and sequence."""
        d_rows = d.flatten(0, 1).T  # (d_model, B*S)
        ones = torch.ones_like(d_rows[0, :, None])
        return {
            f"W_{name}.weight": self.rounding.product(d_rows, inputs.flatten(0, 1)),
            f"W_{name}.bias": self.rounding.product(d_rows, ones).squeeze(-1),
        }

    def _add_gradients(
        self,
        gradients: Mapping[str, Tensor],
        rows: slice,
        weights: Tensor,
        empty: Tensor | None,
        heads: Tensor,
        do: Tensor,
    ) -> None:
        """What some rows add to dQ, dK and dV: dS = P * (dP - rowsum(P * dP)) with dP = dO V^T."""
        gradients["v"].add_(self.rounding.product(weights.transpose(-1, -2), do))
        dlogits = self._logit_gradients(weights, heads, do)
        if empty is not None:
            dlogits = dlogits.masked_fill(empty, 0.0)
        gradients["q"][:, :, rows] = self.rounding.product(dlogits, self.k) * self.scale
        gradients["k"].add_(self.rounding.product(dlogits.transpose(-1, -2), self.q[:, :, rows]) * self.scale)

    def _logit_gradients(self, weights: Tensor, heads: Tensor, do: Tensor) -> Tensor:
        """The gradient of some rows of logits, dS (B, H, R, S).

        The row sum, however it is computed (from P and dP, or as dO times the output P V and its errors), is rounded
        once for all keys, at the size of its terms: what is left of it does not average out over the keys. Without
        errors it is that of P and dP, which leaves nothing at all of dS where there is only one key.
        """
        dweights = self.rounding.product(do, self.v.transpose(-1, -2))
        row_sum = self.rounding.cancelled(
            ((weights * dweights).sum(-1, keepdim=True) + (do * (heads - weights @ self.v)).sum(-1, keepdim=True)),
            lambda: (do.abs() * (weights @ self.v.abs())).sum(-1, keepdim=True),
        )
        return self.rounding.cancelled(
            weights * (dweights - row_sum),
            lambda: weights * (dweights.abs() + (weights * dweights.abs()).sum(-1, keepdim=True)),
        )


def _log_weights(logits: Tensor, masked: Tensor | None) -> Tensor:
    """The logarithm of the softmax of rows of logits."""
    return torch.log_softmax(logits if masked is None else logits.masked_fill(masked, -math.inf), dim=-1)
