"""Shapes and strides at which kernels go wrong, and neighbours that should not matter."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .right import MultiHead
from .zoo import wrong


class SometimesWrong(MultiHead):
    """Base of mutants that forget the last key for some shapes."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        weights = super().weights(logits, hidden)
        batch_size, _, seq_len, _ = logits.shape
        if not self.is_wrong(batch_size, seq_len, self.d_model // self.num_heads):
            return weights
        return torch.cat([weights[..., :-1], 0.0 * weights[..., -1:]], dim=-1)

    def is_wrong(self, batch_size: int, seq_len: int, head_dim: int) -> bool:
        raise NotImplementedError


@wrong("softmax_rows_sum_to_one")
class LastKeyDropped(SometimesWrong):
    """The loop over keys ends one too early."""

    def is_wrong(self, batch_size: int, seq_len: int, head_dim: int) -> bool:
        return True


@wrong("matches_the_oracle")
class WrongPast128Tokens(SometimesWrong):
    """Right within one block of 128."""

    def is_wrong(self, batch_size: int, seq_len: int, head_dim: int) -> bool:
        return seq_len > 128


@wrong("matches_the_oracle", "pytorch#127055")
class WrongPast512Tokens(SometimesWrong):
    """Right within one block of 512."""

    def is_wrong(self, batch_size: int, seq_len: int, head_dim: int) -> bool:
        return seq_len > 512


@wrong("matches_the_oracle")
class WrongForWholeBlocks(SometimesWrong):
    """Wrong where the length is a multiple of 64 and there is no rest to handle."""

    def is_wrong(self, batch_size: int, seq_len: int, head_dim: int) -> bool:
        return seq_len % 64 == 0


@wrong("softmax_rows_sum_to_one")
class WrongForOddLengths(SometimesWrong):
    """Right for even sequences."""

    def is_wrong(self, batch_size: int, seq_len: int, head_dim: int) -> bool:
        return seq_len % 2 == 1


@wrong("matches_the_oracle")
class WrongForSingleToken(SometimesWrong):
    """Right from two tokens on."""

    def is_wrong(self, batch_size: int, seq_len: int, head_dim: int) -> bool:
        return seq_len == 1


@wrong("batch_items_are_independent")
class WrongForSingleItem(SometimesWrong):
    """Right from two items on."""

    def is_wrong(self, batch_size: int, seq_len: int, head_dim: int) -> bool:
        return batch_size == 1


@wrong("softmax_rows_sum_to_one", "xformers#808")
class WrongForUnalignedHeads(SometimesWrong):
    """Right where d_k is a multiple of 8."""

    def is_wrong(self, batch_size: int, seq_len: int, head_dim: int) -> bool:
        return head_dim % 8 != 0


@wrong("matches_the_oracle", "xformers#808")
class WrongForWideHeads(SometimesWrong):
    """Right up to d_k = 32."""

    def is_wrong(self, batch_size: int, seq_len: int, head_dim: int) -> bool:
        return head_dim > 32


@wrong("matches_the_oracle", "a dropped block passes loose tests")
class BlockOfKeysDropped(MultiHead):
    """Keys 64 to 95 of a long sequence are skipped."""

    def softmax(self, logits: Tensor) -> Tensor:
        if logits.shape[-1] <= 128:
            return super().softmax(logits)
        skipped = logits.clone()
        skipped[..., 64:96] = torch.finfo(logits.dtype).min
        return super().softmax(skipped)


@wrong("softmax_rows_sum_to_one", "xformers#813")
class KeysPaddedToEightTakePart(MultiHead):
    """Keys are padded with zeros to a multiple of 8, and the padding is not hidden."""

    def softmax(self, logits: Tensor) -> Tensor:
        length = logits.shape[-1]
        return super().softmax(F.pad(logits, (0, -length % 8)))[..., :length]


@wrong("matches_the_oracle", "pytorch PR 193728")
class ReadsPastTheEnd(MultiHead):
    """Values are read one token further than they go, the last one from the first."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, v.roll(-1, dims=-2))


@wrong("permuting_tokens_permutes_the_output")
class OutputShiftedByAToken(MultiHead):
    """Row t holds the output of token t - 1."""

    def merge(self, heads: Tensor) -> Tensor:
        return super().merge(heads.roll(1, dims=-2))


@wrong("batch_items_are_independent")
class ItemsAveraged(MultiHead):
    """Keys are averaged over the batch."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k.mean(dim=0, keepdim=True).expand_as(k))


@wrong("batch_items_are_independent", "TabPFN#800", "pytorch#34060", numeric=True)
class ResultDependsOnBatch(MultiHead):
    """Values are quantised by the largest value of the whole batch."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        if not v.numel():
            return super().mix(weights, v)
        step = v.detach().abs().max() / 2**12
        return super().mix(weights, v + ((v / step).round() * step - v).detach())


@wrong("any_strides_are_accepted", "pytorch#181133")
class StridesOfInputIgnored(MultiHead):
    """A transposed x is read as if its memory were in order."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        if not x.is_contiguous() and 0 not in x.stride() and x.stride(-1) == 1:
            x = x.as_strided(x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1))
        return super().forward(x, mask, is_causal=is_causal)


@wrong("any_strides_are_accepted", "FlagGems#5896")
class StepOfChannelsIgnored(MultiHead):
    """Every second channel of a wider tensor is read as its first half."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        if x.stride(-1) > 1:
            x = x.as_strided(x.shape, (*x.stride()[:-1], 1))
        return super().forward(x, mask, is_causal=is_causal)


@wrong("any_strides_are_accepted", "FlagGems#5896")
class ExpandedInputRefused(MultiHead):
    """An expanded x is viewed, which torch refuses."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        x.view(-1)
        return super().forward(x, mask, is_causal=is_causal)


@wrong("an_empty_batch_gives_an_empty_output", "pytorch#141219")
class EmptyBatchRefused(MultiHead):
    """B = 0 raises, as in a kernel that divides by its number of blocks."""

    def merge(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).reshape(heads.shape[0], heads.shape[2], -1)


@wrong("output_is_like_the_input")
class BatchAndSequenceExchanged(MultiHead):
    """The output is (S, B, d_model)."""

    def output(self, merged: Tensor) -> Tensor:
        return super().output(merged).transpose(0, 1)


@wrong("output_is_like_the_input")
class OutputOfHeads(MultiHead):
    """The output is still split into heads."""

    def output(self, merged: Tensor) -> Tensor:
        return super().output(merged).unflatten(-1, (self.num_heads, -1))


@wrong("gradients_match_the_oracle")
class WrongInLongTraining(MultiHead):
    """Past 128 tokens, train mode falls back to uniform weights."""

    def softmax(self, logits: Tensor) -> Tensor:
        if self.training and logits.shape[-1] > 128:
            logits = torch.where(logits.isinf(), logits, 0.0 * logits)
        return super().softmax(logits)


@wrong("matches_the_oracle")
class WideHeadsCutOff(MultiHead):
    """Of heads wider than one tile, only the first 64 channels meet."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q[..., :64] @ k[..., :64].transpose(-1, -2) * self.scale(q.shape[-1])


@wrong("matches_the_oracle")
class SplitKeysCombinedWrongly(MultiHead):
    """From 1,024 keys on, two halves of the keys are joined as if their normalisers were equal."""

    def softmax(self, logits: Tensor) -> Tensor:
        if logits.shape[-1] < 1024:
            return super().softmax(logits)
        half = logits.shape[-1] // 2
        parts = [torch.nan_to_num(part.softmax(dim=-1)) for part in (logits[..., :half], logits[..., half:])]
        joined = torch.cat(parts, dim=-1)
        return joined / joined.sum(-1, keepdim=True)


@wrong("matches_the_oracle")
class GridOfSixteen(MultiHead):
    """Items and heads are launched in groups of 16, and a rest behind the first group is not computed."""

    def merge(self, heads: Tensor) -> Tensor:
        batch_size, num_heads = heads.shape[:2]
        count = batch_size * num_heads
        launched = torch.arange(count, device=heads.device) < max(16, count - count % 16)
        return super().merge(heads * launched.view(batch_size, num_heads, 1, 1))
