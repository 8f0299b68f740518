"""`mha choose` end to end, on a shape small enough for a test."""

import json
from pathlib import Path

import pytest

from harness.cli import run
from harness.cli.workload_options import MASKS
from harness.records import RunFolder
from implementations.spec import ALL_MASK_KINDS

SHAPE = ("--batch-size", "1", "--seq-len", "16", "--d-model", "16", "--num-heads", "2", "--threads", "1")
QUICK = ("--seconds", "0.5", "--output", "run")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_one_workload_is_verified_measured_ranked_and_recommended_with_code(capfd) -> None:
    assert run(["choose", "sdpa", "einsum", *SHAPE, "--mask", "causal", *QUICK]) == 0
    out = capfd.readouterr().out
    assert "chosen: B 1, S 16, d_model 16, 2 heads, causal mask, float32, inference, 1 thread" in out
    assert "Use sdpa for inference (whole module, causal mask, float32)" in out
    assert "attention = build_module(chosen, d_model=16, num_heads=2)" in out
    folder = RunFolder(Path("run"))
    (workload,) = folder.info().workloads
    assert (workload.seq_len, workload.mask, workload.mode) == (16, "causal", "inference")
    assert {record.dtype for record in folder.checks()} == {"float32", "float64"}


def test_a_model_gives_what_is_not_given(capfd) -> None:
    options = ["--seq-len", "8", "--batch-size", "1", "--pass", "training", "--dtype", "float64", *QUICK]
    assert run(["choose", "sdpa", "--like", "gpt2", *options, "--json", "-"]) == 0
    choice = json.loads(capfd.readouterr().out)
    given = {
        key: choice["workload"][key] for key in ("label", "seq_len", "d_model", "num_heads", "mask", "mode", "dtype")
    }
    assert given == {
        "label": "GPT-2",
        "seq_len": 8,
        "d_model": 768,
        "num_heads": 12,
        "mask": "causal",
        "mode": "training",
        "dtype": "float64",
    }
    assert choice["recommended"] == "sdpa"


def test_what_lost_for_the_same_reason_is_told_in_one_line(capfd) -> None:
    assert run(["choose", "sdpa", "torch_mha", "torch_mha_weights", *SHAPE, "--scope", "attention", *QUICK]) == 0
    out = capfd.readouterr().out
    assert "torch_mha and torch_mha_weights: it is a whole module: it has no attention of its own to time" in out


def test_what_is_wrong_is_not_recommended(plugin_file, capfd) -> None:
    path = plugin_file("unscaled", scale=("q / math.sqrt(q.shape[-1])", "q"))
    assert run(["choose", "unscaled", "--plugin", str(path), *SHAPE, *QUICK]) == 1
    out = capfd.readouterr().out
    assert "Nothing can be recommended" in out
    assert "unscaled: matches_the_oracle failed" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "give --batch-size, --seq-len, --d-model, --num-heads, or a model by --like"),
        (("--like", "gpt5"), "no model named 'gpt5' is known; there are Transformer-base, BERT-base, MiniLM-L6"),
        ((*SHAPE, "--num-heads", "3"), "num_heads must divide d_model, and 3 does not divide 16"),
        ((*SHAPE, "--memory-limit", "lots"), "'lots' is not a size such as 2GiB or 500MB"),
        (("nobody", *SHAPE), "nobody"),
    ],
)
def test_what_does_not_fit_is_one_line(options: tuple[str, ...], words: str, capfd) -> None:
    assert run(["choose", *options, *QUICK]) == 2
    err = capfd.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert not Path("run").exists()


def test_its_masks_are_those_that_there_are() -> None:
    assert MASKS == ALL_MASK_KINDS
