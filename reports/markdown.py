"""The report as Markdown that fits a CI job's summary: verdict and failures open, everything else folded."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence

from reports import text
from reports.content import Content
from reports.tables import Cell, Table
from reports.verification_tables import Failures

MAX_BYTES = 900 * 1024
"""CI services drop a summary above 1 MiB."""
SHARE = 100 * 1024
"""Bytes that any one table may take; all of them together stay below `MAX_BYTES`."""
MAX_TEXT = 400
"""Characters of a cell: a traceback belongs into the files."""
MAX_FAILURES = 20
"""Kinds of failure shown one by one."""

# As entities, these are characters and never markup, in a table's cell and inside of <code> alike.
_MARKUP = str.maketrans({character: f"&#{ord(character)};" for character in "`|*\\~$#!"})
# An underscore inside of a word means nothing to Markdown, and names are full of them.
_EDGE_UNDERSCORE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def escape(value: str) -> str:
    """Text that no Markdown or HTML in it can break out of."""
    plain = html.escape(text.printable(value), quote=False)
    # `&` and `#` of html.escape's own entities must survive: only what it left alone is translated.
    parts = re.split(r"(&(?:amp|lt|gt);)", plain)
    escaped = "".join(part if place % 2 else part.translate(_MARKUP) for place, part in enumerate(parts))
    # Brackets are read as a link only before a parenthesis; intervals keep theirs.
    return _EDGE_UNDERSCORE.sub("&#95;", escaped).replace("](", "]&#40;")


def render(content: Content) -> str:
    """The whole page, below `MAX_BYTES`."""
    blocks = [
        *_verdict(content),
        *_failing(content),
        *table(content.verdicts),
        *(line for folded in content.evidence for line in fold(folded)),
    ]
    return "\n".join(blocks) + "\n"


def _verdict(content: Content) -> Iterator[str]:
    yield "# Multi-head attention: verdict"
    yield ""
    for headline in content.advice.headlines:
        yield f"**{escape(headline.claim)}** {escape(' '.join(headline.evidence))}"
        yield ""
    if content.advice.noise:
        yield escape(content.advice.noise)
        yield ""
    for warning in content.advice.warnings:
        yield f"> {escape(text.clip(warning, MAX_TEXT))}"
        yield ""
    yield from _bullets("Why the others lost", content.advice.losers)


def _bullets(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"**{title}**"
        yield ""
        yield from (f"- {escape(text.clip(line, MAX_TEXT))}" for line in lines)
        yield ""


def _failing(content: Content) -> Iterator[str]:
    undeclared = [failure for failure in content.failures if not failure.known]
    if undeclared or content.advice.faults:
        yield "## What is wrong"
        yield ""
        yield from (f"- {escape(fault)}" for fault in content.advice.faults)
        yield from (_failure_line(failure) for failure in undeclared[:MAX_FAILURES])
        if len(undeclared) > MAX_FAILURES:
            yield f"- {len(undeclared) - MAX_FAILURES} more kinds of failure are in `checks.csv`"
        yield ""


def _failure_line(failure: Failures) -> str:
    why = f": {_cell(Cell(failure.reasons))}" if failure.reasons else ""
    again = f"; repeat it with {_cell(Cell(failure.reproduce, code=True))}" if failure.reproduce else ""
    return (
        f"- **{escape(failure.implementation)}**, {escape(failure.check)}, "
        f"{text.plural(failure.count, 'case')}, e.g. {_cell(Cell(failure.example))}{why}{again}"
    )


def fold(content: Table) -> Iterator[str]:
    """A table behind a line to click on; nothing for an empty one."""
    if content.rows:
        size = text.plural(len(content.rows) + content.omitted, "row")
        yield f"<details><summary>{escape(content.title)} ({size})</summary>"
        yield ""
        yield from table(content, titled=False)
        yield "</details>"
        yield ""


def table(content: Table, *, titled: bool = True) -> Iterator[str]:
    """A table with as many rows as fit into `SHARE`, and a line that says how many did not."""
    if not content.rows:
        return
    if titled:
        yield f"## {escape(content.title)}"
        yield ""
    yield _row(escape(column.heading) for column in content.columns)
    yield _row("---:" if column.number else "---" for column in content.columns)
    rows = list(_fitting(_row(_cell(cell) for cell in row) for row in content.rows))
    yield from rows
    yield ""
    left_out = len(content.rows) + content.omitted - len(rows)
    if left_out:
        yield f"{text.plural(left_out, 'row')} left out here; all of them are in `{content.full}`."
        yield ""
    if content.note:
        yield escape(content.note)
        yield ""


def _fitting(rows: Iterable[str]) -> Iterator[str]:
    size = 0
    for row in rows:
        size += len(row.encode()) + 1
        if size > SHARE:
            return
        yield row


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    content = escape(text.clip(cell.text, MAX_TEXT))
    if cell.code and content:
        content = f"<code>{content}</code>"
    if cell.tone == "bad" and content:
        content = f"**{content}**"
    return f"{content}<br><sub>{escape(text.clip(cell.detail, MAX_TEXT))}</sub>" if cell.detail else content
