"""What True in a mask means, and what kind of thing a mask is."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .right import MultiHead
from .zoo import wrong


@wrong("masked_keys_have_no_influence", "rasbt/LLMs-from-scratch#1061")
class MaskInverted(MultiHead):
    """True is taken as "keep"."""

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        mask = super().check_mask(x, mask)
        return None if mask is None else ~mask


@wrong("masked_keys_have_no_influence", "x-transformers#160")
class MaskHandedToSdpaAsItIs(MultiHead):
    """The mask goes to torch's fused function, where True means the opposite."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        if mask is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        if is_causal:
            mask = mask | self.causal(q @ k.mT)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@wrong("masked_keys_have_no_influence", "rasbt/LLMs-from-scratch#1061")
class CausalFlagLooksAhead(MultiHead):
    """With the flag, tokens attend to themselves and the future."""

    def causal(self, logits: Tensor) -> Tensor:
        return super().causal(logits).mT


@wrong("masked_keys_have_no_influence", "pytorch: a float 0/1 mask is added")
class MaskAddedAsZeroAndOne(MultiHead):
    """The mask is cast to float and added, so a masked key gains 1."""

    def fill(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return logits + hidden.to(logits.dtype)


@wrong("masked_keys_have_no_influence", "diffusers#14342")
class KeepAddedAsOne(MultiHead):
    """A bool "keep" lands in an additive slot: kept keys gain 1, masked ones 0."""

    def fill(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return logits + (~hidden).to(logits.dtype)


@wrong("attention_weights_match_the_oracle")
class MaskSubtractedAsOne(MultiHead):
    """Masked keys lose 1 instead of everything."""

    def fill(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return logits - hidden.to(logits.dtype)


@wrong("masked_keys_have_no_influence", "pytorch: ~ on a uint8 mask")
class BitwiseNotOfBytes(MultiHead):
    """The mask becomes bytes before ``~``: 254 and 255 both mean "keep"."""

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        mask = super().check_mask(x, mask)
        return None if mask is None else ~((~mask.byte()).bool())
