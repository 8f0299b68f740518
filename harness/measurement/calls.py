"""The calls that are timed, each with the answer of its latest run still at hand.

*Inference* is a forward in eval mode under no_grad; *training* a forward and a backward in train mode, to x and to
all weights, as a layer within a network does. A training call drops the previous gradients first, as a training
step's `zero_grad` does: adding to old gradients would be other work, and dropping them costs microseconds.

Copies of x take turns, so that an answer kept for the tensor that came last is no use, nor is x always in the caches.
A module without the causal flag is handed the dense mask, built once beforehand, as its user would keep it.
"""

from __future__ import annotations

from itertools import cycle

import torch
from torch import Tensor

from harness.subject import Answer, Subject
from harness.verification.inputs import Inputs
from implementations.spec import Mode

COPIES = 4
"""Of x, equal in all but where they lie."""


class TimedCall:
    """One implementation on one workload: calling it does what is timed."""

    def __init__(self, subject: Subject, inputs: Inputs, mode: Mode) -> None:
        if inputs.is_causal and not subject.implementation.has_causal_flag:
            inputs = inputs.with_mask(inputs.hidden)
        self.implementation = subject.implementation
        self._subject = subject
        self._inputs = inputs
        self._trains = mode == "training"
        copies = [inputs.x.detach().clone().requires_grad_(self._trains) for _ in range(COPIES)]
        self._turns = cycle(copies)
        self._x = copies[0]
        self._output: Tensor | None = None
        subject.module.train(self._trains)

    def __call__(self) -> None:
        """Run forward, and in training backward, on the next copy of x."""
        if self._trains:
            self._drop_gradients()
            self._x = next(self._turns)
            self._output = self._forward()
            self._output.backward(self._inputs.cotangent)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        else:
            self._x = next(self._turns)
            with torch.no_grad():
                self._output = self._forward()

    def _forward(self) -> Tensor:
        return self._subject.call(self._x, self._inputs.mask, is_causal=self._inputs.is_causal)

    def _drop_gradients(self) -> None:
        self._x.grad = None
        self._subject.module.zero_grad(set_to_none=True)

    def answer(self) -> Answer:
        """Output, and in training gradients, of the latest call.

        Raises:
            RuntimeError: nothing was called yet, or the backward left some gradient out.
        """
        if self._output is None:
            raise RuntimeError("there is no answer before the first call")
        return Answer(self._output.detach(), self._subject.gradients(self._x) if self._trains else {})

    def release(self) -> None:
        """Let go of the latest answer, so that its memory is not taken for part of the next call's."""
        self._output = None
        self._drop_gradients()
