"""Runs cases of one implementation in children, and remembers what came."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from harness.children import Children, Died, Task
from harness.records import CheckRecord
from harness.registry import Plugin, Registered
from harness.verification.fuzz.cases import FuzzCase
from harness.verification.fuzz.trial import Outcome, explain_case, run_case

PATIENCE_S = 10.0
"""After this long without a result a case hangs; the slowest takes a second."""
LEAST_S = 0.5
"""What a call gets however short the time is."""
PATIENCE_WHERE_SLOW_S = 120.0
LEAST_WHERE_SLOW_S = 30.0
"""The first call compiles or imports what is interpreted."""
GRACE_S = 60.0
"""For a child to start and for the oracle, beside the call itself."""
HANG = "timeout"
"""The kind of all hangs, wherever they are."""


class Runner:
    """One child that is kept for as long as it lives, and fresh ones where that matters."""

    def __init__(self, registered: Registered, children: Children, *, is_slow: bool) -> None:
        self.registered = registered
        self.counts: Counter[str] = Counter()
        """Cases by how they ended."""
        self.patience_s = PATIENCE_WHERE_SLOW_S if is_slow else PATIENCE_S
        self.least_s = LEAST_WHERE_SLOW_S if is_slow else LEAST_S
        self._children = children
        self._outcomes: dict[FuzzCase, Outcome] = {}

    def known(self, case: FuzzCase) -> Outcome | None:
        """What the case gave before."""
        return self._outcomes.get(case)

    def is_unsupported(self, case: FuzzCase) -> bool:
        """Whether the implementation declares that it does not serve the case; if so, that is counted."""
        unsupported = any(self.registered.implementation.why_not(each) for each in case.spec_cases)
        self.counts["unsupported"] += unsupported
        return unsupported

    def run(self, case: FuzzCase, timeout_s: float) -> Outcome:
        """Run a case in the child that is kept."""
        outcome = self._run(case, self._children, timeout_s)
        self._outcomes[case] = outcome
        self.counts[outcome.status] += 1
        return outcome

    def run_alone(self, case: FuzzCase) -> Outcome:
        """Run a case with patience, in a fresh process."""
        with Children() as fresh:
            return self._run(case, fresh, self.patience_s)

    def explained(self, case: FuzzCase, record: CheckRecord, folder: Path | None) -> CheckRecord:
        """The record of a failure with its likely cause and a script that shows it; both need calls."""
        if record.status != "failed" or folder is None:
            return record
        with Children() as fresh:
            task = Task(explain_case, (*self._address, case, record, folder), self.patience_s + GRACE_S)
            result = fresh.run(task)
        return record if isinstance(result, Died) else result

    @property
    def _address(self) -> tuple[str, tuple[Plugin, ...]]:
        """What a child needs to find the implementation, which holds functions that cannot be pickled."""
        return self.registered.implementation.name, self.registered.plugins

    def _run(self, case: FuzzCase, children: Children, timeout_s: float) -> Outcome:
        result = children.run(Task(run_case, (*self._address, case, timeout_s), timeout_s + GRACE_S))
        if not isinstance(result, Died):
            return result
        kind = HANG if result.status == "timeout" else result.reason.partition(";")[0]  # without its last words
        return Outcome(result.status, kind, (result.reason,))
