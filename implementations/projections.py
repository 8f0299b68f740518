"""The four projections that turn an attention function into a multi-head attention module.

Names and layout are the document's (W_q, W_k, W_v, W_o), so one set of weights loads into every implementation.
Shapes: B batch, S sequence, H heads, d_k head dim, d_model = H * d_k.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from implementations.spec import Attend


class ProjectedAttention(nn.Module):
    """y = W_o(merge(attend(split(W_q x), split(W_k x), split(W_v x), mask)))."""

    def __init__(self, d_model: int, num_heads: int, attend: Attend) -> None:
        if num_heads < 1 or d_model % num_heads != 0:
            raise ValueError(f"d_model must be divisible by num_heads, got {d_model} and {num_heads}")
        super().__init__()
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        self._attend = attend

    def forward(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        """Attend within x.

        Args:
            x: (B, S, d_model), any strides.
            mask: bool, True = masked, broadcastable to (B, H, S, S), or None.
            is_causal: whether position i sees positions 0..i only, on top of `mask`.

        Returns:
            (B, S, d_model), dtype and device of x.

        Raises:
            TypeError: the mask is not bool, or `attend` returns something else than it should.
            ValueError: x or the mask has a shape that does not fit.
        """
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"x must be (batch, seq, d_model={self.d_model}), got {tuple(x.shape)}")
        batch_size, seq_len, _ = x.shape
        if mask is not None:
            check_mask(mask, (batch_size, self.num_heads, seq_len, seq_len))
        q, k, v = self.project(x)
        heads: object = self._attend(q, k, v, mask, is_causal=is_causal)
        if not isinstance(heads, Tensor) or heads.shape != q.shape:
            came = tuple(heads.shape) if isinstance(heads, Tensor) else type(heads).__name__
            raise TypeError(f"attend must return (batch, heads, seq, d_k) = {tuple(q.shape)}, returned {came}")
        return self.merge(heads)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From x (B, S, d_model) to q, k and v (B, H, S, d_k)."""
        return self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))

    def split(self, projected: Tensor) -> Tensor:
        """From (B, S, d_model) to (B, H, S, d_k)."""
        return projected.reshape(*projected.shape[:2], self.num_heads, self.d_k).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        """From what attention gave (B, H, S, d_k) to y (B, S, d_model), through W_o."""
        y: Tensor = self.W_o(heads.transpose(1, 2).reshape(heads.shape[0], heads.shape[2], self.d_model))
        return y


def check_mask(mask: Tensor, scores_shape: tuple[int, int, int, int]) -> None:
    """Refuse a mask that is not bool or does not broadcast to (B, H, S_q, S_k).

    A 1-D or 0-D mask would broadcast in torch, but says nothing about queries: two dimensions are the least.

    Raises:
        TypeError: not bool.
        ValueError: not broadcastable.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool with True = masked, got {mask.dtype}")
    trailing = zip(reversed(mask.shape), reversed(scores_shape), strict=False)
    if not 2 <= mask.dim() <= 4 or any(size not in (1, full) for size, full in trailing):
        raise ValueError(
            f"mask must be broadcastable to (batch, heads, query, key) = {scores_shape}, got {tuple(mask.shape)}"
        )
