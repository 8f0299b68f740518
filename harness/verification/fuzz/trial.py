"""One generated case, run in a child process: what came of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from harness.children import deadline
from harness.records import CheckRecord
from harness.registry import Plugin, Registered, load_registry, one_line
from harness.subject import Answer
from harness.verification.check import CheckFailedError, Evidence, Trial, evidence
from harness.verification.examination import explained
from harness.verification.fuzz.cases import FuzzCase
from harness.verification.inputs import DTYPES, Inputs
from harness.verification.rounding import Comparison, Expectation
from harness.verification.suite import beyond_budget
from implementations.spec import Implementation

CHECK = "fuzz"
"""Name of the check in records and in declared known failures."""
LARGEST_LOGIT = 1e8
"""Finite fills (-1e9 is the usual one) have to lie below any logit: beyond this, the contract says nothing."""
HEADROOM = 4.0
"""Nothing in a case may come closer to the dtype's largest number, or a right computation may overflow on its way."""

Status = Literal["passed", "no_evidence", "out_of_scope", "known_failure", "failed", "crashed", "timeout"]


@dataclass(frozen=True)
class Outcome:
    """What came of one case."""

    status: Status
    kind: str = ""
    """What sort of failure it is: findings of one kind are one finding, of which the smallest case is shown."""
    reasons: tuple[str, ...] = ()
    worst: Comparison | None = None
    """The comparison that uses most of its budget."""
    set_by: str = ""
    """What the budget comes from."""

    @property
    def is_bad(self) -> bool:
        """Whether it is a finding."""
        return self.status in ("failed", "crashed", "timeout")


def run_case(name: str, plugins: tuple[Plugin, ...], case: FuzzCase, timeout_s: float) -> Outcome:
    """In the child: call an implementation on a case and hold what it gives against the oracle.

    Args:
        name: of the implementation.
        plugins: files it may come from.
        case: what to call it on.
        timeout_s: for the call; beyond it the process ends.
    """
    torch.set_num_threads(1)
    trial = _trial(_registered(name, plugins).implementation, case)
    expectation = _expectation(trial)
    if _may_overflow(case, expectation):
        return Outcome("out_of_scope")
    try:
        with deadline(timeout_s):
            answer = _answer(trial)
        outcome = _judged(_evidence(trial, answer, expectation))
    except CheckFailedError as failure:
        outcome = Outcome("failed", "wrong form", (str(failure),))
    except Exception as error:  # noqa: BLE001 - whatever an implementation raises is the finding
        outcome = Outcome("failed", type(error).__name__, (f"raised {one_line(error)}",))
    return _unless_declared(trial.implementation, case, trial.inputs, outcome)


def explain_case(
    name: str, plugins: tuple[Plugin, ...], case: FuzzCase, record: CheckRecord, folder: Path
) -> CheckRecord:
    """In a child: the record of a failure with its likely cause, and a script in `folder` that shows it."""
    torch.set_num_threads(1)
    registered = _registered(name, plugins)
    return explained(record, check_fuzz, _trial(registered.implementation, case), registered, folder)


def check_fuzz(trial: Trial) -> Evidence:
    """Whatever shapes, masks, layouts and magnitudes are generated, output and gradients are the formula's."""
    return _evidence(trial, _answer(trial), _expectation(trial))


@cache
def _registered(name: str, plugins: tuple[Plugin, ...]) -> Registered:
    return load_registry(plugins)[name]


def _trial(implementation: Implementation, case: FuzzCase) -> Trial:
    return Trial(implementation, case.spec_cases[0], source=lambda _case, _seed: case.inputs())


def _expectation(trial: Trial) -> Expectation:
    """The right answer; where a declared NaN would reach the gradients, of the output only."""
    hazard = trial.implementation.fully_masked_row == "nan" and _has_an_empty_row(trial.inputs)
    return trial.expect(trial.inputs, gradients=trial.case.mode == "training" and not hazard)


def _may_overflow(case: FuzzCase, expectation: Expectation) -> bool:
    """Whether the contract leaves the case out: logits, scaled or not, or results too large for dtype or fill."""
    largest = torch.finfo(DTYPES[case.dtype]).max / HEADROOM
    unscaled = expectation.solution.largest_logit * math.sqrt(case.head_dim)
    values = (tensor.nan_to_num(0.0).abs().max() for tensor in expectation.tensors.values() if tensor.numel())
    return unscaled > min(largest, LARGEST_LOGIT) or any(bool(value > largest) for value in values)


def _answer(trial: Trial) -> Answer:
    inputs = trial.inputs
    if trial.case.mode == "inference":
        return Answer(trial.subject.infer(inputs), {})
    # On x as it lies in memory: Subject.train clones it, and a clone of a strided tensor is contiguous.
    trial.subject.module.train()
    x = inputs.x.detach().requires_grad_()
    output = trial.subject.call(x, inputs.mask, is_causal=inputs.is_causal)
    output.backward(inputs.cotangent)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return Answer(output.detach(), trial.subject.gradients(x))


def _evidence(trial: Trial, answer: Answer, expectation: Expectation) -> Evidence:
    if answer.output.dtype != trial.inputs.x.dtype:
        raise CheckFailedError(f"the output is {answer.output.dtype}, expected {trial.inputs.x.dtype}")
    return evidence(expectation, {name: answer.tensors[name] for name in expectation.tensors})


def _judged(seen: Evidence) -> Outcome:
    worst = max(seen.comparisons, key=lambda comparison: comparison.budget_used)
    failed = [comparison for comparison in seen.comparisons if not comparison.passed]
    if failed:
        # A wrong output is what makes gradients wrong, so the first tensor says what kind of failure it is.
        return Outcome("failed", _kind(failed[0]), beyond_budget(seen), worst, seen.set_by)
    if not any(comparison.is_evidence for comparison in seen.comparisons):
        return Outcome("no_evidence")
    return Outcome("passed", worst=worst, set_by=seen.set_by)


def _kind(first: Comparison) -> str:
    what = "output" if first.tensor == "output" else "gradient"
    return f"wrong {what}" if math.isfinite(first.budget_used) else f"{what} not finite"


def _has_an_empty_row(inputs: Inputs) -> bool:
    return inputs.hidden is not None and bool(inputs.hidden.all(dim=-1).any())


def _unless_declared(implementation: Implementation, case: FuzzCase, inputs: Inputs, outcome: Outcome) -> Outcome:
    """The outcome, or a known failure if the implementation declares that checks of such cases fail."""
    if not outcome.is_bad:
        return outcome
    concerned = _checks_of_such_cases(case, inputs)
    known = [
        f"{failure.reason} ({failure.source})"
        for failure in implementation.known_failures
        if failure.check in concerned and any(failure.applies(each) for each in case.spec_cases)
    ]
    return Outcome("known_failure", reasons=(*known, *outcome.reasons)) if known else outcome


def _checks_of_such_cases(case: FuzzCase, inputs: Inputs) -> set[str]:
    """Checks of the suite that are about what is special in a case."""
    special = {
        CHECK: True,
        "matches_the_oracle": True,
        "gradients_match_the_oracle": case.mode == "training",
        "an_empty_batch_gives_an_empty_output": case.batch_size == 0,
        "fully_masked_row_is_as_declared": _has_an_empty_row(inputs),
        "any_strides_are_accepted": case.x_layout != "contiguous",
        "mask_layouts_mean_the_same": case.mask is not None and case.mask.layout != "contiguous",
        "the_flag_adds_to_the_mask": case.mask is not None and case.is_causal,
        "large_logits_leave_other_items_alone": max(case.item_scale, case.logit_scale) > 1.0,
    }
    return {check for check, applies in special.items() if applies}
