"""The main job: verify what a set of workloads needs, measure it, and leave a run folder behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import comb
from pathlib import Path
from time import perf_counter

from harness.children import Children, Died, Task
from harness.describe import describe_all
from harness.errors import UserError
from harness.measurement.cell import Settings
from harness.measurement.environment import describe_environment
from harness.measurement.noise import NoiseTask, measure_noise
from harness.measurement.presets import Preset
from harness.measurement.roofline import RoofTask, measure_roofs
from harness.measurement.sweep import run_sweep
from harness.measurement.timing import rounds_needed
from harness.plugins import load_with_plugins
from harness.records import FORMAT_VERSION, RunFolder, RunInfo, Workload
from harness.registry import Plugin, Registered, plugin_of, select
from harness.verification.semantics import CHEAP, Questions, put_all, refuse_unknown_probes
from harness.verification.suite import Selection
from harness.verification.verify import reasons_against_timing, verify
from implementations.spec import ALL_DTYPES

NOISE_TRIALS = 3
NOISE_SECONDS = 1.0
SENSING_TIMEOUT_S = 120.0
REPORT_S = 5.0
"""Of a time budget, what is kept for rendering."""

Advance = Callable[[int, int, str, float | None], None]
"""Called with what is done, the total, what is being done now, and the seconds left where they are known."""


@dataclass(frozen=True)
class Request:
    """What a new run is asked to do."""

    names: tuple[str, ...]
    """Implementations; empty means all."""
    plugins: tuple[Plugin, ...]
    preset_name: str
    preset: Preset
    baseline: str
    resolution: float
    max_rounds: int | None
    seed: int
    command: str


@dataclass(frozen=True)
class Bench:
    """A run that was begun, new or resumed."""

    folder: RunFolder
    info: RunInfo
    registered: tuple[Registered, ...]

    @property
    def verification(self) -> Selection:
        """The part of the suite that the workloads need: their dtypes and masks, and float64.

        Whether two things are the same function is decided in float64, where rounding hides nothing.
        """
        dtypes = {workload.dtype for workload in self.info.workloads} | {"float64"}
        masks = {workload.mask for workload in self.info.workloads}
        return Selection(
            dtypes=tuple(dtype for dtype in ALL_DTYPES if dtype in dtypes),
            masks=tuple(sorted(masks | {"none"})),
            device=self.info.workloads[0].device,
            seed=self.info.seed,
        )

    def verify(self, advance: Advance) -> None:
        """Run the checks that the folder does not hold yet, and append each as it comes."""
        start = perf_counter()
        done = {(record.implementation, record.check, record.case) for record in self.folder.checks()}
        for record in verify(
            self.registered,
            self.verification,
            on_progress=lambda finished, total: advance(finished, total, "", None),
            skip=done,
            reproducers=self.folder.path / "reproducers",
        ):
            self.folder.append(record)
        self._note_phase("verification", perf_counter() - start)

    def ask(self, advance: Advance) -> None:
        """Put the cheap probes that the folder does not hold an answer of yet, and append each answer as it comes."""
        start = perf_counter()
        done = {(record.implementation, record.probe) for record in self.folder.semantics()}
        for record in put_all(
            self.registered,
            Questions(CHEAP, self.info.workloads[0].device, self.info.seed),
            on_progress=lambda finished, total: advance(finished, total, "", None),
            skip=done,
        ):
            self.folder.append(record)
        self._note_phase("semantics", perf_counter() - start)

    def sense_machine(self) -> str:
        """See once, before anything is measured, what the machine can tell and do right now: its noise, its roofs.

        Gives why that is not known, if it is not: the trials' process died, or another device is to be measured.
        """
        if self.info.workloads[0].device != "cpu":
            return "they are those of the CPU, and another device is measured"
        info = self.folder.info()
        if info.noise is not None and info.roofs:
            return ""
        start = perf_counter()
        threads = tuple(sorted({workload.threads for workload in self.info.workloads}))
        dtypes = tuple(dtype for dtype in ALL_DTYPES if dtype in {workload.dtype for workload in self.info.workloads})
        task = NoiseTask(NOISE_TRIALS, NOISE_SECONDS, max(threads), self.info.resolution, self.info.seed)
        with Children(workers=1) as children:
            noise = children.run(Task(measure_noise, (task,), SENSING_TIMEOUT_S))
            roofs = children.run(Task(measure_roofs, (RoofTask(dtypes, threads),), SENSING_TIMEOUT_S))
        if isinstance(noise, Died):
            return noise.reason
        if isinstance(roofs, Died):
            return roofs.reason
        self.folder.write_info(self.folder.info().model_copy(update={"noise": noise, "roofs": roofs}))
        self._note_phase("noise and roofs", perf_counter() - start)
        return ""

    def measure(self, advance: Advance, seconds: float | None = None) -> None:
        """Measure the workloads that the folder does not hold yet.

        Args:
            advance: told of each cell.
            seconds: in which to end, the report included; what would not fit is left out, and named in ``run.json``.
        """
        checks = self.folder.checks()
        known: dict[tuple[str, ...], tuple[str, ...]] = {}

        def blocked(name: str, workload: Workload) -> tuple[str, ...]:
            question = (name, workload.dtype, workload.mask, workload.mode, workload.device)
            if question not in known:
                known[question] = reasons_against_timing(checks, name, workload)
            return known[question]

        settings = Settings(
            cell_seconds=self.info.cell_seconds,
            max_rounds=self.info.max_rounds,
            resolution=self.info.resolution,
            seed=self.info.seed,
            baseline=self.info.baseline,
        )
        plugins = [plugin_of(plugin) for plugin in self.info.plugins]
        left_s = None if seconds is None else max(0.0, seconds - REPORT_S)
        run_sweep(self.folder, self.info.workloads, self.registered, plugins, settings, blocked, advance, left_s)

    def _note_phase(self, name: str, seconds: float) -> None:
        """Add to a phase's wall seconds in run.json."""
        info = self.folder.info()
        phases = {**info.phases_s, name: round(info.phases_s.get(name, 0.0) + seconds, 3)}
        self.folder.write_info(info.model_copy(update={"phases_s": phases}))


def begin(request: Request, folder: Path, now: datetime) -> Bench:
    """Start a new run: choose, describe, and write ``run.json``.

    Raises:
        UserError: an implementation or the baseline is unknown, an implementation declares what no probe asks, or the
            folder holds a run already.
    """
    registry = load_with_plugins(request.plugins)
    registered = select(registry, request.names)
    chosen = [each.implementation.name for each in registered]
    if request.baseline not in registry:
        raise UserError(
            f"no implementation named {request.baseline!r} for --baseline; registered: {', '.join(registry)}"
        )
    if request.baseline not in chosen:
        registered = [*registered, registry[request.baseline]]
    if (folder / "run.json").exists():
        raise UserError(f"{folder} holds a run already; continue it with --resume {folder}, or name another --output")
    workloads = request.preset.workloads()
    devices = sorted({workload.device for workload in workloads})
    if len(devices) > 1:
        raise UserError(f"preset {request.preset_name}: a run measures one device, got {', '.join(devices)}; split it")
    refuse_unknown_probes(registered, workloads[0].device)
    max_rounds = request.max_rounds or request.preset.max_rounds
    _refuse_too_few_rounds(max_rounds, registered, workloads[0].device)
    info = RunInfo(
        format_version=FORMAT_VERSION,
        run_id=folder.name,
        created=now.isoformat(timespec="seconds"),
        command=request.command,
        preset=request.preset_name,
        baseline=request.baseline,
        resolution=request.resolution,
        seed=request.seed,
        cell_seconds=request.preset.cell_seconds,
        max_rounds=max_rounds,
        plugins=tuple(str(plugin.resolve()) for plugin in request.plugins),
        environment=describe_environment(),
        implementations=describe_all(registered, workloads[0].device),
        workloads=workloads,
    )
    run = RunFolder(folder)
    run.create(info)
    return Bench(run, info, tuple(registered))


def _refuse_too_few_rounds(max_rounds: int, registered: Sequence[Registered], device: str) -> None:
    timed = sum(device not in each.implementation.verify_only for each in registered)
    needed = rounds_needed(looks=1, pairs=comb(timed, 2))
    if max_rounds < needed:
        raise UserError(
            f"{max_rounds} rounds can tell nothing about {timed} implementations: an interval at the level that their "
            f"pairs need takes {needed}; raise max_rounds, or name fewer implementations"
        )


def resume(folder: Path) -> Bench:
    """Go on with an interrupted run, with the implementations and workloads that it began with.

    Raises:
        UserError: no run there, another machine, or an implementation is gone or was edited since.
    """
    run = RunFolder(folder)
    info = run.info()
    here = describe_environment().machine_id
    if info.environment.machine_id != here:
        raise UserError(
            f"{folder} was measured on machine {info.environment.machine_id} ({info.environment.processor}), this is "
            f"{here}: times of two machines do not mix; start a new run"
        )
    run.repair()
    registry = load_with_plugins([plugin_of(plugin) for plugin in info.plugins])
    registered = tuple(select(registry, _names(info)))
    now = {each.name: each.source_hash for each in describe_all(registered, info.workloads[0].device)}
    edited = [each.origin for each in info.implementations if each.source_hash not in ("", now[each.name])]
    if edited:
        raise UserError(
            f"{', '.join(edited)} was edited since {folder} began: what it verified is gone; start a new run"
        )
    return Bench(run, info, registered)


def _names(info: RunInfo) -> Sequence[str]:
    return [described.name for described in info.implementations]
