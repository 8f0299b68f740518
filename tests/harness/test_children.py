"""Child processes: whatever a task does costs its own result and nothing else."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from harness.children import Children, Died, Task


def double(value: int) -> int:
    return 2 * value


def exit_with_words() -> None:
    os.write(2, b"USDT: noise\nabout to give up\n")
    os._exit(3)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep_forever() -> None:
    time.sleep(1000)


def divide_by_zero() -> float:
    return 1 / 0


def noise() -> str:
    os.write(1, b"what a child prints")
    os.write(2, b"and what it complains about")
    return "quiet"


def test_a_task_gives_its_result() -> None:
    with Children() as children:
        assert children.run(Task(double, (21,), 60.0)) == 42


def test_results_come_with_the_index_of_their_task() -> None:
    with Children(workers=2) as children:
        outcomes = dict(children.run_all([Task(double, (n,), 60.0) for n in range(4)]))
    assert outcomes == {0: 0, 1: 2, 2: 4, 3: 6}


@pytest.mark.parametrize(
    ("function", "status", "words"),
    [
        (exit_with_words, "crashed", "exited with status 3; its last words: about to give up"),
        (kill_itself, "crashed", "killed by SIGKILL"),
        (divide_by_zero, "crashed", "ZeroDivisionError: division by zero"),
        (sleep_forever, "timeout", "no result within 1 s"),
    ],
)
def test_a_task_that_dies_says_how_and_the_next_one_runs(function, status, words) -> None:
    with Children() as children:
        death = children.run(Task(function, (), 1.0))
        after = children.run(Task(double, (4,), 60.0))
    assert isinstance(death, Died)
    assert death.status == status
    assert words in death.reason
    assert after == 8


def test_a_child_that_is_kept_runs_many_tasks_and_is_replaced_when_it_dies() -> None:
    with Children(tasks_per_child=0) as children:
        first, second = (children.run(Task(os.getpid, (), 60.0)) for _ in range(2))
        assert isinstance(children.run(Task(kill_itself, (), 60.0)), Died)
        third = children.run(Task(os.getpid, (), 60.0))
    assert first == second != third


def test_what_a_child_prints_never_reaches_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with Children() as children:
        assert children.run(Task(noise, (), 60.0)) == "quiet"
    assert capfd.readouterr() == ("", "")


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, time
        from pathlib import Path
        from harness.children import Children, Task

        def report_and_sleep():
            Path({str(pid_file)!r}).write_text(str(os.getpid()))
            time.sleep(1000)

        if __name__ == "__main__":
            with Children() as children:
                children.run(Task(report_and_sleep, (), 900.0))
        """)
    )
    parent = subprocess.Popen([sys.executable, str(script)])
    _wait_for(lambda: pid_file.exists() and bool(pid_file.read_text()))
    child = int(pid_file.read_text())
    parent.kill()
    parent.wait()
    _wait_for(lambda: not _alive(child))


def _wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
