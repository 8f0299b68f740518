"""Runs work in child processes, so that a crash, an endless loop or a memory hog costs one result and no more.

Children come from a fork server that has torch loaded already, so that a fresh process costs some 30 ms instead
of two seconds. Each task gets a fresh process. What a child prints (profilers, compilers and kernels do) goes to
a file and never to the user's terminal; of a child that dies, the last line is kept as evidence, and the line of
Python that it was at. What a child may allocate is limited to its share of what is free, so that a hog gets an
error and not the whole machine.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import re
import signal
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

import psutil
from pebble import ProcessExpired, ProcessPool

from harness.errors import UserError
from harness.measurement.limits import free_memory_bytes
from harness.registry import one_line

ResultT = TypeVar("ResultT")

SHARE_OF_FREE_MEMORY = 0.9
"""What all children together may allocate, as a share of the memory that is free when they begin."""
LEAST_MEMORY_BYTES = 1 << 30
"""What a child may allocate in any case: a machine with little memory left should be slow and not fail checks."""

_FRUITLESS_POOLS = 3
"""How many pools may break, one after the other, without finishing a task."""
_PRELOAD = [
    "torch",
    "torch.fx.experimental.symbolic_shapes",
    "numpy",
    "scipy.stats",
    "harness.measurement.cell",
    "harness.verification.suite",
]


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
        memory_bytes: what each may allocate; by default its share of what is free now. Enforced on Linux.
    """

    def __init__(self, workers: int = 1, tasks_per_child: int = 1, memory_bytes: int | None = None) -> None:
        if memory_bytes is None:
            memory_bytes = max(LEAST_MEMORY_BYTES, int(SHARE_OF_FREE_MEMORY * free_memory_bytes() / workers))
        self._output = tempfile.TemporaryDirectory(prefix="mha-")
        self._new_pool = partial(
            ProcessPool,
            max_workers=workers,
            max_tasks=tasks_per_child,
            initializer=_begin_child,
            initargs=(self._output.name, memory_bytes),
            context=_context(),
        )
        self._pool = self._new_pool()

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
        """Run tasks, and give (index of the task, outcome) as they finish.

        Raises:
            UserError: child processes die before they begin a task, so no outcome says anything of a task.
        """
        left, fruitless = list(range(len(tasks))), 0
        while left and fruitless < _FRUITLESS_POOLS:
            aborted: list[int] = []
            for index, future in self._finished({index: tasks[index] for index in left}):
                if isinstance(future.exception(), BrokenProcessPool):
                    aborted.append(index)
                else:
                    outcome = _outcome(future, tasks[index].timeout_s, self._log)
                    yield index, outcome
            fruitless = fruitless + 1 if len(aborted) == len(left) else 0
            left = aborted
        if left:
            words = _read_log(self._newest_log()).last
            raise UserError(
                f"child processes die before they begin their work{f': {words}' if words else ''}; run again"
            )

    def _finished(self, tasks: Mapping[int, Task[ResultT]]) -> Iterator[tuple[int, Future[ResultT]]]:
        """Futures of tasks as they finish, from a pool that works.

        A child that dies beside its task (as it exits, say) breaks the pool for the tasks of others.
        """
        if not self._pool.active:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
            self._pool = self._new_pool()
        futures: dict[Future[ResultT], int] = {
            self._pool.schedule(task.function, args=task.args, timeout=task.timeout_s): index
            for index, task in tasks.items()
        }
        for future in as_completed(futures):
            yield futures[future], future

    def _newest_log(self) -> str:
        logs = sorted(Path(self._output.name).iterdir(), key=lambda log: log.stat().st_mtime_ns)
        return logs[-1].read_text(errors="replace") if logs else ""

    def _log(self, pid: int | None) -> str:
        """What a child printed."""
        path = Path(self._output.name) / f"{pid}.log"
        return path.read_text(errors="replace") if path.exists() else ""


def _outcome(future: Future[ResultT], timeout_s: float, log_of: Callable[[int | None], str]) -> ResultT | Died:
    # Asked for and not raised: whatever came out of the child, SystemExit included, becomes a recorded status.
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, ProcessExpired):
        return _post_mortem(error, log_of(error.pid))
    if isinstance(error, TimeoutError):
        return Died("timeout", f"no result within {timeout_s:.0f} s")
    return Died("crashed", one_line(error))


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """In a child: end the process unless the block is left in time, leaving word of where it was.

    The watch needs no help of the interpreter, so that it ends a loop in native code as well.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


_STDERR = 2
_DUMP = re.compile(r"^(?:Fatal Python error: .*|Timeout \((?P<time>[\d:.]+)\)!)$", re.MULTILINE)
"""How a dump of the interpreter's fault handler begins."""
_THREAD = re.compile(r"^(?=(?:Current t|T)hread 0x)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_WORDS_SHOWN = 200


class _Words(NamedTuple):
    """What a dead child left in its log."""

    last: str
    """The last line that it printed."""
    timeout_s: float | None
    """The deadline that it missed."""
    where: str
    """Where in Python it was."""


def _post_mortem(death: ProcessExpired, log: str) -> Died:
    words = _read_log(log)
    where = f" ({words.where})" if words.where else ""
    if words.timeout_s is not None:
        return Died("timeout", f"no result within {words.timeout_s:g} s{where}")
    last = f"; its last words: {words.last[:_WORDS_SHOWN]}" if words.last else ""
    return Died("crashed", f"{_cause(death)}{where}{last}")


def _read_log(log: str) -> _Words:
    dump = _DUMP.search(log)
    printed = log[: dump.start()] if dump else log
    last = next((line.strip() for line in reversed(printed.splitlines()) if line.strip()), "")
    if dump is None:
        return _Words(last, None, "")
    time = dump["time"]
    seconds = sum(float(part) * 60**power for power, part in enumerate(reversed(time.split(":")))) if time else None
    return _Words(last, seconds, _where(log[dump.end() :]))


def _where(dump: str) -> str:
    """The innermost line of the user's own code; of any code if there is none."""
    threads = [part for part in _THREAD.split(dump) if _FRAME.search(part)]
    if not threads:
        return ""
    # A crash marks the thread that it came up in; at a missed deadline, the main thread, which ran the task, is last.
    thread = next((part for part in threads if part.startswith("Current")), threads[-1])
    frames = list(_FRAME.finditer(thread))
    frame = next((frame for frame in frames if not _is_foreign(frame["file"])), frames[0])
    return f"in {frame['function']}, {frame['file']} line {frame['line']}"


def _is_foreign(file: str) -> bool:
    """Whether a file belongs to Python, to an installed package or to this one, and not to a user's plugin."""
    folders = (*(sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")), str(Path(__file__).parent))
    return file.startswith((*folders, "<"))


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
        _start_the_fork_server()
    return context


def _start_the_fork_server() -> None:
    """Start it deaf to Ctrl-C, which is the parent's to handle: it would end with a traceback of its own.

    Only the main thread may change what a signal does; elsewhere the server starts with its first child.
    """
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            forkserver.ensure_running()
        finally:
            signal.signal(signal.SIGINT, before)


def _begin_child(output: str, memory_bytes: int) -> None:
    """Redirect what the child prints, limit its memory, and make it die with its parent."""
    log = os.open(Path(output) / f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, _STDERR)
    faulthandler.enable(file=_STDERR)
    Thread(target=_die_with_the_parent, daemon=True).start()
    if sys.platform == "linux":
        _limit_memory(memory_bytes)


def _limit_memory(memory_bytes: int) -> None:
    """Make allocating more than this an error here, before the kernel has to kill some process of the machine.

    The limit is on writable private memory (RLIMIT_DATA), not on address space, much of which torch and CUDA only
    reserve.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = psutil.Process().memory_info().data + memory_bytes
    limits = [limit for limit in (wanted, soft) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    # If memory runs out all the same, the kernel is to pick this process. Some sandboxes do not let one ask for it.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _die_with_the_parent() -> None:
    """Sleep until the parent is gone, then go too.

    A child that outlives a killed parent would go on computing, and disturb the measurements of the run that resumes.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
