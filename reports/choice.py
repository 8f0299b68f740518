"""One workload, one recommendation: who is best within a memory limit, and why each of the others lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.records import RunInfo, Workload
from harness.statistics import Comparison, Standing, compare, rank
from reports import text
from reports.frames import read
from reports.judgement import corrections
from reports.tables import HAZARD_MEANING, Names
from reports.timing_tables import ENOUGH_ROUNDS
from reports.titles import PASSES, SCOPES
from reports.work import DeclaredKernels


@dataclass(frozen=True)
class Candidate:
    """One implementation, and how it did."""

    name: str
    place: int | None
    """1 is the best group; None for those that are not in the race."""
    verdict: str
    """recommended, tied, unresolved, slower, too large, or the measurement's status."""
    median_s: float | None
    against_recommended: str
    """Ratio of times with its interval, in words; empty without one."""
    peak_bytes: float | None
    error_over_baseline: float | None
    roof_share: float | None
    kernels: tuple[str, ...]
    why: str
    """Why it lost or was left out; of the recommended one, nothing."""


@dataclass(frozen=True)
class Choice:
    """What to use for a workload."""

    workload: Workload
    recommended: str
    """Empty if nobody could be."""
    sentence: str
    """The recommendation and what it stands on."""
    candidates: tuple[Candidate, ...]
    """The race's order, then those that were not in it."""
    cautions: tuple[str, ...]
    """What to know before following it."""

    def code(self, plugins: Sequence[str] = ()) -> str:
        """Three lines that make the recommended module."""
        given = f"[{', '.join(f'plugin_of({plugin!r})' for plugin in plugins)}]" if plugins else ""
        more = ", plugin_of" if plugins else ""
        shape = f"d_model={self.workload.d_model}, num_heads={self.workload.num_heads}"
        return "\n".join(
            (
                f"from harness.registry import load_registry{more}; from harness.subject import build_module",
                f"chosen = load_registry({given})[{self.recommended!r}].implementation",
                f"attention = build_module(chosen, {shape})",
            )
        )


def choose(folder: Path, memory_limit: int | None = None) -> Choice:
    """Sum up a run of one workload.

    Args:
        folder: of the run.
        memory_limit: bytes that a call may take at its peak; None for any.

    Raises:
        UserError: no run folder, one that does not fit, or one of another number of workloads.
    """
    run = read(folder)
    if len(run.info.workloads) != 1:
        raise UserError(f"a choice is about one workload, and {folder} has {len(run.info.workloads)}")
    rows: dict[str, Any] = {str(row.implementation): row for row in run.measurements.itertuples(index=False)}
    timed = {name: row for name, row in rows.items() if row.status == "measured"}
    fitting = {name: row for name, row in timed.items() if memory_limit is None or not row.peak_bytes > memory_limit}
    how: dict[str, Any] = {**corrections(list(timed.values())), "resolution": run.info.resolution}
    samples = {name: row.samples for name, row in fitting.items()}
    standings = rank(samples, **how)
    held = {each.name: compare(samples[each.name], samples[standings[0].name], **how) for each in standings}
    names = Names(run.info.implementations)
    racing = [_racing(each, standings[0].name, held[each.name], rows[each.name]) for each in standings]
    too_large = [_too_large(row, memory_limit) for name, row in timed.items() if name not in fitting]
    others = [_not_timed(name, row) for name, row in rows.items() if name not in timed]
    return Choice(
        workload=run.info.workloads[0],
        recommended=standings[0].name if standings else "",
        sentence=_sentence(run.info, _Race(standings, held, rows), names, memory_limit),
        candidates=(*racing, *too_large, *others),
        cautions=tuple(_cautions(run.info, standings, rows)),
    )


@dataclass(frozen=True)
class _Race:
    standings: Sequence[Standing]
    held: Mapping[str, Comparison]
    """Each against the fastest."""
    rows: Mapping[str, Any]


def _racing(standing: Standing, fastest: str, held: Comparison, row: Any) -> Candidate:  # noqa: ANN401 - a pandas row
    if standing.name == fastest:
        return _candidate(row, 1, "recommended", "", "")
    whys = {
        "slower": text.lead_over(fastest, held),
        "tied": f"as fast as {fastest}, up to what counts as a tie",
    }
    unresolved = f"not told apart from {fastest} in {text.plural(held.rounds, 'round')}, which does not mean equal"
    return _candidate(row, standing.group, held.verdict, text.relation(held), whys.get(held.verdict, unresolved))


def _too_large(row: Any, memory_limit: int | None) -> Candidate:  # noqa: ANN401 - a pandas row
    why = f"it takes {text.mebibytes(row.peak_bytes)}, and the limit is {text.mebibytes(memory_limit or 0)}"
    return _candidate(row, None, "too large", "", why)


def _not_timed(name: str, row: Any) -> Candidate:  # noqa: ANN401 - a pandas row
    return Candidate(name, None, row.status, None, "", None, None, None, (), "; ".join(row.reasons))


def _candidate(row: Any, place: int | None, verdict: str, relation: str, why: str) -> Candidate:  # noqa: ANN401 - a pandas row
    return Candidate(
        name=row.implementation,
        place=place,
        verdict=verdict,
        median_s=row.median_s,
        against_recommended=relation,
        peak_bytes=_known(row.peak_bytes),
        error_over_baseline=_known(row.error_over_baseline),
        roof_share=_known(row.roof_share),
        kernels=tuple(row.kernels),
        why=why,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _sentence(info: RunInfo, race: _Race, names: Names, memory_limit: int | None) -> str:
    workload = info.workloads[0]
    mask = "no mask" if workload.mask == "none" else f"{workload.mask} mask"
    what = f"{PASSES[workload.mode]} ({SCOPES[workload.scope]}, {mask}, {workload.dtype})"
    if not race.standings:
        limit = f" within {text.mebibytes(memory_limit)}" if memory_limit is not None else ""
        return f"Nothing can be recommended for {what}{limit}: see why each one is out."
    first = race.standings[0]
    peak = _known(race.rows[first.name].peak_bytes)
    memory = f", {text.mebibytes(peak)} at its peak" if peak is not None else ""
    parts = [f"Use {names.text(first.name)} for {what}: {text.latency(first.median_s)} a call{memory}"]
    others = [standing.name for standing in race.standings[1:] if standing.group == 1]
    tied = [names.text(name) for name in others if race.held[name].verdict == "tied"]
    unresolved = [names.text(name) for name in others if race.held[name].verdict != "tied"]
    parts += [f"tied with {text.listed(tied)}"] if tied else []
    parts += [f"not told apart from {text.listed(unresolved)}"] if unresolved else []
    behind = next((standing.name for standing in race.standings if standing.group > 1), None)
    if behind is not None:
        parts.append(f"{names.text(behind)} is {text.relation(race.held[behind])}")
    return "; ".join(parts) + "."


def _cautions(info: RunInfo, standings: Sequence[Standing], rows: Mapping[str, Any]) -> Iterable[str]:
    if not standings:
        return
    chosen = standings[0].name
    described = next((each for each in info.implementations if each.name == chosen), None)
    if described is not None and described.fully_masked_row == "nan":
        yield f"{chosen} {HAZARD_MEANING}."
    missed = DeclaredKernels(info.implementations).missed(rows[chosen])
    if missed:
        yield f"{chosen} ran {text.listed(rows[chosen].kernels)} in place of {' or '.join(missed)}."
    rounds = standings[0].against_leader.rounds
    if rounds < ENOUGH_ROUNDS:
        yield f"Only {text.plural(rounds, 'round')} fitted into the time: more --seconds tell finer differences."
