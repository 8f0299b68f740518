"""All verdicts summed up for a reader in a hurry: what to use for what, and why not the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from harness.records import BAD_CHECK_STATUSES
from reports import text
from reports.frames import Run, groups
from reports.judgement import Judgement, Verdict
from reports.tables import HAZARD_MEANING, Names
from reports.titles import Titles, purpose
from reports.verification_tables import summary_lines
from reports.work import DeclaredKernels

FAULTS = ("wrong", "unverified", "crashed", "timeout")
"""Statuses of a measurement that tell of a fault, not of a limit."""
ALIKE = 0.05
"""Peak memories closer than this share are not told apart in words."""
BUSY = 0.5
"""Cores that others keep busy at the beginning of a run above which its times deserve a warning."""


@dataclass(frozen=True)
class Headline:
    """A claim in a sentence, and the sentences that carry it."""

    claim: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Advice:
    """The top of a report."""

    headlines: tuple[Headline, ...]
    """What to use for what."""
    losers: tuple[str, ...]
    """Why each of the others lost, a line each."""
    faults: tuple[str, ...]
    """Timed shapes on which an implementation was wrong, or did not end, and answers other than declared: a sentence
    each."""
    warnings: tuple[str, ...]
    """What a reader must know before following the headlines."""
    noise: str
    """How fine a difference the machine could tell; empty if that was not measured."""

    def lines(self) -> tuple[str, ...]:
        """Headlines with their evidence, the machine's noise, then faults and warnings, one line each."""
        headlines = (" ".join((headline.claim, *headline.evidence)) for headline in self.headlines)
        return (*headlines, *filter(None, [self.noise]), *self.faults, *self.warnings)


def advise(run: Run, judgement: Judgement, names: Names) -> Advice:
    """Sum a run up."""
    judged = [verdict for verdict in judgement.verdicts if verdict.standings]
    champions = _champions(judged)
    winners = {name for equals in champions.values() for name in equals}
    headlines = _headlines(judged, champions, judgement.titles, names)
    return Advice(
        headlines=tuple(headlines) or _untimed(run),
        losers=tuple(_losers(run, judgement, judged, winners, names)),
        faults=tuple(_faults(judgement, names)),
        warnings=tuple(_warnings(run, judgement, winners)),
        noise=text.noise_sentence(run.info.noise) if run.info.noise else "",
    )


def _champions(judged: Sequence[Verdict]) -> dict[str, tuple[str, ...]]:
    """For each purpose, who is most often in the first group, and who shares it on the very same workloads.

    Among equally frequent ones, whoever has a time on more workloads: it serves more of what was asked for.
    """
    timed = Counter(standing.name for verdict in judged for standing in verdict.standings)
    champions: dict[str, tuple[str, ...]] = {}
    for wanted in dict.fromkeys(purpose(verdict.workload) for verdict in judged):
        places: dict[str, set[str]] = {}
        for verdict in judged:
            for name in verdict.best if purpose(verdict.workload) == wanted else ():
                places.setdefault(name, set()).add(verdict.workload.key)
        first = max(places, key=lambda name: (len(places[name]), timed[name]))
        equals = [name for name in places if name != first and places[name] == places[first]]
        champions[wanted] = (first, *equals)
    return champions


def _headlines(
    judged: Sequence[Verdict], champions: dict[str, tuple[str, ...]], titles: Titles, names: Names
) -> Iterable[Headline]:
    for equals in dict.fromkeys(champions.values()):
        purposes = [wanted for wanted, some in champions.items() if some == equals]
        verdicts = [verdict for verdict in judged if purpose(verdict.workload) in purposes]
        who = " or ".join(names.text(name) for name in equals)
        if all(_is_undecided(verdict) for verdict in verdicts):
            yield Headline(f"For {text.listed(purposes)} nothing could be told apart.", (_NOISE,))
        elif 2 * sum(equals[0] in verdict.best for verdict in verdicts) <= len(verdicts):
            yield Headline(f"For {text.listed(purposes)} it depends.", tuple(_choices(verdicts, titles, names)))
        else:
            evidence = [_record(equals, verdicts), *_exceptions(equals[0], verdicts, titles, names)]
            yield Headline(f"Use {who} for {text.listed(purposes)}.", tuple(evidence))


_NOISE = (
    "The noise was larger than the differences: run again on a quieter machine, or with a larger --max-rounds; "
    "unresolved does not mean equal."
)


def _is_undecided(verdict: Verdict) -> bool:
    """Whether not even the slowest one was shown to be slower than the fastest."""
    return verdict.outcome == "unresolved" and len(verdict.best) == len(verdict.standings)


def _choices(verdicts: Sequence[Verdict], titles: Titles, names: Names) -> Iterable[str]:
    """One sentence for each group of equals that is ahead somewhere."""
    groups_of_equals: dict[frozenset[str], list[Verdict]] = {}
    for verdict in verdicts:
        groups_of_equals.setdefault(frozenset(verdict.best), []).append(verdict)
    for won in sorted(groups_of_equals.values(), key=len, reverse=True):
        who = " or ".join(names.text(name) for name in won[0].best)
        where = titles.describe(verdict.workload for verdict in won)
        among = f" (among {where})" if where else ""
        yield f"Use {who} in {len(won)} of {text.plural(len(verdicts), 'workload')}{among}."


def _record(equals: tuple[str, ...], verdicts: Sequence[Verdict]) -> str:
    """On how many workloads they were ahead of all others, tied with others, and not told apart."""
    level = [verdict for verdict in verdicts if equals[0] in verdict.best]
    alone = [
        verdict
        for verdict in level
        if set(verdict.best) == set(equals) and (len(verdict.standings) > len(equals) or verdict.outcome == "only one")
    ]
    ahead = len(alone)
    by_themselves = {verdict.workload.key for verdict in alone}
    tied = sum(verdict.outcome == "tied" for verdict in level if verdict.workload.key not in by_themselves)
    of = len(verdicts)
    places = {
        "ahead of all others": ahead,
        "tied with others": tied,
        "not told apart from others": len(level) - ahead - tied,
    }
    record = f"{_shares(places, of)} of {of} workloads" if of > 1 else f"{_shares(places, of)} on the only workload"
    between = f"; between the two, {_between(alone, of)}" if len(equals) == 2 and alone else ""
    return f"{record[0].upper()}{record[1:]}{between}."


def _between(level: Sequence[Verdict], of: int) -> str:
    tied = sum(verdict.outcome == "tied" for verdict in level)
    return _shares({"tied": tied, "unresolved": len(level) - tied}, of)


def _shares(counts: dict[str, int], of: int) -> str:
    """What there is any of, each with its count unless there is only one in all."""
    return text.listed(f"{what} in {count}" if of > 1 else what for what, count in counts.items() if count)


def _exceptions(champion: str, verdicts: Sequence[Verdict], titles: Titles, names: Names) -> Iterable[str]:
    elsewhere = [verdict for verdict in verdicts if champion not in verdict.best]
    for winner in dict.fromkeys(verdict.best[0] for verdict in elsewhere):
        won = [verdict for verdict in elsewhere if verdict.best[0] == winner]
        where = titles.describe(verdict.workload for verdict in won)
        gains = [_times(verdict)[champion] for verdict in won if champion in _times(verdict)]
        gain = f": {text.span(gains)} faster than {names.text(champion)}" if gains else ""
        among = f" (among {where})" if where else ""
        yield f"{names.text(winner)} wins {text.plural(len(won), 'workload')}{among}{gain}."


def _times(verdict: Verdict) -> dict[str, float]:
    """Median time of each implementation as a multiple of the fastest's."""
    best = verdict.standings[0].median_s
    return {standing.name: standing.median_s / best for standing in verdict.standings}


def _untimed(run: Run) -> tuple[Headline, ...]:
    planned = len(run.info.workloads)
    if planned and run.measurements.empty:
        timed = f"Nothing was timed: {text.plural(planned, 'planned workload')} without a measurement."
    elif planned:
        timed = "No implementation has a time on any workload."
    else:
        timed = "Nothing was timed: this run only verified."
    return (Headline(timed, (_correctness(run),)),)


def _correctness(run: Run) -> str:
    if run.checks.empty:
        return "Nothing was checked either."
    bad = run.checks[run.checks["status"].isin(BAD_CHECK_STATUSES)]
    if bad.empty:
        return f"No check failed of {len(run.checks):,}, known failures aside."
    counts = bad["implementation"].value_counts(sort=False)
    failing = text.listed(f"{name} ({count})" for name, count in counts.items())
    return f"{text.plural(len(bad), 'check')} of {len(run.checks):,} failed: {failing}."


def _losers(
    run: Run, judgement: Judgement, judged: Sequence[Verdict], champions: set[str], names: Names
) -> Iterable[str]:
    described = [implementation.name for implementation in run.info.implementations]
    for name in dict.fromkeys([*described, *judgement.measurements["implementation"]]):
        if name not in champions and not run.measurements.empty:
            reasons = [*_slower(name, judged), *_larger(name, judgement, champions), *_not_timed(name, run)]
            yield f"{names.text(name)}: {'; '.join(reasons) or 'no measurement'}."


def _slower(name: str, judged: Sequence[Verdict]) -> Iterable[str]:
    timed = [verdict for verdict in judged if any(s.name == name for s in verdict.standings)]
    behind = [_times(verdict)[name] for verdict in timed if name not in verdict.best]
    if behind:
        yield (
            f"behind the fastest in {len(behind)} of {text.plural(len(timed), 'workload')}, "
            f"at {text.typical(behind)} its time"
        )
    elif timed:
        yield f"never shown to be slower than the fastest, in {text.plural(len(timed), 'workload')}"


def _larger(name: str, judgement: Judgement, champions: set[str]) -> Iterable[str]:
    """Peak memory against the least hungry champion on the same workloads."""
    frame = judgement.measurements
    peaks = frame[frame["peak_bytes"].gt(0)]
    mine = peaks[peaks["implementation"] == name].set_index("key")["peak_bytes"]
    theirs = peaks[peaks["implementation"].isin(champions)].groupby("key")["peak_bytes"].min()
    factors = (mine / theirs).dropna()
    if any(abs(factor - 1) > ALIKE for factor in factors):
        yield f"{text.typical(list(factors))} the peak memory of {text.listed(sorted(champions))}"


def _not_timed(name: str, run: Run) -> Iterable[str]:
    frame = run.measurements
    rows = frame[(frame["implementation"] == name) & (frame["status"] != "measured")]
    for status, group in rows.groupby("status", sort=False):
        reason = next((reasons[0] for reasons in group["reasons"] if reasons), "")
        why = f" ({text.clip(reason, 120)})" if reason else ""
        yield f"{status} in {text.plural(len(group), 'workload')}{why}"


def _faults(judgement: Judgement, names: Names) -> Iterable[str]:
    frame = judgement.measurements
    faulty = frame[frame["status"].isin(FAULTS)]
    for (name, status), rows in groups(faulty, ["implementation", "status"]):
        where = judgement.titles.describe(rows["workload"])
        among = f" (among {where})" if where else ""
        reason = next(("; ".join(reasons) for reasons in rows["reasons"] if reasons), "no reason recorded")
        count = text.plural(len(rows), "workload")
        yield f"{names.text(name)}: {status} on {count}{among}: {text.clip(reason, 300)}."


def _warnings(run: Run, judgement: Judgement, champions: set[str]) -> Iterable[str]:
    yield from _correctness_warnings(run, champions)
    yield from _fallbacks(run, judgement)
    left_out = sum(verdict.outcome == "left out" for verdict in judgement.verdicts)
    if left_out:
        yield (
            f"{text.plural(left_out, 'planned workload')} left out to end in time; "
            "`mha bench --resume` with this run's folder measures what is missing."
        )
    interrupted = sum(verdict.outcome == "interrupted" for verdict in judgement.verdicts)
    if interrupted and not run.measurements.empty:
        yield f"The run was interrupted: {text.plural(interrupted, 'planned workload')} not measured."
    missing = sum(verdict.baseline_missing and len(verdict.standings) > 1 for verdict in judgement.verdicts)
    if missing:
        yield (
            f"The baseline {run.info.baseline} has no time in {text.plural(missing, 'workload')}: "
            "ratios there are against the fastest."
        )
    if run.info.noise is not None and run.info.noise.count("faster", "slower"):
        yield (
            f"When the run began, {text.plural(run.info.noise.count('faster', 'slower'), 'trial')} of "
            f"{len(run.info.noise.trials)} told equal calls apart: verdicts near the band may be false."
        )
    machine = run.info.environment
    if machine.busy_cores > BUSY:
        yield (
            f"Other processes kept {machine.busy_cores:.1f} of {text.plural(machine.cores, 'core')} busy when the run "
            "began: expect wider intervals."
        )


def _fallbacks(run: Run, judgement: Judgement) -> Iterable[str]:
    """Who did not reach the kernel it is meant to reach: a silent fall-back often is to a quadratic one."""
    kernels = DeclaredKernels(run.info.implementations)
    frame = judgement.measurements
    missed = [kernels.missed(row) for row in frame.itertuples(index=False)]
    rows = frame.assign(missed=pd.Series(missed, index=frame.index, dtype=object))
    fallen = rows[rows["missed"].map(len) > 0]
    for (name, declared, ran), group in groups(fallen, ["implementation", "missed", "kernels"]):
        where = judgement.titles.describe(group["workload"])
        among = f" (among {where})" if where else ""
        yield (
            f"{name} ran {text.listed(ran)} in place of {' or '.join(declared)} on "
            f"{text.plural(len(group), 'workload')}{among}."
        )


def _correctness_warnings(run: Run, champions: set[str]) -> Iterable[str]:
    if not run.measurements.empty and run.checks["status"].isin(BAD_CHECK_STATUSES).any():
        yield _correctness(run)
    if not run.measurements.empty and run.checks.empty:
        yield "Nothing was checked in this run beyond the outputs of the timed shapes."
    for implementation in run.info.implementations:
        if implementation.fully_masked_row == "nan" and implementation.name in champions:
            yield f"{implementation.name} {HAZARD_MEANING}."


def verdict_lines(run: Run, judgement: Judgement) -> tuple[str, ...]:
    """The run for a terminal: a line for each workload, or for each implementation's checks."""
    return tuple(verdict.line() for verdict in judgement.verdicts) or tuple(summary_lines(run.checks))
