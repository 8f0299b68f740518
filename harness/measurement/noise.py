"""How fine a difference this machine can see right now: one implementation, held against itself.

Each trial makes two modules of one implementation, with equal weights, and times them as a sweep times different ones:
the same rounds, the same level, the same verdicts. Whatever comes out is noise, the layout of memory included. Half of
an interval's width is the difference that it resolves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.measurement.calls import timed_call
from harness.measurement.cell import case_of
from harness.measurement.limits import usable_cores
from harness.measurement.state import RuntimeState
from harness.measurement.stopwatch import CpuStopwatch, clocks_for
from harness.measurement.timing import Plan, measure
from harness.records import Noise, NoiseTrial, Workload
from harness.registry import load_registry
from harness.statistics import compare
from harness.subject import prepare
from harness.verification.inputs import make_inputs

IMPLEMENTATION = "sdpa"
"""Held against itself: everybody has it."""
MAX_ROUNDS = 1280
_ONE, _OTHER = "one", "the other"


@dataclass(frozen=True)
class NoiseTask:
    """What is asked; can be pickled."""

    trials: int
    seconds: float
    """Of timed rounds in each trial."""
    threads: int
    resolution: float
    """Half-width of the band of ratios called tied."""
    seed: int = 0


def noise_workload(threads: int) -> Workload:
    """The document's width at S 128, where a call takes a few milliseconds and noise weighs most."""
    return Workload(
        label="noise",
        batch_size=1,
        seq_len=128,
        d_model=512,
        num_heads=8,
        dtype="float32",
        mask="causal",
        mode="inference",
        threads=threads,
    )


def all_threads() -> int:
    """As many as there are cores to use."""
    return usable_cores()


def measure_noise(task: NoiseTask) -> Noise:
    """Run the trials in this process, whose thread count it changes."""
    torch.set_num_threads(task.threads)
    state = RuntimeState.capture()
    trials = tuple(_trial(task, number, state) for number in range(task.trials))
    return Noise(threads=task.threads, seconds=task.seconds, resolution=task.resolution, trials=trials)


def _trial(task: NoiseTask, number: int, state: RuntimeState) -> NoiseTrial:
    workload = noise_workload(task.threads)
    inputs = make_inputs(case_of(workload), task.seed)
    implementation = load_registry()[IMPLEMENTATION].implementation
    calls = {}
    for name in (_ONE, _OTHER):
        calls[name] = timed_call(prepare(implementation, inputs.case, inputs.weights), inputs, workload)
        calls[name]()
    plan = Plan(task.seconds, MAX_ROUNDS, task.resolution, task.seed + number)
    timing = measure(calls, plan, CpuStopwatch(clocks_for(task.threads), state.restore))
    held = compare(
        timing.samples[_ONE],
        timing.samples[_OTHER],
        looks=timing.looks,
        pairs=timing.pairs,
        resolution=task.resolution,
    )
    return NoiseTrial(verdict=held.verdict, low=held.low, high=held.high, rounds=held.rounds, timed_s=timing.timed_s)
