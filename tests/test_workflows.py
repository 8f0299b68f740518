"""The example workflows and the action call commands and options that there are, and take no input into a script."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from harness.cli import COMMANDS, commands

ROOT = Path(__file__).parents[1]
FILES = [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), ROOT / "action.yml"]


def steps(file: Path) -> list[dict]:
    content = yaml.safe_load(file.read_text())
    jobs = content.get("jobs", {"action": content.get("runs")})
    return [step for job in jobs.values() for step in job["steps"]]


def calls(script: str) -> Iterator[list[str]]:
    """The words of every call of mha, of tox -e bench too, which is mha bench."""
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(re.split(r"\|\||>", line)[0], comments=True)
        if words and words[0].endswith("bin/mha"):
            yield words[1:]
        elif words[:3] == [".venv/bin/tox", "run", "-e"]:
            yield words[3:4] + words[5:]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_call_names_a_command_and_options_that_there_are(file: Path) -> None:
    found = [call for step in steps(file) for call in calls(step.get("run", ""))]
    assert found
    for name, *words in found:
        assert name in COMMANDS
        with click.Context(commands) as context:
            command = commands.get_command(context, name)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_script_has_an_expression_in_it_that_somebody_else_may_fill(file: Path) -> None:
    assert [step for step in steps(file) if "${{" in step.get("run", "")] == []
