"""The semantics table: what the contract leaves open, declared and seen, a question for each row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.records import SEMANTICS_FILE, SemanticsRecord, SemanticsStatus
from reports.tables import Cell, Column, Names, Table, Tone

_TONES: dict[SemanticsStatus, Tone] = {"differs": "bad", "as_declared": "", "undeclared": "", "no_answer": "quiet"}
_WORST_FIRST: tuple[SemanticsStatus, ...] = ("differs", "as_declared", "undeclared", "no_answer")


def semantics(records: Sequence[SemanticsRecord], names: Names) -> Table:
    """Question by implementation: what was seen, and under it what is declared."""
    implementations = list(dict.fromkeys(record.implementation for record in records))
    answers = {(record.implementation, record.probe): record for record in records}
    questions = {record.probe: record.question for record in records}
    return Table(
        slug="semantics",
        title="Semantics: declared and seen",
        columns=(Column("question", wide=True), *(Column(names.text(name), wide=True) for name in implementations)),
        rows=[
            (Cell(question, sort=probe), *(_answer_cell(answers.get((name, probe))) for name in implementations))
            for probe, question in questions.items()
        ],
        note="What the contract leaves open, seen by running each implementation, and under it what the "
        "implementation declares. An answer that differs from what is declared is a failure. "
        "`mha verify --semantics` also asks what takes a compiler.",
        full=SEMANTICS_FILE,
    )


def _answer_cell(record: SemanticsRecord | None) -> Cell:
    if record is None:
        return Cell("not asked", sort=math.inf, tone="quiet")
    return Cell(
        record.answer,
        sort=_WORST_FIRST.index(record.status),
        tone=_TONES[record.status],
        detail=_beside(record),
    )


def _beside(record: SemanticsRecord) -> str:
    """What is declared; where there is no answer, why."""
    if record.status == "no_answer":
        return record.evidence
    if record.status == "as_declared":
        return "as declared"
    return f"declared: {record.declared}" if record.declared else "nothing declared"


def differences(records: Sequence[SemanticsRecord], names: Names) -> Iterator[str]:
    """A sentence for each answer that is not the declared one."""
    for record in records:
        if record.status == "differs":
            yield (
                f"{names.text(record.implementation)}: {record.question} Seen: {record.answer}. "
                f"Declared: {record.declared}. Repeat it with {record.reproduce}."
            )
