"""Discovery: one file is one entry, plugins count, and every refusal says what to do."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from harness import registry
from harness.errors import UserError
from harness.registry import load_registry, one_line, select

EINSUM = Path(__file__).parents[2] / "implementations" / "einsum.py"


def plugin(folder: Path, source: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(source)
    return path


def test_the_given_implementations_are_registered() -> None:
    expected = {"document", "einsum", "sdpa", "torch_mha", "torch_mha_weights", "xformers"}
    assert expected <= set(load_registry())


def test_a_copy_with_another_name_is_an_entry_of_its_own(tmp_path: Path) -> None:
    path = plugin(tmp_path, EINSUM.read_text().replace('name="einsum"', 'name="mine"'))
    loaded = load_registry([path])
    assert set(loaded) == set(load_registry()) | {"mine"}
    assert loaded["mine"].plugin == path


def test_a_file_may_register_several(tmp_path: Path) -> None:
    source = EINSUM.read_text().replace("IMPLEMENTATION = ", "ONE = ")
    source += "\nfrom dataclasses import replace\nIMPLEMENTATIONS = (replace(ONE, name='a'), replace(ONE, name='b'))\n"
    assert {"a", "b"} <= set(load_registry([plugin(tmp_path, source)]))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import nothing_of_this_name", "fails to import: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("x = 1\nraise SystemExit(7)", "fails to import: SystemExit: 7 (line 2)"),
        ("def broken(:", "fails to import: SyntaxError"),
        (
            "x = 1",
            "expected IMPLEMENTATION = Implementation(...), a function attend(q, k, v, mask, *, is_causal), or one",
        ),
        ("IMPLEMENTATION = IMPLEMENTATIONS = 1", "found both"),
        ("IMPLEMENTATION = 'sdpa'", "expected implementations.spec.Implementation, got str"),
        (EINSUM.read_text().replace('name="einsum"', 'name="a/b"'), "'a/b' cannot be the name of an implementation"),
        (
            EINSUM.read_text().replace('"zero"', '"zeros"'),
            "fully_masked_row cannot be 'zeros'; there are: uniform, zero",
        ),
        (
            EINSUM.read_text().replace('name="einsum"', 'name="mine", kernels={"cpu": "aten::bmm"}'),
            "kernels['cpu'] must be a tuple of operator names",
        ),
        (EINSUM.read_text(), "two implementations are named 'einsum'"),
    ],
)
def test_a_plugin_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, source: str, words: str) -> None:
    path = plugin(tmp_path, source)
    with pytest.raises(UserError) as caught:
        load_registry([path])
    message = str(caught.value)
    assert words in message
    assert str(path) in message
    assert "\n" not in message


def test_a_duplicate_name_names_both_files(tmp_path: Path) -> None:
    path = plugin(tmp_path, EINSUM.read_text())
    with pytest.raises(UserError) as caught:
        load_registry([path])
    assert str(EINSUM) in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_plugin_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_registry([tmp_path / "absent.py"])


def test_a_plugin_may_import_files_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    plugin(tmp_path, EINSUM.read_text(), "the_kernel_beside.py")
    path = plugin(tmp_path, "from the_kernel_beside import attend\n")
    assert load_registry([path])["mine"].implementation.fully_masked_row == "zero"


def test_an_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(UserError, match="no implementation named 'flash'; registered: document, einsum, sdpa"):
        select(load_registry(), ["flash"])


def test_entry_points_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plugin(tmp_path, EINSUM.read_text().replace('name="einsum"', 'name="installed"'), "installed_attention.py")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("installed", "installed_attention", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry.importlib.metadata, "entry_points", lambda group: [point])
    assert load_registry()["installed"].origin == "entry point installed_attention"


def test_an_entry_point_may_be_a_module_of_plain_code_and_names_it(monkeypatch, tmp_path: Path) -> None:
    plugin(tmp_path, "def attend(q, k, v, mask, *, is_causal):\n    return v\n", "plain_installed_attention.py")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("short", "plain_installed_attention", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry.importlib.metadata, "entry_points", lambda group: [point])
    assert load_registry()["short"].implementation.attend is not None


def test_an_entry_point_that_cannot_be_loaded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("broken", "no_such_module:thing", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry.importlib.metadata, "entry_points", lambda group: [point])
    with pytest.raises(UserError, match="entry point broken = no_such_module:thing cannot be loaded"):
        load_registry()


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("", "ValueError"),
        ("first\nsecond", "ValueError: first"),
        (
            "\nError(s) in loading:\n\tsize mismatch for W_q\nmore",
            "ValueError: Error(s) in loading: size mismatch for W_q",
        ),
    ],
)
def test_an_error_in_one_line_keeps_what_stands_behind_a_colon(message: str, line: str) -> None:
    assert one_line(ValueError(message)) == line
