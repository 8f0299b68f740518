"""Runs the suite for many implementations, each in child processes, and survives whatever they do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.children import Children, Died, Task, deadline
from harness.records import BAD_CHECK_STATUSES, CheckRecord, CheckStatus, RunFolder, Workload
from harness.registry import Plugin, Registered, load_registry
from harness.verification.examination import explained
from harness.verification.suite import NOT_BARRING, Item, Selection, plan, record, run_item, trial_of

CHECK_TIMEOUT_S = 60.0
"""For one check on one case; those of an interpreted kernel take up to three seconds."""
TIMEOUTS_IN_A_ROW = 3
"""After so many, what is left of an implementation in a dtype is not tried: it would take hours to say the same."""
NOT_TRIED = "not tried"
"""What the reason of such a check begins with."""
_CHUNK_GRACE_S = 60.0
"""Beyond the deadlines of its checks, until a child is taken to have disarmed them."""


@dataclass(frozen=True)
class _Chunk:
    """Checks that one child runs; what it finishes, it appends to a file of its own."""

    registered: Registered
    items: tuple[Item, ...]
    selection: Selection
    folder: Path
    reproducers: Path | None
    """Where scripts go that show a failure."""
    timeouts: int = 0
    """How many checks before these ran into the time-out, one right after the other."""

    def finished(self) -> list[CheckRecord]:
        return RunFolder(self.folder).checks()


def verify(
    registered: Sequence[Registered],
    selection: Selection,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    skip: Container[tuple[str, str, str]] = frozenset(),
    timeout_s: float = CHECK_TIMEOUT_S,
    reproducers: Path | None = None,
) -> Iterator[CheckRecord]:
    """Run the suite in child processes and give records as they come.

    A check that kills its child, or does not end, becomes a record of its own; the checks after it run in a new
    child.

    Args:
        registered: the implementations to verify.
        selection: the part of the suite.
        on_progress: called with the number of records done and planned.
        skip: (implementation, check, case) of what an interrupted run has recorded already.
        timeout_s: for each check on one case.
        reproducers: folder for a script that shows a failure, one for each; None writes none.
    """
    plans = [(each, _still_to_do(each, selection, skip)) for each in registered]
    total, done = sum(len(items) for _, items in plans), 0
    with tempfile.TemporaryDirectory(prefix="mha-verify-") as scratch, Children(_workers()) as children:
        chunks = list(_chunks(plans, selection, Path(scratch), reproducers))
        while chunks:
            tasks = [_task(chunk, timeout_s) for chunk in chunks]
            left: list[_Chunk] = []
            for index, outcome in children.run_all(tasks):
                records = chunks[index].finished()
                if isinstance(outcome, Died):
                    records, rest = _after_a_death(chunks[index], records, outcome)
                    left += rest
                done += len(records)
                on_progress(done, total)
                yield from (_with_its_plugin(each, chunks[index].registered) for each in records)
            chunks = left


def _still_to_do(registered: Registered, selection: Selection, skip: Container[tuple[str, str, str]]) -> list[Item]:
    items = plan(registered.implementation, selection)
    return [item for item in items if (registered.implementation.name, *item.key) not in skip]


def _with_its_plugin(record: CheckRecord, registered: Registered) -> CheckRecord:
    """The command that repeats a check has to name the file that the implementation comes from."""
    return record.model_copy(update={"reproduce": record.reproduce + registered.plugin_option})


def _workers() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _chunks(
    plans: Sequence[tuple[Registered, list[Item]]], selection: Selection, scratch: Path, reproducers: Path | None
) -> Iterator[_Chunk]:
    """One chunk for each implementation and dtype, slow implementations first, so that they do not end alone."""
    slow_first = sorted(plans, key=lambda entry: selection.device not in entry[0].implementation.slow_on)
    for registered, items in slow_first:
        for dtype in dict.fromkeys(item.case.dtype for item in items):
            own = tuple(item for item in items if item.case.dtype == dtype)
            folder = scratch / f"{registered.implementation.name}-{dtype}-0"
            folder.mkdir()
            yield _Chunk(registered, own, replace(selection, dtypes=(dtype,)), folder, reproducers)


def _task(chunk: _Chunk, timeout_s: float) -> Task[None]:
    """What can be pickled: an implementation itself holds lambdas, so the child looks it up again."""
    name = chunk.registered.implementation.name
    keys = tuple(item.key for item in chunk.items)
    return Task(
        _run_chunk,
        (name, chunk.registered.plugins, keys, chunk.selection, chunk.folder, chunk.reproducers, timeout_s),
        timeout_s=timeout_s * (len(keys) + 1) + _CHUNK_GRACE_S,
    )


def _run_chunk(
    name: str,
    plugins: tuple[Plugin, ...],
    keys: tuple[tuple[str, str], ...],
    selection: Selection,
    folder: Path,
    reproducers: Path | None,
    timeout_s: float,
) -> None:
    """In the child: run the checks of these keys in order, explain failures, and append each record as it is made."""
    import torch

    torch.set_num_threads(1)  # children run side by side
    with deadline(timeout_s):
        registered = load_registry(plugins)[name]
        implementation = registered.implementation
        items = {item.key: item for item in plan(implementation, selection)}
    output = RunFolder(folder)
    for key in keys:
        with deadline(timeout_s):
            result = run_item(implementation, items[key], selection)
        with deadline(timeout_s):
            trial = trial_of(implementation, items[key], selection)
            result = explained(result, items[key].check.function, trial, registered, reproducers)
        output.append(result)


def _after_a_death(
    chunk: _Chunk, finished: Sequence[CheckRecord], death: Died
) -> tuple[list[CheckRecord], list[_Chunk]]:
    """What is known of a chunk whose child died, the check that was running included, and what is left to run."""
    done = min(len(finished), len(chunk.items) - 1)  # one that dies after its last check is taken to die of it
    records = [*finished[:done], _lost(chunk, chunk.items[done], death.status, death.reason)]
    rest = chunk.items[done + 1 :]
    timeouts = (1 if done else chunk.timeouts + 1) if death.status == "timeout" else 0
    if not rest:
        return records, []
    if timeouts == TIMEOUTS_IN_A_ROW:
        reason = f"{NOT_TRIED}: the {timeouts} checks before it ran into the time-out ({death.reason})"
        return [*records, *(_lost(chunk, item, "timeout", reason) for item in rest)], []
    base, _, number = chunk.folder.name.rpartition("-")
    folder = chunk.folder.with_name(f"{base}-{int(number) + 1}")
    folder.mkdir()
    return records, [replace(chunk, items=rest, folder=folder, timeouts=timeouts)]


def _lost(chunk: _Chunk, item: Item, status: CheckStatus, reason: str) -> CheckRecord:
    return record(chunk.registered.implementation, item, status, (reason,), chunk.selection)


def reasons_against_timing(records: Sequence[CheckRecord], name: str, workload: Workload) -> tuple[str, ...]:
    """Why verification forbids timing this implementation on this workload; empty if it does not.

    A failure bars the dtype, mask and pass that it was seen in; a general one bars all masks and passes. A failure
    in float64, where "is it the same function" is decided, bars every dtype. Without any failure, the answer must have
    been held against the oracle, and found right, for this very dtype, device, mask and pass.
    """
    mine = [each for each in records if each.implementation == name and each.device == workload.device]
    needed = {"matches_the_oracle"} | ({"gradients_match_the_oracle"} if workload.mode == "training" else set())
    shown = {
        each.check
        for each in mine
        if each.status == "passed" and each.dtype == workload.dtype and each.mask == workload.mask
    }
    failures = tuple(
        f"{each.check} {each.status} ({each.case}): {each.reasons[0] if each.reasons else 'no reason given'}"
        for each in mine
        if each.status in BAD_CHECK_STATUSES
        and each.status != "unexpected_pass"
        and each.check not in NOT_BARRING
        and each.dtype in (workload.dtype, "float64")
        and each.mask in ("", workload.mask)
        and _concerns(each.mode, workload.mode)
    )
    return failures or tuple(
        f"{check} was not shown for {workload.dtype}, mask {workload.mask} on {workload.device}"
        for check in sorted(needed - shown)
    )


def _concerns(checked: str, timed: str) -> bool:
    """A wrong forward pass spoils training too; a wrong backward spoils training, and the forward on its way there."""
    return checked in ("", timed) or timed in ("training", "forward")
