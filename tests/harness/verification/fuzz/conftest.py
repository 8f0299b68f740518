"""Implementations that are wrong in rare cases only, or that break the process."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.registry import Registered, load_registry, select

PLUGIN = """
import ctypes, itertools, time
from implementations import einsum
from implementations.spec import Implementation

calls = itertools.count()

def rare(q, k, v, mask, *, is_causal):
    y = einsum.attend(q, k, v, mask, is_causal=is_causal)
    expanded = mask is not None and any(s == 0 and n > 1 for s, n in zip(mask.stride(), mask.shape))
    return 1.5 * y if q.shape[-2] % 2 and q.shape[1] == 3 and expanded else y

def crashes(q, k, v, mask, *, is_causal):
    if q.shape[-1] == 5:
        ctypes.string_at(0)
    return einsum.attend(q, k, v, mask, is_causal=is_causal)

def hangs(q, k, v, mask, *, is_causal):
    while q.shape[0] == 4:
        time.sleep(0.1)
    return einsum.attend(q, k, v, mask, is_causal=is_causal)

def raises(q, k, v, mask, *, is_causal):
    if mask is not None and mask.dim() == 3:
        raise IndexError("three dimensions are one too few")
    return einsum.attend(q, k, v, mask, is_causal=is_causal)

def wrong_after_some_calls(q, k, v, mask, *, is_causal):
    y = einsum.attend(q, k, v, mask, is_causal=is_causal)
    return y + 1.0 if 4 <= next(calls) < 20 else y

IMPLEMENTATIONS = tuple(
    Implementation(attend.__name__, summary="wrong", source="this test", attend=attend)
    for attend in (rare, crashes, hangs, raises, wrong_after_some_calls)
)
"""


@pytest.fixture
def wrong_ones(tmp_path: Path):
    """Registered wrong implementations by name; in another folder than the database."""
    path = tmp_path / "plugin" / "wrong_ones.py"
    path.parent.mkdir()
    path.write_text(PLUGIN)

    def chosen(*names: str) -> Sequence[Registered]:
        return select(load_registry([path]), names)

    return chosen
