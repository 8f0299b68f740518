"""What an earlier call of the same module may leave behind."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the field's own alias
from torch import Tensor

from harness.verification.variants.formula import Formula

MemoryVariant = Callable[[Formula, Formula], Tensor | None]
"""From this call and an earlier one to the output."""


def mask_of_earlier_call(f: Formula, earlier: Formula) -> Tensor | None:
    """The mask of an earlier call is still in use."""
    if f.mask is None or earlier.mask is None or earlier.mask.shape != f.mask.shape:
        return None
    return f.masking(earlier.mask)


def keys_of_earlier_call(f: Formula, earlier: Formula) -> Tensor | None:
    """Keys of an earlier call are still in use."""
    if earlier.k.shape[:2] != f.k.shape[:2] or earlier.seq_len > f.seq_len:
        return None
    return f.attending(k=torch.cat([earlier.k, f.k[..., earlier.seq_len :, :]], dim=-2))


def causality_of_earlier_length(f: Formula, earlier: Formula) -> Tensor | None:
    """The causal mask of an earlier, shorter call is still in use: what lies beyond it is visible."""
    if not f.is_causal or earlier.seq_len >= f.seq_len:
        return None
    missing = f.seq_len - earlier.seq_len
    kept = F.pad(earlier.future, (0, missing, 0, missing), value=False)
    return f.hiding(kept if f.mask is None else f.mask | kept)


def output_of_earlier_call(f: Formula, earlier: Formula) -> Tensor | None:
    """The output of an earlier call came again."""
    return earlier.hiding(earlier.hidden) if earlier.x.shape == f.x.shape else None


MEMORY_VARIANTS: tuple[MemoryVariant, ...] = (
    output_of_earlier_call,
    mask_of_earlier_call,
    keys_of_earlier_call,
    causality_of_earlier_length,
)
