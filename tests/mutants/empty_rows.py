"""Rows without any key: fill values, NaN, and gradients that one such row poisons."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .right import MultiHead
from .zoo import wrong


@wrong("fully_masked_row_is_as_declared", "pytorch#103963")
class EmptyRowIsNan(MultiHead):
    """A softmax over nothing but -inf."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        return self.softmax(logits if hidden is None else self.fill(logits, hidden))


@wrong("fully_masked_row_is_as_declared", "pytorch#41508")
class NanRemovedFromForwardOnly(MultiHead):
    """An empty row's NaN is replaced by 0 behind the softmax, whose backward still makes NaN of everything."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        if hidden is None:
            return self.softmax(logits)
        bias = torch.zeros_like(logits).masked_fill(hidden, -math.inf)
        return self.softmax(logits + bias).nan_to_num(0.0)


@wrong("fully_masked_row_is_as_declared", "pytorch#160064")
class HeadMaskedWholeSpoilsAll(MultiHead):
    """One head without any key turns the whole output into NaN."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        weights = super().weights(logits, hidden)
        whole_head = hidden is not None and hidden.dim() == 4 and bool(hidden[:1].flatten(2).all(-1).any())
        return weights * math.nan if whole_head else weights


@wrong("fully_masked_row_is_as_declared", "pytorch PR 190486")
class EmptyRowIsNanInFastPath(MultiHead):
    """In eval without gradients an empty row is NaN, in training 0."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        if hidden is None or self.training or torch.is_grad_enabled():
            return super().weights(logits, hidden)
        return self.softmax(self.fill(logits, hidden))


@wrong("fully_masked_row_is_as_declared")
class EmptyRowIsUniformThoughZeroIsDeclared(MultiHead):
    """The mean of V where 0 is declared."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        if hidden is None:
            return self.softmax(logits)
        return self.softmax(logits.masked_fill(hidden, torch.finfo(logits.dtype).min))


@wrong("fully_masked_row_is_as_declared", fully_masked_row="uniform")
class EmptyRowIsZeroThoughUniformIsDeclared(MultiHead):
    """0 where the mean of V is declared."""


@wrong("fully_masked_row_is_as_declared")
class EmptyRowAttendsUnmasked(MultiHead):
    """A row without keys is treated as a row without mask."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        return super().weights(logits, None if hidden is None else hidden & ~hidden.all(dim=-1, keepdim=True))


@wrong("fully_masked_row_is_as_declared", "transformers PR 17306")
class MinimumAddedTwice(MultiHead):
    """Two masks of the dtype's minimum are added; their sum is -inf and an empty row NaN."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        if hidden is None:
            return self.softmax(logits)
        bias = torch.zeros_like(logits).masked_fill(hidden, torch.finfo(logits.dtype).min)
        return self.softmax(logits + (bias + bias))


@wrong("fully_masked_row_is_as_declared", "apex#1052", fully_masked_row="uniform")
class FillTurnsInfiniteInHalf(MultiHead):
    """A fill of -1e9, which float16 can hold only as -inf: an empty row is NaN there, and nowhere else."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        if hidden is None:
            return self.softmax(logits)
        return self.softmax(torch.where(hidden, torch.tensor(-1e9).to(logits.dtype), logits))


@wrong("a_row_may_lose_its_first_512_keys", "pytorch#127055")
class EmptyBlockIsNan(MultiHead):
    """Online softmax over blocks of 512 keys: a row without any key in its first block is NaN."""

    def softmax(self, logits: Tensor) -> Tensor:
        largest = torch.full_like(logits[..., :1], -math.inf)
        total = torch.zeros_like(largest)
        for block in logits.split(512, dim=-1):
            larger = torch.maximum(largest, block.amax(dim=-1, keepdim=True))
            total = total * (largest - larger).exp() + (block - larger).exp().sum(dim=-1, keepdim=True)
            largest = larger
        return (logits - largest).exp() / total


@wrong("masked_keys_lose_to_any_allowed_logit", "ViT and BERT code: additive -1e4")
class SmallFillAdded(MultiHead):
    """Masked keys lose 1e4 instead of everything."""

    def fill(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return logits - 1e4 * hidden.to(logits.dtype)


@wrong("masked_keys_lose_to_any_allowed_logit", "ViT and BERT code: additive -1e4")
class SmallFill(MultiHead):
    """Masked logits are set to -1e4, which an allowed logit may undercut."""

    def fill(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return logits.masked_fill(hidden, -1e4)


@wrong("fully_masked_row_is_as_declared", "ViT and BERT code: additive -1e4", fully_masked_row="uniform")
class EmptyRowKeepsItsLogits(MultiHead):
    """-1e4 is added to a whole row and cancels in the softmax: neither 0 nor the mean of V."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        return self.softmax(logits if hidden is None else logits - 1e4 * hidden.to(logits.dtype))


@wrong("softmax_rows_sum_to_one")
class MaskedAfterSoftmax(MultiHead):
    """Weights of masked keys are zeroed behind the softmax, and the rest does not sum to 1."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        weights = self.softmax(logits)
        return weights if hidden is None else weights.masked_fill(hidden, 0.0)


@wrong("attention_weights_match_the_oracle", "hyunwoongko/transformer PR 40")
class FillOfZero(MultiHead):
    """Masked logits are set to 0 instead of -inf."""

    def fill(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return logits.masked_fill(hidden, 0.0)


@wrong("mask_and_flag_may_empty_a_row_together")
class OnlyMaskIsLookedAtForEmptyRows(MultiHead):
    """The guard against empty rows sees the mask and not the causal flag beside it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        logits = self.logits(q, k)
        hidden = self.hidden(logits, mask, is_causal)
        if hidden is None:
            return self.mix(self.softmax(logits), v)
        empty = torch.zeros_like(hidden[..., :1]) if mask is None else mask.all(dim=-1, keepdim=True)
        return self.mix(self.softmax(self.fill(logits, hidden & ~empty)).masked_fill(empty, 0.0), v)
