"""Where runs live: one folder each under ``results/``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from harness.errors import UserError
from harness.records import RUN_FILE

RESULTS = Path("results")


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
