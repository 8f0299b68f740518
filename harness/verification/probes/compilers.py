"""Probes of torch.compile and torch.export: a variant is verified on its own, after its eager module.

A compiler may turn a right module into a wrong one (it takes a permuted K for a transposed one), and may hide the fault
of a wrong one (it takes a softmax over queries for one over keys). So eager and variant are both held against the
oracle, and against each other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.subject import Answer, Subject
from harness.verification.check import CORE, SQUARE, Trial
from harness.verification.inputs import Inputs, make_inputs
from harness.verification.probe import Finding, Probe, Questioned, ask, held

Variant = Callable[[Subject, Inputs, Inputs], Answer]
"""From a subject, inputs to compile with and the inputs that count, to what the variant makes of the latter."""

NO_COMPILER = Finding("no compiler", "torch finds no C++ compiler here, or no Triton", answered=False)
_WITHOUT_COMPILER = ("InvalidCxxCompiler", "TritonMissing")
"""What torch's compiler calls it in its errors."""


def probe_compile(on: Questioned) -> Finding:
    """Is it right under torch.compile, and its eager module too?"""
    return ask(
        {
            # S = H lets a compiler mistake one for the other.
            "in inference": lambda: _compiled(on.trial(shape=SQUARE)),
            "in training with padding": lambda: _compiled(on.trial(shape=CORE, mask="padding", mode="training")),
        }
    )


def probe_compile_bfloat16(on: Questioned) -> Finding:
    """Is it right under torch.compile in bfloat16?"""
    return _compiled(on.trial(shape=SQUARE, dtype="bfloat16"))


def probe_export(on: Questioned) -> Finding:
    """Is the program that torch.export makes of it right?"""
    return ask(
        {
            "without a mask": lambda: _compared(on.trial(shape=SQUARE), _run_exported),
            "with padding": lambda: _compared(on.trial(shape=CORE, mask="padding"), _run_exported),
        }
    )


def _compiled(trial: Trial) -> Finding:
    """As one graph; where it breaks into several, as those."""
    try:
        return _compared(trial, _run_compiled)
    except torch._dynamo.exc.Unsupported as break_:  # noqa: SLF001 - its only name; `torch.compile` raises it
        seen = _compared(trial, _run_compiled_in_parts)
        return Finding(f"{seen.answer}, in parts", f"{str(break_).splitlines()[0]}; {seen.evidence}", seen.answered)
    except Exception as error:
        if any(name in f"{type(error).__name__}: {error}" for name in _WITHOUT_COMPILER):
            return NO_COMPILER
        raise


def _run_compiled(subject: Subject, first: Inputs, inputs: Inputs) -> Answer:
    return _run(subject, first, inputs, whole=True)


def _run_compiled_in_parts(subject: Subject, first: Inputs, inputs: Inputs) -> Answer:
    return _run(subject, first, inputs, whole=False)


def _run(subject: Subject, first: Inputs, inputs: Inputs, *, whole: bool) -> Answer:
    torch.compiler.reset()
    subject.module.compile(fullgraph=whole)
    subject.answer(first, inputs.case.mode)
    return subject.answer(inputs, inputs.case.mode)


def _run_exported(subject: Subject, first: Inputs, inputs: Inputs) -> Answer:
    subject.module.eval()
    with torch.no_grad():
        program = torch.export.export(subject.module, (first.x, first.mask))
        return Answer(program.module()(inputs.x, inputs.mask), {})


def _compared(trial: Trial, variant: Variant) -> Finding:
    """Eager first, then the variant; both against the oracle, and against each other."""
    inputs, mode = trial.inputs, trial.case.mode
    expectation = trial.expect(inputs, gradients=mode == "training")
    eager = trial.subject.answer(inputs, mode)
    varied = variant(trial.prepare(inputs), make_inputs(trial.case, trial.seed + 1), inputs)
    of_eager, of_variant = held(expectation, eager.tensors), held(expectation, varied.tensors)
    if not of_variant.answered:
        return of_variant
    apart = float((varied.output.double() - eager.output.double()).abs().max())
    evidence = f"{of_variant.evidence} (eager: {of_eager.evidence}; outputs {apart:.2g} apart)"
    return Finding(_in_words(of_eager.answer, of_variant.answer), evidence)


def _in_words(eager: str, variant: str) -> str:
    if eager == "right":
        return variant if variant == "right" else f"{variant}, though eager is right"
    return f"{variant}, as eager is" if variant == eager else f"{variant}, though eager is {eager}"


PROBES = (
    Probe(probe_compile, is_cheap=False, of_slow=False),
    Probe(probe_compile_bfloat16, is_cheap=False, of_slow=False),
    Probe(probe_export, is_cheap=False, of_slow=False),
)
