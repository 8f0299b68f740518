"""The shared suite: every check for every implementation, each case ending as one record."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable
from dataclasses import dataclass

from harness.errors import UserError
from harness.records import CheckRecord, CheckStatus
from harness.registry import one_line, place_of
from harness.verification.check import Check, CheckFailedError, Evidence, Trial
from harness.verification.checks import errors, gradients, masks, outputs, relations, state, weights
from harness.verification.inputs import make_inputs
from harness.verification.real_weights import RealWeights
from harness.verification.rounding import Comparison
from implementations.spec import ALL_DTYPES, Case, Implementation

CHECKS: tuple[Check, ...] = (
    *outputs.CHECKS,
    *masks.CHECKS,
    *weights.CHECKS,
    *gradients.CHECKS,
    *state.CHECKS,
    *relations.CHECKS,
    *errors.CHECKS,
)
RAISED = "raised "
"""What the reason of a check begins with that ended by an exception."""
CHECK_NAMES = tuple(dict.fromkeys(check.name for check in CHECKS))
NOT_BARRING = frozenset(check.name for check in CHECKS if not check.bars_timing)
"""Checks whose failure does not put the times in doubt."""


@dataclass(frozen=True)
class Selection:
    """Which part of the suite to run; empty means all."""

    checks: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ALL_DTYPES
    masks: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    """Names of cases, as records and reproduction commands give them."""
    device: str = "cpu"
    seed: int = 0
    real: RealWeights | None = None
    """Real weights to verify on, instead of random ones."""

    def __post_init__(self) -> None:
        for what, given, known in (("check", self.checks, CHECK_NAMES), ("dtype", self.dtypes, ALL_DTYPES)):
            unknown = [name for name in given if name not in known]
            if unknown:
                raise UserError(f"no {what} named {', '.join(unknown)}; there are: {', '.join(known)}")


@dataclass(frozen=True)
class Item:
    """One check on one case: the unit of work."""

    check: Check
    case: Case

    @property
    def key(self) -> tuple[str, str]:
        """Identity within an implementation."""
        return self.check.name, str(self.case)


def plan(implementation: Implementation, selection: Selection) -> list[Item]:
    """All checks and cases of the suite for one implementation, those it does not support included."""
    items = [
        Item(check, case)
        for dtype in selection.dtypes
        for check in CHECKS
        if not selection.checks or check.name in selection.checks
        for case in _cases(check, dtype, implementation, selection)
        if not selection.masks or case.mask in selection.masks or check.general
        if not selection.cases or str(case) in selection.cases
    ]
    return list({item.key: item for item in items}.values())


def _cases(check: Check, dtype: str, implementation: Implementation, selection: Selection) -> Iterable[Case]:
    if selection.real is not None:
        return selection.real.cases(check.name, dtype, selection.device)
    return check.cases(dtype, selection.device, selection.device in implementation.slow_on)


def run_item(implementation: Implementation, item: Item, selection: Selection) -> CheckRecord:
    """Run one check on one case in this process."""
    unsupported = implementation.why_not(item.case)
    unavailable = implementation.missing_on(item.case.device)
    if unavailable:
        return record(implementation, item, "unavailable", (unavailable,), selection)
    if unsupported:
        return record(implementation, item, "unsupported", unsupported, selection)
    start = time.perf_counter()
    seen = Evidence()
    try:
        seen = item.check.function(trial_of(implementation, item, selection))
        reasons = beyond_budget(seen)
    except CheckFailedError as failure:
        reasons = (str(failure),)
    except Exception as error:  # noqa: BLE001 - whatever an implementation raises is the finding
        reasons = (f"{RAISED}{one_line(error)}{place_of(error)}",)
    status, reasons = _judge(implementation, item, seen, reasons)
    return record(implementation, item, status, reasons, selection, seen, time.perf_counter() - start)


def trial_of(implementation: Implementation, item: Item, selection: Selection) -> Trial:
    """What the check function of an item is called with."""
    source = selection.real.inputs if selection.real else make_inputs
    return Trial(implementation, item.case, selection.seed, source)


def beyond_budget(seen: Evidence) -> tuple[str, ...]:
    """A sentence for each comparison that does not hold."""
    return tuple(
        f"{c.tensor}: got {c.got:.6g}, expected {c.expected:.6g} at {list(c.at)}; "
        f"off by {c.budget_used:.3g} times the budget of {c.budget:.2e}"
        for c in seen.comparisons
        if not c.passed
    )


def _judge(
    implementation: Implementation, item: Item, seen: Evidence, reasons: tuple[str, ...]
) -> tuple[CheckStatus, tuple[str, ...]]:
    known = [
        f"{failure.reason} ({failure.source})"
        for failure in implementation.known_failures
        if failure.check == item.check.name and failure.applies(item.case)
    ]
    if reasons:
        return ("known_failure", (*known, *reasons)) if known else ("failed", reasons)
    if known:
        return "unexpected_pass", (f"declared to fail, but passed: {'; '.join(known)}",)
    if seen.comparisons and not any(comparison.is_evidence for comparison in seen.comparisons):
        return "no_evidence", ("zeros would pass too: rounding in this dtype drowns the answer",)
    return "passed", ()


def record(
    implementation: Implementation,
    item: Item,
    status: CheckStatus,
    reasons: tuple[str, ...],
    selection: Selection,
    seen: Evidence | None = None,
    duration_s: float = 0.0,
) -> CheckRecord:
    """The record of a check that ended."""
    check, case = item.check, item.case
    worst = _worst(seen.comparisons) if seen else None
    return CheckRecord(
        implementation=implementation.name,
        check=check.name,
        claim=check.claim,
        case=str(case),
        dtype=case.dtype,
        mask="" if check.general else case.mask,
        mode="" if check.general else case.mode,
        device=case.device,
        status=status,
        reasons=reasons,
        max_error=worst.max_error if worst else None,
        max_error_at=worst.at if worst else None,
        budget=worst.budget if worst else None,
        budget_set_by=seen.set_by if seen else "",
        budget_used=worst.budget_used if worst else None,
        error_over_baseline=seen.error_over_baseline if seen else None,
        duration_s=round(duration_s, 6),
        reproduce=f"mha verify {shlex.quote(implementation.name)} --check {check.name} --case {case}"
        + (f" --seed {selection.seed}" if selection.seed else "")
        + (selection.real.arguments if selection.real else ""),
    )


def _worst(comparisons: tuple[Comparison, ...]) -> Comparison | None:
    return max(comparisons, key=lambda comparison: comparison.budget_used, default=None)


_CASE_DTYPE = re.compile("-(" + "|".join(ALL_DTYPES) + ")-")


def dtype_of_case(name: str) -> str:
    """The dtype that a case's name contains.

    Raises:
        UserError: it contains none.
    """
    match = _CASE_DTYPE.search(name)
    if match is None:
        raise UserError(f"{name!r} is not the name of a case, such as b3-s7-d48-h4-causal-float32-inference-cpu")
    return match.group(1)
