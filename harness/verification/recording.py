"""What a module was called with and what came back, kept as it was, so that a failure can be explained and repeated.

Nothing is recorded in an ordinary run: only the check that failed is run once more with a recording (see
`harness.verification.examination`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.verification.inputs import causal_mask
from harness.verification.oracle import Problem
from harness.verification.standalone import copy_of
from implementations.spec import FullyMaskedRow


@dataclass(eq=False)
class Call:
    """One forward pass of a module, and the backward pass through it if there was one."""

    x: Tensor
    """(B, S, d_model), with the strides that it came with."""
    mask: Tensor | None
    """As it was handed over."""
    is_causal: bool
    weights: Mapping[str, Tensor]
    """That the module was given, by `PROJECTION_NAMES`."""
    num_heads: int
    training: bool
    """Whether the module was in train mode."""
    with_gradients: bool
    """Whether gradients were enabled."""
    module: object
    """Which module it was: the same object for calls of the same module."""
    output: Tensor | None = None
    """None if the call raised, or gave something that is no tensor."""
    has_graph: bool = False
    """Whether the output can be differentiated."""
    cotangent: Tensor | None = None
    """Gradient handed to the backward pass; None if there was none."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """By ``x`` and `PROJECTION_NAMES`, as far as they came."""
    missing: tuple[str, ...] = ()
    """Parameters, by the module's own names, that no gradient reached."""

    @property
    def hidden(self) -> Tensor | None:
        """All that is masked, causality included, broadcastable to (B, H, S, S)."""
        if not self.is_causal:
            return self.mask
        future = causal_mask(self.x.shape[1], self.x.device)
        return future if self.mask is None else self.mask | future

    @property
    def is_within_the_contract(self) -> bool:
        """Whether x and the mask have a right answer; refusals are tried with others."""
        d_model = len(self.weights["W_o.bias"])
        if self.x.dim() != 3 or self.x.shape[-1] != d_model:
            return False
        if self.mask is None:
            return True
        batch_size, seq_len, _ = self.x.shape
        full = (batch_size, self.num_heads, seq_len, seq_len)
        fits = all(a in (1, b) for a, b in zip(reversed(self.mask.shape), reversed(full), strict=False))
        return self.mask.dtype == torch.bool and 2 <= self.mask.dim() <= 4 and fits

    def problem(self, fully_masked_row: FullyMaskedRow) -> Problem:
        """The same question for the oracle, with gradients if there were any."""
        return Problem(
            x=self.x,
            weights=self.weights,
            num_heads=self.num_heads,
            hidden=self.hidden,
            cotangent=self.cotangent,
            fully_masked_row=fully_masked_row,
        )


class Recording:
    """The calls of one module, in order; several modules may share one list."""

    def __init__(self, calls: list[Call], weights: Mapping[str, Tensor], num_heads: int) -> None:
        self._calls = calls
        self._weights = weights
        self._num_heads = num_heads
        self._by_x: dict[int, Call] = {}

    def begin(self, x: Tensor, mask: Tensor | None, *, is_causal: bool, training: bool) -> Call:
        """Keep what a call is given, before the call can change it."""
        call = Call(
            x=copy_of(x),
            mask=None if mask is None else copy_of(mask),
            is_causal=is_causal,
            weights=self._weights,
            num_heads=self._num_heads,
            training=training,
            with_gradients=torch.is_grad_enabled(),
            module=self,
        )
        self._calls.append(call)
        self._by_x[id(x)] = call
        return call

    def end(self, call: Call, output: object) -> None:
        """Keep what came back, and what a backward pass will hand in."""
        if not isinstance(output, Tensor):
            return  # the check says so
        call.output = copy_of(output)
        call.has_graph = output.requires_grad
        if output.requires_grad:

            def keep_cotangent(gradient: Tensor) -> None:
                call.cotangent = copy_of(gradient)

            output.register_hook(keep_cotangent)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def keep_gradients(self, x: Tensor, gradients: Mapping[str, Tensor], missing: tuple[str, ...]) -> None:
        """Keep what a backward pass left behind the call with this x."""
        call = self._by_x.get(id(x))
        if call is not None:
            call.gradients = {name: copy_of(gradient) for name, gradient in gradients.items()}
            call.missing = missing
