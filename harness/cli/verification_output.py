"""What `mha verify` prints: a table by implementation and dtype, then everything that needs a reader."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.console import console

if TYPE_CHECKING:
    from rich.table import Table

    from harness.records import CheckRecord


def print_results(records: Sequence[CheckRecord]) -> None:
    """A table of what came out by implementation and dtype, then everything that needs a reader."""
    if not records:
        click.echo("nothing to verify: no check of the suite fits this selection")
        return
    screen = console()
    screen.print(_table(records))
    for alike in _failures(records):
        _print_failure(alike[0], alike[1:])
    _print_scripts(records)
    _print_known(records)
    statuses = Counter(record.status for record in records)
    summary = ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in statuses.most_common())
    screen.print(f"{len(records)} check{'s' * (len(records) > 1)}: {summary}", markup=False)


_COLUMNS = {
    "passed": ("passed",),
    "failed": ("failed", "unexpected_pass"),
    "crashed": ("crashed",),
    "timed out": ("timeout",),
    "known failure": ("known_failure",),
    "no evidence": ("no_evidence",),
    "unsupported": ("unsupported", "unavailable"),
}


_BAD_COLUMNS = ("failed", "crashed", "timed out")


def _table(records: Sequence[CheckRecord]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from harness.records import BAD_CHECK_STATUSES

    table = Table(title="Verification", title_justify="left")
    columns = {
        heading: statuses
        for heading, statuses in _COLUMNS.items()
        if heading in ("passed", "failed") or any(record.status in statuses for record in records)
    }
    table.add_column("implementation", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    for heading in (*columns, "largest error / budget"):
        table.add_column(heading, justify="right")
    for name, dtype in dict.fromkeys((r.implementation, r.dtype) for r in records):
        mine = [r for r in records if (r.implementation, r.dtype) == (name, dtype)]
        counts = {heading: sum(r.status in statuses for r in mine) for heading, statuses in columns.items()}
        used = [r.budget_used for r in mine if r.status == "passed" and r.budget_used is not None]
        bad = any(r.status in BAD_CHECK_STATUSES for r in mine)
        cells = [
            Text(str(n) if n else "·", "bold red" if n and heading in _BAD_COLUMNS else "")
            for heading, n in counts.items()
        ]
        table.add_row(Text(name, "bold red" if bad else "bold"), dtype, *cells, f"{max(used):.2f}" if used else "·")
    return table


def _failures(records: Sequence[CheckRecord]) -> list[list[CheckRecord]]:
    """Bad records; those of an implementation that have one likely cause are told once, together.

    Without one, wrong answers are told once for each check, and deaths once for each reason. Implementation by
    implementation, and of each what there is most of first.
    """
    from harness.records import BAD_CHECK_STATUSES
    from harness.verification.suite import RAISED
    from harness.verification.verify import NOT_TRIED

    groups: dict[tuple[str, object], list[CheckRecord]] = {}
    for record in records:
        if record.status in BAD_CHECK_STATUSES:
            by_itself = record.status != "failed" or record.reasons[0].startswith(RAISED)
            alike = record.reasons if by_itself else record.check
            what = record.likely_cause or (record.status, alike)
            groups.setdefault((record.implementation, what), []).append(record)
    names = list(dict.fromkeys(name for name, _ in groups))

    def place(alike: Sequence[CheckRecord]) -> tuple[int, bool, int]:
        first = alike[0]
        return names.index(first.implementation), first.reasons[0].startswith(NOT_TRIED), -len(alike)

    return sorted(groups.values(), key=place)


def _print_failure(record: CheckRecord, others: Sequence[CheckRecord]) -> None:
    from rich.text import Text

    screen = console()
    headline = f"\n{record.implementation}: {record.check} {record.status} on {record.case}"
    screen.print(Text(headline, "bold red"))
    screen.print(Text(f"  claim: {record.claim}"))
    for reason in record.reasons:
        screen.print(Text(f"  {reason}"))
    if record.likely_cause:
        screen.print(Text(f"  likely cause: {record.likely_cause}", "bold"))
    if others:
        by_check = Counter(other.check for other in others)
        listed = ": " + ", ".join(f"{check} ({number})" for check, number in by_check.items())
        alike = "of the same cause" if record.likely_cause else "alike"
        screen.print(Text(f"  and {len(others)} more {alike}{'' if set(by_check) == {record.check} else listed}"))
    if record.budget_set_by:
        screen.print(Text(f"  the budget comes from {record.budget_set_by}", "dim"))
    # Commands are to be copied: the terminal may wrap them, but no line break is printed into them.
    screen.print(Text(f"  again: {record.reproduce}", "dim"), soft_wrap=True)
    if record.reproducer:
        screen.print(Text(f"  without mha: python {shlex.quote(record.reproducer)}", "dim"), soft_wrap=True)


def _print_scripts(records: Sequence[CheckRecord]) -> None:
    """Where the scripts of those failures are that were told with others."""
    from rich.text import Text

    scripts = [Path(record.reproducer) for record in records if record.reproducer]
    if len(scripts) > 1:
        line = f"\nscripts for {len(scripts)} failures, named by check and case: {scripts[0].parent}"
        console().print(Text(line, "dim"), soft_wrap=True)


def _print_known(records: Sequence[CheckRecord]) -> None:
    """What is declared: known failures, and every reason why cases are not supported."""
    from rich.text import Text

    screen = console()
    lines: Counter[str] = Counter()
    for record in records:
        if record.status == "known_failure":
            lines[f"{record.implementation}: known failure of {record.check}: {record.reasons[0]}"] += 1
        elif record.status in ("unsupported", "unavailable"):
            for reason in record.reasons:
                lines[f"{record.implementation}: {record.status}: {reason}"] += 1
    for line, number in lines.items():
        screen.print(Text(f"{line} ({number} cases)" if number > 1 else line, "dim"))
