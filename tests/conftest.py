"""What several test files use, and what every test process is set to before anything is imported."""

import os
import sys
from pathlib import Path

import pytest

# Tables are as wide as without a terminal, whatever runs the tests.
os.environ.pop("COLUMNS", None)
# A test that compiles imports Triton for a GPU, and the interpreted kernel could not run in that process any more.
os.environ.setdefault("TRITON_INTERPRET", "1")
# Tests write a plugin anew within the second that bytecode tells versions apart by.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = True

EINSUM = Path(__file__).parent.parent / "implementations" / "einsum.py"


TINY = """
title = "tiny"
cell_seconds = {cell_seconds}
max_rounds = {max_rounds}
[[sweep]]
label = "tiny"
source = "made for a test"
batch_size = 1
seq_len = {seq_len}
d_model = 16
num_heads = 2
mask = "causal"
dtype = "float32"
mode = "inference"
threads = 1
"""


@pytest.fixture(scope="session")
def tiny_preset():
    """``tiny_preset(folder, seq_len=[8, 16], ...)`` writes a preset that takes a second, and gives its path."""

    def write(folder: Path, *, seq_len=(8, 16), cell_seconds=0.2, max_rounds=20) -> Path:
        path = folder / "tiny.toml"
        path.write_text(TINY.format(seq_len=list(seq_len), cell_seconds=cell_seconds, max_rounds=max_rounds))
        return path

    return write


@pytest.fixture(scope="session")
def right_source() -> str:
    """Plain code of a right implementation, as a user would write it."""
    return """
import torch.nn.functional as F

def attend(q, k, v, mask=None, *, is_causal=False):
    return F.scaled_dot_product_attention(q, k, v, None if mask is None else ~mask, is_causal=is_causal)
"""


@pytest.fixture
def plugin_file(tmp_path: Path):
    """Write a plugin: the einsum implementation under another name, with replacements in its source."""

    def write(name: str, **replacements: str) -> Path:
        source = EINSUM.read_text().replace('name="einsum"', f'name="{name}"')
        for old, new in replacements.values():
            assert old in source, f"{old!r} is not in einsum.py"
            source = source.replace(old, new)
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        return path

    return write
