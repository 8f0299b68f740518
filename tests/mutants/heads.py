"""Splitting into heads, merging them, and which axis is attended over."""

from __future__ import annotations

import torch
from torch import Tensor

from .right import MultiHead
from .zoo import equivalent, wrong


@wrong("matches_the_oracle")
class MergedWithoutTranspose(MultiHead):
    """(B, H, S, d_k) is reshaped to (B, S, d_model) as it lies."""

    def merge(self, heads: Tensor) -> Tensor:
        return heads.reshape(heads.shape[0], heads.shape[2], self.d_model)


@wrong("permuting_tokens_permutes_the_output", "xformers#922")
class SplitWithoutTranspose(MultiHead):
    """(B, S, d_model) is reshaped to (B, H, S, d_k) as it lies."""

    def split(self, projected: Tensor) -> Tensor:
        batch_size, seq_len, d_model = projected.shape
        return projected.reshape(batch_size, self.num_heads, seq_len, d_model // self.num_heads)


@wrong("matches_the_oracle", "xformers#922")
class AttendsOverHeads(MultiHead):
    """(B, S, H, d_k) goes where (B, H, S, d_k) is meant: within a token, heads attend to heads."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return super().attend(q, k, v, None, False).transpose(1, 2)


@wrong("matches_the_oracle")
class HeadsInterleaved(MultiHead):
    """Head h takes every H-th channel."""

    def split(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.num_heads)).permute(0, 3, 1, 2)


@wrong("matches_the_oracle")
class HeadsMergedInterleaved(MultiHead):
    """Channels of all heads are shuffled together."""

    def merge(self, heads: Tensor) -> Tensor:
        return heads.permute(0, 2, 3, 1).flatten(2)


@wrong("matches_the_oracle")
class HeadsMergedInReverse(MultiHead):
    """The last head's output comes first."""

    def merge(self, heads: Tensor) -> Tensor:
        return super().merge(heads.flip(1))


@wrong("matches_the_oracle")
class FirstKeyHeadForAll(MultiHead):
    """All query heads share the first key head, as in multi-query attention."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k[:, :1].expand_as(k))


@wrong("matches_the_oracle")
class LastHeadMissing(MultiHead):
    """The last of several heads stays 0."""

    def merge(self, heads: Tensor) -> Tensor:
        if self.num_heads == 1:
            return super().merge(heads)
        return super().merge(torch.cat([heads[:, :-1], torch.zeros_like(heads[:, -1:])], dim=1))


@wrong("matches_the_oracle")
class HeadsAveraged(MultiHead):
    """Every head carries the mean of all."""

    def merge(self, heads: Tensor) -> Tensor:
        return super().merge(heads.mean(dim=1, keepdim=True).expand_as(heads))


@wrong("matches_the_oracle", "pytorch#195320")
class KeysReshapedInsteadOfTransposed(MultiHead):
    """K's memory is read as (B, H, d_k, S)."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.contiguous().reshape(*k.shape[:2], k.shape[3], k.shape[2]) * self.scale(q.shape[-1])


@wrong("matches_the_oracle")
class LastOfOddHeadsReadsFirst(MultiHead):
    """Of an odd number of heads, the last reads the first one's values."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        if self.num_heads % 2:
            v = torch.cat([v[:, :-1], v[:, :1]], dim=1)
        return super().mix(weights, v)


@equivalent("queries and keys are permuted alike, and a sum does not depend on the order of its terms")
class ChannelsOfQueriesAndKeysReversed(MultiHead):
    """Within each head, channels of Q and K are reversed before their product."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q.flip(-1), k.flip(-1))
