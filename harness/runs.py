"""Where runs live: one folder each under ``results/``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import UserError
from harness.records import RUN_FILE

RESULTS = Path("results")
LOCK_FILE = ".lock"


def new_run_folder(preset: str, now: datetime) -> Path:
    """A folder that no run has yet, named by time and preset."""
    base = RESULTS / f"{now:%Y%m%d-%H%M%S}-{Path(preset).stem}"
    candidate, number = base, 1
    while candidate.exists():
        number += 1
        candidate = base.with_name(f"{base.name}-{number}")
    return candidate


def newest_run() -> Path:
    """The run that was started last.

    Raises:
        UserError: there is none.
    """
    runs = sorted(path.parent for path in RESULTS.glob(f"*/{RUN_FILE}"))
    if not runs:
        raise UserError(f"no run under {RESULTS.resolve()}; make one with `mha bench`, or name a run folder")
    return runs[-1]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a run folder to this process: rounds of two processes were not side by side, and must not mix.

    A process that dies lets go by dying.

    Raises:
        UserError: another process has it.
    """
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"another mha bench writes into {folder} right now; wait for it, or begin a new run elsewhere"
        ) from None
    try:
        yield
    finally:
        lock.release()
