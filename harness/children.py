"""Runs work in child processes, so that a crash, an endless loop or a memory hog costs one result and no more.

Children come from a fork server that has torch loaded already, so that a fresh process costs some 30 ms instead
of two seconds. Each task gets a fresh process. What a child prints (profilers, compilers and kernels do) goes to
a file and never to the user's terminal; of a child that dies, the last line is kept as evidence.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from pebble import ProcessExpired, ProcessPool

from harness.registry import one_line

ResultT = TypeVar("ResultT")

_PRELOAD = ["torch", "numpy", "harness.registry", "harness.verification.suite"]


@dataclass(frozen=True)
class Died:
    """A child that gave no result."""

    status: Literal["crashed", "timeout"]
    reason: str


@dataclass(frozen=True)
class Task(Generic[ResultT]):
    """One call for a child; `function` and `args` are pickled."""

    function: Callable[..., ResultT]
    args: tuple[Any, ...]
    timeout_s: float


class Children:
    """A pool of child processes, at most `workers` at a time, each for one task.

    Args:
        workers: how many may run side by side.
        tasks_per_child: after so many tasks a child is replaced by a fresh one; 0 keeps it until it dies.
    """

    def __init__(self, workers: int = 1, tasks_per_child: int = 1) -> None:
        self._output = tempfile.TemporaryDirectory(prefix="mha-")
        self._pool = ProcessPool(
            max_workers=workers,
            max_tasks=tasks_per_child,
            initializer=_begin_child,
            initargs=(self._output.name,),
            context=_context(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._pool.close()  # type: ignore[no-untyped-call]  # pebble leaves these two untyped
        else:
            self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()
        self._output.cleanup()

    def run(self, task: Task[ResultT]) -> ResultT | Died:
        """Run one task and wait for it."""
        for _, outcome in self.run_all([task]):
            return outcome
        raise AssertionError("one task gives one outcome")

    def run_all(self, tasks: Sequence[Task[ResultT]]) -> Iterator[tuple[int, ResultT | Died]]:
        """Run tasks, and give (index of the task, outcome) as they finish."""
        futures: dict[Future[ResultT], int] = {
            self._pool.schedule(task.function, args=task.args, timeout=task.timeout_s): index
            for index, task in enumerate(tasks)
        }
        for future in as_completed(futures):
            index = futures[future]
            outcome = self._outcome(future, tasks[index])
            yield index, outcome

    def _outcome(self, future: Future[ResultT], task: Task[ResultT]) -> ResultT | Died:
        try:
            return future.result()
        except TimeoutError:
            return Died("timeout", f"no result within {task.timeout_s:.0f} s")
        except ProcessExpired as death:
            return Died("crashed", _cause(death) + self._last_words(death.pid))
        except Exception as error:  # noqa: BLE001 - whatever came out of the child becomes a recorded status
            return Died("crashed", one_line(error))

    def _last_words(self, pid: int | None) -> str:
        path = Path(self._output.name) / f"{pid}.log"
        lines = path.read_text(errors="replace").split("\n") if path.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"; its last words: {last[:200]}" if last else ""


def _cause(death: ProcessExpired) -> str:
    code = death.exitcode
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = " (often the kernel's out-of-memory killer)" if name == "SIGKILL" else ""
        return f"the process was killed by {name}{hint}"
    return f"the process exited with status {code}"


def _context() -> Any:  # noqa: ANN401 - the two context classes share no public base
    # Windows has no fork server; a child there starts from nothing and imports torch itself.
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(_PRELOAD)
    return context


def _begin_child(output: str) -> None:
    """Redirect what the child prints, and make it die with its parent."""
    log = os.open(Path(output) / f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    Thread(target=_die_with_the_parent, daemon=True).start()


def _die_with_the_parent() -> None:
    """Sleep until the parent is gone, then go too.

    A child that outlives a killed parent would go on computing, and disturb the measurements of the run that resumes.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
