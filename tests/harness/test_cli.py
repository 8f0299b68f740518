"""The command line as a user meets it: what it prints, and one line with exit code 2 for whatever does not fit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import COMMANDS, run


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)


def mha(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    code = run(arguments)
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def test_help_names_every_command(capfd) -> None:
    code, out, _ = mha(capfd, "--help")
    assert code == 0
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(capfd, command: str) -> None:
    code, out, _ = mha(capfd, command, "--help")
    assert code == 0
    assert COMMANDS[command].split(":")[0].rstrip(".") in " ".join(out.split())


def test_version_says_what_is_installed(capfd) -> None:
    code, out, _ = mha(capfd, "--version")
    assert code == 0
    assert "torch 2." in out


def test_list_prints_one_object_for_each_implementation(capfd, plugin_file) -> None:
    code, out, _ = mha(capfd, "list", "--json", "--plugin", str(plugin_file("mine")))
    names = [entry["name"] for entry in json.loads(out)]
    assert code == 0
    assert {"document", "einsum", "sdpa", "torch_mha", "xformers", "mine"} <= set(names)
    assert len(names) == len(set(names))


def test_list_flags_the_hazard_and_says_what_is_not_timed(capfd) -> None:
    _, out, _ = mha(capfd, "list")
    assert "nan (hazard)" in out
    assert "verified only" in out or "unavailable" in out


@pytest.mark.parametrize(("language", "words"), [("en", "Dot product"), ("zh", "点积计算")])
def test_explain_prints_the_documents_table(capfd, language: str, words: str) -> None:
    arguments = ("--batch-size", "2", "--seq-len", "10", "--d-model", "512", "--num-heads", "8", "--lang", language)
    code, out, _ = mha(capfd, "explain", *arguments)
    assert code == 0
    assert words in out
    assert "(2, 8, 10, 10)" in out


def test_verify_passes_a_right_implementation(capfd) -> None:
    code, out, _ = mha(capfd, "verify", "sdpa", "--dtype", "float64", "--check", "matches_the_oracle")
    assert code == 0
    assert "passed" in out


def test_verify_fails_a_wrong_plugin_and_says_how_to_see_it_again(capfd, plugin_file) -> None:
    path = plugin_file("inverted", mask=("hidden = hidden_keys(", "hidden = _inverted("))
    path.write_text(
        path.read_text() + "\n\ndef _inverted(mask, logits, *, is_causal):\n"
        "    hidden = hidden_keys(mask, logits, is_causal=is_causal)\n"
        "    return None if hidden is None else ~hidden\n"
    )
    check = ("--check", "masked_keys_have_no_influence", "--dtype", "float32")
    code, out, _ = mha(capfd, "verify", "inverted", "--plugin", str(path), *check)
    assert code == 1
    again = next(line for line in out.splitlines() if line.strip().startswith("again: mha verify inverted"))
    assert f"--plugin {path}" in " ".join(out.split())
    assert "--case b3-s7-d48-h4-" in again


def test_verify_writes_its_records_as_json(capfd) -> None:
    arguments = ("--dtype", "float32", "--check", "output_is_like_the_input", "--json", "-")
    code, out, _ = mha(capfd, "verify", "einsum", *arguments)
    records = json.loads(out)
    assert code == 0
    assert {record["status"] for record in records} == {"passed"}
    assert all(record["implementation"] == "einsum" for record in records)


def test_a_plugin_that_kills_its_process_is_one_line_and_the_others_finish(capfd, plugin_file) -> None:
    path = plugin_file(
        "deadly", body=("    logits = torch.einsum(", "    import os\n    os._exit(9)\n    logits = torch.einsum(")
    )
    arguments = ("--plugin", str(path), "--dtype", "float32", "--check", "permuting_tokens_permutes_the_output")
    code, out, _ = mha(capfd, "verify", "deadly", "einsum", *arguments)
    assert code == 1
    assert "the process exited with status 9" in out
    assert "2 checks: 1 crashed, 1 passed" in out or "2 checks: 1 passed, 1 crashed" in out


BAD = {
    "unknown command": (("bensch",), "No such command 'bensch'"),
    "unknown option": (("list", "--colour"), "No such option"),
    "unknown implementation": (("verify", "flash"), "no implementation named 'flash'; registered: document"),
    "unknown check": (("verify", "--check", "looks_right"), "no check named looks_right; there are:"),
    "not a case": (("verify", "--case", "b3"), "'b3' is not the name of a case"),
    "unknown dtype": (("verify", "--dtype", "float31"), "'float31' is not one of"),
    "missing plugin": (("list", "--plugin", "absent.py"), "plugin absent.py: no such file"),
    "broken plugin": (("list", "--plugin", "broken.py"), "broken.py fails to import: NameError: name 'oops'"),
    "missing weights": (("verify", "--weights", "absent.safetensors"), "absent.safetensors"),
    "unreadable weights": (("verify", "--weights", "broken.safetensors"), "broken.safetensors"),
    "unknown preset": (("bench", "--preset", "huge"), "huge"),
    "preset not TOML": (("bench", "--preset", "broken.toml"), "broken.toml"),
    "preset with a wrong key": (("bench", "--preset", "key.toml"), "colour"),
    "unknown baseline": (("bench", "--preset", "quick", "--baseline", "flash"), "no implementation named 'flash'"),
    "resolution": (("bench", "--resolution", "wide"), "'wide' is not a share such as 2%"),
    "no run yet": (("report",), "no run under"),
    "not a run": (("report", "."), "not a run folder"),
    "other format": (("report", "other"), "format version 99"),
    "resume what is not there": (("bench", "--resume", "absent"), "not a run folder"),
    "d_model": (("explain", "--d-model", "10", "--num-heads", "3"), "10"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_one_line_and_exit_code_2(capfd, arguments: tuple[str, ...], words: str) -> None:
    Path("broken.py").write_text("oops\n")
    Path("broken.safetensors").write_bytes(b"\xff" * 64)
    Path("broken.toml").write_text("[[sweep\n")
    Path("key.toml").write_text("title = 'x'\ncell_seconds = 1.0\nmax_rounds = 20\ncolour = 'red'\n")
    Path("other").mkdir()
    Path("other/run.json").write_text('{"format_version": 99}')
    code, out, err = mha(capfd, *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert err.startswith("mha: ")
    assert err.count("\n") == 1
    assert not Path("results").exists()


def test_a_foreign_package_named_implementations_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "implementations").mkdir()
    (tmp_path / "implementations" / "__init__.py").write_text("")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from harness.cli import main; main(['list'])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=os.environ)
    assert result.returncode == 2
    assert "needs its own package `implementations`" in result.stderr
    assert result.stderr.count("\n") == 1
