"""A cell: one workload and all implementations, in one process.

In this order: who cannot run here at all; who gives the right answer at this very shape; times of those that do,
side by side; the last timed answers, checked again; memory and kernels, each implementation by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from harness.measurement import work
from harness.measurement.calls import TimedCall, timed_call
from harness.measurement.memory import footprint
from harness.measurement.shape_check import ShapeOracle, ShapeVerdict
from harness.measurement.state import RuntimeState, refuse_denormals
from harness.measurement.stopwatch import CpuStopwatch, CudaStopwatch, Stopwatch, clocks_for, sm_clock_mhz
from harness.measurement.timing import Plan, Timing, measure
from harness.records import Measurement, MeasurementStatus, Workload
from harness.registry import Plugin, load_registry, one_line, select
from harness.subject import prepare
from harness.verification.inputs import Inputs, make_inputs
from implementations.spec import Case, Implementation, MaskKind, Mode

ANSWERS = "answers"
"""The phase in which answers at the timed shape are held against the oracle, each one's first call included."""


@dataclass(frozen=True)
class Settings:
    """How the cells of a run are measured."""

    cell_seconds: float
    """Time budget of the timed rounds of one cell."""
    max_rounds: int = 160
    resolution: float = 0.02
    """Half-width of the band of ratios called tied."""
    seed: int = 0
    """Of inputs and of the order within rounds."""
    baseline: str = "sdpa"
    """Implementation that ratios are shown against."""
    grace_seconds: float = 120.0
    """What a cell may take beyond its rounds and the oracle (see `sweep.timeout_s`) before its process is killed."""


@dataclass(frozen=True)
class CellTask:
    """Everything a child process needs to measure a cell; can be pickled."""

    workload: Workload
    names: tuple[str, ...]
    """Implementations to be measured."""
    plugins: tuple[Plugin, ...]
    settings: Settings


@dataclass(frozen=True)
class CellResult:
    """What a cell gave."""

    measurements: tuple[Measurement, ...]
    """One for each name of the task, in its order."""
    phases_s: dict[str, float]
    """Wall seconds by phase: answers, warm-up, timed, memory."""


def measure_cell(task: CellTask) -> CellResult:
    """Measure one cell in this process, whose thread count and random state it changes.

    Raises:
        UserError: a name or a plugin that cannot be loaded.
        ValueError: the inputs hold subnormal numbers.
    """
    before = RuntimeState.capture()
    chosen = select(load_registry(task.plugins), task.names)
    before.restore()  # what a plugin's import set for the whole process would change everybody's times
    torch.set_num_threads(task.workload.threads)
    cell = _Cell(task, [registered.implementation for registered in chosen])
    cell.run()
    return CellResult(tuple(cell.measurement(name) for name in task.names), cell.phases_s)


def case_of(workload: Workload) -> Case:
    """The workload as implementations know it: to them, a forward that keeps a graph is on its way to train."""
    mode: Mode = "inference" if workload.mode == "inference" else "training"
    return Case(
        batch_size=workload.batch_size,
        seq_len=workload.seq_len,
        d_model=workload.d_model,
        num_heads=workload.num_heads,
        dtype=workload.dtype,
        mask=cast("MaskKind", workload.mask),
        mode=mode,
        device=workload.device,
    )


def bar(implementation: Implementation, workload: Workload) -> tuple[MeasurementStatus, tuple[str, ...]] | None:
    """Why an implementation is not measured on a workload at all: status and every reason; None if it is."""
    missing = implementation.missing_on(workload.device)
    if missing:
        return "unavailable", (missing,)
    unsupported = implementation.why_not(case_of(workload))
    if workload.scope == "attention" and implementation.attend is None:
        unsupported += ("it is a whole module: it has no attention of its own to time",)
    if unsupported:
        return "unsupported", unsupported
    if workload.device in implementation.verify_only:
        return "skipped", (f"verify-only: {implementation.verify_only[workload.device]}",)
    shortfall = work.memory_shortfall(implementation, workload)
    return ("skipped", (shortfall,)) if shortfall else None


@dataclass
class _Entry:
    """What is known so far of one implementation in the cell."""

    status: MeasurementStatus = "measured"
    reasons: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """Fields of its `Measurement`."""

    def end(self, status: MeasurementStatus, *reasons: str) -> None:
        """No time for this one."""
        self.status, self.reasons = status, reasons


class _Cell:
    def __init__(self, task: CellTask, implementations: Sequence[Implementation]) -> None:
        self.workload = task.workload
        self.settings = task.settings
        self.implementations = implementations
        self.entries = {implementation.name: _Entry() for implementation in implementations}
        self.calls: dict[str, TimedCall] = {}
        self.right: dict[str, int] = {}
        """Digests of the answers that were judged; those of wrong ones are asked for by nobody."""
        self.phases_s: dict[str, float] = {}
        self.restore = RuntimeState.capture().restore

    def run(self) -> None:
        able = [implementation for implementation in self.implementations if self._is_able(implementation)]
        if not able:
            return
        with self._phase(ANSWERS):
            inputs = self._inputs()
            _warm_torch_up(inputs)
            oracle = ShapeOracle(inputs, gradients=self.workload.mode == "training", seed=self.settings.seed)
            for implementation in able:
                self._prepare(implementation, inputs, oracle)
        if self.calls:
            self._time()
            with self._phase(ANSWERS):
                for name in list(self.calls):
                    self._judge(name, oracle, "after the last timed block, ")
            with self._phase("memory"):
                for name in list(self.calls):
                    self._profile(name)

    def measurement(self, name: str) -> Measurement:
        entry = self.entries[name]
        facts = entry.facts
        if entry.status != "measured":
            # A time exists only on "measured"; what is known of the error stays, as evidence.
            facts = {key: facts[key] for key in ("max_error", "budget_used", "error_over_baseline") if key in facts}
        return Measurement(
            implementation=name,
            workload=self.workload,
            status=entry.status,
            reasons=entry.reasons,
            **work.figures(self.workload),
            **facts,
        )

    def _is_able(self, implementation: Implementation) -> bool:
        barred = bar(implementation, self.workload)
        if barred is not None:
            self.entries[implementation.name].end(barred[0], *barred[1])
        return barred is None

    def _inputs(self) -> Inputs:
        padded_share = self.workload.padded_share if self.workload.mask.startswith("padding") else None
        inputs = make_inputs(case_of(self.workload), self.settings.seed, padded_share)
        refuse_denormals({"x": inputs.x, "the cotangent": inputs.cotangent, **inputs.weights})
        return inputs

    def _prepare(self, implementation: Implementation, inputs: Inputs, oracle: ShapeOracle) -> None:
        """Make the call, time its very first run, and judge what that gave."""
        name = implementation.name
        with self._crash_ends(name):
            subject = prepare(implementation, case_of(self.workload), inputs.weights)
            call = timed_call(subject, inputs, self.workload)
            begin = time.perf_counter()
            call()
            _synchronize(self.workload.device)
            self.entries[name].facts["first_call_s"] = time.perf_counter() - begin
            self.calls[name] = call
        if name in self.calls:
            self._judge(name, oracle)

    def _judge(self, name: str, oracle: ShapeOracle, when: str = "") -> None:
        """Hold the latest answer against the oracle; a wrong one leaves the cell, its evidence stays.

        One that has the very bits of one that was found right is right.
        """
        with self._crash_ends(name):
            call, facts = self.calls[name], self.entries[name].facts
            answer = call.answer()
            digest = answer.digest()
            if self.right.get(name) == digest:
                call.release()
                return
            verdict = oracle.judge(call.implementation, answer)
            self.right[name] = digest
            del answer
            call.release()
            facts |= _worse(verdict, facts)
            if verdict.fault:
                self.entries[name].end("wrong", when + verdict.fault)
                del self.calls[name]

    def _time(self) -> None:
        settings = self.settings
        plan = Plan(settings.cell_seconds, settings.max_rounds, settings.resolution, settings.seed)
        first_call_s = {name: self.entries[name].facts["first_call_s"] for name in self.calls}
        timing = measure(self.calls, plan, self._stopwatch(), first_call_s)
        self.phases_s |= {"warm-up": timing.warm_up_s, "timed": timing.timed_s}
        clock = sm_clock_mhz(self.workload.device)
        for name, reason in timing.failures.items():
            self._end_crashed(name, reason)
        for name in timing.samples:
            self.entries[name].facts |= {**_facts(timing, name), "sm_clock_mhz": clock}

    def _stopwatch(self) -> Stopwatch:
        if self.workload.device == "cuda":
            return CudaStopwatch(torch.device("cuda"), self.restore)
        return CpuStopwatch(clocks_for(self.workload.threads), self.restore)

    def _profile(self, name: str) -> None:
        with self._crash_ends(name):
            call = self.calls[name]
            call.release()
            saved = _saved_bytes(call)
            found = footprint(call, self.workload.device)
            output = call.output_bytes()
            call.release()
            self.entries[name].facts |= {
                "peak_bytes": found.peak_bytes,
                "output_bytes": output,
                "saved_bytes": saved,
                "workspace_bytes": max(0, found.peak_bytes - found.left_bytes),
                "memory_source": found.source,
                "kernels": found.kernels,
            }

    @contextmanager
    def _crash_ends(self, name: str) -> Iterator[None]:
        """Whatever an implementation raises ends it, and it alone; what it set is set back."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it becomes a recorded status
            self._end_crashed(name, one_line(error))
        finally:
            self.restore()

    def _end_crashed(self, name: str, reason: str) -> None:
        self.entries[name].end("crashed", reason)
        self.calls.pop(name, None)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.phases_s[name] = self.phases_s.get(name, 0.0) + time.perf_counter() - begin


def _warm_torch_up(inputs: Inputs) -> None:
    """Have torch start its threads and load what it loads lazily: the first implementation should not pay for that."""
    with torch.enable_grad():
        x = inputs.x.detach()[:1, :8].clone().requires_grad_()
        y = torch.nn.functional.linear((x @ x.transpose(-1, -2)).softmax(-1) @ x, inputs.weights["W_o.weight"])
        y.backward(torch.ones_like(y))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    _synchronize(inputs.x.device.type)


def _worse(verdict: ShapeVerdict, before: dict[str, Any]) -> dict[str, float]:
    """Errors of two checks of the same implementation: the larger of each, and NaN is the largest of all."""
    errors = {
        "max_error": verdict.max_error,
        "budget_used": verdict.budget_used,
        "error_over_baseline": verdict.error_over_baseline,
    }
    return {
        key: error
        for key, error in errors.items()
        if error is not None and (key not in before or math.isnan(error) or error > before[key])
    }


def _facts(timing: Timing, name: str) -> dict[str, Any]:
    return {
        "samples": timing.samples[name],
        "repeats": timing.repeats[name],
        "rounds_stopped_by": timing.stopped_by,
        "looks": timing.looks,
        "pairs": timing.pairs,
    }


def _saved_bytes(call: TimedCall) -> int | None:
    """None where it cannot be seen: a kernel that takes no hooks on what it saves has a time all the same."""
    try:
        return call.saved_bytes()
    except Exception:  # noqa: BLE001 - whatever a foreign kernel raises under the hooks, it does not raise without
        return None


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
