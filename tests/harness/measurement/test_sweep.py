import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from harness.measurement.presets import load_preset
from harness.measurement.sweep import run_sweep
from harness.records import MEASUREMENTS_FILE, Measurement, RunFolder
from harness.registry import load_registry, select


@pytest.fixture
def workloads(workload):
    """Three tiny cells."""
    return [workload.model_copy(update={"seq_len": seq_len}) for seq_len in (5, 9, 12)]


@pytest.fixture
def sweep(settings):
    """``sweep(folder, workloads, names)`` runs to the end, and gives statuses by (S, implementation) and progress."""

    def run(folder, workloads, names, plugins=(), settings=settings, blocked=lambda _name, _workload: ()):
        progress = []
        registered = select(load_registry(plugins), names)
        run_sweep(folder, workloads, registered, plugins, settings, blocked, lambda *step: progress.append(step))
        return statuses(folder), progress

    return run


def statuses(folder):
    found = folder.measurements()
    assert len({(each.workload.key, each.implementation) for each in found}) == len(found), "nothing is recorded twice"
    return {(each.workload.seq_len, each.implementation): each.status for each in found}


def test_every_cell_is_recorded_in_order_with_progress_and_phases(make_folder, workloads, sweep):
    folder = make_folder(workloads)
    found, progress = sweep(folder, workloads, ["sdpa", "einsum"])
    assert list(found) == [(seq_len, name) for seq_len in (5, 9, 12) for name in ("sdpa", "einsum")]
    assert set(found.values()) == {"measured"}
    assert [(done, total) for done, total, _, _ in progress] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert progress[0][2] == f"tiny {workloads[0].key}"
    left = [seconds for *_, seconds in progress]
    assert left[0] > 0 == left[-1]
    phases = folder.info().phases_s
    assert phases.keys() == {"answers", "warm-up", "timed", "memory", "rest"}
    assert all(seconds > 0 for seconds in phases.values())


def test_what_verification_bars_is_recorded_and_not_timed(make_folder, workloads, sweep):
    folder = make_folder(workloads)

    def blocked(name, workload):
        return ("check x failed",) if name == "einsum" and workload.seq_len == 9 else ()

    found, _ = sweep(folder, workloads, ["sdpa", "einsum"], blocked=blocked)
    assert [key for key, status in found.items() if status == "unverified"] == [(9, "einsum")]
    (barred,) = (each for each in folder.measurements() if each.status == "unverified")
    assert barred.reasons == ("check x failed",)


def test_what_cannot_be_measured_anyhow_is_not_said_to_be_unverified(make_folder, workloads, sweep):
    folder = make_folder(workloads[:1])
    sweep(folder, workloads[:1], ["sdpa", "xformers"], blocked=lambda name, _workload: ("unproved",) * (name != "sdpa"))
    (interpreted,) = (each for each in folder.measurements() if each.implementation == "xformers")
    assert interpreted.status in ("skipped", "unavailable")
    assert "unproved" not in interpreted.reasons


@pytest.mark.parametrize(
    ("fault", "status", "cause"),
    [
        ("os._exit(7)", "crashed", "exited with status 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "crashed", "killed by SIGKILL"),
        ("time.sleep(1000)", "timeout", "no result within"),
    ],
)
def test_an_implementation_that_kills_or_stops_its_process_costs_its_own_result_only(
    make_folder, workloads, sweep, write_plugin, settings, fault, status, cause
):
    settings = type(settings)(cell_seconds=0.1, max_rounds=10, grace_seconds=1.0)
    folder = make_folder(workloads[:1])
    plugin = write_plugin("culprit", fault)
    found, _ = sweep(folder, workloads[:1], ["sdpa", "culprit", "einsum"], [plugin], settings)
    assert found == {(5, "culprit"): status, (5, "sdpa"): "measured", (5, "einsum"): "measured"}
    (culprit,) = (each for each in folder.measurements() if each.implementation == "culprit")
    assert cause in culprit.reasons[0]
    rounds = {each.samples.round for each in folder.measurements() if each.samples}
    assert len(rounds) == 1, "the others were measured side by side"


def test_if_they_die_together_twice_and_each_alone_survives_all_are_recorded_as_crashed(
    make_folder, workloads, sweep, write_plugin, tmp_path
):
    marks = tmp_path / "marks"
    marks.mkdir()
    # Two implementations that tolerate all others, but not each other.
    fault = (
        f"import pathlib; pathlib.Path({str(marks)!r}, f'{{os.getpid()}}-{{__name__}}').touch(); "
        f"os._exit(3) if len(list(pathlib.Path({str(marks)!r}).glob(f'{{os.getpid()}}-*'))) > 1 else None"
    )
    plugins = [write_plugin("one", fault), write_plugin("other", fault)]
    folder = make_folder(workloads[:1])
    found, _ = sweep(folder, workloads[:1], ["one", "other"], plugins)
    assert found == {(5, "one"): "crashed", (5, "other"): "crashed"}
    assert all("alone each of them survives" in each.reasons[0] for each in folder.measurements())


def test_a_death_without_a_culprit_costs_nothing_but_time(make_folder, workloads, sweep, write_plugin, tmp_path):
    mark = tmp_path / "mark"
    fault = f"import pathlib; mark = pathlib.Path({str(mark)!r}); mark.exists() or (mark.touch(), os._exit(3))"
    found, _ = sweep(make_folder(workloads[:1]), workloads[:1], ["once", "sdpa"], [write_plugin("once", fault)])
    assert found == {(5, "once"): "measured", (5, "sdpa"): "measured"}


def test_a_process_that_dies_as_it_exits_stops_no_later_cell(make_folder, workloads, sweep, write_plugin):
    fault = "import multiprocessing.util as mu; calls > 1 or mu.Finalize(None, os._exit, (5,), exitpriority=9)"
    found, _ = sweep(make_folder(workloads), workloads, ["sour", "sdpa"], [write_plugin("sour", fault)])
    assert len(found) == 6
    assert set(found.values()) == {"measured"}


def test_a_finished_run_measures_nothing_again(make_folder, workloads, sweep):
    folder = make_folder(workloads)
    sweep(folder, workloads, ["sdpa"])
    content = (folder.path / MEASUREMENTS_FILE).read_bytes()
    _, progress = sweep(folder, workloads, ["sdpa"])
    assert progress == [(3, 3, "", 0.0)]
    assert (folder.path / MEASUREMENTS_FILE).read_bytes() == content


def test_a_cell_cut_in_the_middle_of_its_records_never_mixes_rounds_of_two_processes(make_folder, workloads, sweep):
    folder = make_folder(workloads)
    sweep(folder, workloads, ["sdpa", "einsum", "document"])
    path = folder.path / MEASUREMENTS_FILE
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + lines[4][:50])
    kept = folder.measurements()
    found, _ = sweep(folder, workloads, ["sdpa", "einsum", "document"])
    assert folder.measurements()[: len(kept)] == kept
    assert [key for key, status in found.items() if status == "skipped"] == [(9, "einsum"), (9, "document")]
    assert {status for key, status in found.items() if key[0] == 12} == {"measured"}
    reason = next(each.reasons[0] for each in folder.measurements() if each.status == "skipped")
    assert "would not be side by side" in reason


def test_records_without_samples_do_not_keep_the_rest_of_a_cell_from_being_measured(make_folder, workloads, sweep):
    folder = make_folder(workloads)
    folder.append(Measurement(implementation="sdpa", workload=workloads[0], status="unverified", reasons=("failed",)))
    found, _ = sweep(folder, workloads[:1], ["sdpa", "einsum", "document"])
    assert found == {(5, "sdpa"): "unverified", (5, "einsum"): "measured", (5, "document"): "measured"}


DRIVER = """
import sys
from pathlib import Path
from harness.measurement.cell import Settings
from harness.measurement.sweep import run_sweep
from harness.records import RunFolder
from harness.registry import load_registry, select

if __name__ == "__main__":
    folder = RunFolder(Path(sys.argv[1]))
    registered = select(load_registry(), ["sdpa", "einsum"])
    settings = Settings(cell_seconds=0.2, max_rounds=12, grace_seconds=20.0)
    run_sweep(folder, folder.info().workloads, registered, [], settings, lambda *_: (), lambda *_: None)
"""


@pytest.fixture
def start_driver(tmp_path):
    """``start_driver(folder)`` starts a sweep in a process of its own; killed at the end if it still runs."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    started = []

    def start(folder):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        started.append(subprocess.Popen([sys.executable, str(script), str(folder.path)], env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_until(holds, seconds=60.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def processes_below(process):
    return psutil.Process(process.pid).children(recursive=True)


def measures(process, driver):
    """Whether it is a child of the fork server (itself a child of the driver) that has begun its work."""
    try:
        return process.ppid() != driver.pid and sum(process.cpu_times()[:2]) > 0.1
    except psutil.NoSuchProcess:
        return False


def measuring(driver):
    return [process for process in processes_below(driver) if measures(process, driver)]


@pytest.fixture
def many(workload):
    """Cells enough to be in the middle of."""
    return [workload.model_copy(update={"seq_len": seq_len}) for seq_len in range(5, 12)]


def test_a_killed_parent_loses_no_finished_measurement_and_the_run_resumes(make_folder, many, sweep, start_driver):
    folder = make_folder(many)
    driver = start_driver(folder)
    wait_until(lambda: len(folder.measurements()) >= 6)
    below = processes_below(driver)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    kept = folder.measurements()
    assert 6 <= len(kept) < 14
    wait_until(lambda: not any(psutil.pid_exists(process.pid) for process in below), seconds=10)
    found, _ = sweep(folder, many, ["sdpa", "einsum"])
    assert folder.measurements()[: len(kept)] == kept, "what was finished is as it was"
    assert len(found) == 14
    assert list(found.values()).count("measured") > 12, "at most one record was being written"


def test_a_killed_child_costs_no_measurement(make_folder, many, start_driver):
    folder = make_folder(many)
    driver = start_driver(folder)
    wait_until(lambda: len(folder.measurements()) >= 4)
    kept = folder.measurements()
    found = []
    wait_until(lambda: found.extend(measuring(driver)) or found)
    found[0].send_signal(signal.SIGKILL)
    assert driver.wait(timeout=120) == 0
    found = statuses(folder)
    assert folder.measurements()[: len(kept)] == kept
    assert len(found) == 14
    assert set(found.values()) == {"measured"}, "the cell that it was in is measured again"


def test_the_quick_presets_workloads_are_measured_by_every_implementation_without_an_error(
    make_folder, sweep, settings
):
    (smallest, *_) = load_preset("quick").workloads()
    folder = make_folder([smallest])
    found, _ = sweep(folder, [smallest], list(load_registry()))
    assert set(found.values()) <= {"measured", "skipped", "unavailable"}
    assert RunFolder(folder.path).measurements()[0].workload == smallest
