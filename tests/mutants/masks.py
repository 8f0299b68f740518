"""Which axis, item and head a mask belongs to, in whatever layout it comes."""

from __future__ import annotations

import torch
from torch import Tensor

from .right import MultiHead
from .zoo import wrong


class ReadsMask(MultiHead):
    """Base of mutants that read a right mask wrongly."""

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        mask = super().check_mask(x, mask)
        return None if mask is None else self.read(x, mask)

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        raise NotImplementedError


@wrong("masked_keys_have_no_influence")
class MaskIgnored(ReadsMask):
    """No mask has any effect."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.zeros_like(mask)


@wrong("masked_keys_have_no_influence")
class MaskTransposed(ReadsMask):
    """Query and key axis of the mask are exchanged."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        return mask.mT if mask.shape[-1] == mask.shape[-2] else mask


@wrong("masked_keys_have_no_influence", "hyunwoongko/transformer PR 40")
class PaddingOnQueryAxis(ReadsMask):
    """Padding silences the rows of padded tokens; everybody still attends to them."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        return mask.mT if mask.shape[-2] == 1 else mask


@wrong("matches_the_oracle", "CLIP4Clip#22")
class SquareMaskTakenAsItemsByKeys(ReadsMask):
    """Where B == S, a 2-D mask is read as one row of keys for each item."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        return mask[:, None, None, :] if mask.dim() == 2 and x.shape[0] == x.shape[1] else mask


@wrong("mask_layouts_mean_the_same", "lighthouse PR 77")
class MaskTiledInWrongOrder(ReadsMask):
    """One mask for each item is repeated H times in the order of heads, not of items; invisible at B = 1."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        if mask.dim() < 4 or mask.shape[0] == 1 or mask.shape[1] != 1:
            return mask
        tiled = mask[:, 0].repeat(self.num_heads, 1, 1)
        return tiled.reshape(x.shape[0], self.num_heads, *mask.shape[2:])


@wrong("mask_layouts_mean_the_same", "CLIP4Clip#22")
class HeadsOfMaskInWrongOrder(ReadsMask):
    """A mask for each item and head is flattened as (B, H) and read back as (H, B)."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        if mask.dim() < 4 or mask.shape[:2] != (x.shape[0], self.num_heads):
            return mask
        return mask.flatten(0, 1).unflatten(0, (self.num_heads, x.shape[0])).transpose(0, 1)


@wrong("mask_layouts_mean_the_same")
class PerHeadMaskTakenAsPerItem(ReadsMask):
    """Where B == H, a mask for each head is read as one for each item."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        looks_so = mask.dim() == 4 and mask.shape[:2] == (1, x.shape[0])
        return mask.transpose(0, 1) if looks_so and x.shape[0] == self.num_heads else mask


@wrong("attention_weights_match_the_oracle")
class MaskOfFirstHeadForAll(ReadsMask):
    """Every head gets the first head's mask."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        return mask[..., :1, :, :] if mask.dim() > 2 else mask


@wrong("attention_weights_match_the_oracle")
class MaskOfFirstItemForAll(ReadsMask):
    """Every item gets the first item's mask."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        return mask[:1] if mask.dim() == 4 else mask


@wrong("attention_weights_match_the_oracle")
class MaskOfFirstQueryForAll(ReadsMask):
    """Every query gets the first query's mask."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        return mask[..., :1, :]


@wrong("attention_weights_match_the_oracle")
class OnlyFirstHeadIsMasked(ReadsMask):
    """The mask reaches the first head and no other."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        first = torch.arange(self.num_heads, device=mask.device) == 0
        return mask & first[:, None, None]


@wrong("mask_layouts_mean_the_same", "pytorch#181133")
class StridesOfMaskIgnored(ReadsMask):
    """A transposed mask is read as if its memory were in order."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        if mask.is_contiguous() or 0 in mask.stride() or mask.numel() != mask.untyped_storage().nbytes():
            return mask
        return mask.as_strided(mask.shape, torch.empty_like(mask, memory_format=torch.contiguous_format).stride())


@wrong("mask_layouts_mean_the_same", "xformers#1263")
class PitchOfMaskIgnored(ReadsMask):
    """A mask that is a slice of wider rows is read as if the rows followed each other."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        if mask.dim() < 2 or mask.stride(-1) != 1 or mask.stride(-2) <= mask.shape[-1]:
            return mask
        return mask.as_strided(mask.shape, (*mask.stride()[:-2], mask.shape[-1], 1))


@wrong("mask_layouts_mean_the_same", "FlagGems#5896")
class ExpandedMaskReadAsDense(ReadsMask):
    """A mask expanded over heads is walked as if each head had its own copy, so items get each other's."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        if mask.dim() < 4 or mask.stride(1) != 0 or mask.shape[1] == 1 or mask.stride(0) == 0:
            return mask
        walked = torch.arange(mask.shape[0] * mask.shape[1]).remainder(mask.shape[0])
        return mask[:, 0][walked].reshape(mask.shape)


@wrong("matches_the_oracle")
class LastKeyColumnOfMaskLost(ReadsMask):
    """The mask is cut to even length, and the last key of an odd one is always visible."""

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        if mask.shape[-1] % 2 == 0:
            return mask
        visible = torch.zeros_like(mask[..., :1])
        return torch.cat([mask[..., :-1], visible], dim=-1)


@wrong("a_mask_of_keys_may_hide_any_of_them")
class KeyMaskTakenForLengths(MultiHead):
    """Of a mask over keys only the number of unmasked ones counts, as if padding were always at the end."""

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        mask = super().check_mask(x, mask)
        if mask is None or mask.shape[-1] == 1 or mask.shape[-2] > 1 or (mask.dim() == 4 and mask.shape[1] > 1):
            return mask
        lengths = (~mask).sum(-1, keepdim=True)
        return torch.arange(mask.shape[-1], device=mask.device) >= lengths


@wrong("a_mask_of_keys_may_hide_any_of_them")
class KeyMaskOfFirstHeadForAll(MultiHead):
    """A mask over keys that differs by head is read for the first head only."""

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        mask = super().check_mask(x, mask)
        return mask[:, :1] if mask is not None and mask.dim() == 4 and mask.shape[2] == 1 else mask


@wrong("matches_the_oracle")
class LongMaskOfFirstHeadForAll(MultiHead):
    """Past 64 keys, where queries come in tiles, all heads get the first head's mask."""

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        mask = super().check_mask(x, mask)
        return mask[..., :1, :, :] if mask is not None and mask.dim() > 2 and x.shape[1] > 64 else mask


@wrong("the_flag_adds_to_the_mask")
class LongMaskReplacesFlag(MultiHead):
    """Past 64 keys, a mask takes the place of the causal flag within the last tile of 64 keys."""

    def hidden(self, logits: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
        hidden = super().hidden(logits, mask, is_causal)
        if not is_causal or mask is None or logits.shape[-1] <= 64:
            return hidden
        index = torch.arange(logits.shape[-1], device=logits.device) // 64
        return torch.where(index[:, None] == index, mask, hidden)


@wrong("mask_layouts_mean_the_same")
class TransposedMaskMisreadInBackward(MultiHead):
    """The backward reads a transposed mask as if its memory were in order."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        weights = super().weights(logits, hidden)
        if hidden is None or hidden.stride(-1) <= 1 or hidden.shape[-2] == 1:
            return weights
        misread = super().weights(logits, hidden.transpose(-1, -2))
        return misread + (weights - misread).detach()
