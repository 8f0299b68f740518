"""A comparison of two runs for people and machines: lines, Markdown, JSON, JUnit XML, and a benchmark action's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree as ET

from reports import text
from reports.comparison import FigureChange, RunComparison, TimeChange, figure_line, time_line
from reports.markdown import escape

MAX_BYTES = 60 * 1024
"""A comment on a pull request holds 64 KiB."""
FEW_TIMES = 12
"""So many are all shown, those that did not change, too."""
_WORST_FIRST = ("regressed", "unresolved", "improved", "unchanged")


def verdict(found: RunComparison, *, strict: bool = False) -> str:
    """Everything in a sentence."""
    failing = len(found.regressions(strict=strict))
    counts = [f"{number} {change}" for change in _WORST_FIRST if (number := found.count(change))]  # type: ignore[arg-type]
    times = f"times: {text.listed(counts)}" if counts else "no time could be compared"
    worse = sum(each.fails for each in found.verification)
    figures = sum(each.fails for each in found.figures)
    checks = (
        f"{text.plural(worse, 'check')} failed that did not before" if worse else "no check failed that did not before"
    )
    first = f"{text.plural(failing, 'regression')}" if failing else "No regression"
    larger = f"; {text.plural(figures, 'figure')} worse" if figures else ""
    return f"{first} beyond {found.threshold:.1%}; {times}; {checks}{larger}."


def lines(found: RunComparison, *, strict: bool = False) -> Iterator[str]:
    """The verdict, what changed, and what a reader has to know."""
    yield verdict(found, strict=strict)
    yield from found.notes
    told = _changed(found.times)
    yield from map(time_line, told)
    if len(found.times) <= FEW_TIMES:
        yield from (time_line(each) for each in found.times if each not in told)
    yield from map(figure_line, (*found.verification, *found.figures, *found.errors))
    yield from found.only_in
    if found.count("unresolved"):
        yield "Unresolved does not mean unchanged: more seconds, more rounds or a quieter machine would tell."


def _changed(times: Iterable[TimeChange]) -> list[TimeChange]:
    """Regressed first, then improved; what did not change, or could not be told, is counted only."""
    told = [each for each in times if each.change in ("regressed", "improved")]
    return sorted(told, key=lambda each: _WORST_FIRST.index(each.change))


def markdown(found: RunComparison, *, strict: bool = False) -> str:
    """Verdict first, then only what changed; everything else folded, and all of it below `MAX_BYTES`."""
    parts = [f"**{escape(verdict(found, strict=strict))}**", ""]
    parts += [f"> {escape(note)}\n" for note in found.notes]
    parts += _bullets(time_line(each) for each in _changed(found.times))
    parts += _bullets(figure_line(each) for each in (*found.verification, *found.figures, *found.errors))
    parts += _bullets(found.only_in)
    rest = [time_line(each) for each in found.times if each.change in ("unchanged", "unresolved")]
    folded = [
        f"<details><summary>{text.plural(len(rest), 'time')} unchanged or unresolved</summary>\n",
        *_bullets(rest),
    ]
    whole = "\n".join([*parts, *(folded if rest else []), *(["</details>"] if rest else [])]) + "\n"
    if len(whole.encode()) <= MAX_BYTES:
        return whole
    return _cut("\n".join(parts)) + "\n"


def _bullets(entries: Iterable[str]) -> list[str]:
    listed = [f"- {escape(entry)}" for entry in entries]
    return [*listed, ""] if listed else []


def _cut(page: str) -> str:
    """Whole lines up to the limit, and how many are missing."""
    kept: list[str] = []
    size = 0
    all_lines = page.split("\n")
    for line in all_lines:
        size += len(line.encode()) + 1
        if size > MAX_BYTES - 100:
            return "\n".join([*kept, "", f"{len(all_lines) - len(kept)} further lines are in the JSON file."])
        kept.append(line)
    return page


def as_json(found: RunComparison, *, strict: bool = False) -> dict[str, Any]:
    """Every change, and the verdict."""
    return {
        "verdict": verdict(found, strict=strict),
        "regressions": list(found.regressions(strict=strict)),
        "base": found.base,
        "head": found.head,
        "threshold": found.threshold,
        "times": [asdict(each) for each in found.times],
        "verification": [asdict(each) for each in found.verification],
        "figures": [asdict(each) for each in found.figures],
        "errors": [asdict(each) for each in found.errors],
        "only_in": list(found.only_in),
        "notes": list(found.notes),
    }


def junit(found: RunComparison, *, strict: bool = False) -> ET.ElementTree[ET.Element]:
    """A test case for each time, for each check that changed, and for each exact figure that fails."""
    figures = (*found.verification, *(each for each in found.figures if each.fails))
    suite = ET.Element("testsuite", name="mha compare", tests=str(len(found.times) + len(figures)))
    failures = 0
    for each in found.times:
        case = ET.SubElement(
            suite, "testcase", classname=text.printable(each.implementation), name=text.printable(each.key)
        )
        if each.change == "regressed" or (strict and each.change == "unresolved"):
            failures += 1
            ET.SubElement(case, "failure", message=text.printable(time_line(each)), type=each.change)
        elif each.change == "unresolved":
            ET.SubElement(case, "skipped", message=text.printable(time_line(each)))
    failures += sum(_figure_case(suite, each) for each in figures)
    suite.set("failures", str(failures))
    ET.indent(suite)
    return ET.ElementTree(suite)


def _figure_case(suite: ET.Element, each: FigureChange) -> int:
    case = ET.SubElement(
        suite, "testcase", classname=text.printable(each.implementation), name=text.printable(each.where)
    )
    if each.fails:
        ET.SubElement(case, "failure", message=text.printable(figure_line(each)), type=each.after)
    return int(each.fails)


def action_entries(found: RunComparison) -> list[dict[str, Any]]:
    """Changes of the ratios in the ``customSmallerIsBetter`` form: 1 is no change."""
    return [
        {
            "name": f"{each.implementation} / {each.key} / change",
            "unit": "x",
            "value": each.ratio,
            "extra": f"{each.change}, [{each.low:.4f}, {each.high:.4f}]",
        }
        for each in found.times
    ]
