"""Stopwatches: how the time of a block of equal calls is taken, on the CPU and on CUDA."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Block:
    """What a block of calls took."""

    wall_s: float
    """Of one call: the block's time divided by its calls."""
    cpu_s: float
    """CPU time of one call."""
    involuntary_switches: int
    """Of the whole block."""


class Stopwatch(Protocol):
    """Times blocks of calls."""

    def block(self, call: Call, repeats: int) -> Block:
        """Run a call a number of times, and say what one took."""
        ...

    def now(self) -> float:
        """Seconds since some moment: what counts against a time budget."""
        ...


@dataclass(frozen=True)
class Clocks:
    """Where a CPU stopwatch reads its figures."""

    wall: Callable[[], float]
    cpu: Callable[[], float]
    switches: Callable[[], int]


def clocks_for(threads: int) -> Clocks:
    """At one thread the thread's own CPU time and switches; above, the process's, for the workers are its threads.

    At one thread, CPU time is a second clock that other processes hardly disturb.
    """
    cpu = time.thread_time if threads == 1 else time.process_time
    return Clocks(wall=time.perf_counter, cpu=cpu, switches=_switches_of("RUSAGE_THREAD" if threads == 1 else ""))


def _switches_of(who: str) -> Callable[[], int]:
    """Count of involuntary context switches; always 0 on systems that do not count them."""
    if sys.platform == "win32":
        return lambda: 0
    import resource

    scope = getattr(resource, who, resource.RUSAGE_SELF)
    return lambda: resource.getrusage(scope).ru_nivcsw


class CpuStopwatch:
    """Times blocks by the wall clock, with the state restored before and the garbage collector off during each."""

    def __init__(self, clocks: Clocks, restore: Callable[[], None]) -> None:
        self._clocks = clocks
        self._restore = restore
        self.now = clocks.wall

    def block(self, call: Call, repeats: int) -> Block:
        """Run a call a number of times, and say what one took."""
        self._restore()
        clocks = self._clocks
        with _no_garbage_collection():
            switches, cpu, wall = clocks.switches(), clocks.cpu(), clocks.wall()
            for _ in range(repeats):
                call()
            wall, cpu, switches = clocks.wall() - wall, clocks.cpu() - cpu, clocks.switches() - switches
        return Block(wall / repeats, cpu / repeats, switches)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CudaStopwatch:
    """Times the device's work by events, each call with a cold L2 cache, queued while the device is kept busy.

    The calls of a block are queued behind a sleep of the device, so that what is measured is the device's work
    and not Python's launching of it. The flush between two calls lies outside the events.
    """

    SLEEP_CYCLES = 20_000_000
    """About 10 ms: time for the host to queue some hundred kernels."""

    def __init__(self, device: torch.device, restore: Callable[[], None]) -> None:
        self._device = device
        self._restore = restore
        self._clocks = clocks_for(threads=2)
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = torch.empty(4 * l2_bytes, dtype=torch.int8, device=device)
        self.now = time.perf_counter

    def block(self, call: Call, repeats: int) -> Block:
        """Run a call a number of times, and say what one took on the device; CPU time is the host's."""
        self._restore()
        starts, ends = ([_event() for _ in range(repeats)] for _ in range(2))
        clocks = self._clocks
        torch.cuda.synchronize(self._device)
        with _no_garbage_collection():
            switches, cpu = clocks.switches(), clocks.cpu()
            _keep_device_busy(self.SLEEP_CYCLES)
            for start, end in zip(starts, ends, strict=True):
                self._flush.zero_()
                start.record()
                call()
                end.record()
            torch.cuda.synchronize(self._device)
            cpu, switches = clocks.cpu() - cpu, clocks.switches() - switches
        total_ms = sum(start.elapsed_time(end) for start, end in zip(starts, ends, strict=True))
        return Block(total_ms / 1e3 / repeats, cpu / repeats, switches)


def sm_clock_mhz(device: str) -> int | None:
    """Clock of the multiprocessors right now: a device that is hot or short of power runs slower than it could.

    None for other devices, and where the driver's library for Python (nvidia-ml-py) is not installed or not answered.
    """
    if device != "cuda":
        return None
    try:
        return int(torch.cuda.clock_rate())
    except (ImportError, RuntimeError):
        return None


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _keep_device_busy(cycles: int) -> None:
    # torch offers no public way to do that, and leaves this one untyped.
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # noqa: SLF001
