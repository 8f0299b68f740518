"""The verifier verified: does the suite catch wrong implementations, and does it leave right ones alone?

The wrong ones are the zoo, a folder of mutants (`tests/mutants`): right multi-head attention with one small override
each. A mutant counts as caught if a check fails on it, by name; one that kills or hangs its process does not, since
that is evidence about a process and not about a check. Every mutant meets every check in float32; what survives
there meets long sequences, and then the other dtypes. Equivalent mutants have to pass in float32, registered
implementations in all dtypes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from types import ModuleType

import harness
from harness.children import Children, Died, Task
from harness.errors import UserError
from harness.measurement.limits import usable_cores
from harness.records import BAD_CHECK_STATUSES, CheckRecord
from harness.registry import Registered
from harness.verification.suite import CHECK_NAMES, Selection, plan, run_item
from harness.verification.verify import verify
from implementations.spec import Implementation

LONG_TOKENS = 256
"""Sequences from here on take more of the suite's time than all others."""
MUTANT_TIMEOUT_S = 120.0
"""For one mutant; it takes about a second."""
CLEARLY_BEYOND = 2.0
"""Error over budget that every numeric mutant should reach in some check."""

Progress = Callable[[int, int, str], None]
"""Called with what is done, the total, and what is being done."""


@dataclass(frozen=True)
class Stage:
    """A part of the suite that a mutant goes through as a whole."""

    dtype: str
    lengths: range
    """Of the sequences that take part."""


ALL_CHECKS = Stage("float32", range(LONG_TOKENS))
"""Every check has cases here."""
LONG_SEQUENCES = Stage("float32", range(LONG_TOKENS, sys.maxsize))
OTHER_DTYPES = tuple(Stage(dtype, range(sys.maxsize)) for dtype in ("float64", "bfloat16", "float16"))


@dataclass(frozen=True)
class Mutant:
    """A wrong implementation, or one that was changed and is right all the same."""

    implementation: Implementation
    group: str
    """What it is about: the file that it stands in."""
    stands_for: str
    """What is wrong with it."""
    faults: tuple[str, ...] = ()
    """Public reports of such a fault."""
    expected_check: str = ""
    """The check that names the fault; empty for an equivalent mutant."""
    numeric: bool = False
    """Whether it computes the right function with too large an error."""
    equivalent: str = ""
    """Why it is no fault; empty for a wrong one."""

    @property
    def name(self) -> str:
        """Of the implementation."""
        return self.implementation.name

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What it goes through, until a check fails on it."""
        return (ALL_CHECKS, LONG_SEQUENCES, *(() if self.equivalent else OTHER_DTYPES))


@dataclass(frozen=True)
class Fault:
    """A kind of fault that attention code in public really had."""

    topic: str
    what: str
    reports: tuple[str, ...]
    """Where it was reported, or how it was seen."""
    guard: str = ""
    """What else guards against it, or what does if no mutant can stand for it."""


@dataclass(frozen=True)
class Zoo:
    """Mutants and the faults that they stand for."""

    file: Path
    """The zoo's ``__init__.py``, which is a plugin as well."""
    mutants: tuple[Mutant, ...]
    faults: tuple[Fault, ...]

    def only(self, names: Iterable[str]) -> Zoo:
        """The zoo with these mutants only.

        Raises:
            UserError: a name is not in the zoo.
        """
        by_name = {mutant.name: mutant for mutant in self.mutants}
        unknown = [name for name in names if name not in by_name]
        if unknown:
            raise UserError(
                f"no mutant named {', '.join(unknown)} in {self.file.parent}; `mha selftest` lists them all"
            )
        return Zoo(self.file, tuple(by_name[name] for name in names), self.faults)


def find_zoo() -> Path:
    """The zoo's ``__init__.py``: beside the packages in a checkout, inside `harness` in an installed wheel.

    Raises:
        UserError: neither is there.
    """
    package = Path(harness.__file__).parent
    for folder in (package.parent / "tests" / "mutants", package / "mutants"):
        if (folder / "__init__.py").is_file():
            return folder / "__init__.py"
    raise UserError(
        f"no wrong implementations to test the verifier on: neither {package.parent / 'tests' / 'mutants'} nor "
        f"{package / 'mutants'} is there; install mha-harness again or work in a checkout"
    )


@cache
def load_zoo(file: Path | None = None) -> Zoo:
    """Import a zoo from its ``__init__.py``; the project's own if none is given."""
    file = file or find_zoo()
    module = _import_package(file)
    return Zoo(file, module.MUTANTS, module.FAULTS)


def _import_package(file: Path) -> ModuleType:
    name = "mha_zoo"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
        del sys.modules[loaded]  # of another zoo
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, order=True)
class Excess:
    """Largest error over budget that a mutant showed, and where; beyond `CLEARLY_BEYOND` it is not looked further."""

    factor: float = 0.0
    dtype: str = ""


@dataclass(frozen=True)
class Outcome:
    """What the suite said of one mutant."""

    mutant: str
    caught_by: Mapping[str, CheckRecord] = field(default_factory=dict)
    """The first failure of each check that failed, by the check's name."""
    excess: Excess | None = None
    """Of a numeric mutant: how far it is beyond the budget."""
    died: str = ""
    """Why its process gave no result; empty if it did."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes that it was caught in."""
        return tuple(dict.fromkeys(record.dtype for record in self.caught_by.values()))


@dataclass(frozen=True)
class Verdict:
    """The result of a self test."""

    zoo: Zoo
    outcomes: Mapping[str, Outcome]
    """By mutant, equivalent ones included."""
    false_alarms: tuple[CheckRecord, ...]
    """Failures of registered implementations and of equivalent mutants."""
    closest: Mapping[str, CheckRecord]
    """By dtype: what a registered implementation passed with the largest share of its budget."""
    seed: int

    @property
    def wrong(self) -> tuple[Mutant, ...]:
        """Mutants that have to be caught."""
        return tuple(mutant for mutant in self.zoo.mutants if not mutant.equivalent)

    @property
    def equivalent(self) -> tuple[Mutant, ...]:
        """Mutants that have to pass."""
        return tuple(mutant for mutant in self.zoo.mutants if mutant.equivalent)

    @property
    def survivors(self) -> tuple[Mutant, ...]:
        """Wrong mutants that no check failed on."""
        return tuple(mutant for mutant in self.wrong if not self.outcomes[mutant.name].caught_by)

    @property
    def caught_once(self) -> tuple[Mutant, ...]:
        """Wrong mutants that exactly one check failed on."""
        return tuple(mutant for mutant in self.wrong if len(self.outcomes[mutant.name].caught_by) == 1)

    @property
    def misnamed(self) -> tuple[Mutant, ...]:
        """Wrong mutants that were caught, but not by the check that is meant to name them."""
        return tuple(
            mutant
            for mutant in self.wrong
            if self.outcomes[mutant.name].caught_by
            and mutant.expected_check not in self.outcomes[mutant.name].caught_by
        )

    @property
    def excesses(self) -> dict[str, Excess]:
        """How far each numeric mutant is beyond the budget, by name, the closest first."""
        found = {name: outcome.excess for name, outcome in self.outcomes.items() if outcome.excess is not None}
        return dict(sorted(found.items(), key=lambda entry: entry[1]))

    @property
    def is_good(self) -> bool:
        """Nothing survives and nothing is accused wrongly."""
        return not self.survivors and not self.false_alarms

    def as_json(self) -> dict[str, object]:
        """For machines; ``mutants`` counts those that have to be caught."""
        return {
            "mutants": len(self.wrong),
            "caught": len(self.wrong) - len(self.survivors),
            "false_alarms": len(self.false_alarms),
            "seed": self.seed,
            "matrix": {mutant.name: list(self.outcomes[mutant.name].caught_by) for mutant in self.zoo.mutants},
            "survivors": [mutant.name for mutant in self.survivors],
            "caught_once": [mutant.name for mutant in self.caught_once],
            "margins": {
                "right": {dtype: record.budget_used for dtype, record in self.closest.items()},
                "numeric": {name: excess.factor for name, excess in self.excesses.items()},
            },
            "equivalent": {mutant.name: mutant.equivalent for mutant in self.equivalent},
            "alarms": [record.model_dump(mode="json") for record in self.false_alarms],
        }


def self_test(
    zoo: Zoo, right: Sequence[Registered], seed: int = 0, on_progress: Progress = lambda _done, _total, _now: None
) -> Verdict:
    """Run the suite on every mutant, and on implementations that are right.

    Args:
        zoo: the mutants.
        right: implementations that must pass, in all dtypes.
        seed: of weights, inputs and masks.
        on_progress: called as results come.
    """
    outcomes = {}
    for done, outcome in enumerate(_outcomes(zoo, seed), start=1):
        outcomes[outcome.mutant] = outcome
        on_progress(done, len(zoo.mutants), "mutants")
    verified = verify(
        right, Selection(seed=seed), on_progress=lambda done, total: on_progress(done, total, "right ones")
    )
    records = list(verified)
    alarms = [record for record in records if record.status in BAD_CHECK_STATUSES]
    for mutant in zoo.mutants:
        if mutant.equivalent:
            alarms += [_with_its_plugin(record, zoo) for record in outcomes[mutant.name].caught_by.values()]
    return Verdict(zoo, outcomes, tuple(alarms), closest_by_dtype(records), seed)


def closest_by_dtype(records: Iterable[CheckRecord]) -> dict[str, CheckRecord]:
    """For each dtype what passed with the largest share of its budget."""
    closest: dict[str, CheckRecord] = {}
    for record in records:
        before = closest.get(record.dtype)
        used = record.budget_used if record.status == "passed" else None
        if used is not None and (before is None or used > (before.budget_used or 0.0)):
            closest[record.dtype] = record
    return closest


def _with_its_plugin(record: CheckRecord, zoo: Zoo) -> CheckRecord:
    return record.model_copy(update={"reproduce": f"{record.reproduce} --plugin {zoo.file}"})


def _outcomes(zoo: Zoo, seed: int) -> Iterator[Outcome]:
    tasks = [Task(_examine_in_child, (zoo.file, mutant.name, seed), MUTANT_TIMEOUT_S) for mutant in zoo.mutants]
    with Children(usable_cores(), tasks_per_child=0) as children:
        for index, result in children.run_all(tasks):
            name = zoo.mutants[index].name
            yield Outcome(name, died=result.reason) if isinstance(result, Died) else result


def _examine_in_child(file: Path, name: str, seed: int) -> Outcome:
    import torch

    torch.set_num_threads(1)  # children run side by side
    torch.manual_seed(seed)  # for mutants that draw, whichever child they meet
    (mutant,) = load_zoo(file).only([name]).mutants
    return examine(mutant, seed)


def examine(mutant: Mutant, seed: int = 0) -> Outcome:
    """Run the suite on a mutant in this process, stage by stage until a check fails on it."""
    for stage in mutant.stages:
        caught = {record.check: record for record in failures(mutant, stage, seed)}
        if caught:
            return Outcome(mutant.name, caught, excess_of(mutant, seed, caught.values()) if mutant.numeric else None)
    return Outcome(mutant.name)


def excess_of(mutant: Mutant, seed: int = 0, known: Iterable[CheckRecord] = ()) -> Excess:
    """Largest error over budget in any check; no further than until it is clearly beyond.

    Args:
        mutant: a numeric one.
        seed: of weights, inputs and masks.
        known: failures of it that were seen already.
    """
    largest = max((Excess(each.budget_used, each.dtype) for each in known if each.budget_used), default=Excess())
    if largest.factor > CLEARLY_BEYOND:
        return largest
    for stage in (ALL_CHECKS, *(stage for stage in mutant.stages if stage.dtype != ALL_CHECKS.dtype)):
        used = [record.budget_used for record in records_of(mutant.implementation, stage, seed)]
        largest = max([largest, *(Excess(factor, stage.dtype) for factor in used if factor is not None)])
        if largest.factor > CLEARLY_BEYOND:
            break
    return largest


def records_of(implementation: Implementation, stage: Stage, seed: int) -> Iterator[CheckRecord]:
    """Everything that the suite says of an implementation in a stage."""
    selection = Selection(dtypes=(stage.dtype,), seed=seed)
    for item in plan(implementation, selection):
        if item.case.seq_len in stage.lengths:
            yield run_item(implementation, item, selection)


def failures(mutant: Mutant, stage: Stage, seed: int = 0, checks: tuple[str, ...] = ()) -> Iterator[CheckRecord]:
    """The first failure of each check in a stage: once a check has failed, its other cases tell no more."""
    selection = Selection(checks=checks, dtypes=(stage.dtype,), seed=seed)
    items = [item for item in plan(mutant.implementation, selection) if item.case.seq_len in stage.lengths]
    items.sort(key=lambda item: CHECK_NAMES.index(item.check.name))
    for _, of_one_check in groupby(items, key=lambda item: item.check.name):
        records = (run_item(mutant.implementation, item, selection) for item in of_one_check)
        failed = next((record for record in records if record.status in BAD_CHECK_STATUSES), None)
        if failed is not None:
            yield failed


def faults_page(zoo: Zoo) -> str:
    """Faults of attention code in public, and what stands for each here, as Markdown."""
    lines = [
        "# Faults that really happened, and what catches them here",
        "",
        "Each row is a kind of fault that public attention code had. *Stands for it* names wrong implementations of",
        "the zoo (`tests/mutants`); every one of them is caught by the check behind the arrow, which `mha selftest`",
        "shows on your machine. See one fail: `mha verify NAME --plugin tests/mutants/__init__.py`.",
    ]
    for topic, faults in groupby(zoo.faults, key=lambda fault: fault.topic):
        lines += ["", f"## {topic}", "", "| fault | reported | stands for it |", "|---|---|---|"]
        lines += [f"| {fault.what} | {', '.join(fault.reports)} | {_stands_for(zoo, fault)} |" for fault in faults]
    lines += [
        "",
        "## All wrong implementations",
        "",
        "| group | name | what is wrong | caught by |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {m.group} | `{m.name}` | {m.stands_for} | `{m.expected_check}` |" for m in zoo.mutants if not m.equivalent
    ]
    lines += ["", "## Changes that are no fault", "", "| name | what is changed | why it is right |", "|---|---|---|"]
    lines += [f"| `{m.name}` | {m.stands_for} | {m.equivalent} |" for m in zoo.mutants if m.equivalent]
    return "\n".join(lines) + "\n"


def _stands_for(zoo: Zoo, fault: Fault) -> str:
    mutants = [mutant for mutant in zoo.mutants if set(mutant.faults) & set(fault.reports)]
    words = [f"`{m.name}` → `{m.expected_check}`" if not m.equivalent else f"`{m.name}` (no fault)" for m in mutants]
    return "; ".join([*words, *([fault.guard] if fault.guard else [])])
