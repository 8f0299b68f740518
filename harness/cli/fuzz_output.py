"""The part of `mha verify --fuzz` that a reader sees."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.console import console, progress

if TYPE_CHECKING:
    from harness.records import CheckRecord
    from harness.registry import Registered
    from harness.verification.fuzz.results import Options, Report


def search(chosen: Sequence[Registered], options: Options) -> list[Report]:
    """Search through these implementations, with a progress bar."""
    from harness.verification.fuzz.search import fuzz

    with progress(f"looking for wrong answers for {options.seconds:g} s") as advance:
        return list(fuzz(chosen, options, lambda done, total, name: advance(int(done), int(total), name, total - done)))


def print_reports(reports: Sequence[Report], database: Path) -> None:
    """What each search was worth, and what it found."""
    from rich.text import Text

    from harness.verification.fuzz.results import counted

    screen = console()
    for report in reports:
        found = f"{len(report.findings)} found" if report.findings else "nothing found"
        worth = counted(report.counts) if report.counts else report.summary.reasons[0]
        screen.print(Text(f"{report.implementation}: {found}; {worth}", "bold red" if report.findings else ""))
        for record in report.findings:
            _print_finding(record)
    if any(report.findings for report in reports):
        screen.print(Text(f"failures are kept in {database} and come first in the next search", "dim"))


def _print_finding(record: CheckRecord) -> None:
    from rich.text import Text

    screen = console()
    words, *reasons = record.reasons
    screen.print(Text(f"\n{record.implementation}: {record.status} on the smallest such case: {words}", "bold red"))
    for reason in reasons:
        screen.print(Text(f"  {reason}"))
    if record.likely_cause:
        screen.print(Text(f"  likely cause: {record.likely_cause}", "bold"))
    if record.budget_set_by:
        screen.print(Text(f"  the budget comes from {record.budget_set_by}", "dim"))
    screen.print(Text(f"  again: {record.reproduce}", "dim"), soft_wrap=True)
    if record.reproducer:
        screen.print(Text(f"  without mha: python {shlex.quote(record.reproducer)}", "dim"), soft_wrap=True)
