"""What several test files use."""

from pathlib import Path

import pytest

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
