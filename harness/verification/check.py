"""What a check is: a claim about an implementation, tried on cases, that gives evidence or fails with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from harness.subject import Subject, prepare
from harness.verification.inputs import DTYPES, Inputs, make_inputs
from harness.verification.recording import Call, Recording
from harness.verification.rounding import Comparison, Expectation, expect, hold_against
from implementations.spec import ALL_MASK_KINDS, Case, Implementation, MaskKind, Mode


class CheckFailedError(Exception):
    """A claim that does not hold, in words."""


@dataclass(frozen=True)
class Evidence:
    """What a check saw: comparisons with the oracle (none where the claim is exact and held)."""

    comparisons: tuple[Comparison, ...] = ()
    set_by: str = ""
    """What the budget comes from."""
    error_over_baseline: float | None = None


@dataclass(frozen=True)
class Trial:
    """One implementation on one case: what a check function gets."""

    implementation: Implementation
    case: Case
    seed: int = 0
    source: Callable[[Case, int], Inputs] = make_inputs
    """Where inputs come from, given case and seed."""
    calls: list[Call] | None = None
    """Where the calls of all subjects are recorded; None records nothing."""

    @cached_property
    def inputs(self) -> Inputs:
        """The case's inputs."""
        return self.source(self.case, self.seed)

    @cached_property
    def subject(self) -> Subject:
        """The implementation with the case's weights loaded."""
        return self.prepare(self.inputs)

    def prepare(self, inputs: Inputs) -> Subject:
        """The implementation with the weights of these inputs loaded."""
        subject = prepare(self.implementation, inputs.case, inputs.weights)
        if self.calls is None:
            return subject
        return replace(subject, recording=Recording(self.calls, inputs.weights, inputs.case.num_heads))

    def expect(self, inputs: Inputs, *, gradients: bool = False) -> Expectation:
        """The oracle's answer and the budget in the dtype that the implementation says it rounds like."""
        name = self.implementation.rounds_like.get(self.case.dtype, self.case.dtype)
        problem = inputs.problem(self.implementation.fully_masked_row, gradients=gradients)
        return expect(problem, DTYPES[name], seed=self.seed)

    def compare_output(self, inputs: Inputs, output: Tensor) -> Evidence:
        """Hold an output against the oracle."""
        expectation = self.expect(inputs)
        return evidence(expectation, {"output": output})


def evidence(expectation: Expectation, got: dict[str, Tensor]) -> Evidence:
    """Hold tensors against an expectation; a wrong shape is a failure of its own.

    Raises:
        CheckFailedError: a shape is wrong.
    """
    comparisons = []
    for name, tensor in got.items():
        expected = expectation.tensors[name]
        require_shape(name, tensor, expected)
        comparisons.append(hold_against(name, tensor, expected, expectation.budgets[name]))
    return Evidence(tuple(comparisons), expectation.set_by)


def same_as(name: str, got: Tensor, reference: Tensor, budget: Tensor) -> Comparison:
    """Hold an output against another output of the same implementation: each may be off by one budget."""
    require_shape(name, got, reference)
    return hold_against(name, got, reference.to(budget.dtype), 2.0 * budget)


def require_shape(name: str, got: Tensor, expected: Tensor) -> None:
    """Fail unless the shapes are equal."""
    if got.shape != expected.shape:
        raise CheckFailedError(f"{name} has shape {tuple(got.shape)}, expected {tuple(expected.shape)}")


def require_equal(what: str, got: Tensor, expected: Tensor) -> None:
    """Fail unless two tensors are equal bit for bit (NaN equal to NaN)."""
    if not torch.equal(got.nan_to_num(), expected.nan_to_num()) or not torch.equal(got.isnan(), expected.isnan()):
        changed = int((got != expected).sum())
        raise CheckFailedError(f"{what}: {changed} of {got.numel()} elements differ")


CheckFunction = Callable[[Trial], Evidence]
Cases = Callable[[str, str, bool], Iterable[Case]]
"""From dtype, device and whether a call takes seconds, to the cases of a check."""


@dataclass(frozen=True)
class Check:
    """A named claim and the cases it is tried on."""

    function: CheckFunction
    cases: Cases
    general: bool = False
    """Whether it is about the module as a whole and not about one mask and pass."""
    bars_timing: bool = True
    """Whether a failure means that times of the same dtype, mask and pass are worth nothing."""

    @property
    def name(self) -> str:
        """The claim as an identifier: the function's name without ``check_``."""
        return self.function.__name__.removeprefix("check_")

    @property
    def claim(self) -> str:
        """The claim as a sentence: the first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().splitlines()[0]


CORE = Case(batch_size=3, seq_len=7, d_model=48, num_heads=4)
"""Small and awkward: odd S, d_k = 12, several items and heads."""
PAST_A_BLOCK = Case(batch_size=2, seq_len=130, d_model=64, num_heads=2)
LONG = Case(batch_size=1, seq_len=600, d_model=16, num_heads=2)
WIDE_HEADS = Case(batch_size=2, seq_len=9, d_model=192, num_heads=3)
"""d_k = 64 and an odd number of heads."""
WHOLE_BLOCKS = Case(batch_size=1, seq_len=512, d_model=8, num_heads=1)
"""A multiple of every usual block size: nothing is left over for a kernel's last, partial block."""
SIZES = (
    WIDE_HEADS,
    Case(batch_size=1, seq_len=9, d_model=256, num_heads=2),
    Case(batch_size=1, seq_len=70, d_model=80, num_heads=1),
    Case(batch_size=5, seq_len=7, d_model=72, num_heads=9),
)
"""Heads wider than a tile (d_k = 64, 128, 80), and more items and heads than a small grid."""
VERY_LONG = Case(batch_size=1, seq_len=1030, d_model=8, num_heads=1)
"""Past the length where kernels split the keys."""
SQUARE = Case(batch_size=4, seq_len=4, d_model=32, num_heads=4)
"""B == S: a 2-D mask could be mistaken for one row for each item."""
SMALL = (
    Case(batch_size=1, seq_len=1, d_model=16, num_heads=2),
    Case(batch_size=3, seq_len=1, d_model=24, num_heads=2),
    Case(batch_size=1, seq_len=2, d_model=8, num_heads=1),
)


def core(masks: Iterable[MaskKind] = ALL_MASK_KINDS, modes: Iterable[Mode] = ("inference",)) -> Cases:
    """The small awkward shape under each of these masks and modes, for fast and slow implementations alike."""
    masks, modes = tuple(masks), tuple(modes)

    def cases(dtype: str, device: str, slow: bool) -> Iterable[Case]:  # noqa: ARG001 - the signature of Cases
        for mode in modes:
            for mask in masks:
                yield replace(CORE, mask=mask, mode=mode, dtype=dtype, device=device)

    return cases


def thorough(mode: Mode) -> Cases:
    """Every mask on the core shape, and the shapes where kernels go wrong: past a block, long, wide, S = 1, B == S."""

    def cases(dtype: str, device: str, slow: bool) -> Iterable[Case]:
        yield from core(modes=(mode,))(dtype, device, slow)
        shapes: list[tuple[Case, tuple[MaskKind, ...]]] = [
            *((small, ("none", "causal")) for small in SMALL),
            (SQUARE, ("causal_mask", "dense")),
            (PAST_A_BLOCK, ("causal",) if slow else ("none", "causal", "padding", "per_head", "dense")),
            *((size, ("none",)) for size in SIZES),
        ]
        if not slow:
            shapes += [
                (WHOLE_BLOCKS, ("none", "causal")),
                (LONG, ("causal", "padding_causal")),
                (VERY_LONG, ("causal",)),
            ]
        for shape, masks in shapes:
            for mask in masks:
                yield replace(shape, mask=mask, mode=mode, dtype=dtype, device=device)

    return cases


def only_wide(cases: Cases) -> Cases:
    """The same cases, but for 16-bit dtypes, whose rounding would drown what the check looks for."""

    def wide(dtype: str, device: str, slow: bool) -> Iterable[Case]:
        return cases(dtype, device, slow) if dtype in ("float32", "float64") else ()

    return wide


def one(case: Case, *, also_slow: bool = True, masks: Iterable[MaskKind] = ()) -> Cases:
    """Just this case, in the dtype and on the device asked for; not for slow implementations if it is a long one.

    With masks, the case under each of them.
    """
    masks = tuple(masks) or (case.mask,)

    def cases(dtype: str, device: str, slow: bool) -> Iterable[Case]:
        wanted = () if slow and not also_slow else masks
        return tuple(replace(case, dtype=dtype, device=device, mask=mask) for mask in wanted)

    return cases
