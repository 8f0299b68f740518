"""Probes of what works on a module besides calling it: copies, autocast, vmap, higher derivatives; which kernel ran."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from harness.measurement.memory import footprint
from harness.registry import one_line
from harness.subject import Subject
from harness.verification.check import Trial
from harness.verification.inputs import DTYPES, Inputs, make_inputs
from harness.verification.probe import Finding, Probe, Questioned, ask, held
from harness.verification.rounding import expect
from implementations.spec import Case

TINY = Case(batch_size=1, seq_len=3, d_model=4, num_heads=2, dtype="float64", mode="training")
"""For derivatives by finite differences, which need two calls for each element of x."""


def probe_copies(on: Questioned) -> Finding:
    """Does a copy of the module give the same bits?"""
    trial = on.trial()
    return ask(
        {
            "after deepcopy": lambda: _same_bits(trial, copy.deepcopy),
            "after pickle": lambda: _same_bits(trial, _through_pickle),
            "through a saved state_dict": lambda: _same_bits(trial, lambda module: _reloaded(trial, module)),
        }
    )


def _same_bits(trial: Trial, copied: Callable[[nn.Module], nn.Module]) -> Finding:
    subject, inputs = trial.subject, trial.inputs
    output = subject.infer(inputs)
    twin = Subject(trial.implementation, copied(subject.module)).infer(inputs)
    return Finding("same bits" if torch.equal(output, twin) else "other bits")


def _through_pickle(module: nn.Module) -> nn.Module:
    twin: nn.Module = pickle.loads(pickle.dumps(module))  # noqa: S301 - made one call earlier
    return twin


def _reloaded(trial: Trial, module: nn.Module) -> nn.Module:
    """A new module, with other weights, that loads what `torch.save` wrote of this one."""
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    twin = trial.prepare(make_inputs(trial.case, trial.seed + 1)).module
    twin.load_state_dict(torch.load(file, weights_only=True))
    return twin


def probe_autocast(on: Questioned) -> Finding:
    """What do autocast to bfloat16 and float32 inputs give?"""
    return ask(
        {
            "without a mask": lambda: _autocast(on.trial()),
            "with padding": lambda: _autocast(on.trial(mask="padding")),
        }
    )


def _autocast(trial: Trial) -> Finding:
    """On numbers that bfloat16 holds exactly, so that only the computation rounds."""
    inputs = _widened(make_inputs(replace(trial.case, dtype="bfloat16"), trial.seed), trial.case)
    with torch.autocast(trial.case.device, torch.bfloat16):
        output = trial.prepare(inputs).infer(inputs)
    problem = inputs.problem(trial.implementation.fully_masked_row, gradients=False)
    seen = held(expect(problem, torch.bfloat16, seed=trial.seed), {"output": output})
    return replace(seen, answer=f"{seen.answer}, in {str(output.dtype).removeprefix('torch.')}")


def _widened(inputs: Inputs, case: Case) -> Inputs:
    dtype = DTYPES[case.dtype]
    weights = {name: weight.to(dtype) for name, weight in inputs.weights.items()}
    return replace(inputs, case=case, x=inputs.x.to(dtype), weights=weights, cotangent=inputs.cotangent.to(dtype))


def probe_vmap(on: Questioned) -> Finding:
    """Is it right under torch.vmap, over a dimension in front of the batch?"""
    return ask(
        {
            "without a mask": lambda: _vmap(on.trial()),
            "with padding": lambda: _vmap(on.trial(mask="padding")),
        }
    )


def _vmap(trial: Trial) -> Finding:
    subject, inputs = trial.subject, trial.inputs
    subject.module.eval()
    both = torch.stack([inputs.x, inputs.x.flip(0)])  # (2, B, S, d_model)
    with torch.no_grad(), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        outputs = torch.vmap(lambda x: subject.call(x, inputs.mask))(both)
    seen = [
        held(trial.expect(replace(inputs, x=x)), {"output": output}) for x, output in zip(both, outputs, strict=True)
    ]
    worst = next((finding for finding in seen if finding.answer != "right"), seen[0])
    looped = any("batching rule" in str(warning.message) for warning in warned)
    return replace(worst, answer=f"{worst.answer}, one by one") if looped else worst


def probe_double_backward(on: Questioned) -> Finding:
    """Is the derivative of the gradient right?"""
    return ask(
        {
            "without a mask": lambda: _double_backward(on.trial(shape=TINY)),
            "with a mask": lambda: _double_backward(on.trial(shape=TINY, mask="causal_mask")),
        }
    )


def _double_backward(trial: Trial) -> Finding:
    return _by_finite_differences(lambda: torch.autograd.gradgradcheck(_function_of_x(trial), _x(trial)))


def probe_forward_mode(on: Questioned) -> Finding:
    """Is the derivative in forward mode right?"""
    return ask(
        {
            "without a mask": lambda: _forward_mode(on.trial(shape=TINY)),
            "with a mask": lambda: _forward_mode(on.trial(shape=TINY, mask="causal_mask")),
        }
    )


def _forward_mode(trial: Trial) -> Finding:
    def check() -> bool:
        return torch.autograd.gradcheck(
            _function_of_x(trial), _x(trial), check_forward_ad=True, check_backward_ad=False
        )

    return _by_finite_differences(check)


def _function_of_x(trial: Trial) -> Callable[[Tensor], Tensor]:
    subject, mask = trial.subject, trial.inputs.mask
    subject.module.train()
    return lambda x: subject.call(x, mask)


def _x(trial: Trial) -> tuple[Tensor]:
    return (trial.inputs.x.detach().clone().requires_grad_(),)


def _by_finite_differences(check: Callable[[], bool]) -> Finding:
    try:
        check()
    except GradcheckError as difference:
        return Finding("wrong", one_line(difference))
    return Finding("right", "finite differences in float64")


def probe_kernel(on: Questioned) -> Finding:
    """Which of torch's operators computed attention?"""
    return ask(
        {
            "in inference": lambda: _kernel(on.trial()),
            "in inference with padding": lambda: _kernel(on.trial(mask="padding")),
            "in training": lambda: _kernel(on.trial(mode="training")),
        }
    )


def _kernel(trial: Trial) -> Finding:
    subject, inputs, mode = trial.subject, trial.inputs, trial.case.mode
    subject.answer(inputs, mode)  # warm

    def call() -> None:
        subject.answer(inputs, mode)

    kernels = footprint(call, trial.case.device).kernels
    forward = (name.removeprefix("aten::") for name in kernels if "backward" not in name)
    return Finding(", ".join(forward) or "none of torch's")


PROBES = (
    Probe(probe_kernel),
    Probe(probe_double_backward),
    Probe(probe_forward_mode, is_cheap=False),  # torch loads its decompositions for it
    Probe(probe_vmap, of_slow=False),
    Probe(probe_autocast, of_slow=False),
    Probe(probe_copies),
)
