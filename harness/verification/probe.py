"""What a probe is: a question that the contract leaves open, answered by running an implementation.

An answer is a few words that an implementation can declare beforehand and that mean the same on every machine; figures
and messages go into the evidence. Where several circumstances are tried, equal answers are said once:
``NaN in inference; 0 in training``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from harness.verification.check import CheckFailedError, Trial, evidence
from harness.verification.rounding import Comparison, Expectation
from implementations.spec import Case, Implementation

SHAPE = Case(batch_size=2, seq_len=5, d_model=32, num_heads=4)
"""Small, odd, and with unlike lengths in every direction."""
MESSAGE_SHOWN = 160
"""Characters of an error's message."""


@dataclass(frozen=True)
class Finding:
    """What a probe saw."""

    answer: str
    evidence: str = ""
    answered: bool = True
    """False if it could not be seen: not supported, nothing to compile with."""


class NotServedError(Exception):
    """A case that the implementation declares not to serve."""


@dataclass(frozen=True)
class Questioned:
    """An implementation on a device: what a probe function gets."""

    implementation: Implementation
    device: str = "cpu"
    seed: int = 0

    def trial(self, *, limits: bool = True, shape: Case = SHAPE, **changes: Any) -> Trial:  # noqa: ANN401 - fields of Case
        """One case.

        Args:
            limits: whether the implementation's own limits are respected; a probe may be about what lies beyond.
            shape: to start from.
            changes: of the shape's fields.

        Raises:
            NotServedError: the implementation declares that it does not serve the case; says every reason.
        """
        case = replace(shape, device=self.device, **changes)
        reasons = self.implementation.why_not(case) if limits else ()
        if reasons:
            raise NotServedError("; ".join(reasons))
        return Trial(self.implementation, case, self.seed)


@dataclass(frozen=True)
class Probe:
    """A named question."""

    function: Callable[[Questioned], Finding]
    is_cheap: bool = True
    """Whether it takes milliseconds; compilers take seconds."""
    of_slow: bool = True
    """Whether it is asked where a call takes seconds."""

    @property
    def name(self) -> str:
        """The function's name without ``probe_``."""
        return self.function.__name__.removeprefix("probe_")

    @property
    def timeout_s(self) -> float:
        """Seconds after which there is no answer: many times what a busy machine takes."""
        return 30.0 if self.is_cheap else 120.0

    @property
    def question(self) -> str:
        """The first line of the function's docstring."""
        return inspect.cleandoc(self.function.__doc__ or "").splitlines()[0]

    def put_to(self, questioned: Questioned) -> Finding:
        """Ask; whatever the implementation raises is the answer."""
        if questioned.device in questioned.implementation.slow_on and not self.of_slow:
            return Finding("not tried", "a call takes seconds on this device", answered=False)
        return ask({"": lambda: self.function(questioned)})


def ask(circumstances: Mapping[str, Callable[[], Finding]]) -> Finding:
    """Ask under several circumstances, given in words such as ``in training``, and sum the answers up."""
    return _summed_up({words: _tried(question) for words, question in circumstances.items()})


def _tried(question: Callable[[], Finding]) -> Finding:
    try:
        return question()
    except NotServedError as refusal:
        return Finding("not supported", str(refusal), answered=False)
    except Exception as error:  # noqa: BLE001 - whatever an implementation raises is the answer
        return Finding(f"raises {type(error).__name__}", " ".join(str(error).split())[:MESSAGE_SHOWN])


def _summed_up(findings: Mapping[str, Finding]) -> Finding:
    """Circumstances without an answer are left out of it, unless there is no other."""
    answered = {words: finding for words, finding in findings.items() if finding.answered}
    shown = answered or findings
    circumstances: dict[str, list[str]] = {}
    for words, finding in shown.items():
        circumstances.setdefault(finding.answer, []).append(words)
    answers = [
        answer if len(circumstances) == 1 else f"{answer} {' and '.join(words)}"
        for answer, words in circumstances.items()
    ]
    return Finding("; ".join(answers), _evidence(findings), answered=bool(answered))


def _evidence(findings: Mapping[str, Finding]) -> str:
    """Each circumstance's own; equal ones once."""
    circumstances: dict[str, list[str]] = {}
    for words, finding in findings.items():
        if finding.evidence:
            circumstances.setdefault(finding.evidence, []).append(words)
    everywhere = len(circumstances) == 1 and len(next(iter(circumstances.values()))) == len(findings)
    return "; ".join(
        text if everywhere or words == [""] else f"{' and '.join(words)}: {text}"
        for text, words in circumstances.items()
    )


def held(expectation: Expectation, got: Mapping[str, Tensor]) -> Finding:
    """Whether tensors, by ``output`` and gradient name, are right: held against the oracle."""
    try:
        comparisons = evidence(expectation, dict(got)).comparisons
    except CheckFailedError as failure:
        return Finding("wrong", str(failure))
    if not any(comparison.is_evidence for comparison in comparisons):
        return Finding("no evidence", "zeros would pass too", answered=False)
    worst = max(comparisons, key=lambda comparison: comparison.budget_used)
    return Finding("right" if worst.passed else "wrong", error_in_words(worst))


def error_in_words(worst: Comparison) -> str:
    """The largest error and what it is of its budget."""
    name = worst.tensor if worst.tensor == "output" else f"gradient of {worst.tensor}"
    return f"{name} off by up to {worst.max_error:.2g}, {worst.budget_used:.2g} of the budget"
