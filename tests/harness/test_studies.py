"""The studies in `tests/benchmarks` start: they are run by hand, and what they import changes without them."""

import subprocess
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[1] / "benchmarks"
NAMES = (
    "choose_agrees",
    "false_verdicts",
    "gate",
    "memory_to_the_byte",
    "power",
    "repeatability",
    "scale",
    "selftest_seeds",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_study_starts_and_says_what_it_does(name: str) -> None:
    command = [sys.executable, STUDIES / f"{name}.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
    assert "Print" in done.stdout or "print" in done.stdout
    assert f"python tests/benchmarks/{name}.py" in (STUDIES / f"{name}.py").read_text()


def test_every_study_is_named_in_the_guide() -> None:
    guide = (STUDIES.parents[1] / "CONTRIBUTING.md").read_text()
    assert [name for name in NAMES if f"tests/benchmarks/{name}.py" not in guide] == []
