"""What a generated case is: plain values that print, pickle and shrink; tensors are made of them where they are used.

Shapes: B batch, H heads, S sequence, d_k head dim, d_model = H * d_k.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from harness.verification.inputs import DTYPES, Inputs, generator_for, random_weights
from implementations.spec import Case, MaskKind, Mode

Pattern = Literal["nothing", "everything", "future", "padding", "band", "random"]
"""Which keys a mask hides; ``future`` is causality, ``band`` all that is far from the diagonal."""
Rows = Literal["kept", "emptied", "as drawn"]
"""Whether every row keeps a key, one row is made to lose all of them, or neither is seen to."""
MaskLayout = Literal["contiguous", "expanded", "transposed", "step 2"]
XLayout = Literal["contiguous", "transposed", "step 2 in channels", "step 2 in tokens", "expanded"]

_HIDES = {
    "nothing": "that hides nothing",
    "everything": "that hides everything",
    "future": "that hides the future",
    "padding": "that hides each item's tail",
    "band": "that hides what is {band} or more from the diagonal",
    "random": "that hides keys at random with probability {density}",
}
_ROWS = {"kept": "each row keeping a key", "emptied": "one row losing every key", "as drawn": "rows as they come"}


@dataclass(frozen=True)
class MaskPlan:
    """How to make a mask."""

    axes: str
    """Its dimensions, from the last: a letter of ``bhqk`` where it has the full size, ``1`` where it broadcasts."""
    hides: Pattern
    rows: Rows
    layout: MaskLayout
    density: float = 0.5
    """Share of keys that ``random`` hides."""
    band: int = 1
    """``band`` hides keys at this distance from the query or farther."""

    @property
    def kind(self) -> MaskKind:
        """The mask kind that an implementation has to support: the most special one that covers it."""
        per_item, per_head = "b" in self.axes, "h" in self.axes
        if per_head:
            return "dense" if per_item else "per_head"
        if self.hides == "future" and not per_item and self.axes[-2:] == "qk":
            return "causal_mask"
        if self.hides == "padding":
            return "padding" if "q" not in self.axes else "padding_causal"
        return "dense"

    def make(self, sizes: dict[str, int], generator: torch.Generator, device: str) -> Tensor:
        """The mask, bool, True = masked.

        Args:
            sizes: B, H, S, S by ``b``, ``h``, ``q`` and ``k``.
            generator: of whatever is random.
            device: where the mask shall lie.
        """
        shape = tuple(1 if axis == "1" else sizes[axis] for axis in self.axes)
        hidden = self._pattern(shape, sizes, generator).expand(shape).clone()
        self._mend_rows(hidden, generator)
        return _MASK_LAYOUTS[self.layout](hidden.to(device), tuple(sizes.values()))

    def _pattern(self, shape: tuple[int, ...], sizes: dict[str, int], generator: torch.Generator) -> Tensor:
        """What is hidden, broadcastable to the mask's shape; an axis that broadcasts stands for its last index."""
        seq_len = sizes["k"]
        query, key = (torch.arange(seq_len)[-size:] for size in shape[-2:])
        query = query[:, None]
        if self.hides in ("nothing", "everything"):
            return torch.tensor(self.hides == "everything")
        if self.hides == "future":
            return key > query
        if self.hides == "band":
            return (key - query).abs() >= self.band
        if self.hides == "padding":
            lengths = torch.randint(1, seq_len + 1, (*shape[:-2], 1, 1), generator=generator)
            return key >= lengths
        return torch.rand(shape, generator=generator) < self.density

    def _mend_rows(self, hidden: Tensor, generator: torch.Generator) -> None:
        if self.rows == "as drawn" or hidden.numel() == 0:
            return
        if self.rows == "kept":
            kept = torch.randint(hidden.shape[-1], (*hidden.shape[:-1], 1), generator=generator)
            empty = hidden.all(dim=-1, keepdim=True)
            hidden.scatter_(-1, kept, hidden.gather(-1, kept) & ~empty)
        else:
            rows = hidden.view(-1, hidden.shape[-1])
            rows[int(torch.randint(len(rows), (), generator=generator))] = True

    def __str__(self) -> str:
        hides = _HIDES[self.hides].format(band=self.band, density=f"{self.density:g}")
        return f"a mask of dimensions {'x'.join(self.axes)} {hides}, {_ROWS[self.rows]}, {self.layout}"


def _step_2(tensor: Tensor, dim: int) -> Tensor:
    """The same values as every second element of something larger, whose others are different."""
    other = ~tensor if tensor.dtype == torch.bool else -tensor
    interleaved = torch.stack([tensor, other], dim=dim).flatten(dim - 1, dim)
    return interleaved[(..., slice(None, None, 2)) + (slice(None),) * (-dim - 1)]


def _transposed(tensor: Tensor, first: int, second: int) -> Tensor:
    """The same values with two dimensions stored in the other order."""
    return tensor.transpose(first, second).contiguous().transpose(first, second)


_MASK_LAYOUTS: dict[MaskLayout, Callable[[Tensor, tuple[int, ...]], Tensor]] = {
    "contiguous": lambda mask, _full: mask,
    "expanded": lambda mask, full: mask.expand(full),
    "transposed": lambda mask, _full: _transposed(mask, -1, -2),
    "step 2": lambda mask, _full: _step_2(mask, -1),
}
_X_LAYOUTS: dict[XLayout, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: _transposed(x, 0, 1),
    "step 2 in channels": lambda x: _step_2(x, -1),
    "step 2 in tokens": lambda x: _step_2(x, -2),
    "expanded": lambda x: x[:1].expand_as(x),
}


@dataclass(frozen=True)
class FuzzCase:
    """One generated case: every dimension that a fault could hide in."""

    batch_size: int
    seq_len: int
    num_heads: int
    head_dim: int
    dtype: str = "float32"
    mode: Mode = "inference"
    device: str = "cpu"
    is_causal: bool = False
    """Causality by the flag, on top of the mask."""
    mask: MaskPlan | None = None
    x_layout: XLayout = "contiguous"
    x_scale: float = 1.0
    """Factor on all of x."""
    item_scale: float = 1.0
    """Factor on the last batch item's x; its logits grow with the square."""
    logit_scale: float = 1.0
    """Factor on W_q and b_q, and so on all logits."""
    numbers: int = 0
    """Seed of x, weights, cotangent and whatever is random about the mask."""

    @property
    def spec_cases(self) -> tuple[Case, ...]:
        """What an implementation has to serve: a mask of this kind, and causality by the flag where both are given."""
        kinds: list[MaskKind] = [self.mask.kind] if self.mask else []
        kinds += ["causal"] if self.is_causal else []
        case = Case(self.batch_size, self.seq_len, self.num_heads * self.head_dim, self.num_heads, self.dtype)
        return tuple(replace(case, mask=kind, mode=self.mode, device=self.device) for kind in kinds or ["none"])

    def inputs(self) -> Inputs:
        """Tensors in the case's dtype and layout, the same in every process."""
        case = self.spec_cases[0]
        generator = generator_for("fuzz", self.numbers)
        shape = (case.batch_size, case.seq_len, case.d_model)
        x, cotangent = (torch.randn(shape, generator=generator) for _ in range(2))
        x *= self.x_scale
        x[-1:] *= self.item_scale
        weights = random_weights(case.d_model, generator)
        for name in ("W_q.weight", "W_q.bias"):
            weights[name] *= self.logit_scale
        mask = self.mask.make(self._mask_sizes(), generator, case.device) if self.mask else None

        def convert(tensor: Tensor) -> Tensor:
            return tensor.to(device=case.device, dtype=DTYPES[case.dtype])

        return Inputs(
            case=case,
            x=_X_LAYOUTS[self.x_layout](convert(x)),
            weights={name: convert(weight) for name, weight in weights.items()},
            mask=mask,
            is_causal=self.is_causal,
            cotangent=convert(cotangent),
        )

    def _mask_sizes(self) -> dict[str, int]:
        return {"b": self.batch_size, "h": self.num_heads, "q": self.seq_len, "k": self.seq_len}

    @property
    def words(self) -> str:
        """Every dimension, for a reader."""
        return (
            f"B {self.batch_size}, S {self.seq_len}, H {self.num_heads}, d_k {self.head_dim}; {self.dtype} on "
            f"{self.device}, {self.mode}; {'with' if self.is_causal else 'without'} the causal flag; "
            f"{self.mask or 'no mask'}; x {self.x_layout}, times {self.x_scale:g}, its last item times "
            f"{self.item_scale:g}, logits times {self.logit_scale:g}; numbers of seed {self.numbers}"
        )

    def __str__(self) -> str:
        """Short and unlike any other case's."""
        return f"{self.spec_cases[0]}-{zlib.crc32(self.words.encode()):08x}"
