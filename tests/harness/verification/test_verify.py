"""What verification lets through to timing: nothing that failed, and nothing that was not shown to be right."""

import pytest

from harness.records import CheckRecord, Workload
from harness.verification.verify import NOT_BARRING, reasons_against_timing

NAME = "mine"


def check(**changes):
    """A check that passed, of the oracle in float32 under the causal flag."""
    given = {"check": "matches_the_oracle", "dtype": "float32", "mask": "causal", "mode": "inference", "device": "cpu"}
    fields = {**given, "implementation": NAME, "claim": "It is right.", "case": "a case", "status": "passed", **changes}
    return CheckRecord(**fields)


GRADIENTS = {"check": "gradients_match_the_oracle", "mode": "training"}
PASSED = (check(), check(**GRADIENTS), check(dtype="float64"))


@pytest.fixture
def barred():
    """``barred(records, mode=..., ...)`` gives the reasons against timing."""

    def ask(records, **changes):
        shape = {"label": "", "batch_size": 1, "seq_len": 8, "d_model": 8, "num_heads": 1}
        given = {"dtype": "float32", "mask": "causal", "mode": "inference", **changes}
        return reasons_against_timing(records, NAME, Workload(**shape, **given))

    return ask


@pytest.mark.parametrize("mode", ["inference", "forward", "training"])
def test_what_passed_is_timed(barred, mode):
    assert barred(PASSED, mode=mode) == ()


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"dtype": "bfloat16"}, ["matches_the_oracle was not shown for bfloat16, mask causal on cpu"]),
        ({"mask": "padding"}, ["matches_the_oracle was not shown for float32, mask padding on cpu"]),
        ({"device": "cuda"}, ["matches_the_oracle was not shown for float32, mask causal on cuda"]),
    ],
)
def test_what_was_not_shown_for_this_very_dtype_mask_and_device_is_not_timed(barred, changes, needed):
    assert list(barred(PASSED, **changes)) == needed


def test_training_needs_its_gradients_to_be_shown_and_a_forward_does_not(barred):
    assert barred([check()], mode="training") == (
        "gradients_match_the_oracle was not shown for float32, mask causal on cpu",
    )
    assert barred([check()], mode="forward") == ()


@pytest.mark.parametrize(
    ("failed_in", "barred_passes"),
    [
        ("inference", {"inference", "forward", "training"}),
        ("training", {"forward", "training"}),
        ("", {"inference", "forward", "training"}),
    ],
)
def test_a_wrong_forward_spoils_every_pass_and_a_wrong_backward_all_on_the_way_to_it(barred, failed_in, barred_passes):
    wrong = check(check="masks_hide", status="failed", reasons=("it does not",), mode=failed_in)
    found = {mode for mode in ("inference", "forward", "training") if barred([*PASSED, wrong], mode=mode)}
    assert found == barred_passes


def test_a_failure_in_float64_bars_every_dtype_and_one_in_another_dtype_only_that(barred):
    wrong = {"check": "masks_hide", "status": "failed", "reasons": ("it does not",)}
    assert barred([*PASSED, check(**wrong, dtype="float64")]) == ("masks_hide failed (a case): it does not",)
    assert barred([*PASSED, check(**wrong, dtype="bfloat16")]) == ()


def test_a_failure_under_another_mask_bars_nothing_and_a_general_one_everything(barred):
    wrong = {"check": "masks_hide", "status": "crashed", "reasons": ("killed by SIGSEGV",)}
    assert barred([*PASSED, check(**wrong, mask="padding")]) == ()
    assert barred([*PASSED, check(**wrong, mask="")]) == ("masks_hide crashed (a case): killed by SIGSEGV",)


def test_refusals_and_what_passed_against_its_declaration_bar_nothing(barred):
    for name in NOT_BARRING:
        assert barred([*PASSED, check(check=name, status="failed")]) == ()
    assert barred([*PASSED, check(check="masks_hide", status="unexpected_pass")]) == ()
    assert barred([*PASSED, check(check="masks_hide", status="known_failure")]) == ()


def test_anothers_failure_is_not_held_against_it(barred):
    assert barred([*PASSED, check(implementation="another", status="failed")]) == ()
