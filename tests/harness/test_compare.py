"""`mha compare` on real runs, tiny ones: exit codes, files, and one line for whatever does not fit."""

import json
from pathlib import Path

import pytest

from harness.cli import run


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory, tiny_preset) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("runs")
    preset = tiny_preset(root, cell_seconds=0.3)
    paths = (str(root / "one"), str(root / "other"))
    for path in paths:
        assert run(["bench", "sdpa", "document", "--preset", str(preset), "--output", path]) == 0
    return paths


def test_two_runs_of_the_same_code_compare_and_every_file_is_written(two_runs, tmp_path, capfd) -> None:
    files = {name: tmp_path / f"change.{name}" for name in ("md", "json", "xml", "action.json")}
    options = [
        "--markdown",
        files["md"],
        "--json",
        files["json"],
        "--junit",
        files["xml"],
        "--action",
        files["action.json"],
    ]
    # A tiny call's ratio differs from process to process by more than any real regression: only a huge one would fail.
    assert run(["compare", *two_runs, "--threshold", "90%", *map(str, options)]) == 0
    out = capfd.readouterr().out
    assert out.startswith("No regression beyond 90.0%; times: ")
    assert "no check failed that did not before" in out
    assert files["md"].read_text().startswith("**No regression")
    content = json.loads(files["json"].read_text())
    assert content["regressions"] == []
    assert [each["implementation"] for each in content["times"]] == ["document", "document"]
    assert content["figures"] == [], "peak memory, operations and kernels are equal to the byte"
    assert "<testsuite" in files["xml"].read_text()
    assert len(json.loads(files["action.json"].read_text())) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere", "nowhere"), "nowhere is not a run folder"),
        (("nowhere",), "give two runs, BASE and HEAD, or two files by --old and --new"),
        (("--old", "a.py"), "--old and --new go together"),
        (("a", "b", "--old", "a.py", "--new", "b.py"), "give two runs, or --old and --new: not both"),
        (("a", "b", "--like", "gpt2"), "--like says what to measure, and runs are measured already"),
        (("a", "b", "--pass", "training"), "--pass says what to measure"),
        (("--old", "a.py", "--new", "b.py"), "plugin a.py: no such file"),
        (("--old", "a.py", "--new", "b.py", "--processes", "2"), "2 is not in the range x>=3"),
        (("--old", "a.py", "--new", "b.py", "--preset", "quick", "--like", "gpt2"), "not both"),
        (("a", "b", "--threshold", "fast"), "'fast' is not a share such as 2% or 0.02"),
    ],
)
def test_what_does_not_fit_is_one_line(arguments, words, capfd, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["compare", *arguments]) == 2
    err = capfd.readouterr().err
    assert words in err
    assert err.count("\n") == 1
