"""Generated cases: plain values in, tensors of exactly that shape, layout and content out."""

import dataclasses
from typing import get_args

import pytest
import torch

from harness.verification.fuzz.cases import FuzzCase, MaskLayout, MaskPlan, Pattern, XLayout
from harness.verification.fuzz.strategies import AXES
from implementations.spec import ALL_MASK_KINDS

CASE = FuzzCase(batch_size=2, seq_len=5, num_heads=3, head_dim=2, numbers=7)
PLAN = MaskPlan("bhqk", "random", "as drawn", "contiguous")


def mask_of(plan: MaskPlan, case: FuzzCase = CASE) -> torch.Tensor:
    mask = dataclasses.replace(case, mask=plan).inputs().mask
    assert mask is not None
    return mask


def test_a_case_gives_the_same_tensors_every_time() -> None:
    first, second = (dataclasses.replace(CASE, mask=PLAN).inputs() for _ in range(2))
    assert torch.equal(first.x, second.x)
    assert first.mask is not None
    assert second.mask is not None
    assert torch.equal(first.mask, second.mask)
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_forms_are_all_that_broadcast_with_two_to_four_dimensions() -> None:
    assert len(set(AXES)) == 4 + 8 + 16


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("hides", get_args(Pattern))
def test_every_form_of_mask_broadcasts_to_the_scores(axes: str, hides: Pattern) -> None:
    mask = mask_of(MaskPlan(axes, hides, "as drawn", "contiguous"))
    sizes = {"b": 2, "h": 3, "q": 5, "k": 5, "1": 1}
    assert mask.shape == tuple(sizes[axis] for axis in axes)
    assert mask.dtype == torch.bool
    assert mask.expand(2, 3, 5, 5).shape == (2, 3, 5, 5)


@pytest.mark.parametrize("layout", get_args(MaskLayout))
def test_the_layout_of_a_mask_leaves_its_content_alone(layout: MaskLayout) -> None:
    plain = mask_of(PLAN)
    assert torch.equal(mask_of(dataclasses.replace(PLAN, layout=layout)), plain)


def test_layouts_of_masks_are_what_they_say() -> None:
    expanded, transposed, step_2 = (
        mask_of(MaskPlan("1hqk", "random", "as drawn", layout)) for layout in ("expanded", "transposed", "step 2")
    )
    assert expanded.shape == (2, 3, 5, 5)
    assert expanded.stride(0) == 0
    assert transposed.stride()[-2:] == (1, 5)
    assert step_2.stride(-1) == 2


@pytest.mark.parametrize("layout", get_args(XLayout))
def test_x_lies_in_memory_as_it_says_with_the_same_content(layout: XLayout) -> None:
    x, plain = dataclasses.replace(CASE, x_layout=layout).inputs().x, CASE.inputs().x
    assert torch.equal(x[:1], plain[:1])
    assert x.is_contiguous() == (layout == "contiguous")
    if layout != "expanded":
        assert torch.equal(x, plain)


def test_rows_are_kept_emptied_or_left_as_they_are() -> None:
    everything = {rows: MaskPlan("bhqk", "everything", rows, "contiguous") for rows in ("kept", "emptied", "as drawn")}
    empty = {rows: int(mask_of(plan).all(-1).sum()) for rows, plan in everything.items()}
    assert empty == {"kept": 0, "emptied": 30, "as drawn": 30}
    nothing = mask_of(MaskPlan("bhqk", "nothing", "emptied", "contiguous"))
    assert int(nothing.all(-1).sum()) == 1


def test_patterns_hide_what_they_say() -> None:
    ones = torch.ones(5, 5, dtype=torch.bool)
    assert torch.equal(mask_of(MaskPlan("qk", "future", "kept", "contiguous")), ones.triu(1))
    assert torch.equal(mask_of(MaskPlan("qk", "band", "kept", "contiguous", band=2)), ones.triu(2) | ones.tril(-2))
    padding = mask_of(MaskPlan("b11k", "padding", "kept", "contiguous"))[:, 0, 0]
    assert not bool(padding[:, 0].any())
    assert torch.equal(padding, padding.cummax(-1).values)


@pytest.mark.parametrize(
    ("axes", "hides", "kind"),
    [
        ("qk", "future", "causal_mask"),
        ("qk", "random", "dense"),
        ("b11k", "padding", "padding"),
        ("b1qk", "padding", "padding_causal"),
        ("1hqk", "random", "per_head"),
        ("hqk", "future", "per_head"),
        ("bhqk", "random", "dense"),
        ("b11k", "random", "dense"),
    ],
)
def test_a_mask_needs_support_for_the_kind_that_covers_it(axes: str, hides: Pattern, kind: str) -> None:
    assert MaskPlan(axes, hides, "kept", "contiguous").kind == kind
    assert kind in ALL_MASK_KINDS


def test_the_flag_beside_a_mask_needs_support_for_both() -> None:
    kinds = [case.mask for case in dataclasses.replace(CASE, mask=PLAN, is_causal=True).spec_cases]
    assert kinds == ["dense", "causal"]


def test_magnitudes_go_to_all_of_x_to_the_last_item_and_to_the_logits() -> None:
    plain = CASE.inputs()
    scaled = dataclasses.replace(CASE, x_scale=10.0, item_scale=300.0, logit_scale=0.5).inputs()
    assert torch.allclose(scaled.x[0], 10.0 * plain.x[0])
    assert torch.allclose(scaled.x[1], 3000.0 * plain.x[1])
    assert torch.allclose(scaled.weights["W_q.weight"], 0.5 * plain.weights["W_q.weight"])
    assert torch.equal(scaled.weights["W_k.weight"], plain.weights["W_k.weight"])


def test_the_words_of_a_case_say_every_dimension() -> None:
    words = dataclasses.replace(CASE, mask=dataclasses.replace(PLAN, layout="step 2"), is_causal=True).words
    for part in (
        "B 2, S 5, H 3, d_k 2",
        "float32 on cpu, inference",
        "with the causal flag",
        "dimensions bxhxqxk that hides keys at random with probability 0.5, rows as they come, step 2",
        "x contiguous, times 1, its last item times 1, logits times 1",
        "seed 7",
    ):
        assert part in words
