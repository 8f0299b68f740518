"""Result files that somebody else made, cut short or wrote by hand: a report, or one clear line and nothing written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reports
from harness.errors import UserError
from harness.records import RunFolder
from reports import overview_plots, plots
from reports.choice import choose
from reports.comparison import compare_runs
from reports.history import history

FILES = ("run.json", "checks.jsonl", "semantics.jsonl", "measurements.jsonl")
SPELLS = (
    *("", "nan", "../../etc/passwd", "<script>alert(1)</script>", "a\x00b", "\x1b[31m", "\ud800", "|\n|`", "注意力"),
    *(None, True, -1, 0, 10**30, 1e308, -1e308, float("nan"), float("inf"), [], {}, [[]], {"a": {"b": []}}),
)
"""What nobody expects in a field."""
FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, small_run: Path) -> Path:
    """A small run of one workload, with all four files."""
    folder = shutil.copytree(small_run, tmp_path_factory.mktemp("sound") / "run")
    answer = '{"implementation":"sdpa","probe":"nan","question":"?","answer":"0","device":"cpu","status":"undeclared"}'
    (folder / "semantics.jsonl").write_text(answer + "\n")
    return folder


def places(value: object, path: tuple = ()) -> list[tuple]:
    """Paths to everything in a JSON value."""
    found = [path]
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        found += places(inner, (*path, key))
    return found


@st.composite
def damage(draw: st.DrawFn) -> tuple:
    """What is done to which file."""
    how = draw(st.sampled_from(("value", "value", "value", "gone", "bytes", "cut", "twice")))
    return how, draw(st.sampled_from(FILES)), draw(st.integers(0, 10**6)), draw(st.sampled_from(SPELLS))


def damaged(folder: Path, how: str, name: str, number: int, spell: object) -> None:
    """Damage one file of a run."""
    path = folder / name
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[: number % len(content)])
    elif how == "bytes":
        at = number % len(content)
        path.write_bytes(content[:at] + bytes([number % 256]) + content[at + 1 :])
    elif how == "twice":
        path.write_bytes(content + content)
    else:
        lines = [content.decode()] if name == "run.json" else content.decode().splitlines()
        values = [json.loads(line) for line in lines]
        at = number % len(values)
        where = places(values[at])[1:]
        *parents, last = where[number // 7 % len(where)]
        inner = values[at]
        for key in parents:
            inner = inner[key]
        if how == "gone":
            del inner[last]
        else:
            inner[last] = spell
        path.write_text("".join(f"{json.dumps(value)}\n" for value in values))


def refusal(read: Callable[[], object]) -> str:
    """Why a reader refuses what it is given; empty if it takes it."""
    try:
        read()
    except UserError as error:
        return str(error)
    return ""


@FUZZ
@given(damage())
def test_every_reader_takes_damaged_files_or_says_why_not_in_a_line(tmp_path, sound, monkeypatch, what) -> None:
    # Drawing takes a second; it has its own test below.
    style = plots.styles(["sdpa", "einsum", *(spell for spell in SPELLS if isinstance(spell, str))])
    monkeypatch.setattr(plots, "draw", lambda *_: plots.Plots((), 0, style))
    monkeypatch.setattr(overview_plots, "added", lambda drawn, *_: drawn)
    folder, out = tmp_path / "run", tmp_path / "out"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(sound, folder)
    damaged(folder, *what)
    why = refusal(lambda: reports.render(folder, out))
    assert bool(why) != out.exists(), "a report that is refused is not half written"
    others = (
        lambda: compare_runs(sound, folder, 0.02, across_machines=True),
        lambda: compare_runs(folder, sound, 0.02, across_machines=True),
        lambda: history(folder, 0.05),
        lambda: choose(folder),
    )
    assert [line for line in (why, *map(refusal, others)) if "\n" in line] == []


@settings(FUZZ, max_examples=12)
@given(damage())
def test_figures_of_damaged_files_are_drawn_or_refused(tmp_path, sound, what) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(sound, folder)
    how, _, number, spell = what
    damaged(folder, how, "measurements.jsonl", number, spell)
    why = refusal(lambda: reports.render(folder, out))
    assert "\n" not in why
    assert bool(why) != out.exists()


def test_a_refused_run_leaves_nothing_behind(sound, tmp_path) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(sound, folder)
    (folder / "measurements.jsonl").write_text('{"implementation": 3}\n')
    with pytest.raises(UserError, match=r"measurements\.jsonl:1: "):
        reports.render(folder, out)
    assert not out.exists()
    assert RunFolder(folder).info()
