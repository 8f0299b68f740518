"""Wrong arguments that are accepted in silence, or refused without a word of what is wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from .right import MultiHead
from .zoo import wrong


@wrong("wrong_mask_dtype_is_a_type_error", "pytorch: a float 0/1 mask is added")
class MaskDtypeNotChecked(MultiHead):
    """Any number is taken for a bool."""

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        return super().check_mask(x, None if mask is None else mask.bool())


@wrong("wrong_mask_dtype_is_a_type_error", "pytorch: ~ on a uint8 mask")
class ByteMasksAccepted(MultiHead):
    """A uint8 mask is taken for a bool one."""

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        return super().check_mask(x, mask.bool() if mask is not None and mask.dtype == torch.uint8 else mask)


@wrong("wrong_mask_shape_is_a_value_error", "pytorch#120810")
class MaskShapeNotChecked(MultiHead):
    """Whatever torch broadcasts is taken."""

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        if mask is not None and mask.dtype != torch.bool:
            raise TypeError(f"mask must be bool, got {mask.dtype}")
        return mask


@wrong("wrong_mask_shape_is_a_value_error", "pytorch PR 193728")
class LongMaskCutOff(MultiHead):
    """A mask for more tokens than there are is cut to fit."""

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        cut = None if mask is None or mask.dim() < 2 else mask[..., : x.shape[1], : x.shape[1]]
        return super().check_mask(x, mask if cut is None else cut)


@wrong("wrong_mask_shape_is_a_value_error", "pytorch#120810")
class ThreeDimensionalMaskGuessed(MultiHead):
    """(B, S, S) is accepted, though it says nothing about heads."""

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        items = mask is not None and mask.dim() == 3 and mask.shape[0] == x.shape[0] != self.num_heads
        return super().check_mask(x, mask[:, None] if mask is not None and items else mask)


@wrong("wrong_mask_shape_is_a_value_error")
class RefusalWithoutReason(MultiHead):
    """A mask that does not fit raises a ValueError that says nothing of its shape."""

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        try:
            return super().check_mask(x, mask)
        except ValueError:
            raise ValueError("bad mask") from None


@wrong("wrong_d_model_is_an_error")
class ExtraChannelsIgnored(MultiHead):
    """Channels of x beyond d_model are cut off."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        return super().forward(x[..., : self.d_model], mask, is_causal=is_causal)


@wrong("indivisible_d_model_is_an_error")
class DivisibilityNotChecked(MultiHead):
    """d_model % num_heads != 0 builds a module."""

    def check_heads(self, d_model: int, num_heads: int) -> None:
        pass
