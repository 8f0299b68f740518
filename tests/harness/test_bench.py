"""The main job end to end, on a preset small enough for a test: verify, measure, resume, render."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.cli import run
from harness.records import RunFolder
from harness.runs import locked

NAMES = ("document", "sdpa")


@pytest.fixture
def preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_preset) -> Path:
    monkeypatch.chdir(tmp_path)
    return tiny_preset(tmp_path, seq_len=(8, 16, 24, 32))


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory, tiny_preset) -> Path:
    """A run that is finished, for tests that only go on from it."""
    root = tmp_path_factory.mktemp("made")
    preset = tiny_preset(root, seq_len=(8, 16))
    assert run(["bench", *NAMES, "--preset", str(preset), "--output", str(root / "run")]) == 0
    return root / "run"


@pytest.fixture
def finished(made_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, ``run`` in the current folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made_once, "run")
    return Path("run")


def test_one_command_verifies_measures_and_reports(preset: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *NAMES, "--preset", str(preset), "--output", "run"]) == 0
    out, err = capfd.readouterr()
    folder = RunFolder(Path("run"))
    assert {m.status for m in folder.measurements()} == {"measured"}
    assert len(folder.measurements()) == 4 * len(NAMES)
    assert {record.status for record in folder.checks()} <= {"passed", "known_failure", "unsupported"}
    assert out.count("S 8, causal") <= 1 <= out.count("S 32")
    assert "report: run/report.html" in out
    assert re.search(r"^took [\d.]+ (seconds|minutes): .*timed \d+%", out, re.MULTILINE)
    assert "USDT" not in out + err
    for name in ("report.html", "report.md", "results.csv", "junit.xml", "pytest-benchmark.json"):
        assert (folder.path / name).stat().st_size > 0
    answers = folder.semantics()
    assert {answer.status for answer in answers} <= {"as_declared", "undeclared", "no_answer"}
    assert {answer.implementation for answer in answers} == set(NAMES)
    assert "compile" not in {answer.probe for answer in answers}, "what takes seconds is left to mha verify --semantics"
    assert set(folder.info().phases_s) >= {"verification", "semantics", "timed"}


def test_a_plugin_takes_part_in_everything(preset: Path, plugin_file, capfd: pytest.CaptureFixture[str]) -> None:
    path = plugin_file("mine")
    assert run(["bench", "mine", "--plugin", str(path), "--preset", str(preset), "--output", "run"]) == 0
    measured = {m.implementation for m in RunFolder(Path("run")).measurements()}
    assert measured == {"mine", "sdpa"}, "the baseline is measured beside it"
    assert "mine" in (Path("run") / "report.html").read_text()


def test_what_fails_verification_is_never_timed(preset: Path, plugin_file, capfd: pytest.CaptureFixture[str]) -> None:
    path = plugin_file("unscaled", scale=("q / math.sqrt(q.shape[-1])", "q"))
    assert run(["bench", "unscaled", "--plugin", str(path), "--preset", str(preset), "--output", "run"]) == 1
    wrong = [m for m in RunFolder(Path("run")).measurements() if m.implementation == "unscaled"]
    assert {m.status for m in wrong} == {"unverified"}
    assert all(m.samples is None and m.reasons for m in wrong)


def test_a_killed_run_resumes_and_loses_nothing_that_was_finished(preset: Path) -> None:
    code = f"from harness.cli import main; main(['bench', *{NAMES!r}, '--preset', {str(preset)!r}, '--output', 'run'])"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = RunFolder(Path("run"))
    end = time.monotonic() + 120
    while not (folder.path / "measurements.jsonl").exists() or not folder.measurements():
        assert time.monotonic() < end
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = folder.measurements()
    assert 0 < len(before) < 4 * len(NAMES)
    assert run(["bench", "--resume", "run"]) == 0
    after = folder.measurements()
    assert after[: len(before)] == before
    keys = [(m.workload.key, m.implementation) for m in after]
    assert len(keys) == len(set(keys)) == 4 * len(NAMES)
    answers = [(answer.implementation, answer.probe) for answer in folder.semantics()]
    assert len(answers) == len(set(answers)), "what is answered is not asked again"


def test_noise_that_cannot_be_measured_is_said_and_costs_nothing_else(preset: Path, capfd, monkeypatch) -> None:
    monkeypatch.setattr("harness.bench.SENSING_TIMEOUT_S", 0.01)
    assert run(["bench", *NAMES, "--preset", str(preset), "--output", "run"]) == 0
    assert "the machine's noise and roofs were not measured: no result within" in capfd.readouterr().err
    assert RunFolder(Path("run")).info().noise is None
    assert {m.status for m in RunFolder(Path("run")).measurements()} == {"measured"}


def test_a_run_with_a_budget_ends_in_time_says_what_it_left_out_and_can_go_on(
    preset: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *NAMES, "--preset", str(preset), "--output", "run", "--budget", "0.001"]) == 0
    folder = RunFolder(Path("run"))
    out = capfd.readouterr().out
    assert folder.measurements() == []
    assert folder.info().left_out.keys() == {workload.key for workload in folder.info().workloads}
    assert out.count("left out to end in time: tiny b1-s") == 4
    assert re.search(r"it may take \d+ s, and 0 s were left", out)
    assert "measure what was left out: mha bench --resume run" in out
    assert "4 planned workloads left out to end in time" in out
    assert run(["bench", "--resume", "run", "--budget", "10"]) == 0
    assert {m.status for m in folder.measurements()} == {"measured"}
    assert folder.info().left_out == {}
    assert "left out" not in capfd.readouterr().out


def test_what_verification_takes_counts_against_the_budget(preset: Path, capfd, monkeypatch) -> None:
    def slowly(_run, _advance) -> None:
        time.sleep(3.0)

    monkeypatch.setattr("harness.bench.Bench.verify", slowly)
    monkeypatch.setattr("harness.bench.Bench.sense_machine", lambda _run: "")
    monkeypatch.setattr("harness.bench.REPORT_S", 0.0)
    assert run(["bench", *NAMES, "--preset", str(preset), "--output", "run", "--budget", "0.04"]) == 0
    assert len(RunFolder(Path("run")).info().left_out) == 4
    assert RunFolder(Path("run")).measurements() == []


def test_the_roofs_of_every_dtype_and_thread_count_are_measured_once(finished: Path, capfd) -> None:
    roofs = RunFolder(Path("run")).info().roofs
    assert [(roof.dtype, roof.threads) for roof in roofs] == [("float32", 1)]
    assert run(["bench", "--resume", "run"]) == 0
    assert RunFolder(Path("run")).info().roofs == roofs


def test_two_processes_never_write_into_one_run(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = Path("run/measurements.jsonl").read_text()
    capfd.readouterr()
    with locked(Path("run")):
        assert run(["bench", "--resume", "run"]) == 2
    assert "another mha bench writes into run right now" in capfd.readouterr().err
    assert Path("run/measurements.jsonl").read_text() == before
    assert run(["bench", "--resume", "run"]) == 0


def test_rounds_too_few_for_any_verdict_are_refused(preset: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--preset", str(preset), "--max-rounds", "9", "--output", "run"]) == 2
    assert "9 rounds can tell nothing about 5 implementations" in capfd.readouterr().err
    assert not Path("run").exists()


def test_a_run_of_another_machine_is_not_resumed(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = Path("run/run.json")
    info = RunFolder(Path("run")).info()
    path.write_text(path.read_text().replace(info.environment.machine_id, "elsewhere"))
    capfd.readouterr()
    assert run(["bench", "--resume", "run"]) == 2
    assert "machine elsewhere" in capfd.readouterr().err


def test_a_run_is_not_resumed_with_another_version_of_an_implementation(preset: Path, plugin_file, capfd) -> None:
    path = plugin_file("mine")
    arguments = ["bench", "mine", "--plugin", str(path), "--preset", str(preset), "--output", "run"]
    assert run(arguments) == 0
    path.write_text(path.read_text() + "\n# another version\n")
    capfd.readouterr()
    assert run(["bench", "--resume", "run"]) == 2
    assert "mine.py was edited since run began" in capfd.readouterr().err


def test_a_folder_that_holds_a_run_is_not_overwritten(
    finished: Path, tiny_preset, capfd: pytest.CaptureFixture[str]
) -> None:
    preset = tiny_preset(Path())
    before = Path("run/run.json").read_text()
    capfd.readouterr()
    assert run(["bench", *NAMES, "--preset", str(preset), "--output", "run"]) == 2
    assert "holds a run already; continue it with --resume run" in capfd.readouterr().err
    assert Path("run/run.json").read_text() == before
