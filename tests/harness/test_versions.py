"""Two versions of a file side by side: each has its own files, both are verified, and every process has to agree."""

import json
from pathlib import Path

import pytest

from harness.cli import run
from harness.errors import UserError
from harness.registry import Version, load_registry, plugin_of
from harness.versions import Pair, pair_up

MORE_WORK = "    for _ in range(3):\n        (q @ k.transpose(-1, -2)).softmax(-1) @ v\n"
SHAPE = ("--batch-size", "1", "--seq-len", "32", "--d-model", "32", "--num-heads", "2")
QUICK = (*SHAPE, "--seconds", "0.3", "--max-rounds", "80", "--threads", "1", "--scope", "attention")


@pytest.fixture
def right(right_source) -> str:
    return right_source


@pytest.fixture
def slower(right: str) -> str:
    return right.replace("    return", f"{MORE_WORK}    return")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """``files(old, new)`` writes two versions of mine.py and gives their paths."""
    monkeypatch.chdir(tmp_path)

    def make(old: str, new: str) -> tuple[Path, Path]:
        paths = []
        for folder, source in (("before", old), ("after", new)):
            Path(folder).mkdir()
            paths.append(Path(folder) / "mine.py")
            paths[-1].write_text(source)
        return tuple(paths)

    return make


def test_each_version_has_the_files_beside_it_to_itself(files, right):
    old, new = files("from helper import VALUE\n" + right, "from helper import VALUE\n" + right)
    for path, value in ((old, 1), (new, 2)):
        (path.parent / "helper.py").write_text(f"VALUE = {value}\n")
    registry = load_registry([Version(old, "old"), Version(new, "new")])
    values = {
        name: each.implementation.attend.__globals__["VALUE"]
        for name, each in registry.items()
        if each.plugin is not None
    }
    assert values == {"mine(old)": 1, "mine(new)": 2}


def test_a_version_may_have_the_name_of_what_is_built_in(files, right):
    old, new = (path.rename(path.with_name("sdpa.py")) for path in files(right, right))
    assert {"sdpa", "sdpa(old)", "sdpa(new)"} <= set(load_registry([Version(old, "old"), Version(new, "new")]))


@pytest.mark.parametrize(
    ("text", "plugin"),
    [
        ("mine.py", Path("mine.py")),
        ("old=mine.py", Version(Path("mine.py"), "old")),
        ("a b=mine.py", Path("a b=mine.py")),
        ("=mine.py", Path("=mine.py")),
    ],
)
def test_a_label_stands_before_the_file(text, plugin):
    assert plugin_of(text) == plugin
    assert str(plugin) == text


def test_a_file_that_really_has_such_a_name_needs_no_label(tmp_path, monkeypatch, right):
    monkeypatch.chdir(tmp_path)
    Path("old=mine.py").write_text(right)
    assert plugin_of("old=mine.py") == Path("old=mine.py")


def test_one_implementation_in_each_file_is_the_same_one_whatever_it_is_called(files, right):
    old, new = files(right, right)
    new = new.rename(new.with_name("faster.py"))
    registry = load_registry([Version(old, "old"), Version(new, "new")])
    assert pair_up(registry, ()) == (Pair("faster", "mine(old)", "faster(new)"),)
    with pytest.raises(UserError, match=r"there is no 'mine' in the new file; old: mine; new: faster"):
        pair_up(registry, ["mine"])


def compared(files, old: str, new: str, *more: str) -> tuple[int, dict]:
    before, after = files(old, new)
    code = run(["compare", "--old", str(before), "--new", str(after), *QUICK, *more, "--json", "change.json"])
    return code, json.loads(Path("change.json").read_text())


def test_a_new_version_that_does_more_work_regressed_in_every_process(files, right, slower):
    code, found = compared(files, right, slower)
    assert code == 1
    (time,) = found["times"]
    assert time["change"] == "regressed"
    assert len(time["processes"]) == 3
    assert all(ratio > 1.5 for ratio in time["processes"])
    assert found["base"].endswith("before/mine.py")
    assert found["head"].endswith("after/mine.py")


def test_a_new_version_that_does_less_work_improved(files, right, slower):
    code, found = compared(files, slower, right)
    assert (code, [each["change"] for each in found["times"]]) == (0, ["improved"])


def test_a_new_version_that_is_wrong_fails_though_it_is_not_timed(files, capfd, right):
    code, found = compared(files, right, right.replace("return F.scaled", "return 1.01 * F.scaled"))
    assert code == 1
    assert found["times"] == []
    assert any("matches_the_oracle" in line for line in found["regressions"])
    assert any(change["what"] == "status" and change["after"] == "unverified" for change in found["figures"])
    err = capfd.readouterr().err
    again = next(line for line in err.splitlines() if "matches_the_oracle failed" in line)
    assert "mha verify 'mine(new)' --check matches_the_oracle" in again
    assert "--plugin new=" in again


def test_the_runs_are_kept_and_can_be_read_as_any_other(files, right):
    code, _ = compared(files, right, right, "--threshold", "90%", "--output", "kept")
    assert code == 0
    for number in (1, 2, 3):
        assert run(["report", f"kept/process-{number}"]) == 0
