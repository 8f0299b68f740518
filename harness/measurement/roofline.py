"""What this machine does at most: the rate of a large matrix product, and of copying what fits no cache.

Both are taken as the best of several goes, for a roof is what was reached once. They hold for one dtype and thread
count, of this moment: a neighbour lowers them as it lowers everything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from harness.records import Roof
from harness.verification.inputs import DTYPES

SIZES = (256, 512, 1024, 2048)
"""Of the square matrices: a larger product comes nearer to the roof, where there is time for it."""
COPY_BYTES = 128 * 1024**2
"""More than the caches of most machines hold."""
SECONDS = 0.25
"""For each of the two, dtype and thread count; a little more where a single product takes longer."""
LEAST_GOES = 3


@dataclass(frozen=True)
class RoofTask:
    """What is asked; can be pickled."""

    dtypes: tuple[str, ...]
    threads: tuple[int, ...]


def measure_roofs(task: RoofTask) -> tuple[Roof, ...]:
    """Measure every dtype with every number of threads in this process, whose thread count it changes."""
    return tuple(_roof(dtype, threads) for threads in task.threads for dtype in task.dtypes)


def _roof(dtype: str, threads: int) -> Roof:
    torch.set_num_threads(threads)
    return Roof(dtype=dtype, threads=threads, flops_per_s=_product_rate(dtype), bytes_per_s=_copy_rate(dtype))


def _product_rate(dtype: str) -> float:
    """With the second matrix transposed, as nn.Linear has it: in 16 bits, torch's other products can be far slower."""
    rate, spent = 0.0, 0.0
    for size in SIZES:
        if rate and spent + LEAST_GOES * 2 * size**3 / rate > SECONDS:
            break
        one, other, into = (torch.randn(size, size).to(DTYPES[dtype]) for _ in range(3))
        fastest, took = _fastest(partial(torch.mm, one, other.T, out=into), SECONDS / len(SIZES))
        rate, spent = max(rate, 2 * size**3 / fastest), spent + took
    return rate


def _copy_rate(dtype: str) -> float:
    source = torch.zeros(COPY_BYTES // DTYPES[dtype].itemsize, dtype=DTYPES[dtype])
    into = torch.empty_like(source)
    fastest, _ = _fastest(lambda: into.copy_(source), SECONDS)
    return 2 * COPY_BYTES / fastest


def _fastest(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """The shortest time of a call, and what all of them took together."""
    call()
    fastest, begin, goes = float("inf"), time.perf_counter(), 0
    while goes < LEAST_GOES or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        call()
        fastest = min(fastest, time.perf_counter() - start)
        goes += 1
    return fastest, time.perf_counter() - begin
