"""Masks taken with the wrong polarity, axis, item, head or fill; causality; rows without any key."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harness.verification.variants.formula import Formula, variant


@variant("masking")
def mask_inverted(f: Formula) -> Tensor | None:
    """The mask's polarity is inverted: True is taken as "keep"."""
    return None if f.mask is None else f.masking(~f.mask)


@variant("masking")
def all_inverted(f: Formula) -> Tensor | None:
    """Polarity is inverted for mask and causality together: what should be hidden is seen, and nothing else."""
    return None if f.mask is None or not f.is_causal or f.hidden is None else f.hiding(~f.hidden)


@variant("masking")
def mask_ignored(f: Formula) -> Tensor | None:
    """The mask has no effect."""
    return None if f.mask is None else f.masking(None)


@variant("masking")
def mask_transposed(f: Formula) -> Tensor | None:
    """Query and key axis of the mask are exchanged."""
    return None if f.mask is None or f.mask.shape[-2] == 1 else f.masking(f.mask.mT)


@variant("masking")
def mask_on_query_axis(f: Formula) -> Tensor | None:
    """The padding mask lies on the query axis: it silences the rows of padded tokens, and not these keys."""
    return None if f.mask is None or f.mask.shape[-2] != 1 else f.masking(f.mask.mT)


@variant("masking")
def mask_added_as_one(f: Formula) -> Tensor | None:
    """The mask is added to the logits as 0/1, so a masked key gains 1."""
    return None if f.hidden is None else f.adding(1.0)


@variant("masking")
def keep_added_as_one(f: Formula) -> Tensor | None:
    """A "keep" mask is added to the logits as 0/1, so masked keys lose 1 instead of everything."""
    return None if f.hidden is None else f.adding(-1.0)


@variant("masking")
def filled_with_zero(f: Formula) -> Tensor | None:
    """Masked logits are set to 0 instead of -inf."""
    return None if f.hidden is None else f.filling(0.0)


@variant("masking")
def filled_with_minus_1e4(f: Formula) -> Tensor | None:
    """Masked logits are set to -1e4, which allowed logits undercut."""
    return None if f.hidden is None else f.filling(-1e4)


@variant("masking")
def minus_1e4_added(f: Formula) -> Tensor | None:
    """-1e4 is added to masked logits: they are not hidden, only 1e4 lower."""
    return None if f.hidden is None else f.adding(-1e4)


@variant("masking")
def masked_behind_softmax(f: Formula) -> Tensor | None:
    """Masked weights are zeroed behind the softmax, so the rest of a row does not sum to 1."""
    return None if f.hidden is None else f.finish(f.logits.softmax(dim=-1).masked_fill(f.hidden, 0.0))


@variant("masking")
def mask_of_first_head(f: Formula) -> Tensor | None:
    """Every head gets the first head's mask."""
    return None if f.mask is None or f.mask.dim() < 3 else f.masking(f.mask[..., :1, :, :])


@variant("masking")
def only_first_head_masked(f: Formula) -> Tensor | None:
    """The mask reaches the first head only."""
    first = torch.arange(f.num_heads, device=f.x.device) == 0
    return None if f.mask is None else f.masking(f.mask & first[:, None, None])


@variant("masking")
def mask_of_first_item(f: Formula) -> Tensor | None:
    """Every batch item gets the first item's mask."""
    return None if f.mask is None or f.mask.dim() < 4 else f.masking(f.mask[:1])


@variant("masking")
def mask_of_first_query(f: Formula) -> Tensor | None:
    """Every query gets the first query's mask."""
    return None if f.mask is None else f.masking(f.mask[..., :1, :])


@variant("masking")
def mask_tiled_in_wrong_order(f: Formula) -> Tensor | None:
    """The mask is repeated over (heads, items) instead of (items, heads): an item gets another item's mask."""
    if f.mask is None or f.mask.dim() < 4 or f.mask.shape[0] != f.batch_size:
        return None
    if f.mask.shape[1] != 1 and f.mask.stride(1) != 0:
        return None  # each head has its own
    tiled = f.mask[:, 0].repeat(f.num_heads, 1, 1)
    return f.masking(tiled.reshape(f.batch_size, f.num_heads, *f.mask.shape[2:]))


@variant("masking")
def mask_read_as_heads_by_items(f: Formula) -> Tensor | None:
    """A mask for each item and head is read in the order (heads, items)."""
    if f.mask is None or f.mask.dim() < 4 or f.mask.shape[:2] != (f.batch_size, f.num_heads):
        return None
    read = f.mask.flatten(0, 1).unflatten(0, (f.num_heads, f.batch_size))  # type: ignore[no-untyped-call]
    return f.masking(read.transpose(0, 1))


@variant("masking")
def mask_per_head_read_per_item(f: Formula) -> Tensor | None:
    """A mask for each head is read as one for each batch item."""
    if f.mask is None or f.mask.dim() < 3 or f.mask.shape[-3] != f.batch_size or f.mask.shape[0] != 1:
        return None
    return f.masking(f.mask.transpose(0, 1))


@variant("masking")
def square_mask_read_as_items_by_keys(f: Formula) -> Tensor | None:
    """A 2-D mask is read as one row of keys for each batch item."""
    if f.mask is None or f.mask.dim() != 2 or f.mask.shape != (f.batch_size, f.seq_len):
        return None
    return f.masking(f.mask[:, None, None, :])


@variant("masking")
def last_column_of_mask_lost(f: Formula) -> Tensor | None:
    """The mask's last column is lost: the last key is always visible."""
    if f.mask is None:
        return None
    return f.masking(torch.cat([f.mask[..., :-1], torch.zeros_like(f.mask[..., :1])], dim=-1))


@variant("masking")
def mask_one_key_early(f: Formula) -> Tensor | None:
    """The mask is off by one: each key gets what is meant for the next one."""
    return None if f.mask is None else f.masking(torch.cat([f.mask[..., 1:], f.mask[..., -1:]], dim=-1))


@variant("masking")
def mask_one_key_late(f: Formula) -> Tensor | None:
    """The mask is off by one: each key gets what is meant for the one before it."""
    return None if f.mask is None else f.masking(torch.cat([f.mask[..., :1], f.mask[..., :-1]], dim=-1))


@variant("masking")
def mask_strides_ignored(f: Formula) -> Tensor | None:
    """The mask's memory is read in order, whatever its strides are."""
    if f.mask is None or f.mask.is_contiguous():
        return None
    in_order = torch.empty_like(f.mask, memory_format=torch.contiguous_format).stride()
    if f.mask.storage_offset() + f.mask.numel() > f.mask.untyped_storage().nbytes():
        return None
    return f.masking(f.mask.as_strided(f.mask.shape, in_order))


@variant("masking")
def mask_pitch_ignored(f: Formula) -> Tensor | None:
    """The mask is a slice of wider rows, and is read as if its rows followed each other."""
    if f.mask is None or f.mask.stride(-1) != 1 or f.mask.stride(-2) <= f.seq_len:
        return None
    return f.masking(f.mask.as_strided(f.mask.shape, (*f.mask.stride()[:-2], f.seq_len, 1)))


@variant("masking")
def window_one_key_too_wide(f: Formula) -> Tensor | None:
    """The mask is off by one: a key before the first visible one is visible as well."""
    return None if f.mask is None else f.masking(f.mask & torch.cat([f.mask[..., 1:], f.mask[..., -1:]], dim=-1))


# Causality.


@variant("causality")
def causality_ignored(f: Formula) -> Tensor | None:
    """The causal flag has no effect."""
    return f.hiding(f.mask) if f.is_causal else None


@variant("causality")
def causality_looks_ahead(f: Formula) -> Tensor | None:
    """The causal flag hides the past instead of the future."""
    return None if not f.is_causal else f.hiding(f.future.mT if f.mask is None else f.mask | f.future.mT)


@variant("causality")
def causality_sees_next(f: Formula) -> Tensor | None:
    """Causality is off by one: a token sees the next one too."""
    later = f.future.triu(diagonal=2)
    return None if not f.is_causal else f.hiding(later if f.mask is None else f.mask | later)


@variant("causality")
def causality_hides_itself(f: Formula) -> Tensor | None:
    """Causality is off by one: a token does not see itself."""
    earlier = torch.ones_like(f.future).triu()
    return None if not f.is_causal else f.hiding(earlier if f.mask is None else f.mask | earlier)


@variant("causality")
def mask_dropped_beside_flag(f: Formula) -> Tensor | None:
    """Beside the causal flag, the mask has no effect."""
    return f.hiding(f.future) if f.is_causal and f.mask is not None else None


@variant("causality")
def mask_and_flag_intersected(f: Formula) -> Tensor | None:
    """A key is hidden only where both the mask and the causal flag hide it."""
    return f.hiding(f.future & f.mask) if f.is_causal and f.mask is not None else None


@variant("causality")
def causal_although_not_asked(f: Formula) -> Tensor | None:
    """Causality is applied without being asked for."""
    return None if f.is_causal else f.hiding(f.future if f.mask is None else f.mask | f.future)


@variant("causality")
def mask_replaced_by_causality(f: Formula) -> Tensor | None:
    """The mask is taken for a causal one."""
    return None if f.is_causal or f.mask is None else f.hiding(f.future)


# Rows without any key.


def _empty_rows_weigh(f: Formula, weights: Tensor | float) -> Tensor | None:
    if f.hidden is None:
        return None
    empty = f.hidden.all(dim=-1, keepdim=True)
    if not bool(empty.any()):
        return None
    return f.finish(torch.where(empty, weights, f.softmax(f.logits, f.hidden)))


@variant("rows without any key")
def empty_rows_are_nan(f: Formula) -> Tensor | None:
    """Rows without any key are NaN: a softmax over nothing but -inf."""
    return _empty_rows_weigh(f, math.nan)


@variant("rows without any key")
def empty_rows_are_zero(f: Formula) -> Tensor | None:
    """Rows without any key are 0."""
    return _empty_rows_weigh(f, 0.0)


@variant("rows without any key")
def empty_rows_are_uniform(f: Formula) -> Tensor | None:
    """Rows without any key give the mean of all values: a finite fill."""
    return _empty_rows_weigh(f, 1.0 / max(1, f.seq_len))


@variant("rows without any key")
def empty_rows_attend_unmasked(f: Formula) -> Tensor | None:
    """Rows without any key attend as if there were no mask."""
    return _empty_rows_weigh(f, f.logits.softmax(dim=-1))
