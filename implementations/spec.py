"""The protocol of an implementation and its self-description; nothing else.

A file in this package becomes part of the registry by a module-level ``IMPLEMENTATION = Implementation(...)``
(or a tuple ``IMPLEMENTATIONS``). The description is data: what the implementation supports, how it treats a
fully masked row, what is known to fail. The harness verifies every word of it.

Shapes: B batch, H query heads, H_kv key/value heads, S sequence, S_q/S_k query/key length, d_k head dim,
d_model = H * d_k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn

MaskKind = Literal["none", "causal", "causal_mask", "padding", "padding_causal", "per_head", "dense"]
"""What kind of mask a case has.

==============  ===================================================================================
none            no mask
causal          causality by the ``is_causal`` flag (a module without the flag gets the dense mask)
causal_mask     causality by a dense (S, S) mask
padding         hidden keys for each batch item, (B, 1, 1, S)
padding_causal  both, (B, 1, S, S)
per_head        another mask for each head, (1, H, S, S)
dense           another mask for each batch item and head, (B, H, S, S)
==============  ===================================================================================
"""

ALL_MASK_KINDS: tuple[MaskKind, ...] = (
    "none",
    "causal",
    "causal_mask",
    "padding",
    "padding_causal",
    "per_head",
    "dense",
)
ALL_DTYPES = ("float64", "float32", "bfloat16", "float16")
PROJECTION_NAMES = tuple(f"W_{p}.{kind}" for p in "qkvo" for kind in ("weight", "bias"))
"""Names of the eight parameters that every implementation takes, as `nn.Linear` lays them out (out, in)."""

Mode = Literal["inference", "training"]
FullyMaskedRow = Literal["uniform", "zero", "nan"]


class Attend(Protocol):
    """An attention function, without projections."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, is_causal: bool) -> Tensor:
        """Attend from q to k and v.

        Args:
            q: (B, H, S_q, d_k).
            k: (B, H_kv, S_k, d_k).
            v: (B, H_kv, S_k, d_k).
            mask: bool, True = masked, broadcastable to (B, H, S_q, S_k), or None.
            is_causal: whether position i sees keys 0..i only, on top of `mask`.

        Returns:
            (B, H, S_q, d_k), dtype and device of q.
        """
        ...


Build = Callable[[int, int], nn.Module]
"""``build(d_model, num_heads)`` gives a module with ``module(x, mask=None) -> y``, x and y (B, S, d_model)."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One problem, as an implementation needs to know it to say whether it serves it."""

    batch_size: int
    seq_len: int
    d_model: int
    num_heads: int
    dtype: str = "float32"
    mask: MaskKind = "none"
    mode: Mode = "inference"
    device: str = "cpu"

    @property
    def head_dim(self) -> int:
        """d_k."""
        return self.d_model // self.num_heads

    def __str__(self) -> str:
        return (
            f"b{self.batch_size}-s{self.seq_len}-d{self.d_model}-h{self.num_heads}-{self.mask}-{self.dtype}"
            f"-{self.mode}-{self.device}"
        )


@dataclass(frozen=True)
class Limit:
    """A case that an implementation does not serve, with the reason for the user."""

    reason: str
    applies: Callable[[Case], bool]


@dataclass(frozen=True)
class KnownFailure:
    """A check that is known to fail, so that it is shown as known and its passing is reported."""

    check: str
    """Name of the check."""
    reason: str
    source: str
    """Where the failure is described, or how it was seen."""
    applies: Callable[[Case], bool] = field(default=lambda _case: True)


@dataclass(frozen=True)
class Behaviour:
    """What an implementation does where the contract leaves it free; `mha verify --semantics` sees whether it does."""

    answers: Mapping[str, str]
    """By probe, in the words of the probe's own answers."""
    source: str
    """Where it is described, or how it was seen."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    """Device types that it is said of."""


@dataclass(frozen=True)
class Implementation:
    """Self-description of an implementation; exactly one of `attend` and `build` is given."""

    name: str
    summary: str
    """One line: what it is."""
    source: str
    """Where it comes from: paper, documentation or library."""
    attend: Attend | None = None
    """An attention function; the shared projections make a module of it."""
    build: Build | None = None
    """A whole module."""
    fully_masked_row: FullyMaskedRow = "zero"
    """What a row whose keys are all masked gives: mean of V, zero, or NaN (a hazard)."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = ALL_DTYPES
    mask_kinds: tuple[MaskKind, ...] = ALL_MASK_KINDS
    gradients: bool = True
    has_causal_flag: bool = True
    """Whether the module takes ``is_causal=True``; without it, a causal case hands over the dense mask."""
    memory_growth: Literal["O(S)", "O(S^2)"] = "O(S^2)"
    """How peak memory grows with the sequence length; used to predict what fits."""
    kernels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By device type, torch operators (``aten::...``) of which one runs in each call: what it is meant to reach. Where
    none of them ran, every report says so. Empty where whatever runs is right."""
    verify_only: Mapping[str, str] = field(default_factory=dict)
    """Device types where it is verified but never timed, each with the reason."""
    slow_on: tuple[str, ...] = ()
    """Device types where a call takes seconds, so that it is verified on a reduced, listed set of cases."""
    rounds_like: Mapping[str, str] = field(default_factory=dict)
    """Dtypes whose result is only as precise as another dtype, e.g. ``{"float64": "float32"}``."""
    limits: tuple[Limit, ...] = ()
    known_failures: tuple[KnownFailure, ...] = ()
    semantics: tuple[Behaviour, ...] = ()
    """Answers of probes beyond `fully_masked_row`; of several for one probe and device, the last one counts."""
    unavailable: Callable[[str], str] = field(default=lambda _device: "")
    """Given a device type, why it cannot run on this machine; empty if it can."""
    pack: Callable[[Tensors], dict[str, Tensor]] = dict
    """From the eight parameters by `PROJECTION_NAMES` to the module's own state dict."""
    unpack: Callable[[Tensors], dict[str, Tensor]] = dict
    """The reverse of `pack`; also maps gradients by parameter name."""

    def __post_init__(self) -> None:
        if (self.attend is None) == (self.build is None):
            raise ValueError(f"implementation {self.name!r}: give exactly one of attend= and build=")
        self._require_known("fully_masked_row", (self.fully_masked_row,), get_args(FullyMaskedRow))
        self._require_known("dtypes", self.dtypes, ALL_DTYPES)
        self._require_known("mask_kinds", self.mask_kinds, ALL_MASK_KINDS)
        given: Mapping[str, object] = self.kernels
        for device, kernels in given.items():
            if not isinstance(kernels, tuple):
                raise TypeError(f"implementation {self.name!r}: kernels[{device!r}] must be a tuple of operator names")

    def _require_known(self, what: str, given: Iterable[str], known: Sequence[str]) -> None:
        unknown = [each for each in given if each not in known]
        if unknown:
            words = ", ".join(map(repr, unknown))
            raise ValueError(f"implementation {self.name!r}: {what} cannot be {words}; there are: {', '.join(known)}")

    def missing_on(self, device: str) -> str:
        """Why it cannot run on this machine's device of this type: the device or a package is missing; empty if not."""
        if device == "cuda" and not torch.cuda.is_available():
            return "torch sees no CUDA device"
        return self.unavailable(device)

    def why_not(self, case: Case) -> tuple[str, ...]:
        """Every reason why this case is not supported; empty if it is."""
        reasons: list[str] = []

        def require(what: str, given: str, allowed: tuple[str, ...]) -> None:
            if given not in allowed:
                reasons.append(f"{what} {given} is not supported (supported: {', '.join(allowed)})")

        require("device", case.device, self.devices)
        require("dtype", case.dtype, self.dtypes)
        require("mask", case.mask, self.mask_kinds)
        if case.mode == "training" and not self.gradients:
            reasons.append("it has no backward, so it cannot train")
        reasons.extend(limit.reason for limit in self.limits if limit.applies(case))
        return tuple(reasons)
