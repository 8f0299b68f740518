"""Multi-head attention taken apart: each step is a method, so that a mutant is one small override.

Unchanged it is right (the zoo holds it as a control). Nothing is shared with the registered implementations, so a
fault there cannot hide here.

Shapes: B batch, H heads, S sequence, d_k head dim, d_model = H * d_k.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class MultiHead(nn.Module):
    """The steps of multi-head attention, in the order in which `forward` and `attend` take them."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.check_heads(d_model, num_heads)
        self.d_model = d_model
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        """Attend within x (B, S, d_model); mask is bool, True = masked, broadcastable to (B, H, S, S)."""
        self.check_x(x)
        mask = self.check_mask(x, mask)
        q, k, v = (self.split(self.project(letter, x)) for letter in "qkv")
        heads = self.attend(q, k, v, mask, is_causal)
        return self.output(self.merge(heads))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        """(B, H, S, d_k) each."""
        logits = self.logits(q, k)
        weights = self.weights(logits, self.hidden(logits, mask, is_causal))
        return self.mix(weights, v)

    def check_heads(self, d_model: int, num_heads: int) -> None:
        if d_model % num_heads:
            raise ValueError(f"d_model must be divisible by num_heads, got {d_model} and {num_heads}")

    def check_x(self, x: Tensor) -> None:
        if x.shape[-1] != self.d_model:
            raise ValueError(f"x must have {self.d_model} channels, got {x.shape[-1]}")

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        if mask is None:
            return None
        if mask.dtype != torch.bool:
            raise TypeError(f"mask must be bool, got {mask.dtype}")
        full = (x.shape[0], self.num_heads, x.shape[1], x.shape[1])
        fits = all(a in (1, b) for a, b in zip(reversed(mask.shape), reversed(full), strict=False))
        if not (2 <= mask.dim() <= 4 and fits):
            raise ValueError(f"mask must be broadcastable to {full}, got {tuple(mask.shape)}")
        return mask

    def project(self, letter: str, x: Tensor) -> Tensor:
        """(B, S, d_model) to (B, S, d_model)."""
        projected: Tensor = getattr(self, f"W_{letter}")(x)
        return projected

    def split(self, projected: Tensor) -> Tensor:
        """(B, S, d_model) to (B, H, S, d_k)."""
        batch_size, seq_len, d_model = projected.shape
        head_dim = d_model // self.num_heads
        return projected.reshape(batch_size, seq_len, self.num_heads, head_dim).transpose(1, 2)

    def scale(self, head_dim: int) -> float:
        return 1.0 / math.sqrt(head_dim)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        """(B, H, S, S)."""
        return q @ k.transpose(-1, -2) * self.scale(q.shape[-1])

    def causal(self, logits: Tensor) -> Tensor:
        """(S, S), True in the future."""
        return torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(diagonal=1)

    def hidden(self, logits: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
        """All that is masked, broadcastable to (B, H, S, S), or None."""
        if not is_causal:
            return mask
        return self.causal(logits) if mask is None else mask | self.causal(logits)

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        """(B, H, S, S); rows without any key are 0."""
        if hidden is None:
            return self.softmax(logits)
        empty = hidden.all(dim=-1, keepdim=True)
        return self.softmax(self.fill(logits, hidden & ~empty)).masked_fill(empty, 0.0)

    def fill(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return logits.masked_fill(hidden, -math.inf)

    def softmax(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=-1)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        """(B, H, S, d_k)."""
        return weights @ v

    def merge(self, heads: Tensor) -> Tensor:
        """(B, H, S, d_k) to (B, S, d_model)."""
        return heads.transpose(1, 2).flatten(2)

    def output(self, merged: Tensor) -> Tensor:
        projected: Tensor = self.W_o(merged)
        return projected
