"""What a search is asked for, and what it gives: records of findings, or of there being none."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.records import CheckRecord, CheckStatus
from harness.registry import Registered
from harness.verification.fuzz.cases import FuzzCase
from harness.verification.fuzz.trial import CHECK, Outcome, check_fuzz
from implementations.spec import ALL_DTYPES

CLAIM = (check_fuzz.__doc__ or "").strip()
DATABASE = Path(".mha-fuzz")
"""Failures found, by implementation; below the working directory, and ignored by git."""
BY_CHANCE = "it failed once and not again, alone in a fresh process: it depends on chance or on earlier calls"


@dataclass(frozen=True)
class Options:
    """What is asked for on the command line."""

    seconds: float
    seed: int = 0
    device: str = "cpu"
    dtypes: tuple[str, ...] = ALL_DTYPES
    database: Path = DATABASE
    reproducers: Path | None = None
    """Folder for a script that shows a failure, one for each; None writes none."""
    rounds: int | None = None
    """Rounds of cases after which a search ends before its time, so that its length depends on no machine."""

    def command(self, name: str) -> str:
        """What searches again, with what was found before first."""
        words = [f"mha verify {shlex.quote(name)} --fuzz {self.seconds:g} --seed {self.seed}"]
        words += [f"--dtype {dtype}" for dtype in self.dtypes if self.dtypes != ALL_DTYPES]
        words += [f"--device {self.device}"] if self.device != "cpu" else []
        return " ".join(words)


@dataclass(frozen=True)
class Report:
    """What a search through one implementation gave."""

    implementation: str
    findings: tuple[CheckRecord, ...]
    """A failure of each kind that came up, shrunk."""
    counts: Mapping[str, int]
    """Cases by the status they ended with, those met while shrinking included; ``unsupported`` ones did not run."""
    summary: CheckRecord
    """What the search was worth, if nothing was found."""

    @property
    def records(self) -> tuple[CheckRecord, ...]:
        """The findings, or the summary if there are none."""
        return self.findings or (self.summary,)


def finding(registered: Registered, options: Options, case: FuzzCase, outcome: Outcome, *more: str) -> CheckRecord:
    """The record of a failure; its command does not name the plugin yet.

    Args:
        registered: what failed.
        options: what was asked for.
        case: what it failed on.
        outcome: how.
        more: what else there is to say.
    """
    worst = outcome.worst
    assert outcome.status in ("failed", "crashed", "timeout")
    return CheckRecord(
        implementation=registered.implementation.name,
        check=CHECK,
        claim=CLAIM,
        case=str(case),
        dtype=case.dtype,
        mask=case.spec_cases[0].mask,
        mode=case.mode,
        device=case.device,
        status=outcome.status,
        reasons=(case.words, *outcome.reasons, *more),
        max_error=worst.max_error if worst else None,
        max_error_at=worst.at if worst else None,
        budget=worst.budget if worst else None,
        budget_set_by=outcome.set_by,
        budget_used=worst.budget_used if worst else None,
        reproduce=options.command(registered.implementation.name),
    )


def counted(counts: Mapping[str, int]) -> str:
    """How many cases ran, and what they are worth."""
    ran = sum(number for status, number in counts.items() if status != "unsupported")
    rest = ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in counts.items() if number)
    return f"{ran} generated cases: {rest or 'none ran'}"


def summary(registered: Registered, options: Options, status: CheckStatus, reason: str) -> CheckRecord:
    """The record of a search that found nothing."""
    return CheckRecord(
        implementation=registered.implementation.name,
        check=CHECK,
        claim=CLAIM,
        case=f"generated from seed {options.seed} for {options.seconds:g} s",
        dtype="",
        mask="",
        mode="",
        device=options.device,
        status=status,
        reasons=(reason,),
        reproduce=options.command(registered.implementation.name) + registered.plugin_option,
    )
