"""A plugin's import may do anything: it is tried in a child, and what it does there is one line."""

from pathlib import Path

import pytest

from harness import plugins
from harness.errors import UserError
from harness.plugins import load_with_plugins

FUNCTION = "def attend(q, k, v, mask, *, is_causal):\n    return v\n"


def write(folder: Path, source: str) -> Path:
    path = folder / "mine.py"
    path.write_text(source + "\n" + FUNCTION)
    return path


def test_a_plugin_that_can_be_imported_is_registered(tmp_path: Path) -> None:
    assert load_with_plugins([write(tmp_path, "")])["mine"].plugin == tmp_path / "mine.py"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import ctypes\nctypes.string_at(0)", "killed by SIGSEGV (in <module>, {path} line 2)"),
        ("import os\nos._exit(3)", "the process exited with status 3"),
        ("while True:\n    pass", "no result within 1 s (in <module>, {path} line "),
        ("import torch\ntorch.empty(2**30).fill_(1)", "can't allocate memory"),
        ("raise SystemExit(7)", "fails to import: SystemExit: 7 (line 1)"),
    ],
)
def test_an_import_that_takes_its_process_down_is_one_line(tmp_path, monkeypatch, source: str, words: str) -> None:
    monkeypatch.setattr(plugins, "IMPORT_TIMEOUT_S", 1.0)
    monkeypatch.setattr("harness.children.free_memory_bytes", lambda: 2**30)
    path = write(tmp_path, source)
    with pytest.raises(UserError) as caught:
        load_with_plugins([path])
    assert words.format(path=path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_known_failure_of_a_check_that_there_is_not_is_refused(tmp_path: Path) -> None:
    declared = "from implementations.spec import KnownFailure\nKNOWN_FAILURES = (KnownFailure('looks_right', '', ''),)"
    with pytest.raises(UserError, match="'looks_right' is declared, and there is no such check; there are: "):
        load_with_plugins([write(tmp_path, declared)])
