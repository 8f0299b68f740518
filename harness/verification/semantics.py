"""The semantics table: what each implementation does where the contract leaves it free, declared and seen.

Probes run in child processes: a crash is an answer, and so is none in time. An answer that differs from what the
implementation declares is a failure; one that nothing is declared about is only shown.
"""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.children import Children, Died, Task, deadline
from harness.errors import UserError
from harness.measurement.limits import usable_cores
from harness.records import RunFolder, SemanticsRecord, SemanticsStatus
from harness.registry import Plugin, Registered, load_registry
from harness.verification.probe import Finding, Probe, Questioned
from harness.verification.probes import compilers, masks, transforms
from implementations.spec import FullyMaskedRow, Implementation

PROBES: tuple[Probe, ...] = (*masks.PROBES, *transforms.PROBES, *compilers.PROBES)
PROBE_NAMES = tuple(probe.name for probe in PROBES)

_ROWS: dict[FullyMaskedRow, str] = {"uniform": "mean of V", "zero": "0", "nan": "NaN"}
_START_S = 60.0
"""For a child to start, beside its probes."""


@dataclass(frozen=True)
class Questions:
    """Which probes to put, and how."""

    names: tuple[str, ...] = PROBE_NAMES
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in PROBE_NAMES]
        if unknown:
            raise UserError(f"no probe named {', '.join(unknown)}; there are: {', '.join(PROBE_NAMES)}")

    @property
    def probes(self) -> tuple[Probe, ...]:
        """The probes themselves, in the table's order."""
        return tuple(probe for probe in PROBES if probe.name in self.names)


CHEAP = tuple(probe.name for probe in PROBES if probe.is_cheap)
"""Probes that need no compiler: a second for each implementation."""


@dataclass(frozen=True)
class Declaration:
    """What an implementation says that a probe will answer."""

    answer: str = ""
    source: str = ""


def declared(implementation: Implementation, device: str) -> dict[str, Declaration]:
    """By probe: what follows from the implementation's policy for empty rows, and what it declares beyond.

    Raises:
        UserError: it declares the answer of a probe that does not exist.
    """
    found: dict[str, Declaration] = {}
    # A declared failure of the check says that the policy does not hold everywhere; then only explicit words count.
    if not any(each.check == "fully_masked_row_is_as_declared" for each in implementation.known_failures):
        policy = implementation.fully_masked_row
        source = f'fully_masked_row="{policy}"'
        found["fully_masked_row"] = Declaration(_ROWS[policy], source)
        gradient = "not finite" if policy == "nan" else "finite"
        found["gradient_of_a_fully_masked_row"] = Declaration(gradient, source)
    for behaviour in implementation.semantics:
        unknown = [name for name in behaviour.answers if name not in PROBE_NAMES]
        if unknown:
            raise UserError(
                f"implementation {implementation.name!r} declares semantics of {', '.join(unknown)}; "
                f"probes are: {', '.join(PROBE_NAMES)}"
            )
        if device in behaviour.devices:
            found |= {name: Declaration(answer, behaviour.source) for name, answer in behaviour.answers.items()}
    return found


def refuse_unknown_probes(registered: Sequence[Registered], device: str) -> None:
    """Before anything runs, refuse implementations that declare the answer of a probe that does not exist.

    Raises:
        UserError: one does.
    """
    for each in registered:
        declared(each.implementation, device)


def put_all(
    registered: Sequence[Registered],
    questions: Questions,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    skip: Container[tuple[str, str]] = frozenset(),
) -> Iterator[SemanticsRecord]:
    """Put the questions to the implementations, in child processes, and give records as they come.

    Args:
        registered: the implementations.
        questions: which.
        on_progress: called with the number of answers and of questions.
        skip: (implementation, probe) of what an interrupted run has recorded already.

    Raises:
        UserError: an implementation declares the answer of a probe that does not exist.
    """
    refuse_unknown_probes(registered, questions.device)
    with tempfile.TemporaryDirectory(prefix="mha-semantics-") as scratch, Children(usable_cores()) as children:
        batches = _batches(registered, questions, skip, Path(scratch))
        total, done = sum(len(batch.probes) for batch in batches), 0
        while batches:
            tasks = [batch.task() for batch in batches]
            left: list[_Batch] = []
            for index, outcome in children.run_all(tasks):
                records = batches[index].finished()
                if isinstance(outcome, Died):
                    records, rest = batches[index].after_a_death(records, outcome)
                    left += rest
                done += len(records)
                on_progress(done, total)
                yield from records
            batches = left


@dataclass(frozen=True)
class _Batch:
    """Probes that one child puts to one implementation; it appends each answer to a file of its own."""

    registered: Registered
    probes: tuple[Probe, ...]
    questions: Questions
    folder: Path
    """For its file; no other batch has it."""

    def task(self) -> Task[None]:
        """What can be pickled: an implementation holds lambdas, so the child looks it up again."""
        questions = replace(self.questions, names=tuple(probe.name for probe in self.probes))
        arguments = (self.registered.implementation.name, self.registered.plugins, questions, self.folder)
        return Task(_put_in_child, arguments, _START_S + sum(probe.timeout_s for probe in self.probes))

    def finished(self) -> list[SemanticsRecord]:
        return [_with_its_plugin(record, self.registered) for record in RunFolder(self.folder).semantics()]

    def after_a_death(self, finished: list[SemanticsRecord], death: Died) -> tuple[list[SemanticsRecord], list[_Batch]]:
        """The records with one of the probe that was running, and a batch of the probes after it."""
        position = len(finished)
        finding = (
            Finding("none in time", death.reason, answered=False)
            if death.status == "timeout"
            else Finding("kills its process", death.reason)
        )
        culprit = _record(self.registered.implementation, self.probes[position], self.questions, finding)
        rest = self.probes[position + 1 :]
        more = [replace(self, probes=rest, folder=self.folder / "rest")] if rest else []
        return [*finished, _with_its_plugin(culprit, self.registered)], more


def _batches(
    registered: Sequence[Registered], questions: Questions, skip: Container[tuple[str, str]], folder: Path
) -> list[_Batch]:
    """Two for each implementation, those with compilers first, so that they do not end alone."""
    batches = [
        (each, tuple(probe for probe in left if probe.is_cheap == is_cheap))
        for is_cheap in (False, True)
        for each in registered
        if (left := [probe for probe in questions.probes if (each.implementation.name, probe.name) not in skip])
    ]
    return [
        _Batch(each, probes, questions, folder / str(number)) for number, (each, probes) in enumerate(batches) if probes
    ]


def _put_in_child(name: str, plugins: tuple[Plugin, ...], questions: Questions, folder: Path) -> None:
    """In the child: put the questions one after the other, and append each answer as it is given."""
    import torch

    torch.set_num_threads(1)  # children run side by side
    implementation = load_registry(plugins)[name].implementation
    folder.mkdir(parents=True, exist_ok=True)
    output = RunFolder(folder)
    for probe in questions.probes:
        start = time.perf_counter()
        with deadline(probe.timeout_s):
            finding = put(probe, implementation, questions)
        duration_s = round(time.perf_counter() - start, 6)
        output.append(_record(implementation, probe, questions, finding, duration_s))


def put(probe: Probe, implementation: Implementation, questions: Questions) -> Finding:
    """Put one question in this process."""
    missing = implementation.missing_on(questions.device)
    if missing:
        return Finding("unavailable", missing, answered=False)
    return probe.put_to(Questioned(implementation, questions.device, questions.seed))


def _record(
    implementation: Implementation, probe: Probe, questions: Questions, finding: Finding, duration_s: float = 0.0
) -> SemanticsRecord:
    device, seed = questions.device, questions.seed
    declaration = declared(implementation, device).get(probe.name, Declaration())
    return SemanticsRecord(
        implementation=implementation.name,
        probe=probe.name,
        question=probe.question,
        answer=finding.answer,
        evidence=finding.evidence,
        declared=declaration.answer,
        declared_source=declaration.source,
        device=device,
        status=_status(finding, declaration.answer),
        duration_s=duration_s,
        reproduce=f"mha verify {shlex.quote(implementation.name)} --semantics --check {probe.name}"
        + (f" --device {device}" if device != "cpu" else "")
        + (f" --seed {seed}" if seed else ""),
    )


def _status(finding: Finding, declared_answer: str) -> SemanticsStatus:
    if not finding.answered:
        return "no_answer"
    if not declared_answer:
        return "undeclared"
    return "as_declared" if finding.answer == declared_answer else "differs"


def _with_its_plugin(record: SemanticsRecord, registered: Registered) -> SemanticsRecord:
    """The command that asks again has to name the file that the implementation comes from."""
    return record.model_copy(update={"reproduce": record.reproduce + registered.plugin_option})
