"""The softmax: its axis, its maximum, its denominator, and functions that merely look like one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .right import MultiHead
from .zoo import equivalent, wrong


@wrong("softmax_rows_sum_to_one", "pytorch#196468")
class SoftmaxOverQueries(MultiHead):
    """Columns sum to 1 instead of rows."""

    def softmax(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=-2).nan_to_num(0.0)


@wrong("softmax_rows_sum_to_one", "pytorch#196468")
class SoftmaxOverHeads(MultiHead):
    """Heads compete for each pair of tokens."""

    def softmax(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1).nan_to_num(0.0)


@wrong("batch_items_are_independent")
class SoftmaxOverBatch(MultiHead):
    """Items compete for each pair of tokens."""

    def softmax(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=0).nan_to_num(0.0)


@wrong("large_logits_leave_other_items_alone", "softmax without a maximum")
class NoMaximumSubtracted(MultiHead):
    """Exp of the bare logits overflows."""

    def softmax(self, logits: Tensor) -> Tensor:
        powers = logits.exp()
        return powers / powers.sum(dim=-1, keepdim=True)


@wrong("large_logits_leave_other_items_alone", "softmax with one maximum for all")
class OneMaximumForAll(MultiHead):
    """The whole tensor's maximum is subtracted, so an item with small logits becomes 0/0."""

    def softmax(self, logits: Tensor) -> Tensor:
        powers = (logits - logits.max()).exp() if logits.numel() else logits
        return powers / powers.sum(dim=-1, keepdim=True)


@wrong("large_logits_leave_other_items_alone", "softmax with one maximum for all")
class OneMaximumForEachHead(MultiHead):
    """A head's maximum is subtracted from all of its rows."""

    def softmax(self, logits: Tensor) -> Tensor:
        powers = (logits - logits.amax(dim=(-1, -2), keepdim=True)).exp()
        return powers / powers.sum(dim=-1, keepdim=True)


@wrong("softmax_rows_sum_to_one")
class SoftmaxWithAttentionSink(MultiHead):
    """One is added to the denominator, as if a key of logit 0 took part."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.cat([logits, torch.zeros_like(logits[..., :1])], dim=-1).softmax(dim=-1)[..., :-1]


@wrong("softmax_rows_sum_to_one", numeric=True)
class DenominatorWithEpsilon(MultiHead):
    """1e-4 is added to the denominator against a division by zero."""

    def softmax(self, logits: Tensor) -> Tensor:
        powers = (logits - logits.amax(dim=-1, keepdim=True)).exp()
        return powers / (powers.sum(dim=-1, keepdim=True) + 1e-4)


@wrong("softmax_rows_sum_to_one", numeric=True)
class DenominatorOffByAThousandth(MultiHead):
    """All weights are too small by 1e-3."""

    def softmax(self, logits: Tensor) -> Tensor:
        return super().softmax(logits) / 1.001


@wrong("attention_weights_match_the_oracle", numeric=True)
class TemperatureOffByAThousandth(MultiHead):
    """Logits are too large by 1e-3."""

    def softmax(self, logits: Tensor) -> Tensor:
        return super().softmax(logits * 1.001)


@wrong("attention_weights_match_the_oracle", numeric=True)
class ExponentialApproximated(MultiHead):
    """Exp by (1 + x/4096)^4096."""

    def softmax(self, logits: Tensor) -> Tensor:
        distance = logits - logits.amax(dim=-1, keepdim=True)
        powers = (1.0 + distance.clamp(min=-4096.0) / 4096.0).pow(4096)
        return powers / powers.sum(dim=-1, keepdim=True)


@wrong("softmax_rows_sum_to_one")
class SmallWeightsCutOff(MultiHead):
    """Weights below 1e-2 become 0."""

    def softmax(self, logits: Tensor) -> Tensor:
        weights = super().softmax(logits)
        return weights.masked_fill(weights < 1e-2, 0.0)


@wrong("attention_weights_match_the_oracle")
class OnlyFourBestKeys(MultiHead):
    """Only the four largest logits of a row take part."""

    def softmax(self, logits: Tensor) -> Tensor:
        last = logits.topk(min(4, logits.shape[-1]), dim=-1).values[..., -1:]
        return super().softmax(logits.masked_fill(logits < last, -math.inf))


@wrong("attention_weights_match_the_oracle")
class ReluAttention(MultiHead):
    """Positive logits divided by their sum."""

    def softmax(self, logits: Tensor) -> Tensor:
        positive = logits.relu() + 1e-6 * logits.isfinite()
        return positive / positive.sum(dim=-1, keepdim=True)


@wrong("softmax_rows_sum_to_one")
class SigmoidAttention(MultiHead):
    """Each weight is a sigmoid of its own."""

    def softmax(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()


@wrong("attention_weights_match_the_oracle")
class PowersOfTwo(MultiHead):
    """2^x without log2(e)."""

    def softmax(self, logits: Tensor) -> Tensor:
        return super().softmax(logits * math.log(2.0))


@wrong("attention_weights_match_the_oracle")
class LogitsCapped(MultiHead):
    """Logits pass through 50 tanh(x / 50)."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return 50.0 * (super().logits(q, k) / 50.0).tanh()


@wrong("large_logits_leave_other_items_alone")
class LogitsClamped(MultiHead):
    """Logits are clamped to +-30."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k).clamp(-30.0, 30.0)


@wrong("a_constant_in_b_k_changes_nothing")
class KeysNormalised(MultiHead):
    """Keys are brought to a common length before the product."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k * math.sqrt(k.shape[-1]) / k.norm(dim=-1, keepdim=True))


@wrong("attention_weights_match_the_oracle", "mean of V passes loose tests")
class MeanOfValues(MultiHead):
    """All visible keys weigh alike."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) * 0.0


@wrong("attention_weights_match_the_oracle")
class HardMaximum(MultiHead):
    """The best key takes all."""

    def softmax(self, logits: Tensor) -> Tensor:
        return super().softmax(logits * 1e6)


@wrong("duplicated_keys_count_twice")
class EqualKeysCountOnce(MultiHead):
    """Of keys with equal logits in a row, only the first takes part."""

    def softmax(self, logits: Tensor) -> Tensor:
        if logits.shape[-1] > 64:  # every pair of keys is compared
            return super().softmax(logits)
        equal = (logits[..., :, None] == logits[..., None, :]).tril(diagonal=-1).any(dim=-1)
        return super().softmax(logits.masked_fill(equal, -math.inf))


@equivalent("the same number is subtracted from all logits of a row, which softmax ignores")
class KeysCentred(MultiHead):
    """The mean key is subtracted from every key."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k - k.mean(dim=-2, keepdim=True))


@equivalent("2^(x log2 e) is e^x; the extra rounding is that of one product")
class PowersOfTwoRescaled(MultiHead):
    """Exp as a power of two, as kernels compute it."""

    def softmax(self, logits: Tensor) -> Tensor:
        powers = ((logits - logits.amax(dim=-1, keepdim=True)) * math.log2(math.e)).exp2()
        return powers / powers.sum(dim=-1, keepdim=True)
