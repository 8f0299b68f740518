"""The calls that are timed, each with the answer of its latest run still at hand.

*Passes.* Inference is a forward in eval mode under no_grad; forward is one in train mode that keeps what a backward
would need; training is a forward and a backward, to x and to all weights, as a layer within a network does. A training
call drops the previous gradients first, as a training step's `zero_grad` does: adding to old gradients would be other
work, and dropping them costs microseconds.

*Scopes.* A module is called on x (B, S, d_model). Of an attention function its author may want the bare figure: then
`attend` alone is timed, on contiguous q, k and v (B, H, S, d_k) that the projections gave beforehand, and its backward
ends at them. Its answer still is the module's: what came is carried on through the projections, outside of the timed
calls, so that the same oracle judges it.

Copies of the inputs take turns, so that an answer kept for the tensor that came last is no use, nor are the inputs
always in the caches. A module without the causal flag is handed the dense mask, built once beforehand, as its user
would keep it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from harness.records import Workload
from harness.subject import Answer, Subject
from harness.verification.inputs import Inputs
from implementations.projections import ProjectedAttention
from implementations.spec import Attend

COPIES = 4
"""Of the inputs, equal in all but where they lie."""


def timed_call(subject: Subject, inputs: Inputs, workload: Workload) -> TimedCall:
    """The call that a workload asks to time.

    Raises:
        TypeError: attention alone is asked for of an implementation that is a whole module.
    """
    kind = _ModuleCall if workload.scope == "module" else _AttentionCall
    return kind(subject, inputs, workload.mode)


class TimedCall(ABC):
    """One implementation on one workload: calling it does what is timed."""

    def __init__(self, subject: Subject, inputs: Inputs, mode: str) -> None:
        if inputs.is_causal and not subject.implementation.has_causal_flag:
            inputs = inputs.with_mask(inputs.hidden)
        self.implementation = subject.implementation
        self._subject = subject
        self._inputs = inputs
        self._mode = mode
        subject.module.train(self._differentiates)
        copies = [self._copy() for _ in range(COPIES)]
        self._turns = cycle(copies)
        self._arguments = copies[0]
        self._output: Tensor | None = None

    @property
    def _differentiates(self) -> bool:
        """Whether the forward keeps what a backward needs."""
        return self._mode != "inference"

    def __call__(self) -> None:
        """Run the pass on the next copy of the inputs."""
        if self._mode == "training":
            self._drop_gradients()
            self._arguments = next(self._turns)
            self._output = self._forward()
            self._output.backward(self._cotangent)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return
        self._arguments = next(self._turns)
        with torch.set_grad_enabled(self._differentiates):
            self._output = self._forward()

    @property
    def _inputs_alone(self) -> Sequence[Tensor]:
        """What a call is given and changes nothing of: no part of the memory it takes."""
        mask = [] if self._inputs.mask is None else [self._inputs.mask]
        return [*self._subject.module.parameters(), *self._arguments, *mask]

    def _drop_gradients(self) -> None:
        for argument in self._arguments:
            argument.grad = None
        self._subject.module.zero_grad(set_to_none=True)

    def answer(self) -> Answer:
        """Output, and in training gradients, of the latest call.

        Raises:
            RuntimeError: nothing was called yet, the backward left some gradient out, or a forward kept no graph.
        """
        if self._output is None:
            raise RuntimeError("there is no answer before the first call")
        if self._differentiates and not self._output.requires_grad:
            raise RuntimeError("no gradient can reach the inputs: the output belongs to no graph")
        return self._answer(self._output)

    def output_bytes(self) -> int:
        """Of the latest output's storage."""
        return self._output.untyped_storage().nbytes() if self._output is not None else 0

    def saved_bytes(self) -> int:
        """Bytes that a forward keeps for its backward, without inputs and weights; 0 in inference."""
        if not self._differentiates:
            return 0
        known = {tensor.untyped_storage().data_ptr() for tensor in self._inputs_alone}
        kept: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                kept[storage.data_ptr()] = tensor  # held, so that no other storage takes its place
            return tensor

        hooks: Any = saved_tensors_hooks(keep, lambda tensor: tensor)
        with hooks, torch.enable_grad():
            output = self._forward()
        saved = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
        del output
        return saved

    def release(self) -> None:
        """Let go of the latest answer, so that its memory is not taken for part of the next call's."""
        self._output = None
        self._drop_gradients()

    @property
    @abstractmethod
    def _cotangent(self) -> Tensor:
        """Gradient of the loss by what the call gives."""

    @abstractmethod
    def _copy(self) -> tuple[Tensor, ...]:
        """The call's own inputs, in memory of their own."""

    @abstractmethod
    def _forward(self) -> Tensor:
        """Call on the inputs whose turn it is."""

    @abstractmethod
    def _answer(self, output: Tensor) -> Answer:
        """The module's answer."""


class _ModuleCall(TimedCall):
    """The whole module, on x."""

    @property
    def _cotangent(self) -> Tensor:
        return self._inputs.cotangent

    def _copy(self) -> tuple[Tensor, ...]:
        return (self._inputs.x.detach().clone().requires_grad_(self._differentiates),)

    def _forward(self) -> Tensor:
        return self._subject.call(self._arguments[0], self._inputs.mask, is_causal=self._inputs.is_causal)

    def _answer(self, output: Tensor) -> Answer:
        trained = self._mode == "training"
        return Answer(output.detach(), self._subject.gradients(self._arguments[0]) if trained else {})


class _AttentionCall(TimedCall):
    """The attention function alone, on q, k and v."""

    def __init__(self, subject: Subject, inputs: Inputs, mode: str) -> None:
        if subject.implementation.attend is None or not isinstance(subject.module, ProjectedAttention):
            raise TypeError(f"{subject.implementation.name} is a whole module: it has no attention of its own to time")
        self._attend: Attend = subject.implementation.attend
        self._module: ProjectedAttention = subject.module
        with torch.no_grad():
            self._heads = tuple(each.contiguous() for each in self._module.project(inputs.x))
            back = inputs.cotangent @ self._module.W_o.weight  # (B, S, d_model): as nn.Linear's own backward
        self._heads_cotangent = self._module.split(back).contiguous()
        super().__init__(subject, inputs, mode)

    @property
    def _cotangent(self) -> Tensor:
        return self._heads_cotangent

    def _copy(self) -> tuple[Tensor, ...]:
        return tuple(each.clone().requires_grad_(self._differentiates) for each in self._heads)

    def _forward(self) -> Tensor:
        q, k, v = self._arguments
        return self._attend(q, k, v, self._inputs.mask, is_causal=self._inputs.is_causal)

    def _answer(self, output: Tensor) -> Answer:
        """What the module gives if this is what its attention gave."""
        if output.shape != self._heads[0].shape:
            raise RuntimeError(f"attend must return {tuple(self._heads[0].shape)}, returned {tuple(output.shape)}")
        if self._mode != "training":
            with torch.no_grad():
                return Answer(self._module.merge(output), {})
        missing = [name for name, leaf in zip("qkv", self._arguments, strict=True) if leaf.grad is None]
        if missing:
            raise RuntimeError(f"no gradient reached {', '.join(missing)}")
        came = [leaf.grad for leaf in self._arguments]
        x = self._inputs.x.detach().clone().requires_grad_()
        with torch.enable_grad():
            projected = self._module.project(x)
            y = self._module.merge(output.detach())
        self._module.zero_grad(set_to_none=True)
        torch.autograd.backward([*projected, y], [*came, self._inputs.cotangent])
        return Answer(y.detach(), self._subject.gradients(x))
