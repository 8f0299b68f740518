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
