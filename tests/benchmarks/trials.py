"""What the studies of noise share: calls that are equal or a known share slower, a busy neighbour, and one comparison.

The slower one is slower by more of the same work: it makes n + 1 calls where the other makes n. So its ratio is known
beforehand, on every machine and beside every neighbour, without any calibration that noise could spoil.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from harness.measurement.calls import timed_call
from harness.measurement.cell import case_of
from harness.measurement.state import RuntimeState
from harness.measurement.stopwatch import CpuStopwatch, clocks_for
from harness.measurement.timing import Plan, measure
from harness.records import Workload
from harness.registry import load_registry
from harness.statistics import Comparison, compare
from harness.subject import prepare
from harness.verification.inputs import make_inputs

MAX_ROUNDS = 1280
Call = Callable[[], object]
Scope = Literal["module", "attention"]


def workload(threads: int, seq_len: int = 128, d_model: int = 512, scope: Scope = "module") -> Workload:
    """Causal inference in float32; at the default size a call takes a few milliseconds."""
    return Workload(
        label="noise",
        batch_size=1,
        seq_len=seq_len,
        d_model=d_model,
        num_heads=8,
        dtype="float32",
        mask="causal",
        mode="inference",
        scope=scope,
        threads=threads,
    )


def attention(given: Workload) -> Call:
    """A call of its own, with modules and inputs of its own; ran once."""
    torch.set_num_threads(given.threads)
    inputs = make_inputs(case_of(given))
    call = timed_call(prepare(load_registry()["sdpa"].implementation, inputs.case, inputs.weights), inputs, given)
    call()
    return call


def attention_of(file: Path, given: Workload) -> Call:
    """The same of a plugin's one implementation, the only one in its file."""
    torch.set_num_threads(given.threads)
    inputs = make_inputs(case_of(given))
    call = timed_call(
        prepare(load_registry([file])[file.stem].implementation, inputs.case, inputs.weights), inputs, given
    )
    call()
    return call


def repeated(call: Call, times: int) -> Call:
    """So many calls as one."""

    def calls() -> None:
        for _ in range(times):
            call()

    return calls


def compared(one: Call, other: Call, *, seconds: float, resolution: float, threads: int, seed: int) -> Comparison:
    """The verdict on one against the other, by the protocol of a sweep."""
    state = RuntimeState.capture()
    stopwatch = CpuStopwatch(clocks_for(threads), state.restore)
    timing = measure({"one": one, "other": other}, Plan(seconds, MAX_ROUNDS, resolution, seed), stopwatch)
    return compare(
        timing.samples["one"],
        timing.samples["other"],
        looks=timing.looks,
        pairs=timing.pairs,
        resolution=resolution,
    )


@contextmanager
def neighbour(*, busy: bool) -> Iterator[None]:
    """A process that keeps one core busy, or none."""
    if not busy:
        yield
        return
    hog = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    hog.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        hog.terminate()
        hog.join()


def _spin() -> None:
    while True:
        pass
