"""A reproducer shows the fault in a process of its own, and says so by its exit code once it is gone."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.cli import run as mha
from harness.errors import UserError
from harness.records import CheckRecord
from harness.registry import Registered, load_registry
from harness.verification import standalone
from harness.verification.check import CORE
from harness.verification.examination import explained
from harness.verification.inputs import make_inputs
from harness.verification.oracle import solve
from harness.verification.reproducer import MAX_INLINE_BYTES, STEPS, Reproduction, origin_of, write_reproducer
from harness.verification.selftest import find_zoo
from harness.verification.suite import Selection, plan, run_item, trial_of
from implementations.spec import ALL_MASK_KINDS

RIGHT = """
from implementations.spec import Implementation

from .right import MultiHead

IMPLEMENTATION = Implementation("{name}", summary="right", source="here", build=MultiHead)
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A copy of the zoo's files, which a test may change."""
    folder = tmp_path / "zoo"
    shutil.copytree(find_zoo().parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "__init__.py"


def failure(registered: Registered, check: str, folder: Path, dtype: str = "float32", case: str = "") -> CheckRecord:
    """The first failure of a check, examined."""
    implementation = registered.implementation
    selection = Selection(checks=(check,), dtypes=(dtype,))
    for item in plan(implementation, selection):
        if case in str(item.case):
            record = run_item(implementation, item, selection)
            if record.status == "failed":
                trial = trial_of(implementation, item, selection)
                return explained(record, item.check.function, trial, registered, folder)
    raise AssertionError(f"{implementation.name} passes {check}")


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=folder, timeout=120)


def exit_code(script: str) -> int:
    """Of the script in this process, which has torch already."""
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script, run_name="__main__")
    return int(ended.value.code)


KINDS = {
    "mask_inverted": "masked_keys_have_no_influence",
    "scale_from_padded_head": "matches_the_oracle",
    "merged_without_transpose": "matches_the_oracle",
    "empty_row_is_nan": "fully_masked_row_is_as_declared",
    "softmax_over_queries": "softmax_rows_sum_to_one",
    "scale_missing_in_backward": "gradients_match_the_oracle",
    "output_of_first_call": "a_call_has_no_memory",
    "mask_dtype_not_checked": "wrong_mask_dtype_is_a_type_error",
}


@pytest.mark.parametrize("name", KINDS)
def test_a_fresh_process_shows_the_fault_until_the_file_is_right(name: str, zoo: Path, tmp_path: Path) -> None:
    record = failure(load_registry([zoo])[name], KINDS[name], tmp_path / "scripts")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    wrong = run(record.reproducer, elsewhere)
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    zoo.write_text(RIGHT.format(name=name))
    mended = run(record.reproducer, elsewhere)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert mended.stdout.endswith("The fault is gone.\n")


IN_THIS_PROCESS = (
    ("strides_of_mask_ignored", "mask_layouts_mean_the_same"),
    ("step_of_channels_ignored", "any_strides_are_accepted"),
    ("small_fill", "masked_keys_lose_to_any_allowed_logit"),
    ("empty_block_is_nan", "a_row_may_lose_its_first_512_keys"),
    ("output_in_float64", "output_is_like_the_input"),
    ("output_of_heads", "output_is_like_the_input"),
    ("values_detached", "gradients_match_the_oracle"),
    ("backward_uses_latest_call", "an_earlier_call_can_still_be_differentiated"),
    ("rare_dropout_in_eval", "matches_the_oracle"),
    ("input_changed", "modes_agree"),
    ("input_changed", "inputs_are_left_alone"),
    ("output_written_into_input", "outputs_never_alias"),
    ("random_state_moved", "calls_repeat_bit_for_bit"),
    ("parameters_loaded_in_bfloat16", "weights_survive_the_round_trip"),
    ("long_mask_cut_off", "wrong_mask_shape_is_a_value_error"),
    ("extra_channels_ignored", "wrong_d_model_is_an_error"),
    ("divisibility_not_checked", "indivisible_d_model_is_an_error"),
)


@pytest.mark.parametrize(("name", "check"), IN_THIS_PROCESS)
def test_every_kind_of_failure_has_a_script(name: str, check: str, zoo: Path, tmp_path: Path) -> None:
    record = failure(load_registry([zoo])[name], check, tmp_path / "scripts")
    assert exit_code(record.reproducer) == 1
    zoo.write_text(RIGHT.format(name=name))
    assert exit_code(record.reproducer) == 0


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("no_backward", "gradients_match_the_oracle", "does not require grad"),
        ("empty_batch_refused", "an_empty_batch_gives_an_empty_output", "cannot reshape tensor of 0 elements"),
    ],
)
def test_a_call_that_raises_raises_in_the_script(name: str, check: str, words: str, zoo: Path, tmp_path: Path) -> None:
    record = failure(load_registry([zoo])[name], check, tmp_path / "scripts")
    with pytest.raises(RuntimeError, match=words):
        runpy.run_path(record.reproducer, run_name="__main__")
    zoo.write_text(RIGHT.format(name=name))
    assert exit_code(record.reproducer) == 0


def test_every_step_that_is_not_about_an_answer_is_tried() -> None:
    assert set(STEPS) <= {*KINDS.values(), *(check for _, check in IN_THIS_PROCESS)}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes_are_carried_bit_for_bit(dtype: str, zoo: Path, tmp_path: Path) -> None:
    registered = load_registry([zoo])["scale_missing"]
    record = failure(registered, "gradients_match_the_oracle", tmp_path, dtype)
    assert exit_code(record.reproducer) == 1
    zoo.write_text(RIGHT.format(name="scale_missing"))
    assert exit_code(record.reproducer) == 0


@pytest.mark.parametrize("declared", ["IMPLEMENTATION", "plain function", "plain class"])
def test_plugins_of_every_form_are_loaded(declared: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    right, wrong = FORMS[declared], FORMS[declared].replace("** 0.5", "** 0.4")
    assert right != wrong
    path.write_text(wrong)
    record = failure(load_registry([path])["mine"], "matches_the_oracle", tmp_path / "scripts")
    assert exit_code(record.reproducer) == 1
    path.write_text(right)
    assert exit_code(record.reproducer) == 0


FUNCTION = """
import torch


def attend(q, k, v, mask, *, is_causal):
    hidden = torch.zeros(q.shape[-2], k.shape[-2], dtype=torch.bool) if mask is None else mask
    if is_causal:
        hidden = hidden | torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    empty = hidden.all(dim=-1, keepdim=True)
    logits = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden & ~empty, float("-inf"))
    return logits.softmax(dim=-1).masked_fill(empty, 0.0) @ v
"""
CLASS = (
    FUNCTION.replace("def attend", "def _attend")
    + """

class Mine(torch.nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        for letter in "qkvo":
            self.add_module(f"W_{letter}", torch.nn.Linear(d_model, d_model))

    def forward(self, x, mask=None, is_causal=False):
        q, k, v = (w(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for w in (self.W_q, self.W_k, self.W_v))
        return self.W_o(_attend(q, k, v, mask, is_causal=is_causal).transpose(1, 2).flatten(2))
"""
)
FORMS = {
    "plain function": FUNCTION,
    "plain class": CLASS,
    "IMPLEMENTATION": FUNCTION
    + """

from implementations.spec import Implementation

IMPLEMENTATION = Implementation("mine", summary="mine", source="here", attend=attend)
""",
}


def test_a_file_that_is_gone_is_not_taken_for_a_fault(zoo: Path, tmp_path: Path, capsys) -> None:
    record = failure(load_registry([zoo])["scale_missing"], "matches_the_oracle", tmp_path / "scripts")
    shutil.rmtree(zoo.parent)
    assert exit_code(record.reproducer) == 2
    assert "cannot be loaded" in capsys.readouterr().out


def test_the_script_says_what_was_found_and_why(zoo: Path, tmp_path: Path) -> None:
    record = failure(load_registry([zoo])["scale_missing"], "matches_the_oracle", tmp_path)
    text = Path(record.reproducer).read_text()
    for words in (record.claim, record.reasons[0], record.likely_cause, record.budget_set_by, record.reproduce):
        assert words
        assert words in text
    assert f"--plugin {zoo}" in text


def test_the_script_prints_error_index_and_budget(zoo: Path, tmp_path: Path, capsys) -> None:
    record = failure(load_registry([zoo])["scale_missing"], "matches_the_oracle", tmp_path)
    exit_code(record.reproducer)
    out = capsys.readouterr().out
    assert f"at {list(record.max_error_at or ())}" in out
    assert "largest error" in out
    assert "times the budget of" in out


def test_what_is_kept_for_a_tensor_shows_only_where_that_tensor_comes_again(zoo: Path, tmp_path: Path) -> None:
    record = failure(load_registry([zoo])["output_kept_for_the_tensor"], "a_call_has_no_memory", tmp_path)
    assert "something is kept for the tensor itself" in record.likely_cause
    assert exit_code(record.reproducer) == 1


def test_large_tensors_lie_beside_the_script(zoo: Path, tmp_path: Path) -> None:
    inputs = make_inputs(replace(CORE, d_model=384, num_heads=4))
    call = {
        "x": inputs.x,
        "mask": None,
        "is_causal": False,
        "training": False,
        "with_gradients": False,
        "written_over": False,
    }
    budget = torch.full(inputs.x.shape, 1e-4)
    reproduction = Reproduction(inputs.weights, 4, [{**call, "cotangent": None}], budgets={"output": budget})
    registered = load_registry([zoo])["scale_missing"]
    record = failure(registered, "matches_the_oracle", tmp_path / "small")
    path = write_reproducer(tmp_path / "large", record, registered, reproduction)
    assert path.stat().st_size < 30_000
    assert path.with_suffix(".pt").stat().st_size > MAX_INLINE_BYTES
    assert not list((tmp_path / "small").glob("*.pt"))
    assert exit_code(str(path)) == 1


def test_a_folder_that_cannot_be_made_is_one_line(zoo: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"reproducers cannot be written to .*; name another folder"):
        failure(load_registry([zoo])["scale_missing"], "matches_the_oracle", tmp_path / "file" / "scripts")


@pytest.mark.parametrize("mask", ALL_MASK_KINDS)
def test_the_formula_in_the_script_is_the_oracles(mask) -> None:
    inputs = make_inputs(replace(CORE, mask=mask, mode="training"))
    call = {"x": inputs.x, "mask": inputs.mask, "is_causal": inputs.is_causal, "cotangent": inputs.cotangent}
    solution = solve(inputs.problem("zero", gradients=True))
    expected = {"output": solution.output, **solution.gradients}
    for name, value in standalone.right_answer(call, dict(inputs.weights), CORE.num_heads, 0.0).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-10, msg=name)


def test_a_tensor_comes_back_with_its_strides() -> None:
    wide = torch.randn(3, 5, 8)[..., ::2].transpose(0, 1)
    copy = standalone.copy_of(wide)
    assert torch.equal(copy, wide)
    assert copy.stride() == wide.stride()
    assert copy.untyped_storage().data_ptr() != wide.untyped_storage().data_ptr()


def test_verify_prints_the_cause_and_the_script(zoo: Path, tmp_path: Path, capfd) -> None:
    arguments = ("verify", "scale_missing", "--plugin", str(zoo), "--dtype", "float32", "--check", "matches_the_oracle")
    code = mha((*arguments, "--reproducers", str(tmp_path / "scripts")))
    out = capfd.readouterr().out
    scripts = sorted((tmp_path / "scripts").glob("*.py"))  # large tensors lie beside their script
    assert code == 1
    assert len(scripts) > 10
    assert out.count("without mha: ") == out.count("  likely cause: the factor 1/sqrt(d_k) is missing") == 1
    assert any(f"without mha: python {script}\n" in out for script in scripts)
    assert f"and {len(scripts) - 1} more of the same cause\n" in out
    assert f"scripts for {len(scripts)} failures, named by check and case: {tmp_path / 'scripts'}" in out


def test_scripts_go_to_a_temporary_folder_that_only_failures_leave_behind(
    zoo: Path, tmp_path: Path, capfd, monkeypatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(zoo.parent)
    files = sorted(zoo.parent.iterdir())
    arguments = ("--plugin", str(zoo), "--dtype", "float32", "--check", "matches_the_oracle")
    assert mha(("verify", "nothing_changed", *arguments)) == 0
    assert not list(tmp_path.glob("mha-reproducers-*"))
    assert mha(("verify", "scale_missing", *arguments)) == 1
    (folder,) = tmp_path.glob("mha-reproducers-*")
    assert list(folder.iterdir())
    assert [path for path in sorted(zoo.parent.iterdir()) if path.name != "__pycache__"] == files


def test_the_origin_is_a_file_or_a_module(tmp_path: Path) -> None:
    einsum = load_registry()["einsum"]
    assert origin_of(einsum) == "implementations.einsum"
    assert origin_of(replace(einsum, origin="entry point package.module:thing")) == "package.module"
    assert origin_of(replace(einsum, plugin=tmp_path / "mine.py")) == str(tmp_path / "mine.py")
