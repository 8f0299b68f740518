"""The factor 1/sqrt(d_k)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .right import MultiHead
from .zoo import equivalent, wrong


@wrong("attention_weights_match_the_oracle")
class ScaleMissing(MultiHead):
    """Bare products."""

    def scale(self, head_dim: int) -> float:
        return 1.0


@wrong("attention_weights_match_the_oracle")
class ScaleFromModelWidth(MultiHead):
    """1/sqrt(d_model)."""

    def scale(self, head_dim: int) -> float:
        return super().scale(self.d_model)


@wrong("attention_weights_match_the_oracle", "FasterTransformer#89", "ipex-llm PR 12619")
class ScaleFromPaddedHead(MultiHead):
    """Heads are padded to a multiple of 8, and the scale is that of the padded size."""

    def scale(self, head_dim: int) -> float:
        return super().scale(8 * math.ceil(head_dim / 8))


@wrong("attention_weights_match_the_oracle")
class ScaleTwice(MultiHead):
    """Once on the queries, once on the products."""

    def scale(self, head_dim: int) -> float:
        return 1.0 / head_dim


@wrong("attention_weights_match_the_oracle")
class ScaleInverted(MultiHead):
    """Multiplied by sqrt(d_k)."""

    def scale(self, head_dim: int) -> float:
        return math.sqrt(head_dim)


@wrong("attention_weights_match_the_oracle")
class ScaleOfWholeNumbers(MultiHead):
    """sqrt(d_k) cut to an integer."""

    def scale(self, head_dim: int) -> float:
        return 1.0 / math.isqrt(head_dim)


@wrong("attention_weights_match_the_oracle", numeric=True)
class ScaleRoundedToBfloat16(MultiHead):
    """The scale is kept in bfloat16."""

    def scale(self, head_dim: int) -> float:
        return float(torch.tensor(super().scale(head_dim), dtype=torch.bfloat16))


@wrong("softmax_rows_sum_to_one")
class ScaleBehindSoftmax(MultiHead):
    """The weights are scaled, not the logits."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT

    def softmax(self, logits: Tensor) -> Tensor:
        return super().softmax(logits) / math.sqrt(self.d_model // self.num_heads)


@wrong("matches_the_oracle", "pytorch#191203")
class ScalePromotesDtype(MultiHead):
    """A float32 scale with a dimension: it makes float32 of 16-bit logits, whose product with V fails."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / torch.tensor([q.shape[-1]], device=q.device, dtype=torch.float32).sqrt()


@equivalent("(q / sqrt(d_k)) k = (q k) / sqrt(d_k) up to the rounding of the scaled query")
class ScaleOnQueries(MultiHead):
    """The queries are scaled before the product."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * self.scale(q.shape[-1])) @ k.mT
