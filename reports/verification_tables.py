"""Tables about correctness: what passed, what failed and how to repeat it, and how large the errors are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.records import BAD_CHECK_STATUSES
from reports import text
from reports.frames import groups
from reports.tables import EMPTY, Cell, Column, Names, Table, Tone, reasons_cell
from reports.timing_tables import error_cell

_SHORT = {
    "passed": "passed",
    "failed": "failed",
    "known_failure": "known",
    "unexpected_pass": "unexpected pass",
    "no_evidence": "no evidence",
    "unsupported": "unsupported",
    "unavailable": "unavailable",
    "crashed": "crashed",
    "timeout": "timeout",
}
_WORST_FIRST = (*BAD_CHECK_STATUSES, "known_failure", "passed", "no_evidence", "unsupported", "unavailable")
_SHOWN_AS_FAILURE = (*BAD_CHECK_STATUSES, "known_failure")


@dataclass(frozen=True)
class Failures:
    """Failing cases of one check of one implementation."""

    implementation: str
    check: str
    claim: str
    known: bool
    """Whether all of them were declared."""
    example: str
    """The worst case."""
    reasons: str
    """Why the worst case failed, and the likely cause if it is known."""
    reproduce: str
    """Command that repeats the worst case."""
    table: Table

    @property
    def count(self) -> int:
        """Number of cases."""
        return len(self.table.rows)


def matrix(checks: pd.DataFrame, names: Names) -> Table:
    """Check by implementation: how many cases ended how."""
    implementations = list(checks["implementation"].unique())
    counts: dict[tuple[str, str], Counter[str]] = {}
    for name, check, status in zip(checks["implementation"], checks["check"], checks["status"], strict=True):
        counts.setdefault((name, check), Counter())[status] += 1
    claims: dict[str, str] = dict(zip(checks["check"], checks["claim"], strict=True))
    return Table(
        slug="matrix",
        title="Verification matrix",
        columns=(Column("check", wide=True), *(Column(names.text(name)) for name in implementations)),
        rows=[
            (
                Cell(check, detail=claim),
                *(_matrix_cell(counts.get((name, check), Counter())) for name in implementations),
            )
            for check, claim in claims.items()
        ],
        note="Cases by how they ended. Known: failed as declared. No evidence: the error budget is so wide "
        "that zeros would pass. Unsupported: declared as not served.",
        full="checks.csv",
    )


def _matrix_cell(statuses: Counter[str]) -> Cell:
    if not statuses:
        return Cell("not run", sort=math.inf, tone="quiet")
    present = [status for status in _WORST_FIRST if statuses[status]]
    words = ", ".join(f"{statuses[status]} {_SHORT[status]}" for status in present)
    return Cell(words, sort=_WORST_FIRST.index(present[0]), tone=_tone(present))


def _tone(statuses: Sequence[str]) -> Tone:
    if any(status in BAD_CHECK_STATUSES for status in statuses):
        return "bad"
    if "known_failure" in statuses:
        return "warn"
    return "good" if "passed" in statuses else "quiet"


def failures(checks: pd.DataFrame, names: Names) -> list[Failures]:
    """Every failing check, undeclared failures first."""
    failing = checks[checks["status"].isin(_SHOWN_AS_FAILURE)]
    kinds = [
        _failures_of(name, check, group, names) for (name, check), group in groups(failing, ["implementation", "check"])
    ]
    return sorted(kinds, key=lambda kind: kind.known)


def _failures_of(name: str, check: str, rows: pd.DataFrame, names: Names) -> Failures:
    rows = rows.sort_values("status", key=lambda status: status.map(_WORST_FIRST.index), kind="stable")
    worst = rows.iloc[0]
    return Failures(
        implementation=names.text(name),
        check=check,
        claim=str(worst["claim"]),
        known=bool((rows["status"] == "known_failure").all()),
        example=str(worst["case"]),
        reasons="; ".join((*worst["reasons"], *_likely(worst["likely_cause"]))),
        reproduce=str(worst["reproduce"]),
        table=Table(
            slug="",
            title="",
            columns=(
                Column("case"),
                Column("status"),
                Column("error / budget", number=True),
                Column("largest error"),
                Column("reasons", wide=True),
                Column("likely cause", wide=True),
                Column("repeat it with", wide=True),
            ),
            rows=[_failure_row(row) for row in rows.itertuples(index=False)],
            full="checks.csv",
        ),
    )


def _likely(cause: str) -> tuple[str, ...]:
    return (f"likely cause: {cause}",) if cause else ()


def _failure_row(row: Any) -> tuple[Cell, ...]:  # noqa: ANN401 - a pandas row
    return (
        Cell(row.case),
        Cell(row.status.replace("_", " "), tone=_tone([row.status])),
        error_cell(row.budget_used),
        _largest_error(row),
        reasons_cell(row.reasons),
        Cell(row.likely_cause),
        Cell(row.reproduce, code=bool(row.reproduce)),
    )


def _largest_error(row: Any) -> Cell:  # noqa: ANN401 - a pandas row
    """Error, budget, where in the output, and what set the budget."""
    if math.isnan(row.max_error):
        return EMPTY
    error = text.scientific(row.max_error)
    budget = "" if math.isnan(row.budget) else f", budget {text.scientific(row.budget)}"
    details = [f"at {row.max_error_at}" if row.max_error_at else "", row.budget_set_by]
    return Cell(error + budget, sort=row.max_error, detail="; ".join(part for part in details if part))


def unsupported(checks: pd.DataFrame, names: Names) -> Table:
    """What was not checked, and why: equal reasons in one row."""
    frame = checks[checks["status"].isin(("unsupported", "unavailable", "no_evidence"))]
    rows = [
        (
            names.cell(name),
            Cell(_SHORT[status], tone="quiet"),
            Cell(str(len(group)), sort=len(group)),
            reasons_cell(reasons),
            Cell(text.clip(group["case"].iloc[0], 80)),
        )
        for (name, status, reasons), group in groups(frame, ["implementation", "status", "reasons"])
    ]
    return Table(
        slug="unsupported",
        title="Cases not checked",
        columns=(
            Column("implementation"),
            Column("status"),
            Column("cases", number=True),
            Column("reasons", wide=True),
            Column("for example"),
        ),
        rows=rows,
        full="checks.csv",
    )


def errors(checks: pd.DataFrame, names: Names) -> Table:
    """Largest error of each implementation in each dtype."""
    known = checks[checks["budget_used"].notna() | checks["error_over_baseline"].notna()]
    known = known[known["status"] != "known_failure"]
    rows = [
        (
            names.cell(name),
            Cell(dtype),
            Cell(str(len(group)), sort=len(group)),
            error_cell(group["budget_used"].max()),
            _multiple(group["error_over_baseline"].max()),
            _multiple(group["error_over_baseline"].median()),
            _where(group),
        )
        for (name, dtype), group in groups(known, ["implementation", "dtype"])
    ]
    return Table(
        slug="errors",
        title="Error against float64",
        columns=(
            Column("implementation"),
            Column("dtype"),
            Column("checks", number=True),
            Column("largest error / budget", number=True),
            Column("largest error / baseline's", number=True),
            Column("median error / baseline's", number=True),
            Column("nearest to its budget in", wide=True),
        ),
        rows=rows,
        note="The budget comes from rounding analysis of the same case; the baseline is a careful "
        "computation with float32 internals that rounds once at the end. Known failures are left out.",
        full="checks.csv",
    )


def _multiple(value: float) -> Cell:
    return EMPTY if math.isnan(value) else Cell(text.multiple(value), sort=value)


def _where(group: pd.DataFrame) -> Cell:
    if group["budget_used"].isna().all():
        return Cell("")
    row = group.iloc[int(group["budget_used"].argmax())]
    return Cell(str(row["check"]), detail=str(row["case"]))


def summary_line(name: str, statuses: Counter[str]) -> str:
    """All checks of one implementation in a line: ``sdpa: 150 checks passed, 2 failed``."""
    if not statuses:
        return f"{name}: no checks"
    total = text.plural(sum(statuses.values()), "check")
    return f"{name}: {total}: " + ", ".join(
        f"{statuses[status]} {_SHORT[status]}" for status in _WORST_FIRST if statuses[status]
    )


def summary_lines(checks: pd.DataFrame) -> list[str]:
    """A line for each implementation that was checked."""
    return [summary_line(name, Counter(group["status"])) for (name,), group in groups(checks, ["implementation"])]
