"""The harness's samples in pytest-benchmark's own tables, JSON and comparison, by its own command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def pytest_benchmark(tmp_path: Path, tiny_preset):
    """``pytest_benchmark(*options)`` runs the benchmarks on a tiny preset and gives exit code and output."""
    tiny_preset(tmp_path, cell_seconds=30.0, max_rounds=12)

    def run(*options: object) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", str(CHECKOUT / "tests" / "benchmarks"), "-p", "no:xdist", "-q"]
        given = ["--rootdir", str(CHECKOUT), "-c", str(CHECKOUT / "pyproject.toml"), *map(str, options)]
        # A worker of pytest-xdist says so in the environment, and pytest-benchmark then switches itself off.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")}
        done = subprocess.run(
            [*command, *given],
            capture_output=True,
            text=True,
            timeout=200,
            cwd=tmp_path,
            env=environment,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_its_tables_groups_and_json_show_the_samples_that_were_taken_side_by_side(pytest_benchmark, tmp_path) -> None:
    code, out = pytest_benchmark("--benchmark-only", "--mha-preset", tmp_path / "tiny.toml", "--benchmark-json=b.json")
    assert code == 0, out
    assert "benchmark 'tiny b1-s16-d16-h2-causal-float32-inference-cpu-t1': 5 tests" in out
    benchmarks = json.loads((tmp_path / "b.json").read_text())["benchmarks"]
    assert len(benchmarks) == 2 * 5
    for each in benchmarks:
        assert each["stats"]["rounds"] == 12
        assert 0 < each["stats"]["min"] <= each["stats"]["median"] < 1.0
        assert each["extra_info"]["peak_bytes"] > 0
    assert len({tuple(each["stats"]["data"]) for each in benchmarks}) == 10, "each has samples of its own"


def test_its_own_comparison_of_two_runs_works(pytest_benchmark, tmp_path) -> None:
    common = ("--benchmark-only", "--mha-preset", tmp_path / "tiny.toml", "--benchmark-storage", tmp_path / "store")
    code, out = pytest_benchmark(*common, "--benchmark-save", "first")
    assert code == 0, out
    code, out = pytest_benchmark(*common, "--benchmark-compare")
    assert code == 0, out
    assert "(0001_first)" in out


def test_without_asking_for_benchmarks_none_runs(pytest_benchmark, tmp_path) -> None:
    code, out = pytest_benchmark("--mha-preset", tmp_path / "tiny.toml", "-rs")
    assert code == 0, out
    assert "runs with --benchmark-only" in out
    assert "passed" not in out


def test_a_preset_that_is_not_there_is_one_line(pytest_benchmark) -> None:
    code, out = pytest_benchmark("--benchmark-only", "--mha-preset", "quik")
    assert code == 2
    assert "no preset named 'quik'; there are default, full, llms-from-scratch, models, quick" in out
    assert "Traceback" not in out
