"""A known fault is named from what it does, an unknown one is not, and a right answer is never accused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from harness.registry import Registered, load_registry
from harness.verification.check import CORE, SQUARE
from harness.verification.diagnosis import Symptom, diagnose, distance, rounding_hint
from harness.verification.examination import explained
from harness.verification.inputs import make_inputs
from harness.verification.recording import Call
from harness.verification.rounding import expect
from harness.verification.selftest import find_zoo, load_zoo
from harness.verification.suite import Selection, plan, run_item, trial_of
from harness.verification.variants import BACKWARD_VARIANTS, VARIANTS, Formula, in_words
from implementations.spec import ALL_MASK_KINDS, Case, FullyMaskedRow

ZOO = load_zoo()
MUTANTS = {mutant.name: mutant.implementation for mutant in ZOO.mutants}
CASES = [
    *(replace(CORE, mask=mask) for mask in ALL_MASK_KINDS),
    replace(SQUARE, mask="causal_mask"),
    replace(SQUARE, mask="per_head"),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def call_of(case: Case, seed: int = 0, **changes: object) -> Call:
    """A call whose output is still to be filled in."""
    inputs = make_inputs(case, seed)
    made = Call(
        x=inputs.x,
        mask=inputs.mask,
        is_causal=inputs.is_causal,
        weights=inputs.weights,
        num_heads=case.num_heads,
        training=False,
        with_gradients=False,
        module=None,
    )
    return replace(made, **changes)


def symptom_of(call: Call, output: torch.Tensor, policy: FullyMaskedRow = "zero") -> Symptom:
    call.output = output.to(call.x.dtype)
    return Symptom(call, expect(call.problem(policy), call.x.dtype), policy)


def right(call: Call) -> torch.Tensor:
    formula = Formula(call, "zero")
    return formula.hiding(formula.hidden)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_formula_that_variants_change_is_the_oracles(case: Case) -> None:
    symptom = symptom_of(call_of(case), right(call_of(case)))
    torch.testing.assert_close(right(symptom.call), symptom.expected, rtol=1e-12, atol=1e-12)


def empty_rows(call: Call) -> Call:
    assert call.mask is not None
    mask = call.mask.clone()
    mask[0, 1, 2] = True
    return replace(call, mask=mask)


def special_calls() -> Iterator[Call]:
    """Calls that let each variant be seen: all masks, mask and flag together, empty rows, huge logits, strides."""
    yield from (call_of(case) for case in CASES)
    yield call_of(replace(CORE, dtype="float64"))
    for mask in ("padding", "dense"):
        yield call_of(replace(CORE, mask=mask), is_causal=True)
    dense = call_of(replace(CORE, mask="dense"))
    yield empty_rows(dense)
    for seed in range(3):
        loud = call_of(CORE, seed)
        loud.x[1] *= math.sqrt(300.0)
        yield loud
    padding = call_of(replace(CORE, mask="padding"))
    assert padding.mask is not None
    assert dense.mask is not None
    full = padding.mask.expand(3, 4, 7, 7)
    yield replace(padding, mask=torch.cat([full, ~full], dim=-1)[..., :7])
    yield replace(dense, mask=dense.mask.mT.contiguous().mT)
    window = torch.ones(7, 7, dtype=torch.bool).triu(1) | torch.ones(7, 7, dtype=torch.bool).tril(-3)
    yield replace(dense, mask=window)
    yield replace(call_of(CORE), x=dense.x.transpose(0, 1).contiguous().transpose(0, 1))
    yield replace(call_of(CORE), x=torch.stack([dense.x, -dense.x], dim=-1).flatten(-2)[..., ::2])


CALLS = tuple(special_calls())


def diagnoses(variant) -> Iterator[str]:
    """What is said of the outputs of a fault, for every call that it could touch."""
    for call in CALLS:
        for policy in ("zero", "uniform"):
            output = variant(Formula(call, policy))
            if output is not None:
                yield diagnose(symptom_of(replace(call), output, policy))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_every_known_fault_is_named_from_its_output(variant) -> None:
    """At least one call shows it; where several faults would give the same, it is among them."""
    assert any(in_words(variant) in words for words in diagnoses(variant))


@pytest.mark.parametrize("variant", BACKWARD_VARIANTS, ids=lambda variant: variant.__name__)
def test_every_known_fault_of_the_backward_pass_is_named_from_its_gradients(variant) -> None:
    case = replace(CORE, mask="padding", mode="training")
    call = call_of(case, cotangent=3.0 * make_inputs(case).cotangent)
    formula = Formula(call, "zero", differentiable=True)
    leaves = {"x": formula.x, **formula.w}
    gradients = torch.autograd.grad(
        variant(formula), list(leaves.values()), call.cotangent.double(), materialize_grads=True
    )
    call.gradients = {name: each.float() for name, each in zip(leaves, gradients, strict=True)}
    assert diagnose(symptom_of(call, right(call))) == in_words(variant)


BY_NAME = {
    "mask_inverted": ("masked_keys_have_no_influence", "polarity is inverted"),
    "mask_handed_to_sdpa_as_it_is": ("masked_keys_have_no_influence", "polarity is inverted"),
    "mask_transposed": ("masked_keys_have_no_influence", "query and key axis of the mask are exchanged"),
    "padding_on_query_axis": ("masked_keys_have_no_influence", "on the query axis"),
    "mask_added_as_zero_and_one": ("matches_the_oracle", "added to the logits as 0/1"),
    "mask_tiled_in_wrong_order": ("mask_layouts_mean_the_same", "(heads, items) instead of (items, heads)"),
    "expanded_mask_read_as_dense": ("mask_layouts_mean_the_same", "(heads, items) instead of (items, heads)"),
    "causal_flag_looks_ahead": ("matches_the_oracle", "hides the past instead of the future"),
    "causal_sees_next_token": ("matches_the_oracle", "off by one: a token sees the next one too"),
    "window_one_key_too_wide": ("a_row_may_lose_its_first_512_keys", "off by one"),
    "scale_missing": ("matches_the_oracle", "1/sqrt(d_k) is missing"),
    "scale_from_padded_head": ("matches_the_oracle", "0.86603 times", "as if d_k were 16 instead of 12"),
    "temperature_off_by_a_thousandth": ("matches_the_oracle", "1.001 times"),
    "denominator_off_by_a_thousandth": ("matches_the_oracle", "rows of weights sum to 0.999 instead of 1"),
    "softmax_over_queries": ("softmax_rows_sum_to_one", "over the query axis"),
    "masked_after_softmax": ("softmax_rows_sum_to_one", "zeroed behind the softmax"),
    "merged_without_transpose": ("matches_the_oracle", "merged without transpose"),
    "split_without_transpose": ("matches_the_oracle", "split without transpose"),
    "query_bias_dropped": ("matches_the_oracle", "the bias b_q is missing"),
    "output_projection_skipped": ("matches_the_oracle", "W_o is missing"),
    "last_key_dropped": ("matches_the_oracle", "last key is dropped"),
    "output_shifted_by_a_token": ("matches_the_oracle", "each token holds the answer of the one before it"),
    "empty_row_is_nan": ("fully_masked_row_is_as_declared", "rows without any key are NaN"),
    "nan_removed_from_forward_only": ("fully_masked_row_is_as_declared", "put NaN into the gradient of x"),
    "head_masked_whole_spoils_all": ("fully_masked_row_is_as_declared", "turn the whole output into NaN"),
    "empty_block_is_nan": ("a_row_may_lose_its_first_512_keys", "first 512 keys are all masked"),
    "one_maximum_for_all": ("large_logits_leave_other_items_alone", "one maximum of the whole tensor"),
    "parameters_loaded_in_bfloat16": ("matches_the_oracle", "parameters are rounded to bfloat16"),
    "values_detached": ("gradients_match_the_oracle", "no gradient reaches W_v.weight, W_v.bias"),
    "scale_missing_in_backward": ("gradients_match_the_oracle", "backward pass lacks the factor 1/sqrt(d_k)"),
    "key_gradient_missing": ("gradients_match_the_oracle", "the gradient of W_k.weight is 0"),
    "parameters_read_back_transposed": ("gradients_match_the_oracle", "W_o.weight is transposed"),
    "no_backward": ("gradients_match_the_oracle", "the output carries no graph"),
    "output_of_first_call": ("a_call_has_no_memory", "output of an earlier call", "only after an earlier call"),
    "first_mask_kept": ("a_call_has_no_memory", "the mask of an earlier call"),
    "backward_uses_latest_call": (
        "an_earlier_call_can_still_be_differentiated",
        "only with another call before the backward pass",
    ),
    "dropout_in_eval": ("matches_the_oracle", "chance, such as dropout"),
    "input_changed": ("modes_agree", "a call changes what it was given"),
    "output_of_heads": ("output_is_like_the_input", "still split into heads (B, S, H, d_k)"),
    "softmax_in_half": ("matches_the_oracle", "as if something inside were rounded to float16"),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_the_cause_of_a_wrong_implementation_is_named(name: str) -> None:
    check, *words = BY_NAME[name]
    implementation = MUTANTS[name]
    selection = Selection(checks=(check,), dtypes=("float32",))
    causes = []
    for item in plan(implementation, selection):
        record = run_item(implementation, item, selection)
        if record.status == "failed":
            trial = trial_of(implementation, item, selection)
            registered = Registered(implementation, str(ZOO.file), find_zoo())
            causes.append(explained(record, item.check.function, trial, registered, None).likely_cause)
            if all(word in causes[-1] for word in words):
                return
    pytest.fail(f"{name}: {check} says {causes}")


@pytest.mark.parametrize("name", ["document", "einsum", "sdpa"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_nothing_is_said_of_a_right_implementation(name: str, mode) -> None:
    registered = load_registry()[name]
    selection = Selection(checks=("matches_the_oracle", "gradients_match_the_oracle"), dtypes=("float32",))
    for item in plan(registered.implementation, selection):
        if item.case.mode == mode and item.case.seq_len < 100:
            trial = replace(trial_of(registered.implementation, item, selection), calls=[])
            item.check.function(trial)
            for call in trial.calls or ():
                policy = registered.implementation.fully_masked_row
                symptom = Symptom(call, expect(call.problem(policy), call.x.dtype), policy)
                assert diagnose(symptom) == ""
                assert rounding_hint(symptom) == ""


def test_a_passed_check_is_not_examined() -> None:
    registered = load_registry()["einsum"]
    selection = Selection(checks=("matches_the_oracle",), dtypes=("float32",))
    item = plan(registered.implementation, selection)[0]
    record = run_item(registered.implementation, item, selection)
    trial = trial_of(registered.implementation, item, selection)
    assert explained(record, item.check.function, trial, registered, None) is record


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0])
def test_nothing_is_said_of_a_fault_that_nobody_knows(scale: float) -> None:
    call = call_of(replace(CORE, mask="dense"))
    noise = torch.randn(call.x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert diagnose(symptom_of(call, right(call) + scale * noise)) == ""


def test_several_faults_that_would_do_the_same_are_all_named() -> None:
    """With a single key, dropping the last one behind the softmax and never seeing it are the same."""
    call = call_of(replace(CORE, seq_len=1))
    words = diagnose(symptom_of(call, Formula(call, "zero").finish(torch.zeros(3, 4, 1, 1, dtype=torch.float64))))
    assert words.startswith("one of: ")
    assert "last key is dropped" in words
    assert "last key takes no part" in words


@pytest.mark.parametrize("factor", [0.1, 0.7, 1.0005, 2.5])
def test_a_factor_on_the_logits_is_printed(factor: float) -> None:
    call = call_of(replace(CORE, mask="padding"))
    formula = Formula(call, "zero")
    words = diagnose(symptom_of(call, formula.shaping(factor * formula.logits)))
    assert f"{factor:.5g} times" in words


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])  # bfloat16 rounds the difference away
def test_a_padded_head_dim_is_named(dtype: str) -> None:
    call = call_of(replace(CORE, mask="padding", dtype=dtype))
    formula = Formula(call, "zero")
    words = diagnose(symptom_of(call, formula.shaping(formula.logits * math.sqrt(12 / 16))))
    assert words == "logits are 0.86603 times as large as 1/sqrt(d_k) makes them, as if d_k were 16 instead of 12"


@pytest.mark.parametrize("total", [0.5, 0.99, 2.0])
def test_what_rows_sum_to_is_printed(total: float) -> None:
    call = call_of(CORE)
    formula = Formula(call, "zero")
    words = diagnose(symptom_of(call, formula.finish(total * formula.softmax(formula.logits, None))))
    assert words == f"rows of weights sum to {total:.5g} instead of 1"


def test_batch_items_in_the_wrong_order_are_seen() -> None:
    call = call_of(CORE)
    assert "batch item 0 holds that of 2" in diagnose(symptom_of(call, right(call)[[2, 1, 0]]))
    assert diagnose(symptom_of(call, right(call).roll(1, 0))) == "each batch item holds the answer of the one before it"


@pytest.mark.parametrize("factor", [0.0, 0.5, 3.0])
def test_a_factor_on_a_gradient_is_printed(factor: float) -> None:
    case = replace(CORE, mode="training")
    call = call_of(case, cotangent=make_inputs(case).cotangent)
    symptom = symptom_of(call, right(call))
    call.gradients = {name: each.float() for name, each in symptom.expectation.solution.gradients.items()}
    call.gradients["W_v.bias"] = factor * call.gradients["W_v.bias"]
    relation = "0" if factor == 0.0 else f"{factor:.5g} times the right one"
    assert diagnose(symptom) == f"the gradient of W_v.bias is {relation}"


def test_an_output_that_is_nan_where_another_is_not_is_infinitely_far() -> None:
    budget = torch.ones(2)
    assert distance(torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0]), budget) == math.inf
    assert distance(torch.tensor([1.0, math.nan]), torch.tensor([3.0, math.nan]), budget) == 2.0
