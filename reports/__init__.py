"""Reports: one run folder in, pages and files for people and for machines out.

This package reads what the harness wrote and never runs anything: of `harness` it knows the record format
and the statistics, so a report can be made where torch is not installed. Importing it is cheap; pandas,
matplotlib and jinja2 are loaded when something is rendered.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.judgement import Verdict


@dataclass(frozen=True)
class Rendered:
    """What `render` made."""

    html: Path
    """The report to open."""
    files: tuple[Path, ...]
    """Every file written, the report included."""
    verdicts: tuple[Verdict, ...]
    """One for each workload, in planned order."""
    verdict_lines: tuple[str, ...]
    """The verdicts as lines for a terminal; without timings, one line for each implementation's checks."""
    headline_lines: tuple[str, ...] = ()
    """What to use for what, with its evidence, and what to know before following it, as lines for a terminal."""


def render(run: Path, out: Path | None = None) -> Rendered:
    """Write every report of a run.

    Args:
        run: the run folder.
        out: folder for the reports, made if missing; the run folder itself by default.

    Raises:
        UserError: `run` is not a run folder, has another format version or a broken record, or `out` cannot
            be written.
    """
    from reports.rendering import render_all

    return render_all(run, out or run)
