"""From frames to verdicts: who is fastest on each workload, by how much, and how sure that is.

The statistics are the harness's own (`harness.statistics`): paired rounds, intervals corrected for the number
of looks and pairs of the cell, and the run's resolution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from harness import statistics
from harness.errors import UserError
from harness.records import RunInfo, Samples, Workload
from harness.statistics import Comparison, Standing
from reports import text
from reports.frames import Run
from reports.titles import Titles

Outcome = Literal["fastest", "tied", "unresolved", "only one", "no time", "left out", "interrupted"]
"""How a workload ended.

``fastest``: one is ahead of all others. ``tied``: several share the first place. ``unresolved``: some in the
first group could not be told apart. ``only one``: a single implementation has a time. ``no time``: none has.
``left out``: the run's time budget did not allow it. ``interrupted``: it was planned, and nothing was recorded.
"""


@dataclass(frozen=True)
class Verdict:
    """What the samples of one workload say."""

    workload: Workload
    title: str
    """The workload in words."""
    outcome: Outcome
    standings: tuple[Standing, ...]
    """All implementations with a time, fastest first."""
    reference: str
    """Whom the ratios are against: the baseline, or the fastest where the baseline has no time."""
    against_reference: Mapping[str, Comparison]
    """For each implementation with a time: it against the reference."""
    rival: str
    """Whom the lead is told against: the baseline; the second group's first if the baseline is in front."""
    lead: Comparison | None
    """The fastest against the rival."""
    baseline_missing: bool
    """Whether the baseline has no time here."""
    not_measured: tuple[str, ...]
    """Implementations that should have been measured and have no record: the run was interrupted."""

    @property
    def best(self) -> tuple[str, ...]:
        """The first group, fastest first: none of them was shown to be slower than the first."""
        return tuple(standing.name for standing in self.standings if standing.group == 1)

    @property
    def tied(self) -> tuple[str, ...]:
        """Those of the first group that were shown to be equal to the fastest, and the fastest itself."""
        return tuple(s.name for s in self.standings if s.group == 1 and s.against_leader.verdict == "tied")

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Those of the first group that could not be told apart from the fastest."""
        return tuple(name for name in self.best if name not in self.tied)

    @property
    def rounds(self) -> int:
        """Rounds of the fastest; 0 without a time."""
        return self.standings[0].against_leader.rounds if self.standings else 0

    def sentence(self) -> str:
        """The verdict in words, without the workload's title."""
        return _SENTENCES[self.outcome](self) + _remarks(self)

    def line(self) -> str:
        """The verdict as a line of its own."""
        return f"{self.title}: {self.sentence()}"


@dataclass(frozen=True)
class Judgement:
    """All verdicts of a run."""

    verdicts: tuple[Verdict, ...]
    """One for each workload; for each pass, shape, mask and dtype, lengths ascending."""
    measurements: pd.DataFrame
    """The run's measurements with the columns ``ratio``, ``low``, ``high``, ``verdict``, ``reference``."""
    titles: Titles

    @cached_property
    def held(self) -> dict[tuple[str, str], Comparison]:
        """Every time against its workload's reference, by workload key and implementation."""
        return {
            (verdict.workload.key, name): comparison
            for verdict in self.verdicts
            for name, comparison in verdict.against_reference.items()
        }


def judge(run: Run) -> Judgement:
    """Derive every verdict of a run.

    Raises:
        UserError: implementations of one workload share no round, so that they cannot be compared.
    """
    planned = {workload.key: workload for workload in run.info.workloads}
    recorded = dict(zip(run.measurements["key"], run.measurements["workload"], strict=True))
    workloads = _for_readers({**planned, **recorded})
    titles = Titles(workloads.values())
    cells: dict[str, list[Any]] = {key: [] for key in workloads}
    for row in run.measurements.itertuples(index=False):
        cells[str(row.key)].append(row)
    verdicts = tuple(
        _verdict(run.info, workload, titles.of(workload), cells[key]) for key, workload in workloads.items()
    )
    return Judgement(verdicts, _with_ratios(run.measurements, verdicts), titles)


def _for_readers(workloads: Mapping[str, Workload]) -> dict[str, Workload]:
    """Lengths next to each other where all else is equal; what differs, in the order in which it first comes.

    A sweep runs cheap workloads first, which mixes everything.
    """
    axes = ("scope", "mode", "label", "d_model", "num_heads", "threads", "mask", "dtype")
    first = {axis: list(dict.fromkeys(getattr(w, axis) for w in workloads.values())) for axis in axes}

    def place(workload: Workload) -> tuple[int, ...]:
        return (*(first[axis].index(getattr(workload, axis)) for axis in axes), workload.batch_size, workload.seq_len)

    return dict(sorted(workloads.items(), key=lambda entry: place(entry[1])))


def _verdict(info: RunInfo, workload: Workload, title: str, rows: Sequence[Any]) -> Verdict:
    timed = [row for row in rows if row.status == "measured"]
    samples: dict[str, Samples] = {row.implementation: row.samples for row in timed}
    comparing = _Comparing(samples, corrections(timed), info.resolution, workload.key)
    standings = comparing.rank()
    names = [standing.name for standing in standings]
    baseline_missing = info.baseline not in samples
    reference = info.baseline if not baseline_missing else next(iter(names), "")
    rival = _rival(standings, info.baseline)
    return Verdict(
        workload=workload,
        title=title,
        outcome=_outcome(standings, bool(rows), left_out=workload.key in info.left_out),
        standings=tuple(standings),
        reference=reference,
        against_reference={name: comparing.hold(name, reference) for name in names},
        rival=rival,
        lead=comparing.hold(names[0], rival) if rival else None,
        baseline_missing=baseline_missing,
        not_measured=_not_measured(info, {row.implementation for row in rows}),
    )


class _Comparing:
    """Comparisons within one workload: looks, pairs and resolution are the same for all of them."""

    def __init__(
        self, samples: Mapping[str, Samples], corrections: dict[str, int], resolution: float, key: str
    ) -> None:
        self._samples = samples
        self._how: dict[str, Any] = {**corrections, "resolution": resolution}
        self._key = key
        self._held: dict[tuple[str, str], Comparison] = {}

    def rank(self) -> list[Standing]:
        try:
            return statistics.rank(self._samples, **self._how)
        except ValueError as error:
            raise self._refusal(error) from None

    def hold(self, first: str, second: str) -> Comparison:
        try:
            if (first, second) not in self._held:
                held = statistics.compare(self._samples[first], self._samples[second], **self._how)
                self._held[first, second] = held
            return self._held[first, second]
        except ValueError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: ValueError) -> UserError:
        return UserError(f"{self._key} cannot be judged: {error}; run `mha bench` again for this workload")


def corrections(timed: Sequence[Any]) -> dict[str, int]:
    """Looks and pairs of the cell; without a record of them, one look at every pair."""
    looks = [int(row.looks) for row in timed if not pd.isna(row.looks)]
    pairs = [int(row.pairs) for row in timed if not pd.isna(row.pairs)]
    return {
        "looks": max(looks, default=1),
        "pairs": max(pairs, default=max(1, math.comb(len(timed), 2))),
    }


def _rival(standings: list[Standing], baseline: str) -> str:
    behind = [standing.name for standing in standings if standing.group > 1]
    return baseline if baseline in behind else next(iter(behind), "")


def _outcome(standings: list[Standing], has_records: bool, *, left_out: bool) -> Outcome:
    if not has_records:
        return "left out" if left_out else "interrupted"
    if len(standings) < 2:
        return "only one" if standings else "no time"
    others = [standing for standing in standings[1:] if standing.group == 1]
    if not others:
        return "fastest"
    return "tied" if all(other.against_leader.verdict == "tied" for other in others) else "unresolved"


def _not_measured(info: RunInfo, recorded: set[str]) -> tuple[str, ...]:
    return tuple(
        implementation.name
        for implementation in info.implementations
        if not (implementation.verify_only or implementation.unavailable or implementation.name in recorded)
    )


def _with_ratios(frame: pd.DataFrame, verdicts: tuple[Verdict, ...]) -> pd.DataFrame:
    rows = [
        (verdict.workload.key, name, held.ratio, held.low, held.high, held.verdict, verdict.reference)
        for verdict in verdicts
        for name, held in verdict.against_reference.items()
    ]
    columns = ["key", "implementation", "ratio", "low", "high", "verdict", "reference"]
    ratios = pd.DataFrame(rows, columns=columns).astype({"key": object, "implementation": object})
    return frame.merge(ratios, how="left", on=["key", "implementation"])


def _fastest(verdict: Verdict) -> str:
    return f"{verdict.best[0]} is fastest{_lead(verdict)} ({_rounds(verdict)})"


def _tied(verdict: Verdict) -> str:
    return f"{text.listed(verdict.best)} are tied for fastest{_lead(verdict)} ({_rounds(verdict)})"


def _unresolved(verdict: Verdict) -> str:
    tied = f" ({text.listed(verdict.tied)} are tied)" if len(verdict.tied) > 1 else ""
    return f"unresolved between {text.listed(verdict.best)}{tied}{_lead(verdict)} ({_rounds(verdict)})"


def _only_one(verdict: Verdict) -> str:
    return f"only {verdict.best[0]} has a time ({_rounds(verdict)}), so nothing is compared"


def _no_time(_verdict: Verdict) -> str:
    return "no implementation has a time"


def _left_out(_verdict: Verdict) -> str:
    return "left out to end in time"


def _interrupted(_verdict: Verdict) -> str:
    return "not measured (interrupted)"


def _lead(verdict: Verdict) -> str:
    if verdict.lead is None:
        return ""
    who = "" if len(verdict.best) == 1 else f"{verdict.best[0]} "
    return f", {who}{text.lead_over(verdict.rival, verdict.lead)}"


def _rounds(verdict: Verdict) -> str:
    return text.plural(verdict.rounds, "round")


def _remarks(verdict: Verdict) -> str:
    remarks = ""
    if verdict.not_measured and verdict.outcome not in ("interrupted", "left out"):
        remarks += f"; not measured (interrupted): {text.listed(verdict.not_measured)}"
    if verdict.baseline_missing and len(verdict.standings) > 1:
        remarks += f"; the baseline has no time, so ratios are against {verdict.reference}"
    return remarks


_SENTENCES = {
    "fastest": _fastest,
    "tied": _tied,
    "unresolved": _unresolved,
    "only one": _only_one,
    "no time": _no_time,
    "left out": _left_out,
    "interrupted": _interrupted,
}
