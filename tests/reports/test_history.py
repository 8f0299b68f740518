"""Steps in a history: what lasts is a step, what stands alone is noise, and what cannot be compared is not."""

import json
from pathlib import Path

import pytest

from harness.cli import run
from harness.records import RunFolder
from reports.history import Point, history, mark_steps


def points(*ratios: float) -> list[Point]:
    return [
        Point(f"run-{number}", f"2026-01-{number:02d}T00:00:00+00:00", "", ratio, ratio * 0.99, ratio * 1.01, None)
        for number, ratio in enumerate(ratios, start=1)
    ]


def steps(*ratios: float) -> list[tuple[str, str, bool]]:
    return [(each.run, each.step, each.is_confirmed) for each in mark_steps(points(*ratios), 0.05) if each.step]


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((1.0, 1.01, 0.99, 1.0), []),
        ((1.0, 1.0, 1.2, 1.2, 1.2), [("run-3", "slower", True)]),
        ((1.0, 1.0, 1.2, 1.0, 1.0), []),
        ((1.0, 1.0, 1.2), [("run-3", "slower", False)]),
        ((1.2, 1.2, 1.0, 1.0, 1.2, 1.2), [("run-3", "faster", True), ("run-5", "slower", True)]),
        ((1.0, 1.02, 1.04, 1.06, 1.08, 1.10, 1.12), [("run-7", "slower", False)]),
        ((1.0,), []),
    ],
)
def test_a_step_lasts_and_an_outlier_is_none(ratios, expected):
    assert steps(*ratios) == expected


def test_an_interval_that_reaches_the_threshold_is_no_step():
    wide = [*points(1.0, 1.0), Point("run-9", "2026-02-01T00:00:00+00:00", "", 1.2, 1.0, 1.4, None)]
    assert not [each for each in mark_steps(wide, 0.05) if each.step]


@pytest.fixture
def nightly(make_run, tmp_path):
    """``nightly(ratio, ...)`` builds a run for each night, in which einsum takes so much of the baseline's time."""

    def make(*ratios: float) -> Path:
        for number, ratio in enumerate(ratios, start=1):
            folder = make_run(
                f"nightly/{number:02d}",
                implementations=("sdpa", "einsum"),
                speed={"sdpa": 1.0, "einsum": ratio},
                seed=number,
                noise=0.002,
                rounds=160,
                lengths=(128,),
            )
            files = RunFolder(folder)
            created = f"2026-01-{number:02d}T03:00:00+00:00"
            files.write_info(files.info().model_copy(update={"created": created}))
        return tmp_path / "nightly"

    return make


def test_runs_of_a_folder_become_series_with_their_steps(nightly, tmp_path, capfd):
    folder = nightly(1.0, 1.0, 2.0, 2.0)
    found = history(folder, 0.05)
    assert found.runs == ("01", "02", "03", "04")
    (series,) = found.series
    assert [(each.run, each.step) for each in series.steps] == [("03", "slower")]
    files = tmp_path / "trend.json", tmp_path / "trend.svg"
    assert run(["history", str(folder), "--json", str(files[0]), "--plot", str(files[1])]) == 0
    out = capfd.readouterr().out
    assert "4 runs, 1 series: 1 with a step beyond 5.0%." in out
    assert "slower in 03" in out
    assert len(json.loads(files[0].read_text())["series"][0]["points"]) == 4
    assert "<svg" in files[1].read_text()


def test_another_machine_begins_a_new_series(nightly):
    folder = nightly(1.0, 1.0, 2.0, 2.0)
    for name in ("03", "04"):
        files = RunFolder(folder / name)
        info = files.info()
        elsewhere = info.environment.model_copy(update={"machine_id": "another"})
        files.write_info(info.model_copy(update={"environment": elsewhere}))
    found = history(folder, 0.05)
    assert sorted(len(each.points) for each in found.series) == [2, 2]
    assert not any(each.steps for each in found.series)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((".",), "no run in . or its folders"), ((".", "--plot", "x.txt"), "expected a name that ends in .svg or .png")],
)
def test_what_does_not_fit_is_one_line(arguments, words, nightly, capfd, tmp_path, monkeypatch):
    folder = nightly(0.5) if "--plot" in arguments else tmp_path
    monkeypatch.chdir(folder)
    assert run(["history", *arguments]) == 2
    err = capfd.readouterr().err
    assert words in err
    assert err.count("\n") == 1
