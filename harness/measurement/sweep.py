"""A sweep: cell after cell, each in a fresh process, recorded as it ends, resumed where it stopped.

*Resuming.* Comparisons need the same rounds, so samples of one cell are never taken in two goes. A cell is finished
once each of its implementations is recorded. If a kill came while a cell's records were being written, those with
samples stay as they are, and what is missing beside them is recorded as skipped, with the reason; without samples
among them, what is missing is measured. Records without samples are written first, so that this is rare.

*Budget.* With a time to end in, a cell is begun only if what it may take is left, as learnt from the cells before it.
Those left out are named in ``run.json`` and have no record, so that a resumed run measures them.

*Culprits.* If a cell's process dies, each of its implementations is measured alone, briefly, in a process of its
own. Those whose process dies again are recorded with its cause, and the others are measured together; also if no
culprit shows, for the cause may have come from outside. If that process dies as well, all of them are recorded so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from harness.children import Children, Died, Task
from harness.measurement import work
from harness.measurement.cell import CellResult, CellTask, Settings, bar, measure_cell
from harness.measurement.timing import OVERDRAFT
from harness.records import Measurement, MeasurementStatus, RunFolder, Workload
from harness.registry import Plugin, Registered
from implementations.spec import Implementation

Blocked = Callable[[str, Workload], tuple[str, ...]]
"""Given an implementation's name and a workload, why verification bars it; empty if it does not."""
OnProgress = Callable[[int, int, str, float], None]
"""Called with cells done, cells in all, the current workload (empty at the end), and seconds left."""

PHASES_EVERY_S = 20.0
"""How often the phases' seconds are written: each time writes all of ``run.json``, every planned workload included."""
_PROBE_SECONDS = 0.5
"""Budget for timing when an implementation is run alone to see whether it kills its process."""
_ORACLE_FLOPS_PER_S = 2e9
"""A first guess at how fast the oracle is, in floating point operations of the call; the cells done correct it."""


def run_sweep(
    folder: RunFolder,
    workloads: Sequence[Workload],
    registered: Sequence[Registered],
    plugins: Sequence[Plugin],
    settings: Settings,
    blocked: Blocked,
    on_progress: OnProgress,
    seconds: float | None = None,
) -> None:
    """Measure all workloads that the folder does not hold yet.

    Args:
        folder: of a run that was created; its last line may have been cut short by a kill.
        workloads: in the order in which they are to be measured, cheap ones first.
        registered: implementations to be measured.
        plugins: files to load in the child processes.
        settings: of the measurements.
        blocked: verification's word on an implementation and a workload.
        on_progress: told of each cell as it begins, and of the end.
        seconds: in which to end; None for as long as it takes.
    """
    folder.repair()
    implementations = {entry.implementation.name: entry.implementation for entry in registered}
    _Sweep(folder, implementations, tuple(plugins), settings, blocked, seconds).run(workloads, on_progress)


def cost_s(workload: Workload, settings: Settings) -> float:
    """A guess at the seconds a cell takes, for the time left."""
    return settings.cell_seconds + _oracle_s(workload)


def timeout_s(workload: Workload, settings: Settings) -> float:
    """Seconds after which a cell's process is taken to hang: far more than its rounds and the oracle may take."""
    return 2 * OVERDRAFT * settings.cell_seconds + 10 * _oracle_s(workload) + settings.grace_seconds


def _oracle_s(workload: Workload) -> float:
    return work.flops(workload) / _ORACLE_FLOPS_PER_S


@dataclass
class _Pace:
    """How the cells done so far compare with the guess."""

    guessed_s: float = 0.0
    taken_s: float = 0.0
    worst: float = 1.0
    """Largest ratio of what a cell took to its guess."""

    def add(self, guessed_s: float, taken_s: float) -> None:
        self.guessed_s += guessed_s
        self.taken_s += taken_s
        self.worst = max(self.worst, taken_s / guessed_s)

    def left_s(self, guessed_s: float) -> float:
        return guessed_s * (self.taken_s / self.guessed_s if self.guessed_s else 1.0)

    def at_most_s(self, guessed_s: float) -> float:
        """What a cell may take, if it is no worse than the worst so far."""
        return guessed_s * self.worst


@dataclass
class _Sweep:
    folder: RunFolder
    implementations: Mapping[str, Implementation]
    plugins: tuple[Plugin, ...]
    settings: Settings
    blocked: Blocked
    seconds: float | None = None
    pace: _Pace = field(default_factory=_Pace)
    phases_s: dict[str, float] = field(default_factory=dict)
    """Not yet written."""
    begun: float = field(default_factory=time.perf_counter)
    phases_written: float = field(default_factory=time.perf_counter)

    def run(self, workloads: Sequence[Workload], on_progress: OnProgress) -> None:
        recorded = _recorded(self.folder.each_measurement())
        costs = [cost_s(workload, self.settings) for workload in workloads]
        to_do = sum(costs)
        left_out: dict[str, str] = {}
        with self._phases_kept():
            for index, workload in enumerate(workloads):
                before = recorded.get(workload.key, {})
                missing = [name for name in self.implementations if name not in before]
                why = self._why_left_out(costs[index]) if missing else ""
                if why:
                    left_out[workload.key] = why
                elif missing:
                    on_progress(index, len(workloads), _title(workload), self.pace.left_s(to_do))
                    begin = time.perf_counter()
                    self._finish(workload, missing, any(before.values()))
                    self.pace.add(costs[index], time.perf_counter() - begin)
                to_do -= costs[index]
        self.folder.write_info(self.folder.info().model_copy(update={"left_out": left_out}))
        on_progress(len(workloads), len(workloads), "", 0.0)

    def _why_left_out(self, cost: float) -> str:
        """Why a cell is not begun; empty if it is."""
        if self.seconds is None:
            return ""
        left, needed = self.seconds - (time.perf_counter() - self.begun), self.pace.at_most_s(cost)
        if needed <= left:
            return ""
        return f"it may take {needed:.0f} s, and {max(0.0, left):.0f} s were left"

    @contextmanager
    def _phases_kept(self) -> Iterator[None]:
        """Whatever ends the sweep, what its phases took is written."""
        try:
            yield
        finally:
            self._write_phases()

    def _finish(self, workload: Workload, missing: Sequence[str], has_samples: bool) -> None:
        """Record what a cell lacks, and add its phases to the run's."""
        begin = time.perf_counter()
        if has_samples:
            result = CellResult(tuple(_came_too_late(workload, name) for name in missing), {})
        else:
            result = self._measure(workload, missing)
        for measurement in sorted(result.measurements, key=lambda each: each.samples is not None):
            self.folder.append(measurement)
        rest = time.perf_counter() - begin - sum(result.phases_s.values())
        self._add_phases({**result.phases_s, "rest": rest})

    def _add_phases(self, phases_s: Mapping[str, float]) -> None:
        for name, seconds in phases_s.items():
            self.phases_s[name] = self.phases_s.get(name, 0.0) + seconds
        if time.perf_counter() - self.phases_written > PHASES_EVERY_S:
            self._write_phases()

    def _write_phases(self) -> None:
        info = self.folder.info()
        total = {name: info.phases_s.get(name, 0.0) + seconds for name, seconds in self.phases_s.items()}
        self.folder.write_info(info.model_copy(update={"phases_s": {**info.phases_s, **total}}))
        self.phases_s.clear()
        self.phases_written = time.perf_counter()

    def _measure(self, workload: Workload, names: Sequence[str]) -> CellResult:
        reasons = {name: self._blocked(name, workload) for name in names}
        barred = [_unmeasured(workload, name, "unverified", *why) for name, why in reasons.items() if why]
        free = tuple(name for name in names if not reasons[name])
        measured = self._measure_together(workload, free) if free else CellResult((), {})
        return CellResult((*barred, *measured.measurements), measured.phases_s)

    def _blocked(self, name: str, workload: Workload) -> tuple[str, ...]:
        """Why verification bars it; what cannot be measured anyhow is not said to lack proof."""
        return () if bar(self.implementations[name], workload) else self.blocked(name, workload)

    def _measure_together(self, workload: Workload, names: tuple[str, ...]) -> CellResult:
        task = CellTask(workload, names, self.plugins, self.settings)
        outcome = self._run(task)
        if not isinstance(outcome, Died):
            return outcome
        culprits = {name: death for name in names if (death := self._probe(task, name, outcome)) is not None}
        lost = [_unmeasured(workload, name, death.status, death.reason) for name, death in culprits.items()]
        others = tuple(name for name in names if name not in culprits)
        second = self._run(replace(task, names=others)) if others else CellResult((), {})
        if not isinstance(second, Died):
            return CellResult((*lost, *second.measurements), second.phases_s)
        reason = f"twice the process that measured them together died, and alone each of them survives: {second.reason}"
        lost += [_unmeasured(workload, name, second.status, reason) for name in others]
        return CellResult(tuple(lost), {})

    def _probe(self, task: CellTask, name: str, together: Died) -> Died | None:
        """How an implementation's process dies when it is alone in it; None if it does not."""
        if len(task.names) == 1:
            return together
        settings = replace(self.settings, cell_seconds=min(_PROBE_SECONDS, self.settings.cell_seconds))
        outcome = self._run(replace(task, names=(name,), settings=settings))
        return outcome if isinstance(outcome, Died) else None

    def _run(self, task: CellTask) -> CellResult | Died:
        # A pool for each task: one whose process dies beside a task (as it exits, say) would take no further ones.
        with Children(workers=1) as children:
            return children.run(Task(measure_cell, (task,), timeout_s(task.workload, task.settings)))


def _recorded(measurements: Iterable[Measurement]) -> dict[str, dict[str, bool]]:
    """By workload and implementation, whether a record has samples: the records themselves may be many."""
    found: dict[str, dict[str, bool]] = {}
    for measurement in measurements:
        found.setdefault(measurement.workload.key, {})[measurement.implementation] = measurement.samples is not None
    return found


def _title(workload: Workload) -> str:
    return f"{workload.label} {workload.key}"


def _came_too_late(workload: Workload, name: str) -> Measurement:
    reason = (
        "other implementations of this cell were recorded earlier in this run, and rounds measured now would not be "
        "side by side with theirs; run `mha bench` into a new folder to compare"
    )
    return _unmeasured(workload, name, "skipped", reason)


def _unmeasured(workload: Workload, name: str, status: MeasurementStatus, *reasons: str) -> Measurement:
    return Measurement(implementation=name, workload=workload, status=status, reasons=reasons, **work.figures(workload))
