"""Examines a failed check: which call went wrong, what is the likely cause, and what shows it without the harness?

The check is run once more with every call recorded, so that ordinary runs carry no recording. Each recorded call is
held against the oracle; the first wrong one is diagnosed, and cut out: alone if a fresh module is wrong on it alone,
else with the calls before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.records import CheckRecord
from harness.registry import Registered
from harness.verification.check import CheckFailedError, CheckFunction, Trial, evidence
from harness.verification.diagnosis import Symptom, diagnose, rounding_hint
from harness.verification.inputs import DTYPES, Inputs
from harness.verification.recording import Call
from harness.verification.reproducer import ATTEMPTS_BY_CHANCE, STEPS, Reproduction, write_reproducer
from harness.verification.rounding import expect
from implementations.spec import Implementation

PATIENCE_S = 5.0
"""A check that took longer is not run a second time."""


@dataclass(frozen=True)
class Finding:
    """A call that went wrong."""

    symptom: Symptom
    wrong: tuple[str, ...]
    """Names of the tensors that are wrong; ``output`` if the call raised."""
    note: str = ""
    """What is the matter, where that is plain without a formula."""


def explained(
    record: CheckRecord, check: CheckFunction, trial: Trial, registered: Registered, folder: Path | None
) -> CheckRecord:
    """The record of a failure with its likely cause and, where a script shows the fault, the script's path.

    Args:
        record: as the check ended; returned unchanged unless it failed.
        check: the function that failed.
        trial: what it was called with; its calls are made once more.
        registered: the implementation and where it comes from.
        folder: where scripts go; None writes none.
    """
    if record.status != "failed" or record.duration_s > PATIENCE_S:
        return record
    recorded = replace(trial, calls=[])
    fails_again = _run_again(check, recorded)
    shown = _shown(record.check, recorded, _findings(recorded))
    if not fails_again:
        shown = replace(shown, cause="chance: the same check passed when it was run again with the same seed")
    record = record.model_copy(update={"likely_cause": shown.cause})
    if shown.by is None or folder is None:
        return record
    path = write_reproducer(folder, record, registered, shown.by)
    return record.model_copy(update={"reproducer": str(path)})


def _run_again(check: CheckFunction, trial: Trial) -> bool:
    """Whether the check fails again."""
    try:
        seen = check(trial)
    except CheckFailedError:
        return True
    except Exception:  # noqa: BLE001 - whatever an implementation raises is the finding, and recorded already
        return True
    return not all(comparison.passed for comparison in seen.comparisons)


def _findings(trial: Trial) -> list[Finding]:
    """All recorded calls that went wrong by themselves, in order."""
    assert trial.calls is not None
    found = (_finding(trial, index) for index in range(len(trial.calls)))
    return [finding for finding in found if finding is not None]


def _finding(trial: Trial, index: int) -> Finding | None:
    """Hold a recorded call against the oracle; None if it is right, or has no right answer."""
    assert trial.calls is not None
    call = trial.calls[index]
    if not call.is_within_the_contract:
        return None
    note = _plainly_wrong(call, trial)
    dtype = DTYPES[trial.implementation.rounds_like.get(trial.case.dtype, trial.case.dtype)]
    policy = trial.implementation.fully_masked_row
    expectation = expect(call.problem(policy), dtype, seed=trial.seed)
    earlier = tuple(each for each in trial.calls[:index] if each.module is call.module)
    symptom = Symptom(call, expectation, policy, earlier)
    if call.output is None or call.output.shape != call.x.shape or call.output.dtype != call.x.dtype:
        return Finding(symptom, ("output",), note)
    if note or call.missing:
        return Finding(symptom, tuple(expectation.budgets), note)
    got = {"output": call.output, **(call.gradients if _gradients_count(call, policy) else {})}
    misshapen = tuple(name for name, tensor in got.items() if tensor.shape != expectation.tensors[name].shape)
    if misshapen:
        return Finding(symptom, misshapen, f"the gradient of {', '.join(misshapen)} has another shape than it")
    wrong = tuple(comparison.tensor for comparison in evidence(expectation, got).comparisons if not comparison.passed)
    return Finding(symptom, wrong) if wrong else None


def _plainly_wrong(call: Call, trial: Trial) -> str:
    """A fault that no formula is needed for; a call without a graph gets the gradient that it could not take."""
    if call.output is None:
        return ""
    if call.output.dtype != call.x.dtype:
        return f"the output is {call.output.dtype}, x {call.x.dtype}"
    wants_gradients = call.with_gradients and trial.case.mode == "training" and call.training
    if wants_gradients and not call.has_graph and call.output.shape == trial.inputs.cotangent.shape:
        call.cotangent = trial.inputs.cotangent
        return "the output carries no graph: something detaches it"
    return ""


def _gradients_count(call: Call, policy: str) -> bool:
    """Whether gradients have to be right: where NaN is declared for rows without any key, they may be NaN as well."""
    if call.cotangent is None or set(call.gradients) != {"x", *call.weights}:
        return False
    hidden = call.hidden
    return policy != "nan" or hidden is None or not bool(hidden.all(dim=-1).any())


@dataclass(frozen=True)
class _Shown:
    """What an examination came to."""

    by: Reproduction | None
    """Shows the fault; tried in this process. None if nothing does but the check itself."""
    cause: str = ""


def _shown(check: str, trial: Trial, findings: Sequence[Finding]) -> _Shown:
    """By the check's own step, by the first wrong call, or by a step that explains why right calls fail a check."""
    if check in STEPS:
        inputs = trial.source(trial.case, trial.seed)  # the trial's own may have been changed
        step = Reproduction(inputs.weights, inputs.case.num_heads, [_as_asked(inputs)], check=check)
        if step.shows_the_fault(trial.implementation):
            return _Shown(step)
    if findings:
        return _first_wrong_call(findings, trial)
    return _side_effect(trial)


_SIDE_EFFECTS = {
    "inputs_are_left_alone": "a call changes what it was given",
    "outputs_never_alias": "an output shares memory with something else, and does not stay as it was",
    "calls_repeat_bit_for_bit": "equal calls give different answers",
}


def _side_effect(trial: Trial) -> _Shown:
    """Every call was right by itself: does one of them spoil what the check goes on with?"""
    assert trial.calls is not None
    for call in trial.calls if all(each.is_within_the_contract for each in trial.calls) else ():
        for check, cause in _SIDE_EFFECTS.items():
            step = Reproduction(call.weights, call.num_heads, [_as_made(call)], check=check)
            if step.shows_the_fault(trial.implementation):
                return _Shown(step, cause)
    return _Shown(None)


def _first_wrong_call(findings: Sequence[Finding], trial: Trial) -> _Shown:
    first = findings[0]
    by, condition = _smallest(first, trial)
    if by is not None and by.comes_and_goes(trial.implementation):
        return _Shown(by, "equal calls give different answers: chance, such as dropout")
    symptom = first.symptom if by is None or len(by.calls) > 1 else replace(first.symptom, earlier=())
    cause = first.note or diagnose(symptom, [each.symptom for each in findings[1:]])
    if not cause and not condition:
        cause = rounding_hint(symptom)
    return _Shown(by, "; ".join(filter(None, [cause, condition])))


def _smallest(finding: Finding, trial: Trial) -> tuple[Reproduction | None, str]:
    """The call alone if that is enough, else behind those before it, else in front of those after it.

    Also gives the condition, in words, under which the fault shows.
    """
    call, implementation = finding.symptom.call, trial.implementation
    assert trial.calls is not None
    own = [each for each in trial.calls if each.module is call.module]
    at = own.index(call)
    alone = _judging(finding, [call], 0, implementation)
    alike = [each for each in own[: at + 1] if _is_alike(each, call)]
    over = _judging(finding, alike, len(alike) - 1, implementation, written_over=True)
    candidates = (
        (alone, ""),
        (_judging(finding, own[: at + 1], at, implementation), "only after an earlier call: something is kept"),
        (_judging(finding, own, at, implementation), "only with another call before the backward pass"),
        (over, "only where its data come in the tensors of an earlier call: something is kept for the tensor itself"),
        (replace(alone, attempts=ATTEMPTS_BY_CHANCE), "not at every call: chance, such as dropout"),
    )
    return next((each for each in candidates if each[0].shows_the_fault(implementation)), (None, ""))


def _is_alike(earlier: Call, call: Call) -> bool:
    """Whether a call's data can be written into an earlier one's tensors."""
    forms = [
        tuple(None if t is None else (t.shape, t.stride()) for t in (each.x, each.mask)) for each in (earlier, call)
    ]
    return forms[0] == forms[1] and earlier.cotangent is call.cotangent is None


def _judging(
    finding: Finding, calls: Sequence[Call], judged: int, implementation: Implementation, *, written_over: bool = False
) -> Reproduction:
    call, budgets = finding.symptom.call, finding.symptom.expectation.budgets
    return Reproduction(
        weights=call.weights,
        num_heads=call.num_heads,
        calls=[{**_as_made(each), "written_over": written_over and number > 0} for number, each in enumerate(calls)],
        judged=judged,
        budgets={name: budgets[name] for name in finding.wrong},
        fully_masked_row=implementation.fully_masked_row,
    )


def _as_made(call: Call) -> dict[str, Any]:
    return {
        "x": call.x,
        "mask": call.mask,
        "is_causal": call.is_causal,
        "training": call.training,
        "with_gradients": call.with_gradients,
        "cotangent": call.cotangent,
        "written_over": False,
    }


def _as_asked(inputs: Inputs) -> dict[str, Any]:
    training = inputs.case.mode == "training"
    return {
        "x": inputs.x,
        "mask": inputs.mask,
        "is_causal": inputs.is_causal,
        "training": training,
        "with_gradients": training,
        "cotangent": inputs.cotangent if training else None,
        "written_over": False,
    }
