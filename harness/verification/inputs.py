"""Inputs that make faults visible: random biases, unlike batch items, masks that differ by item and head.

Everything is drawn from a generator seeded by the case and the run's seed, so a case is the same in every process.
Shapes: B batch, H heads, S sequence, d_model.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.verification.oracle import Problem
from implementations.spec import PROJECTION_NAMES, Case, FullyMaskedRow

DTYPES: Mapping[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Inputs:
    """What an implementation is called with, in the case's dtype and on its device."""

    case: Case
    x: Tensor
    """(B, S, d_model)."""
    weights: Mapping[str, Tensor]
    """By `PROJECTION_NAMES`, (out, in) as nn.Linear lays them out."""
    mask: Tensor | None
    """bool, True = masked; None where there is none or causality comes by the flag."""
    is_causal: bool
    """Whether causality is asked for by the flag."""
    cotangent: Tensor
    """(B, S, d_model): gradient of the loss by the output."""

    @property
    def hidden(self) -> Tensor | None:
        """All that is masked, causality included, broadcastable to (B, H, S, S)."""
        if not self.is_causal:
            return self.mask
        future = causal_mask(self.x.shape[1], self.x.device)
        return future if self.mask is None else self.mask | future

    def problem(self, fully_masked_row: FullyMaskedRow, *, gradients: bool) -> Problem:
        """The same for the oracle."""
        return Problem(
            x=self.x,
            weights=self.weights,
            num_heads=self.case.num_heads,
            hidden=self.hidden,
            cotangent=self.cotangent if gradients else None,
            fully_masked_row=fully_masked_row,
        )

    def with_mask(self, mask: Tensor | None) -> Inputs:
        """The same inputs under another mask, handed over as it is."""
        return replace(self, mask=mask, is_causal=False)


def generator_for(*parts: object) -> torch.Generator:
    """A generator seeded by these parts: equal parts give equal numbers in every process."""
    return torch.Generator().manual_seed(zlib.crc32(repr(parts).encode()))


def make_inputs(case: Case, seed: int = 0, padded_share: float | None = None) -> Inputs:
    """Draw inputs, weights, mask and cotangent for a case.

    Logits have a standard deviation of about 1, biases of 0.5; nothing is zero, nothing is symmetric.

    Args:
        case: shapes, dtype, mask kind and device.
        seed: of the run.
        padded_share: share of keys that padding hides; None draws a length for each batch item.
    """
    generator = generator_for("inputs", str(replace(case, dtype="", mode="inference", device="cpu")), seed)
    shape = (case.batch_size, case.seq_len, case.d_model)
    x = torch.randn(shape, generator=generator)
    weights = random_weights(case.d_model, generator)
    cotangent = torch.randn(shape, generator=generator)
    mask = make_mask(case, generator, padded_share)

    def convert(tensor: Tensor) -> Tensor:
        return tensor.to(device=case.device, dtype=DTYPES[case.dtype])

    return Inputs(
        case=case,
        x=convert(x),
        weights={name: convert(weight) for name, weight in weights.items()},
        mask=None if mask is None else mask.to(case.device),
        is_causal=case.mask == "causal",
        cotangent=convert(cotangent),
    )


def random_weights(d_model: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Weights that keep the variance of x, and biases that are not zero."""

    def draw(name: str) -> Tensor:
        if name.endswith("weight"):
            return torch.randn(d_model, d_model, generator=generator) / math.sqrt(d_model)
        return 0.5 * torch.randn(d_model, generator=generator)

    return {name: draw(name) for name in PROJECTION_NAMES}


def causal_mask(seq_len: int, device: torch.device | str = "cpu") -> Tensor:
    """(S, S), True where the key lies in the query's future."""
    return torch.ones(seq_len, seq_len, dtype=torch.bool, device=device).triu(diagonal=1)


def padding_mask(lengths: Tensor, seq_len: int) -> Tensor:
    """(B, 1, 1, S), True behind each item's length."""
    return (torch.arange(seq_len) >= lengths[:, None])[:, None, None, :]


def make_mask(case: Case, generator: torch.Generator, padded_share: float | None = None) -> Tensor | None:
    """The dense or broadcastable mask of a case; None for ``none`` and for ``causal``, which is a flag."""
    batch_size, seq_len, num_heads = case.batch_size, case.seq_len, case.num_heads
    if case.mask in ("none", "causal"):
        return None
    if case.mask == "causal_mask":
        return causal_mask(seq_len)
    if case.mask in ("padding", "padding_causal"):
        padding = padding_mask(_lengths(case, generator, padded_share), seq_len)
        return padding if case.mask == "padding" else padding | causal_mask(seq_len)
    shape = (1 if case.mask == "per_head" else batch_size, num_heads, seq_len, seq_len)
    mask = torch.rand(shape, generator=generator) < 0.4
    if seq_len:
        kept = torch.randint(seq_len, (*shape[:3], 1), generator=generator)
        mask.scatter_(-1, kept, value=False)  # every row keeps a key; fully masked rows have a check of their own
    return mask


def _lengths(case: Case, generator: torch.Generator, padded_share: float | None) -> Tensor:
    """Unmasked keys of each batch item: at least 1, and not all alike where there are several items."""
    if padded_share is not None:
        # Spread evenly around the mean, so that the share over the batch is the one stated.
        share = torch.linspace(0.5, 1.5, case.batch_size) if case.batch_size > 1 else torch.ones(1)
        return (case.seq_len * (1.0 - padded_share * share)).round().clamp(min=1).long()
    return torch.randint(1, max(2, case.seq_len), (case.batch_size,), generator=generator)
