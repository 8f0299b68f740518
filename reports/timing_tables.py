"""Tables about time: the verdicts, and every measurement behind them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from harness.statistics import Comparison
from reports import text
from reports.frames import groups
from reports.judgement import Judgement, Verdict
from reports.tables import (
    EMPTY,
    MAX_ROWS,
    Cell,
    Column,
    Names,
    Table,
    Tone,
    reasons_cell,
    workload_cells,
    workload_columns,
)

ENOUGH_ROUNDS = 80
"""Where the protocol first looks; fewer are taken only where a cell's time does not allow more."""
_VERDICT_TONES: dict[str, Tone] = {"faster": "good", "slower": "", "tied": "", "unresolved": "warn"}
_OUTCOME_TONES: dict[str, Tone] = {
    "fastest": "good",
    "tied": "good",
    "unresolved": "warn",
    "only one": "quiet",
    "no time": "bad",
    "left out": "warn",
    "interrupted": "bad",
}
_STATUS_TONES: dict[str, Tone] = {"measured": "", "wrong": "bad", "crashed": "bad", "timeout": "bad"}


def verdicts(judgement: Judgement, names: Names, baseline: str) -> Table:
    """One row for each workload: who is best, how far ahead, at what latency and memory."""
    peaks = _peaks(judgement.measurements)
    return Table(
        slug="verdicts",
        title="Verdict for each workload",
        columns=(
            *workload_columns(judgement.titles),
            Column("use"),
            Column("verdict"),
            Column("latency", number=True),
            Column("peak memory", number=True),
            Column(f"against {baseline}"),
            Column("time of the next"),
            Column("rounds", number=True),
        ),
        rows=[_verdict_row(verdict, judgement, names, peaks) for verdict in judgement.verdicts],
        note=_verdict_note(judgement, baseline),
        full="results.csv",
    )


def winner_map(judgement: Judgement, names: Names) -> Table:
    """Who wins at which length: a row for all that is equal but for S, a column for each S."""
    axes = [axis for axis in judgement.titles.columns if axis.field != "seq_len"]
    lengths = sorted({verdict.workload.seq_len for verdict in judgement.verdicts})
    rows: dict[tuple[object, ...], dict[int, Verdict]] = {}
    for verdict in judgement.verdicts:
        alike = tuple(getattr(verdict.workload, axis.field) for axis in axes)
        rows.setdefault(alike, {})[verdict.workload.seq_len] = verdict
    several = len(lengths) > 1
    first = () if axes else (Column("workloads"),)
    return Table(
        slug="winners",
        title="Who wins where",
        columns=(
            *first,
            *(Column(axis.heading, number=axis.number) for axis in axes),
            *(Column(f"S {length}") for length in lengths),
        ),
        rows=[
            (
                *(() if axes else (Cell("all"),)),
                *(Cell(str(value), sort=value) for value in alike),  # type: ignore[arg-type]  # an axis' value
                *(_winner_cell(found.get(length), names) for length in lengths),
            )
            for alike, found in rows.items()
            if several
        ],
        note="The fastest, and in smaller type who was shown to be as fast, up to what counts as a tie, and how far "
        "behind the next one is. A question mark: not told apart, which does not mean equal.",
        full="results.csv",
    )


def _winner_cell(verdict: Verdict | None, names: Names) -> Cell:
    if verdict is None:
        return EMPTY
    if not verdict.standings:
        return Cell("no time", tone="quiet")
    leader = verdict.standings[0]
    tied = [name for name in verdict.tied if name != leader.name]
    level = f"tied with {text.listed(map(names.text, tied))}" if tied else ""
    behind = next((standing for standing in verdict.standings if standing.group > 1), None)
    factor = f"{text.significant(behind.median_s / leader.median_s)}x to {behind.name}" if behind else ""
    doubt = f"or {text.listed(verdict.unresolved)}?" if verdict.unresolved else ""
    detail = "; ".join(filter(None, (level, doubt, factor)))
    return Cell(names.text(leader.name), sort=leader.name, detail=detail, swatch=leader.name)


def _verdict_note(judgement: Judgement, baseline: str) -> str:
    common = judgement.titles.common()
    note = f"All workloads: {common}. " if common else ""
    return note + (
        "Latency and peak memory are those of the fastest, medians over its rounds. Brackets hold the "
        "interval of the ratio of times, from rounds in which both ran side by side; the baseline is "
        f"{baseline}. Unresolved means that the samples cannot tell, not that there is no difference."
    )


def _verdict_row(
    verdict: Verdict, judgement: Judgement, names: Names, peaks: dict[tuple[str, str], float]
) -> tuple[Cell, ...]:
    axes = workload_cells(judgement.titles, verdict.workload)
    tone = _OUTCOME_TONES[verdict.outcome]
    if not verdict.standings:
        missing = verdict.outcome if verdict.outcome in ("interrupted", "left out") else ""
        words = Cell("not measured", tone=tone, detail=missing) if missing else Cell("no time", tone=tone)
        return (*axes, EMPTY, words, *((EMPTY,) * 5))
    leader = verdict.standings[0]
    return (
        *axes,
        Cell(names.text(leader.name), detail=_beside_the_leader(verdict, names)),
        Cell(verdict.outcome, tone=tone, detail=_outcome_detail(verdict)),
        Cell(text.latency(leader.median_s), sort=leader.median_s),
        peak_cell(peaks.get((verdict.workload.key, leader.name), math.nan)),
        _against_baseline(verdict),
        _next_behind(verdict, names),
        rounds_cell(verdict.rounds),
    )


def _beside_the_leader(verdict: Verdict, names: Names) -> str:
    """Who else may be meant: shown to be equal to the fastest, or not told apart from it."""
    tied = [names.text(name) for name in verdict.tied if name != verdict.best[0]]
    unresolved = [names.text(name) for name in verdict.unresolved]
    parts = [
        f"tied with {text.listed(tied)}" if tied else "",
        f"not told apart from {text.listed(unresolved)}" if unresolved else "",
    ]
    return "; ".join(part for part in parts if part)


def _outcome_detail(verdict: Verdict) -> str:
    return f"not measured (interrupted): {text.listed(verdict.not_measured)}" if verdict.not_measured else ""


def _against_baseline(verdict: Verdict) -> Cell:
    leader = verdict.standings[0].name
    if verdict.baseline_missing:
        return Cell("baseline has no time", sort=math.inf, tone="quiet")
    held = verdict.against_reference[leader]
    return Cell("is the baseline" if leader == verdict.reference else text.relation(held), sort=held.ratio)


def _next_behind(verdict: Verdict, names: Names) -> Cell:
    behind = next((standing for standing in verdict.standings if standing.group > 1), None)
    if behind is None:
        return Cell("none behind", sort=math.inf, tone="quiet")
    factor = behind.median_s / verdict.standings[0].median_s
    return Cell(f"{text.significant(factor)}x, {names.text(behind.name)}", sort=-factor)


def measurements(judgement: Judgement, names: Names) -> Table:
    """Every measurement, also those without a time."""
    shown = judgement.measurements.head(MAX_ROWS)
    return Table(
        slug="measurements",
        title="All measurements",
        columns=(
            *workload_columns(judgement.titles),
            Column("implementation"),
            Column("status"),
            Column("median", number=True),
            Column("quartiles", number=True),
            Column("against the reference"),
            Column("rounds", number=True),
            Column("first call", number=True),
            Column("peak memory", number=True),
            Column("error / budget", number=True),
            Column("error / baseline's", number=True),
            Column("reasons", wide=True),
        ),
        rows=[_measurement_row(row, judgement, names) for row in shown.itertuples(index=False)],
        note="The reference is the baseline, or the fastest where the baseline has no time. A first call includes "
        f"whatever is set up or compiled in it. Cells with fewer than {ENOUGH_ROUNDS} rounds were too slow for more in "
        "their time, and can tell large differences only. Error over budget is the largest over "
        "output and gradients at this very shape, against float64: above 1 is wrong. Error over the "
        "baseline's compares it with a careful implementation that rounds once at the end.",
        full="results.csv",
        omitted=len(judgement.measurements) - len(shown),
    )


def _measurement_row(row: Any, judgement: Judgement, names: Names) -> tuple[Cell, ...]:  # noqa: ANN401 - a pandas row
    return (
        *workload_cells(judgement.titles, row.workload),
        names.cell(row.implementation),
        Cell(row.status, tone=_STATUS_TONES.get(row.status, "quiet")),
        *_time_cells(row, judgement.held.get((row.key, row.implementation))),
        number_cell(row.first_call_s, text.latency),
        peak_cell(row.peak_bytes),
        error_cell(row.budget_used),
        number_cell(row.error_over_baseline, text.multiple),
        reasons_cell(row.reasons),
    )


def _time_cells(row: Any, comparison: Comparison | None) -> tuple[Cell, ...]:  # noqa: ANN401 - a pandas row
    if comparison is None:
        return (EMPTY,) * 4
    quartiles = f"{text.latency(row.q1_s)} to {text.latency(row.q3_s)}"
    return (
        Cell(text.latency(row.median_s), sort=row.median_s),
        Cell(quartiles, sort=row.q3_s - row.q1_s),
        _ratio_cell(row.implementation, row.reference, comparison),
        rounds_cell(int(row.rounds)),
    )


def rounds_cell(rounds: int) -> Cell:
    """A number of rounds, marked where the cell was too slow for enough of them."""
    return Cell(str(rounds), sort=rounds, detail="slow cell" if rounds < ENOUGH_ROUNDS else "")


def _ratio_cell(name: str, reference: str, held: Comparison) -> Cell:
    if name == reference:
        return Cell("the reference", sort=1.0, tone="quiet")
    return Cell(text.relation(held), sort=held.ratio, tone=_VERDICT_TONES[held.verdict])


def without_a_time(judgement: Judgement, names: Names) -> Table:
    """Who was not timed on what, and why: equal reasons in one row."""
    frame = judgement.measurements
    untimed = frame[frame["status"] != "measured"]
    rows = []
    for (name, status, reasons), group in groups(untimed, ["implementation", "status", "reasons"]):
        where = judgement.titles.describe(group["workload"]) or "everywhere"
        tone = _STATUS_TONES.get(status, "quiet")
        count = Cell(str(len(group)), sort=len(group))
        rows.append((names.cell(name), Cell(status, tone=tone), count, Cell(where), reasons_cell(reasons)))
    return Table(
        slug="untimed",
        title="Measurements without a time",
        columns=(
            Column("implementation"),
            Column("status"),
            Column("workloads", number=True),
            Column("among"),
            Column("reasons", wide=True),
        ),
        rows=rows,
        full="results.csv",
    )


def error_cell(budget_used: float) -> Cell:
    """Error as a multiple of its budget; above 1 is a failure."""
    if math.isnan(budget_used):
        return EMPTY
    return Cell(text.multiple(budget_used), sort=budget_used, tone="" if budget_used <= 1 else "bad")


def number_cell(value: float, words: Callable[[float], str]) -> Cell:
    """A number that may be missing, written by a function of `text`."""
    return EMPTY if math.isnan(value) else Cell(words(value), sort=value)


def peak_cell(peak_bytes: float) -> Cell:
    """Bytes that may be missing."""
    return number_cell(peak_bytes, text.mebibytes)


def _peaks(frame: pd.DataFrame) -> dict[tuple[str, str], float]:
    keys = zip(frame["key"], frame["implementation"], strict=True)
    return dict(zip(keys, frame["peak_bytes"], strict=True))
