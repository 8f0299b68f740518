"""What a report says, in reading order, before anybody decides how it looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from harness.records import RunInfo
from reports import context_tables, crossovers, semantics_tables, timing_tables, verification_tables, work_tables
from reports.advice import Advice, advise
from reports.frames import Run
from reports.judgement import Judgement
from reports.tables import HAZARD_MARK, HAZARD_MEANING, Cell, Column, Names, Table
from reports.verification_tables import Failures


@dataclass(frozen=True)
class Content:
    """All parts of a report; an empty table is left out by whoever draws it."""

    info: RunInfo
    names: Names
    advice: Advice
    verdicts: Table
    winners: Table
    crossovers: Table
    measurements: Table
    memory: Table
    work: Table
    untimed: Table
    matrix: Table
    failures: list[Failures]
    """Undeclared failures first."""
    errors: Table
    semantics: Table
    unsupported: Table
    growth: Table
    noise: Table
    implementations: Table
    environment: Table

    @property
    def hazard_note(self) -> str:
        """What the mark behind some names means."""
        return f"{HAZARD_MARK}: this implementation {HAZARD_MEANING}."

    def sections(self, with_figures: bool) -> Iterator[tuple[str, str]]:
        """Anchor and title of each section that has something to show, in reading order."""
        for table in (self.verdicts, self.winners, None, *self.evidence):
            if table is None:
                if with_figures:
                    yield "figures", "Figures"
            elif table.rows:
                yield table.slug, table.title

    @property
    def evidence(self) -> tuple[Table, ...]:
        """The tables behind the verdicts, in reading order."""
        return (
            self.crossovers,
            self.measurements,
            self.memory,
            self.work,
            self.untimed,
            self.errors,
            self.matrix,
            self.all_failures,
            self.semantics,
            self.unsupported,
            self.growth,
            self.noise,
            self.implementations,
            self.environment,
        )

    @cached_property
    def all_failures(self) -> Table:
        """The failures of all checks in one table."""
        first = (Column("implementation"), Column("check"))
        columns = self.failures[0].table.columns if self.failures else ()
        return Table(
            slug="failures",
            title="Failures and known failures",
            columns=(*first, *columns),
            rows=[
                (Cell(failure.implementation), Cell(failure.check), *row)
                for failure in self.failures
                for row in failure.table.rows
            ],
            full="checks.csv",
        )


def compose(run: Run, judgement: Judgement) -> Content:
    """Put a run's report together."""
    names = Names(run.info.implementations)
    advice = advise(run, judgement, names)
    return Content(
        info=run.info,
        names=names,
        advice=replace(advice, faults=(*advice.faults, *semantics_tables.differences(run.semantics, names))),
        verdicts=timing_tables.verdicts(judgement, names, run.info.baseline),
        winners=timing_tables.winner_map(judgement, names),
        crossovers=crossovers.table(crossovers.crossovers(judgement, run.info.resolution), names),
        measurements=timing_tables.measurements(judgement, names),
        memory=work_tables.memory(judgement, names),
        work=work_tables.work(judgement, names, run.info),
        untimed=timing_tables.without_a_time(judgement, names),
        matrix=verification_tables.matrix(run.checks, names),
        failures=verification_tables.failures(run.checks, names),
        errors=verification_tables.errors(run.checks, names),
        semantics=semantics_tables.semantics(run.semantics, names),
        unsupported=verification_tables.unsupported(run.checks, names),
        growth=context_tables.memory_growth(run, names),
        noise=context_tables.noise(run.info),
        implementations=context_tables.implementations(run.info, names),
        environment=context_tables.environment(run),
    )
