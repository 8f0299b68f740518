"""Child processes: whatever a task does costs its own result and nothing else."""

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from harness.children import Children, Died, Task, deadline
from harness.errors import UserError


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


def read_address_zero() -> None:
    ctypes.string_at(0)


def raise_sigfpe() -> None:
    os.kill(os.getpid(), signal.SIGFPE)


def leave() -> None:
    sys.exit(4)


def loop_past_a_deadline() -> None:
    with deadline(0.5):
        while True:
            pass


def loop_in_native_code_past_a_deadline() -> None:
    with deadline(0.5):
        sum(range(10**12))  # never lets another thread of Python run


def keep_a_deadline(value: int) -> int:
    with deadline(0.2):
        pass
    time.sleep(0.4)
    return value


def allocate(*gigabytes: float) -> int:
    return sum(torch.empty(int(g * 2**28)).fill_(1.0).numel() for g in gigabytes)


def hold(gigabytes: float, pieces: int) -> int:
    return len([torch.empty(int(gigabytes * 2**28)).fill_(1.0) for _ in range(pieces)])


def killed_after_its_result(value: int) -> int:
    threading.Timer(0.02, lambda: os._exit(7)).start()
    return value


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
        (read_address_zero, "crashed", f"killed by SIGSEGV (in read_address_zero, {__file__} line "),
        (raise_sigfpe, "crashed", f"killed by SIGFPE (in raise_sigfpe, {__file__} line "),
        (leave, "crashed", "SystemExit: 4"),
        (loop_past_a_deadline, "timeout", f"no result within 0.5 s (in loop_past_a_deadline, {__file__} line "),
        (loop_in_native_code_past_a_deadline, "timeout", "no result within 0.5 s (in loop_in_native_code"),
        (divide_by_zero, "crashed", "ZeroDivisionError: division by zero"),
        (sleep_forever, "timeout", "no result within 1 s"),
    ],
)
def test_a_task_that_dies_says_how_and_the_next_one_runs(function, status, words) -> None:
    with Children() as children:
        death = children.run(Task(function, (), 1.0 if function is sleep_forever else 60.0))
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


def test_a_deadline_that_was_kept_ends_nobody() -> None:
    with Children() as children:
        assert children.run(Task(keep_a_deadline, (3,), 60.0)) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_an_allocation_beyond_the_limit_is_an_error_and_one_below_is_not() -> None:
    with Children(memory_bytes=2**30) as children:
        assert children.run(Task(allocate, (0.5, 0.5), 60.0)) == 2**28
        for function, args in ((allocate, (30.0,)), (hold, (0.25, 8))):
            death = children.run(Task(function, args, 60.0))
            assert isinstance(death, Died)
            assert "can't allocate memory" in death.reason


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_children_share_what_is_free(monkeypatch) -> None:
    monkeypatch.setattr("harness.children.free_memory_bytes", lambda: 3 * 2**30)
    with Children(workers=1) as alone:
        assert alone.run(Task(allocate, (1.5,), 60.0)) == 1.5 * 2**28
    with Children(workers=2) as two:
        assert isinstance(two.run(Task(allocate, (1.5,), 60.0)), Died)


def test_a_child_that_dies_after_its_task_costs_no_other_task_its_result() -> None:
    with Children() as children:
        assert children.run(Task(killed_after_its_result, (1,), 60.0)) == 1
        time.sleep(0.2)
        tasks = [Task(killed_after_its_result if n % 2 else double, (n,), 60.0) for n in range(6)]
        assert dict(children.run_all(tasks)) == {n: n if n % 2 else 2 * n for n in range(6)}


class Unreadable:
    """What no child can read: it dies before it begins."""

    def __reduce__(self):
        return _fail_in_a_child, (os.getpid(),)


def _fail_in_a_child(parent: int) -> None:
    if os.getpid() != parent:
        raise ImportError("no such thing here")


def test_children_that_die_before_they_begin_are_no_outcome_of_a_task() -> None:
    words = "die before they begin their work: ImportError: no such thing here; run again"
    with Children() as children, pytest.raises(UserError, match=words):
        children.run(Task(double, (Unreadable(),), 60.0))


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
