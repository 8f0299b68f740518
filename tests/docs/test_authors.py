"""The page for authors is true: its examples pass, its mistake fails as shown, its tables name what there is."""

import json
import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from harness.cli import run
from harness.plain_code import CONSTANTS
from harness.registry import ENTRY_POINT_GROUP

PAGE = (Path(__file__).parents[2] / "docs" / "authors.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
"""Source by file name."""
RIGHT = [name for name in EXAMPLES if name != "my_mistake.py"]


@pytest.fixture
def mha(tmp_path, monkeypatch, capfd):
    """Run a command beside the page's examples; gives its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    for name, source in EXAMPLES.items():
        (tmp_path / name).write_text(source)

    def mha(*arguments: str) -> tuple[int, str]:
        code = run(arguments)
        return code, capfd.readouterr().out

    return mha


def without_numbers(text: str) -> list[str]:
    """Lines whose digits, which differ from machine to machine in the last places, are left out."""
    text = re.sub(r"--plugin \S+", "--plugin FILE", re.sub(r"mha-reproducers-\w+", "FOLDER", text))
    return [re.sub(r"\d+(\.\d+)?(e[+-]\d+)?", "#", line).strip() for line in text.splitlines()]


def test_there_is_an_example_of_each_form() -> None:
    assert RIGHT == ["my_softmax.py", "my_module.py", "my_adapter.py"]


@pytest.mark.parametrize("name", RIGHT)
def test_each_example_passes_all_checks(mha, name: str) -> None:
    code, out = mha("verify", Path(name).stem, "--plugin", name, "--dtype", "float32", "--json", "-")
    statuses = {record["status"] for record in json.loads(out)}
    assert code == 0
    assert statuses <= {"passed", "no_evidence", "known_failure"}
    assert ("known_failure" in statuses) == ("KnownFailure(" in EXAMPLES[name])


def test_the_mistake_fails_in_the_words_that_are_shown(mha) -> None:
    command = re.search(r"^mha (verify my_mistake .*)$", PAGE, re.MULTILINE)
    shown = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    code, out = mha(*command[1].split())
    assert code == 1
    printed = without_numbers(out)
    for line in without_numbers(shown[1]):
        assert line in printed


def test_the_pipelines_files_are_written(mha, tmp_path) -> None:
    command = re.search(r"^mha (verify my_softmax .*--junit .*)$", PAGE, re.MULTILINE)
    code, _ = mha(*command[1].split(), "--dtype", "float32", "--check", "output_is_like_the_input")
    assert code == 0
    suite = ET.parse(tmp_path / "checks.xml").getroot()[0]  # noqa: S314 - our own file
    assert suite.get("name") == "my_softmax"
    assert int(suite.get("tests")) == len(json.loads((tmp_path / "checks.json").read_text())) > 0


def test_the_constants_of_the_table_are_those_there_are() -> None:
    rows = re.findall(r"^\| (`[A-Z].*?) \|", PAGE, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([A-Z_]+)", row)]
    assert len(named) >= 9
    assert set(named) <= set(CONSTANTS)


def test_the_entry_point_is_in_the_group_that_is_read() -> None:
    shown = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert list(tomllib.loads(shown[1])["project"]["entry-points"]) == [ENTRY_POINT_GROUP]
