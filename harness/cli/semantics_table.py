"""`mha verify --semantics`: what the contract leaves open, as a table of questions by implementations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.console import console, progress, write_json

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from harness.records import SemanticsRecord
    from harness.registry import Registered
    from harness.verification.semantics import Questions


def ask_and_print(chosen: Sequence[Registered], questions: Questions, json_file: Path | None) -> int:
    """Put the questions, print the table, and give the exit code: 1 if an answer differs from what is declared."""
    from harness.verification.semantics import PROBE_NAMES, put_all

    with progress("asking") as advance:
        asked = put_all(chosen, questions, on_progress=lambda done, total: advance(done, total, "", None))
        records = list(asked)
    order = [each.implementation.name for each in chosen]
    records.sort(key=lambda record: (order.index(record.implementation), PROBE_NAMES.index(record.probe)))
    if json_file is None or str(json_file) != "-":
        print_semantics(records)
    if json_file is not None:
        write_json([record.model_dump(mode="json") for record in records], json_file)
    return 1 if any(record.status == "differs" for record in records) else 0


def print_semantics(records: Sequence[SemanticsRecord]) -> None:
    """The table, then every answer that differs from what is declared, and how to ask again."""
    from rich.text import Text

    screen = console()
    names = list(dict.fromkeys(record.implementation for record in records))
    screen.print(_table_of_one(names[0], records) if len(names) == 1 else _table_of_many(names, records))
    for record in records:
        if record.status == "differs":
            for line in _difference(record):
                screen.print(line)
    statuses = Counter(record.status for record in records)
    summary = ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in statuses.most_common())
    screen.print(Text(f"{len(records)} answer{'' if len(records) == 1 else 's'}: {summary}"))


def _table_of_many(names: Sequence[str], records: Sequence[SemanticsRecord]) -> Table:
    """A row for each question, a column for each implementation."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Semantics: seen, and declared", title_justify="left", show_lines=True)
    for heading in ("question", *names):
        table.add_column(heading, overflow="fold")
    answers = {(record.implementation, record.probe): record for record in records}
    for probe, question in {record.probe: record.question for record in records}.items():
        table.add_row(Text(question), *(_seen_and_declared(answers[name, probe]) for name in names))
    return table


def _table_of_one(name: str, records: Sequence[SemanticsRecord]) -> Table:
    """With room for the evidence."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"Semantics of {name}", title_justify="left", show_lines=True)
    for heading in ("question", "seen", "declared", "evidence"):
        table.add_column(heading, overflow="fold")
    for record in records:
        table.add_row(
            Text(record.question),
            Text(record.answer, _style(record)),
            Text(record.declared or "nothing", _style(record) if record.declared else "dim"),
            Text(record.evidence, "dim"),
        )
    return table


def _seen_and_declared(record: SemanticsRecord) -> Text:
    from rich.text import Text

    if record.status == "as_declared":
        words = "as declared"
    elif record.status == "no_answer":
        words = record.evidence
    else:
        words = f"declared: {record.declared}" if record.declared else "nothing declared"
    return Text.assemble((record.answer, _style(record)), "\n", (words, _style(record) or "dim"))


def _style(record: SemanticsRecord) -> str:
    return {"differs": "bold red", "no_answer": "dim"}.get(record.status, "")


def _difference(record: SemanticsRecord) -> list[Text]:
    from rich.text import Text

    lines = [Text(f"\n{record.implementation}: {record.probe} differs from what is declared", "bold red")]
    lines += [Text(f"  {record.question} Seen: {record.answer}. Declared: {record.declared}.")]
    lines += [Text(f"  declared by: {record.declared_source}", "dim")] if record.declared_source else []
    lines += [Text(f"  evidence: {record.evidence}", "dim")] if record.evidence else []
    return [*lines, Text(f"  again: {record.reproduce}", "dim")]
