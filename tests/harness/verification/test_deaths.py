"""Whatever a plugin does to its process is one record; all other checks finish."""

from collections import Counter
from pathlib import Path

import pytest

from harness.records import CheckRecord
from harness.registry import load_registry, select
from harness.verification import verify as verifying
from harness.verification.suite import Selection
from harness.verification.verify import verify

PLUGIN = """
import ctypes, os, signal, sys
import torch
from implementations.einsum import attend
from implementations.spec import Implementation

def loop():
    while True:
        pass

def hold_memory():
    return [torch.empty(2**28).fill_(1.0) for _ in range(30)]

DEEDS = {
    "segfault": lambda: ctypes.string_at(0),
    "sigfpe": lambda: os.kill(os.getpid(), signal.SIGFPE),
    "exit": lambda: os._exit(3),
    "sys_exit": lambda: sys.exit(4),
    "loop": loop,
    "one_allocation": lambda: torch.empty(30 * 2**28).fill_(1.0),
    "many_allocations": hold_memory,
}

def when_short(deed, *, always=False):
    def attend_or_worse(q, k, v, mask, *, is_causal):
        if always or q.shape[0] == 1 and q.shape[2] == 1:
            deed()
        return attend(q, k, v, mask, is_causal=is_causal)
    return attend_or_worse

IMPLEMENTATIONS = (
    *(Implementation(name=n, summary=n, source="here", attend=when_short(d)) for n, d in DEEDS.items()),
    Implementation(name="always_loops", summary="", source="here", attend=when_short(loop, always=True)),
)
"""
WORDS = {
    "segfault": ("crashed", "killed by SIGSEGV (in <lambda>, "),
    "sigfpe": ("crashed", "killed by SIGFPE (in <lambda>, "),
    "exit": ("crashed", "the process exited with status 3"),
    "sys_exit": ("crashed", "SystemExit: 4"),
    "loop": ("timeout", "no result within 2 s (in loop, "),
    "one_allocation": ("failed", "can't allocate memory"),
    "many_allocations": ("failed", "can't allocate memory"),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Verify implementations of the plugin with little memory, and give their records."""
    monkeypatch.setattr("harness.children.free_memory_bytes", lambda: 2**31)
    path = tmp_path / "deadly.py"
    path.write_text(PLUGIN)

    def run(names, **selected) -> list[CheckRecord]:
        chosen = select(load_registry([path]), names)
        return list(verify(chosen, Selection(dtypes=("float32",), **selected), timeout_s=2.0))

    return run


def test_each_death_is_one_record_and_everything_else_finishes(run) -> None:
    cases = tuple(f"b{b}-s1-d{d}-h2-none-float32-inference-cpu" for b, d in ((1, 16), (3, 24)))
    records = run(WORDS, checks=("matches_the_oracle",), cases=cases)
    bad = {record.implementation: record for record in records if record.case == cases[0]}
    assert len(records) == 2 * len(WORDS)
    assert all(record.status == "passed" for record in records if record.case != cases[0])
    for name, (status, words) in WORDS.items():
        assert bad[name].status == status, bad[name]
        assert words in bad[name].reasons[0]
        assert "\n" not in bad[name].reasons[0]


def test_after_some_time_outs_in_a_row_the_rest_is_not_tried(run, monkeypatch) -> None:
    monkeypatch.setattr(verifying, "TIMEOUTS_IN_A_ROW", 2)
    records = run(["always_loops"], checks=("matches_the_oracle",))
    assert len(records) > 5
    assert {record.status for record in records} == {"timeout"}
    tried = Counter(record.reasons[0].startswith("not tried: the 2 checks before it") for record in records)
    assert tried[False] == 2
