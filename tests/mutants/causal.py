"""The causal flag: on or off by one, beside a mask, and in one mode only."""

from __future__ import annotations

import torch
from torch import Tensor

from .right import MultiHead
from .zoo import equivalent, wrong


@wrong("masked_keys_have_no_influence")
class CausalFlagIgnored(MultiHead):
    """Every key is visible."""

    def hidden(self, logits: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
        return mask


@wrong("modes_agree", "pytorch#99282")
class CausalFlagIgnoredInFastPath(MultiHead):
    """In eval without gradients the flag is dropped in silence."""

    def hidden(self, logits: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
        return super().hidden(logits, mask, is_causal and (self.training or torch.is_grad_enabled()))


@wrong("masked_keys_have_no_influence", "transformers#39408")
class CausalSeesNextToken(MultiHead):
    """The diagonal is off by one towards the future."""

    def causal(self, logits: Tensor) -> Tensor:
        return super().causal(logits).triu(diagonal=2)


@wrong("matches_the_oracle", "vllm#3385")
class CausalHidesItself(MultiHead):
    """The diagonal is off by one towards the past, so the first row is empty."""

    def causal(self, logits: Tensor) -> Tensor:
        return torch.ones_like(logits[0, 0], dtype=torch.bool).triu()


@wrong("the_flag_adds_to_the_mask", "pytorch#187801")
class MaskDroppedWithFlag(MultiHead):
    """A mask beside the flag has no effect."""

    def hidden(self, logits: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
        return self.causal(logits) if is_causal else mask


@wrong("the_flag_adds_to_the_mask", "pytorch#99282")
class MaskDroppedWithFlagInTraining(MultiHead):
    """A mask beside the flag has no effect in train mode."""

    def hidden(self, logits: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
        return super().hidden(logits, None if is_causal and self.training else mask, is_causal)


@wrong("the_flag_adds_to_the_mask", "pytorch#187801")
class FlagDroppedWithMask(MultiHead):
    """The flag beside a mask has no effect."""

    def hidden(self, logits: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
        return super().hidden(logits, mask, is_causal and mask is None)


@wrong("the_flag_adds_to_the_mask", "pytorch#187801")
class FlagAndMaskIntersected(MultiHead):
    """Beside a mask, the flag hides only what the mask hides as well."""

    def hidden(self, logits: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
        return mask & self.causal(logits) if is_causal and mask is not None else super().hidden(logits, mask, is_causal)


@wrong("an_all_false_mask_changes_nothing")
class AnyMaskMeansCausal(MultiHead):
    """That there is a mask at all switches causality on."""

    def hidden(self, logits: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
        return super().hidden(logits, mask, is_causal or mask is not None)


@wrong("a_row_may_lose_its_first_512_keys")
class CausalityGuessedFromMask(MultiHead):
    """A 2-D mask whose first row sees the first key alone is taken for a causal one."""

    def hidden(self, logits: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
        guessed = mask is not None and mask.dim() == 2 and mask.shape[-1] > 1 and bool(mask[0, 1:].all())
        return super().hidden(logits, None if guessed else mask, is_causal or guessed)


@wrong("a_row_may_lose_its_first_512_keys", "transformers#39408")
class WindowOneKeyTooWide(MultiHead):
    """A sliding window of w keys sees w + 1."""

    def fill(self, logits: Tensor, hidden: Tensor) -> Tensor:
        behind = logits.new_ones(logits.shape[-2:], dtype=torch.bool).tril()
        is_window = hidden.shape[-2] > 1 and bool((hidden & behind)[..., -1, 0].all())
        wider = torch.cat([hidden[..., 1:], hidden[..., -1:]], dim=-1) & hidden
        return super().fill(logits, torch.where(behind, wider, hidden) if is_window and hidden.dim() == 2 else hidden)


@wrong("matches_the_oracle", "vllm#3385")
class SlidingWindowOf128(MultiHead):
    """Keys more than 127 tokens back are never seen."""

    def hidden(self, logits: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
        far = torch.ones_like(logits[0, 0], dtype=torch.bool).tril(diagonal=-128)
        hidden = super().hidden(logits, mask, is_causal)
        return far if hidden is None else hidden | far


@equivalent(
    "the module attends within x, so there are as many keys as queries and both alignments are the same",
    "pytorch#103082",
)
class CausalAlignedBottomRight(MultiHead):
    """The causal diagonal ends in the last row and column instead of beginning in the first."""

    def causal(self, logits: Tensor) -> Tensor:
        queries, keys = logits.shape[-2:]
        return torch.ones(queries, keys, dtype=torch.bool, device=logits.device).triu(diagonal=1 + keys - queries)


@wrong("masked_keys_lose_to_any_allowed_logit")
class SmallFillBehindTheFlag(MultiHead):
    """The causal flag fills with -1e4, where a mask fills with -inf, as GPT-2 did."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        logits = self.logits(q, k)
        if is_causal and mask is None:
            logits = torch.where(self.causal(logits), logits.new_tensor(-1e4), logits)
            return self.mix(self.softmax(logits), v)
        return self.mix(self.weights(logits, self.hidden(logits, mask, is_causal)), v)
