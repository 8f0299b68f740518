"""A stopwatch without time, tiny workloads, and implementations as a user's own files."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.measurement.cell import Settings
from harness.measurement.stopwatch import Block
from harness.records import Environment, RunFolder, RunInfo, Workload


@dataclass
class FakeStopwatch:
    """Takes a call's return value for its seconds, makes it noisy, and lets only that time pass."""

    noise: float = 0.03
    seed: int = 0
    time_s: float = 0.0
    order: list = field(default_factory=list)

    def __post_init__(self):
        self.random = random.Random(self.seed)

    def now(self):
        return self.time_s

    def block(self, call, repeats):
        seconds = call() * self.random.lognormvariate(0.0, self.noise)
        self.order.append(call)
        self.time_s += seconds * repeats
        return Block(seconds, 2 * seconds, 0)


@pytest.fixture
def make_stopwatch():
    return FakeStopwatch


@pytest.fixture
def workload():
    return Workload(
        label="tiny", batch_size=2, seq_len=9, d_model=16, num_heads=2, dtype="float32", mask="causal", mode="inference"
    )


@pytest.fixture
def settings():
    return Settings(cell_seconds=0.2, max_rounds=12, grace_seconds=20.0)


PLUGIN = """
import os, signal, time
import torch
from implementations.spec import Implementation

def scores(q, k, mask, is_causal):
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.zeros(q.shape[-2], k.shape[-2], dtype=torch.bool) if mask is None else mask
    if is_causal:
        hidden = hidden | torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return logits, hidden

calls = 0

def attend(q, k, v, mask, *, is_causal):
    global calls
    calls += 1
    logits, hidden = scores(q, k, mask, is_causal)
    {fault}
    return logits.masked_fill(hidden, -1e9).softmax(-1) @ v

IMPLEMENTATION = Implementation(name={name!r}, summary="a test's", source="a test", attend=attend)
"""


@pytest.fixture
def write_plugin(tmp_path):
    """``write_plugin(name, fault)`` writes an implementation with a line of the test's own, and returns its path."""

    def write(name: str, fault: str = "pass") -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(PLUGIN.format(name=name, fault=fault))
        return path

    return write


@pytest.fixture
def make_folder(tmp_path):
    """``make_folder(workloads)`` creates an empty run."""

    def make(workloads) -> RunFolder:
        folder = RunFolder(tmp_path / "run")
        folder.create(
            RunInfo(
                format_version=1,
                run_id="a-test",
                created="2026-08-01T10:15:00+00:00",
                command="mha bench",
                preset="test",
                baseline="sdpa",
                resolution=0.02,
                seed=0,
                environment=Environment(
                    machine_id="0",
                    processor="",
                    cores=1,
                    memory_bytes=1,
                    system="",
                    python="",
                    packages={},
                    torch_config={},
                ),
                implementations=(),
                workloads=tuple(workloads),
            )
        )
        return folder

    return make
