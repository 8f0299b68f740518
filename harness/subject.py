"""An implementation made ready to be called: built, loaded with given weights, in a dtype and on a device."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harness.registry import one_line
from harness.verification.inputs import DTYPES, Inputs, causal_mask
from harness.verification.recording import Recording
from implementations.projections import ProjectedAttention
from implementations.spec import Case, Implementation, Mode


class WeightsError(RuntimeError):
    """The eight parameters do not fit the module that an implementation builds."""


@dataclass(frozen=True)
class Answer:
    """What a call gave: the output and, in training, the gradients of x and the eight parameters."""

    output: Tensor
    gradients: Mapping[str, Tensor]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By ``output`` and gradient name."""
        return {"output": self.output, **self.gradients}

    def digest(self) -> int:
        """Equal for answers of equal bits, shapes and dtypes, and for hardly any others."""
        digest = 0
        for name, tensor in self.tensors.items():
            digest = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), digest)
            digest = zlib.crc32(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data, digest)
        return digest


@dataclass(frozen=True)
class Subject:
    """A module under test and how to call it."""

    implementation: Implementation
    module: nn.Module
    recording: Recording | None = None
    """Where calls are kept; only while a failure is being examined."""

    def call(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        """One forward pass; a module without the causal flag gets the dense mask that its user would build."""
        if self.recording is None:
            return self._forward(x, mask, is_causal)
        call = self.recording.begin(x, mask, is_causal=is_causal, training=self.module.training)
        output = self._forward(x, mask, is_causal)
        self.recording.end(call, output)
        return output

    def _forward(self, x: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        if not is_causal:
            output: Tensor = self.module(x, mask)
        elif self.implementation.has_causal_flag:
            output = self.module(x, mask, is_causal=True)
        else:
            future = causal_mask(x.shape[1], x.device)
            output = self.module(x, future if mask is None else mask | future)
        return output

    def infer(self, inputs: Inputs) -> Tensor:
        """Forward in eval mode without gradients."""
        self.module.eval()
        with torch.no_grad():
            return self.call(inputs.x, inputs.mask, is_causal=inputs.is_causal)

    def train(self, inputs: Inputs) -> Answer:
        """Forward and backward in train mode."""
        self.module.train()
        self.module.zero_grad(set_to_none=True)
        x = inputs.x.detach().clone().requires_grad_()
        output = self.call(x, inputs.mask, is_causal=inputs.is_causal)
        output.backward(inputs.cotangent)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return Answer(output.detach(), self.gradients(x))

    def gradients(self, x: Tensor) -> dict[str, Tensor]:
        """Gradients left by a backward pass, of x and of the eight parameters by their common names."""
        own = {name: parameter.grad for name, parameter in self.module.named_parameters()}
        missing = tuple(name for name, gradient in [*own.items(), ("x", x.grad)] if gradient is None)
        if missing or x.grad is None:
            if self.recording is not None:
                self.recording.keep_gradients(x, {}, missing)
            raise RuntimeError(f"no gradient reached {', '.join(missing)}")
        gradients = {"x": x.grad, **self.implementation.unpack({k: g for k, g in own.items() if g is not None})}
        if self.recording is not None:
            self.recording.keep_gradients(x, gradients, ())
        return gradients

    def answer(self, inputs: Inputs, mode: Mode) -> Answer:
        """Output, and in training the gradients."""
        return self.train(inputs) if mode == "training" else Answer(self.infer(inputs), {})


def build_module(implementation: Implementation, d_model: int, num_heads: int) -> nn.Module:
    """A module of the implementation, with whatever weights it starts from."""
    if implementation.build is not None:
        return implementation.build(d_model, num_heads)
    assert implementation.attend is not None  # the description's own check
    return ProjectedAttention(d_model, num_heads, implementation.attend)


def prepare(implementation: Implementation, case: Case, weights: Mapping[str, Tensor]) -> Subject:
    """Build the module for a case and load the eight parameters into it."""
    with _rng_restored():  # building draws initial weights, which nobody keeps
        module = build_module(implementation, case.d_model, case.num_heads)
    _load(module, implementation.pack(weights))
    return Subject(implementation, module.to(device=case.device, dtype=DTYPES[case.dtype]))


def _load(module: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Load all parameters of a module; buffers of its own, such as a table of causality, stay as they were built.

    Raises:
        WeightsError: a parameter is left without a value, is not there, or has another shape.
    """
    try:
        found = module.load_state_dict(parameters, strict=False)
    except RuntimeError as error:  # torch's word for another shape
        raise WeightsError(f"the weights do not load into the module: {one_line(error)}") from None
    own = dict(module.named_parameters())
    left = [name for name in found.missing_keys if name in own]
    misfits = [
        *([f"nothing is given for its {', '.join(left)}"] if left else []),
        *([f"it has no {', '.join(found.unexpected_keys)}"] if found.unexpected_keys else []),
    ]
    if misfits:
        raise WeightsError(
            f"the weights do not load into the module: {' and '.join(misfits)}; name its projections W_q, W_k, W_v, "
            "W_o (each an nn.Linear with bias), or give pack= and unpack="
        )


def _rng_restored() -> AbstractContextManager[None]:
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()))
