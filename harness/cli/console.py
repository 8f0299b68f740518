"""What commands share: the console, progress with time left, JSON for machines, and options."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

WIDTH_WITHOUT_TERMINAL = 200
"""Columns of tables that go into a file or a pipe: rich would take 80 and wrap them beyond reading."""

Advance = Callable[[int, int, str, float | None], None]
"""Called with what is done, the total, what is being done now, and the seconds left if that is known better than by
the share done."""


def console(*, stderr: bool = False) -> Console:
    """A console for tables and lines; plain and wide when not a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr, highlight=False, soft_wrap=False, width=None if stream.isatty() else WIDTH_WITHOUT_TERMINAL
    )


@contextmanager
def progress(what: str) -> Iterator[Advance]:
    """A progress bar with time left on standard error; one plain line at the start when not a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    screen = console(stderr=True)
    if not screen.is_terminal:
        click.echo(f"{what} ...", err=True)
        yield lambda _done, _total, _now, _left_s: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("[dim]{task.fields[now]}"),
    )
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(what, total=None, now="", left="")

        def advance(done: int, total: int, now: str, left_s: float | None) -> None:
            if left_s is None and done:
                left_s = (bar.tasks[0].elapsed or 0.0) / done * (total - done)
            left = "" if left_s is None else f"{left_s / 60:.0f} min left" if left_s > 90 else f"{left_s:.0f} s left"
            bar.update(task, completed=done, total=total, now=now, left=left)

        yield advance


def write_json(content: object, file: Path | None = None) -> None:
    """JSON to a file, or to standard output."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    if file is None or str(file) == "-":
        click.echo(text)
        return
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None


def plugin_option(command: CommandT) -> CommandT:
    """``--plugin FILE.py``, repeatable."""
    return click.option(
        "--plugin",
        "plugins",
        multiple=True,
        metavar="FILE.py",
        type=click.Path(path_type=Path),
        help="File with an implementation of your own (IMPLEMENTATION = ...); may be repeated.",
    )(command)
