"""The command line as a user meets it: what it prints, and one line with exit code 2 for whatever does not fit."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch
from safetensors.torch import save_file

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


def test_list_says_which_have_a_backward_on_the_device(capfd) -> None:
    _, out, _ = mha(capfd, "list", "--json")
    trains = {entry["name"]: entry["gradients"] for entry in json.loads(out)}
    assert trains["sdpa"]
    assert not trains["xformers"], "its kernel for the CPU is forward only"


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


ALWAYS = "def attend(q, k, v, mask, *, is_causal):\n    {body}\n"


def test_a_plugin_that_always_ends_alike_is_told_once(capfd) -> None:
    Path("deadly.py").write_text("import os\n" + ALWAYS.format(body="os._exit(9)"))
    code, out, _ = mha(
        capfd, "verify", "deadly", "--plugin", "deadly.py", "--dtype", "float32", "--check", "any_strides_are_accepted"
    )
    assert code == 1
    assert out.count("the process exited with status 9") == 1
    assert "crashed on b3-s7-d48-h4-none-float32-inference-cpu\n" in out
    assert re.search(r"and \d+ more alike\n", out)


def test_junit_and_json_say_the_same_also_of_failures_and_declared_ones(capfd) -> None:
    declared = (
        "from implementations.spec import KnownFailure\nKNOWN_FAILURES = [KnownFailure({check!r}, 'why', 'who')]\n"
    )
    Path("one.py").write_text(ALWAYS.format(body="return v"))
    Path("two.py").write_text(declared.format(check="matches_the_oracle") + ALWAYS.format(body="return v"))
    Path("three.py").write_text(declared.format(check="output_is_like_the_input") + ALWAYS.format(body="return v"))
    plugins = [part for name in ("one", "two", "three") for part in ("--plugin", f"{name}.py")]
    selection = ["--dtype", "float32", "--case", "b3-s7-d48-h4-none-float32-inference-cpu"]
    selection += ["--check", "output_is_like_the_input", "--check", "matches_the_oracle"]
    code, out, _ = mha(capfd, "verify", "one", "two", "three", *plugins, *selection, "--json", "j", "--junit", "x")
    statuses = {(r["implementation"], r["check"]): r["status"] for r in json.loads(Path("j").read_text())}
    assert code == 1
    assert statuses == {
        ("one", "output_is_like_the_input"): "passed",
        ("one", "matches_the_oracle"): "failed",
        ("two", "output_is_like_the_input"): "passed",
        ("two", "matches_the_oracle"): "known_failure",
        ("three", "output_is_like_the_input"): "unexpected_pass",
        ("three", "matches_the_oracle"): "failed",
    }
    suites = {suite.get("name"): suite for suite in ET.parse("x").getroot()}  # noqa: S314 - our own file
    assert {name: (s.get("failures"), s.get("skipped")) for name, s in suites.items()} == {
        "one": ("1", "0"),
        "two": ("0", "1"),
        "three": ("2", "0"),
    }
    assert "three: output_is_like_the_input unexpected_pass" in out
    assert "two: known failure of matches_the_oracle: why (who)" in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("option", ["--json", "--junit"])
def test_a_file_that_cannot_be_written_after_all_costs_no_result(capfd, option: str) -> None:
    selection = ("--dtype", "float32", "--check", "output_is_like_the_input")
    code, out, err = mha(capfd, "verify", "einsum", *selection, option, "/dev/full")
    assert code == 2
    assert "checks: " in out
    assert err.splitlines()[-1] == "mha: /dev/full: cannot be written: No space left on device"


def test_weights_of_names_that_are_given_are_verified_and_their_input_is_named(capfd) -> None:
    tensors = {f"a.2.{letter}": torch.randn(8, 8, generator=torch.Generator().manual_seed(1)) for letter in "qkvo"}
    save_file(tensors, "m.safetensors")
    mapping = [part for letter in "qkvo" for part in ("--map", f"W_{letter}.weight=a.{{layer}}.{letter}")]
    weights = ("--weights", "m.safetensors", "--layer", "2", "--num-heads", "2", *mapping)
    selection = ("--dtype", "float32", "--check", "matches_the_oracle", "--json", "-")
    code, out, err = mha(capfd, "verify", "einsum", *weights, *selection)
    records = json.loads(out)
    assert code == 0
    assert len(records) == 4
    assert "--map 'W_q.weight=a.{layer}.q'" in records[0]["reproduce"]
    assert "layer 2 of m.safetensors (given naming): d_model 8, 2 heads" in err
    assert "random input, for no embeddings are known of names given by --map" in err


BAD = {
    "unknown command": (("bensch",), "No such command 'bensch'"),
    "unknown option": (("list", "--colour"), "No such option"),
    "unknown implementation": (("verify", "flash"), "no implementation named 'flash'; registered: document"),
    "unknown check": (("verify", "--check", "looks_right"), "no check named looks_right; there are:"),
    "no such case": (
        ("verify", "einsum", "--case", "b3-s9-d48-h4-causal-float32-inference-cpu"),
        "nothing to verify: no check of the suite has this case",
    ),
    "layer of nothing": (("verify", "einsum", "--layer", "3"), "give the file by --weights"),
    "not a case": (("verify", "--case", "b3"), "'b3' is not the name of a case"),
    "unknown dtype": (("verify", "--dtype", "float31"), "'float31' is not one of"),
    "missing plugin": (("list", "--plugin", "absent.py"), "plugin absent.py: no such file"),
    "broken plugin": (("list", "--plugin", "broken.py"), "broken.py fails to import: NameError: name 'oops'"),
    "missing weights": (("verify", "--weights", "absent.safetensors"), "absent.safetensors"),
    "unreadable weights": (("verify", "--weights", "broken.safetensors"), "broken.safetensors"),
    "map without weights": (("verify", "--map", "W_q.weight=a"), "give the file by --weights"),
    "grouped queries": (
        ("verify", "--weights", "grouped.safetensors", "--num-heads", "2"),
        "(grouped-query attention)",
    ),
    "JSON into a missing folder": (("verify", "--json", "absent/checks.json"), "absent is no folder; make it first"),
    "JUnit onto a folder": (("verify", "--junit", "other"), "other is a folder, and a file was expected"),
    "plugin that dies": (
        ("verify", "--plugin", "dies.py"),
        "plugin dies.py cannot be imported: the process exited with",
    ),
    "no time": (("verify", "--timeout", "0"), "0.0 is not in the range x>0"),
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
    Path("dies.py").write_text("import os\nos._exit(3)\n")
    names = {
        f"layers.0.self_attn.{letter}_proj.weight": torch.zeros(4 if letter in "kv" else 8, 8) for letter in "qkvo"
    }
    save_file(names, "grouped.safetensors")
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


def test_verify_with_a_plugin_and_no_name_verifies_the_plugin(capfd) -> None:
    Path("mine.py").write_text("from implementations.sdpa import attend\n")
    arguments = ("--dtype", "float32", "--check", "output_is_like_the_input")
    code, out, _ = mha(capfd, "verify", "--plugin", "mine.py", *arguments)
    assert code == 0
    assert "mine" in out
    assert "einsum" not in out


def test_what_attend_returns_is_held_against_what_it_should(capfd) -> None:
    Path("none.py").write_text(ALWAYS.format(body="pass"))
    Path("swapped.py").write_text(ALWAYS.format(body="return q.transpose(1, 2)"))
    arguments = ("--dtype", "float32", "--check", "output_is_like_the_input")
    _, out, _ = mha(capfd, "verify", "--plugin", "none.py", *arguments)
    assert "attend must return (batch, heads, seq, d_k) = (3, 4, 7, 12), returned NoneType" in out
    _, out, _ = mha(capfd, "verify", "--plugin", "swapped.py", *arguments)
    assert "returned (3, 7, 4, 12)" in out


def test_an_exception_says_where_in_the_users_file_and_is_told_once(capfd) -> None:
    Path("raises.py").write_text(ALWAYS.format(body="raise RuntimeError('boom')"))
    code, out, _ = mha(capfd, "verify", "--plugin", "raises.py", "--dtype", "float32")
    assert code == 1
    assert re.search(r"raised RuntimeError: boom \(in attend, \S*raises.py line 2\)", out)
    assert out.count("RuntimeError: boom") <= 3, "once for each way to come to it"


def test_weights_that_do_not_load_are_one_line(capfd) -> None:
    source = """
        from torch import nn
        class Fused(nn.Module):
            def __init__(self, d_model, num_heads):
                super().__init__()
                self.qkv = nn.Linear(d_model, 3 * d_model)
            def forward(self, x, mask=None):
                return x
    """
    Path("fused.py").write_text(textwrap.dedent(source))
    code, _, err = mha(capfd, "verify", "--plugin", "fused.py")
    assert code == 2
    assert err.count("\n") == 1
    assert "fused.py: the weights do not load into the module: nothing is given for its qkv.weight, qkv.bias" in err


@pytest.mark.parametrize("command", ["verify", "bench", "noise", "selftest"])
def test_a_seed_that_no_generator_takes_is_refused(capfd, command: str) -> None:
    code, _, err = mha(capfd, command, "--seed", "99999999999999999999999")
    assert code == 2
    assert "is not in the range 0<=x<=4294967295" in err


def test_a_misspelt_declaration_is_not_ignored(capfd) -> None:
    Path("mine.py").write_text('FULLY_MASKED_ROWS = "nan"\nfrom implementations.sdpa import attend\n')
    code, _, err = mha(capfd, "list", "--plugin", "mine.py")
    assert code == 2
    assert "FULLY_MASKED_ROWS declares nothing; did you mean FULLY_MASKED_ROW?" in err


def test_a_name_that_is_nearly_right_gets_a_hint(capfd) -> None:
    Path("mine.py").write_text("from implementations.sdpa import attend\n")
    _, _, err = mha(capfd, "verify", "spda")
    assert "did you mean sdpa?" in err
    _, _, err = mha(capfd, "verify", "mine.py")
    assert "for your own file: mine --plugin mine.py" in err


def test_at_eighty_columns_names_and_dtypes_are_whole(capfd, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = mha(capfd, "verify", "torch_mha_weights", "--dtype", "bfloat16", "--check", "output_is_like_the_input")
    assert "torch_mha_weights" in out
    assert "bfloat16" in out
