"""State of the process that a call may change behind everybody's back: saved once, restored before each block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor


def flushes_denormals() -> bool:
    """Whether this thread treats subnormal numbers as zero; torch can set that, but not tell."""
    return bool((torch.full((), torch.finfo(torch.float32).smallest_normal) / 2 == 0).item())


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_rng_state, torch.set_rng_state),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    (flushes_denormals, torch.set_flush_denormal),
)
"""How to read and how to write each setting."""


@dataclass(frozen=True)
class RuntimeState:
    """Threads, random numbers and flags, as they were when it was captured."""

    values: tuple[Any, ...]

    @classmethod
    def capture(cls) -> Self:
        """The state as it is now."""
        return cls(tuple(read() for read, _ in _SETTINGS))

    def restore(self) -> None:
        """Set back what has changed; what has not is left alone, for setting can cost more than reading."""
        for (read, write), value in zip(_SETTINGS, self.values, strict=True):
            if not _equal(read(), value):
                write(value)


def _equal(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return one == other


def refuse_denormals(tensors: dict[str, Tensor]) -> None:
    """Refuse inputs that a CPU computes at a fraction of its speed: subnormal numbers cost up to 45 times.

    float16 is free of this: it is widened before it is computed with, and its subnormals are normal in float32.

    Raises:
        ValueError: some numbers are subnormal; names the tensor and how many.
    """
    for name, tensor in tensors.items():
        smallest = torch.finfo(torch.promote_types(tensor.dtype, torch.float32)).smallest_normal
        magnitude = tensor.detach().abs()
        count = int(((magnitude > 0) & (magnitude < smallest)).sum())
        if count:
            raise ValueError(
                f"{name} has {count} subnormal numbers (below {smallest:.3g} in magnitude): their arithmetic is "
                "many times slower, so a time would say nothing about attention; scale the inputs up"
            )
