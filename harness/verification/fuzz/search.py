"""Spends a budget of seconds on generated cases: Hypothesis draws and shrinks them here, children run them.

For each implementation: first the failures of earlier runs are replayed from the database, then cases are drawn in
rounds. The first failure of a round is shrunk at once; while it is, failures of another kind do not count, so that
shrinking never slips from one fault to another, and afterwards its kind is closed. What a case gave is remembered, so
a failure that depends on chance cannot confuse the shrinking; the smallest case is run once more in a fresh process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from unittest import SkipTest

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.database import DirectoryBasedExampleDatabase

from harness.children import Children
from harness.records import CheckRecord, CheckStatus
from harness.registry import Registered
from harness.verification.fuzz.cases import FuzzCase
from harness.verification.fuzz.results import BY_CHANCE, Options, Report, counted, finding, summary
from harness.verification.fuzz.runner import HANG, Runner
from harness.verification.fuzz.strategies import Space, cases
from harness.verification.fuzz.trial import Outcome

ROUND = 200
"""Cases of a round."""
GENERATING = 0.75
"""Share of the time after which no new search begins, so that there is time to shrink."""
_ROUNDS = 1_000_000
"""More than any search has: seeds of two searches share no round."""

Progress = Callable[[float, float, str], None]
"""Called with the seconds spent, the seconds there are, and the implementation."""


def fuzz(
    registered: Sequence[Registered],
    options: Options,
    on_progress: Progress = lambda _done, _total, _name: None,
) -> Iterator[Report]:
    """Search for wrong answers, in `options.seconds` split evenly over the implementations.

    What one implementation leaves of its time, the others get. A case that hangs at the very end may cost some more.

    Args:
        registered: the implementations to search.
        options: seconds, seed, device, dtypes, and where failures are kept.
        on_progress: called after each case.
    """
    set_hypothesis_home_dir(options.database)  # where it would otherwise make a folder of its own
    start = time.monotonic()
    for number, each in enumerate(registered):
        left_s = options.seconds - (time.monotonic() - start)
        on_case = partial(_progressed, on_progress, start, options.seconds, each.implementation.name)
        yield _search(each, options, max(0.0, left_s) / (len(registered) - number), on_case)


def _progressed(on_progress: Progress, start: float, seconds: float, name: str) -> None:
    on_progress(min(seconds, time.monotonic() - start), seconds, name)


def _search(registered: Registered, options: Options, seconds: float, on_case: Callable[[], None]) -> Report:
    implementation = registered.implementation
    space = Space.of(implementation, options.dtypes, options.device)
    unavailable = implementation.missing_on(options.device)
    if not space.dtypes or options.device not in implementation.devices:
        unavailable = f"it supports {', '.join(implementation.dtypes)} on {', '.join(implementation.devices)}"
    if unavailable:
        nothing = summary(registered, options, "unavailable", unavailable)
        return Report(implementation.name, (), {}, nothing)
    with Children(tasks_per_child=0) as children:
        runner = Runner(registered, children, is_slow=space.is_slow)
        findings = tuple(_Search(runner, options, space, seconds, on_case).findings())
    status: CheckStatus = "passed" if runner.counts["passed"] else "no_evidence"
    nothing = summary(registered, options, status, counted(runner.counts))
    return Report(implementation.name, findings, runner.counts, nothing)


class _FailureError(Exception):
    """Tells Hypothesis that a case fails; one subclass for each kind, which it takes for faults of their own."""

    def __init__(self, case: FuzzCase, outcome: Outcome) -> None:
        super().__init__(str(case))
        self.case = case
        self.outcome = outcome


class _Search:
    """The search through one implementation."""

    def __init__(
        self, runner: Runner, options: Options, space: Space, seconds: float, on_case: Callable[[], None]
    ) -> None:
        self.runner = runner
        self.options = options
        self.space = space
        self.seconds = seconds
        self.on_case = on_case
        self.start = time.monotonic()
        self.until = self.start + seconds
        """When new cases end."""
        self.errors: dict[str, type[_FailureError]] = {}
        """By kind."""
        self.first: dict[str, FuzzCase] = {}
        """The case that a kind came up with, before it was shrunk."""
        self.closed: set[str] = set()
        self.hunted: str | None = None
        """The kind that is being shrunk."""
        self.hangs = False
        """Whether a hang was confirmed, which makes every further case expensive."""

    def findings(self) -> Iterator[CheckRecord]:
        """Replay, then search until the time for it is over or a hang is found."""
        yield from self._round(0, (Phase.reuse, Phase.shrink), one_kind=False)
        for number in count() if self.options.rounds is None else range(self.options.rounds):
            if time.monotonic() > self._after(GENERATING) or self.hangs:
                return
            yield from self._round(number, (Phase.generate, Phase.shrink), one_kind=True)

    def _round(self, number: int, phases: tuple[Phase, ...], *, one_kind: bool) -> Iterator[CheckRecord]:
        @settings(
            phases=phases,
            max_examples=ROUND,
            database=DirectoryBasedExampleDatabase(self._folder),
            report_multiple_bugs=not one_kind,
            deadline=None,
            derandomize=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        )
        @seed(self.options.seed * _ROUNDS + number)  # below the settings: it would switch the database off
        @given(cases(self.space))
        def example(case: FuzzCase) -> None:
            self._try(case, one_kind=one_kind)

        self.hunted, self.until = None, self._after(GENERATING)
        try:
            example()
        except _FailureError as failure:
            yield from self._closed([failure])
        except ExceptionGroup as group:
            yield from self._closed([error for error in group.exceptions if isinstance(error, _FailureError)])
        except SkipTest:
            return  # there is nothing to replay

    @property
    def _folder(self) -> Path:
        """One for each space: a failure is kept as the choices that drew it, which mean nothing elsewhere."""
        words = (self.runner.registered.implementation.name, self.space.device, *self.space.dtypes)
        return self.options.database / re.sub(r"[^\w.-]", "_", "-".join(words))

    def _after(self, share: float) -> float:
        return self.start + share * self.seconds

    def _try(self, case: FuzzCase, *, one_kind: bool) -> None:
        """Raise if the case fails in a way that is looked for."""
        outcome = self._outcome(case)
        if outcome is None or not outcome.is_bad or outcome.kind in self.closed:
            return
        self.first.setdefault(outcome.kind, case)
        if self.hunted is None:
            self.hunted = outcome.kind
            self.until = self._after(1.0)
        if one_kind and outcome.kind != self.hunted:
            return
        raise self._error(outcome.kind)(case, outcome)

    def _error(self, kind: str) -> type[_FailureError]:
        return self.errors.setdefault(kind, type("_FailureError", (_FailureError,), {}))

    def _outcome(self, case: FuzzCase) -> Outcome | None:
        """What the case gives; None when the time is over or the case is not supported."""
        known = self.runner.known(case)
        if known is not None or time.monotonic() > self.until or self.runner.is_unsupported(case):
            return known
        outcome = self.runner.run(case, self._timeout())
        self.on_case()
        return outcome

    def _timeout(self) -> float:
        """Patience, less where it would eat the time up: each step of shrinking a hang costs it once."""
        steps = 60.0 if self.hunted == HANG else 10.0
        return min(self.runner.patience_s, max(self.runner.least_s, self.seconds / steps))

    def _closed(self, failures: Sequence[_FailureError]) -> Iterator[CheckRecord]:
        for failure in failures:
            self.closed.add(failure.outcome.kind)
            record = self._confirmed(failure)
            if record is not None:
                command = record.reproduce + self.runner.registered.plugin_option
                yield record.model_copy(update={"reproduce": command})

    def _confirmed(self, failure: _FailureError) -> CheckRecord | None:
        """The record of a failure that was run once more, alone; None for what is only slow.

        An impatient time-out may have shrunk a hang into a case that is only slow: then the first case counts.
        """
        kind, registered = failure.outcome.kind, self.runner.registered
        for case in dict.fromkeys([failure.case, self.first[kind]]):
            again = self.runner.run_alone(case)
            if again.kind == kind:
                self.hangs |= kind == HANG
                record = finding(registered, self.options, case, again)
                return self.runner.explained(case, record, self.options.reproducers)
        return None if kind == HANG else finding(registered, self.options, failure.case, failure.outcome, BY_CHANCE)
