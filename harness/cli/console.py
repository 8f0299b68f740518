"""What commands share: the console, progress with time left, JSON for machines, and options."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from harness.registry import Plugin

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

WIDTH_WITHOUT_TERMINAL = 200
"""Columns of tables that go into a file or a pipe, unless COLUMNS says otherwise: rich would take 80."""

Advance = Callable[[int, int, str, float | None], None]
"""Called with what is done, the total, what is being done now, and the seconds left if that is known better than by
the share done."""


def console(*, stderr: bool = False) -> Console:
    """A console for tables and lines; plain and wide when not a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    given = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, highlight=False, soft_wrap=False, width=None if given else WIDTH_WITHOUT_TERMINAL)


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


def require_device(device: str) -> None:
    """Refuse a device that this machine does not have, before anything runs on it.

    Raises:
        UserError: torch sees no device of this type.
    """
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no CUDA device here; leave the option out for the CPU")


def write_json(content: object, file: Path | None = None) -> None:
    """JSON to a file, or to standard output."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    if file is None or str(file) == "-":
        click.echo(text)
        return
    with written(file):
        file.write_text(text + "\n", encoding="utf-8")


@contextmanager
def written(file: Path) -> Iterator[None]:
    """Say in one line that a file cannot be written.

    Raises:
        UserError: the block raises OSError.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None


def output_option(flag: str, name: str, text: str, *, dash: bool = False) -> Callable[[CommandT], CommandT]:
    """An option that names a file to be written after long work: what is known to go wrong is said before it.

    Args:
        flag: as ``--json``.
        name: of the command's parameter.
        text: the help.
        dash: whether ``-`` stands for standard output.
    """

    def check(_ctx: click.Context, _parameter: click.Parameter, file: Path | None) -> Path | None:
        if file is not None and not (dash and str(file) == "-"):
            _refuse_unwritable(file)
        return file

    return click.option(flag, name, type=click.Path(path_type=Path), callback=check, help=text)


def _refuse_unwritable(file: Path) -> None:
    if file.is_dir():
        raise click.BadParameter(f"{file} is a folder, and a file was expected")
    if not file.parent.is_dir():
        raise click.BadParameter(f"{file.parent} is no folder; make it first")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise click.BadParameter(f"{file} may not be written")


def _plugins(_ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[Plugin, ...]:
    from harness.registry import plugin_of

    return tuple(map(plugin_of, given))


def plugin_option(command: CommandT) -> CommandT:
    """``--plugin FILE.py``, repeatable."""
    return click.option(
        "--plugin",
        "plugins",
        multiple=True,
        metavar="[LABEL=]FILE.py",
        callback=_plugins,
        help="File of your own: a function attend, a module's class, or IMPLEMENTATION = ... (docs/authors.md); may be "
        "repeated. A LABEL stands behind its names, so that two versions of a file can take part.",
    )(command)
