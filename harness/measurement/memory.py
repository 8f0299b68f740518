"""Exact peak memory of one call, and the attention operators that ran, from one profile; never in a timed run.

On the CPU torch's profiler records every allocation and release of torch's allocator together with the total after
it, so the peak of one call is exact and repeatable, where the resident size of the process is neither. Memory that
does not come from torch's allocator (numpy's) is not seen. On CUDA the allocator keeps the peak itself.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile

from harness.measurement.stopwatch import Call

_CHARACTERISTIC = re.compile(r"^\w+::\w*(attention|attn|_softmax|bmm)", re.IGNORECASE)
"""Registered operators by name; autograd's own nodes, which have other forms of names, only call those."""
_WRAPPERS = frozenset({"aten::scaled_dot_product_attention"})
"""Operators that only choose another one, which says more."""
_CPU = 0
"""torch's number of the CPU as a device type."""


@dataclass(frozen=True)
class Footprint:
    """What a profile of one call shows."""

    peak_bytes: int
    """Largest total allocated during the call, above the level before it."""
    left_bytes: int
    """Still allocated when the call returned: its output, and in training the gradients."""
    source: str
    """Where `peak_bytes` comes from."""
    kernels: tuple[str, ...]
    """Operators that tell which way attention was computed, in the order of their first run."""


def footprint(call: Call, device: str = "cpu") -> Footprint:
    """Profile one call.

    Args:
        call: warmed up, and holding nothing that it will release before its peak (such as old gradients).
        device: cpu or cuda.
    """
    if device == "cuda":
        peak, left = _cuda_peak_and_left_bytes(call)
        return Footprint(peak, left, "torch.cuda.max_memory_allocated", _profile(call).kernels())
    trace = _profile(call)
    return Footprint(trace.peak_bytes(), trace.left_bytes(), trace.source, trace.kernels())


def _cuda_peak_and_left_bytes(call: Call) -> tuple[int, int]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before


@dataclass(frozen=True)
class _Allocation:
    """One allocation, or with a negative size one release."""

    start: float
    size: int
    total: int
    """Bytes allocated in the process after it."""


@dataclass(frozen=True)
class _Trace:
    """What is needed of a profile, whichever way it was read."""

    allocations: tuple[_Allocation, ...]
    operators: tuple[str, ...]
    source: str

    def peak_bytes(self) -> int:
        return max([0, *(allocation.total - self._before for allocation in self.allocations)])

    def left_bytes(self) -> int:
        return self.allocations[-1].total - self._before if self.allocations else 0

    @property
    def _before(self) -> int:
        """The level before the call."""
        return self.allocations[0].total - self.allocations[0].size

    def kernels(self) -> tuple[str, ...]:
        characteristic = (name for name in self.operators if _CHARACTERISTIC.search(name))
        return tuple(dict.fromkeys(name for name in characteristic if name not in _WRAPPERS))


def _profile(call: Call) -> _Trace:
    # torch.profiler.profile, built on this one, imports torch's compiler as it starts: a second for each process.
    with profile(use_kineto=True, profile_memory=True) as profiler:
        call()
    try:
        return _from_event_tree(profiler)
    except (AttributeError, ImportError):  # the tree is torch's private interface: another version may lack it
        return _from_chrome_trace(profiler)


def _from_event_tree(profiler: profile) -> _Trace:
    from torch._C._profiler import _EventType

    results: Any = profiler.kineto_results
    events = sorted(_walk(results.experimental_event_tree()), key=attrgetter("start_time_ns"))
    allocations = (
        _Allocation(event.start_time_ns, event.extra_fields.alloc_size, event.extra_fields.total_allocated)
        for event in events
        if event.tag == _EventType.Allocation and event.extra_fields.device.type == "cpu"
    )
    operators = (event.name for event in events if event.tag == _EventType.TorchOp)
    return _Trace(tuple(allocations), tuple(operators), "torch profiler allocator events")


def _walk(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _walk(event.children)


def _from_chrome_trace(profiler: profile) -> _Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        events = json.loads(path.read_text())["traceEvents"]
    events = sorted((event for event in events if "ts" in event), key=lambda event: event["ts"])
    allocations = (
        _Allocation(event["ts"], event["args"]["Bytes"], event["args"]["Total Allocated"])
        for event in events
        if event["name"] == "[memory]" and event["args"]["Device Type"] == _CPU
    )
    operators = (event["name"] for event in events if event.get("cat") == "cpu_op")
    return _Trace(tuple(allocations), tuple(operators), "torch profiler trace")
