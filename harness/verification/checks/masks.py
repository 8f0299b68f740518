"""Checks of masking: every form means the same, hidden keys have no influence, empty rows are as declared.

Shapes: B batch, H heads, S sequence.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.verification.check import (
    LONG,
    PAST_A_BLOCK,
    SQUARE,
    Check,
    CheckFailedError,
    Evidence,
    Trial,
    core,
    evidence,
    one,
    only_wide,
    same_as,
)
from harness.verification.inputs import Inputs
from implementations.spec import FullyMaskedRow


def check_mask_layouts_mean_the_same(trial: Trial) -> Evidence:
    """A mask gives the same output and gradients whether broadcast, expanded, dense or non-contiguous.

    Catches a mask tiled in the wrong order over items and heads, and kernels that ignore strides.
    """
    expectation = trial.expect(trial.inputs, gradients=trial.case.mode == "training")
    comparisons = []
    for form, mask in _layouts(trial.inputs).items():
        answer = trial.subject.answer(trial.inputs.with_mask(mask), trial.case.mode)
        seen = evidence(expectation, answer.tensors)
        comparisons += [
            replace(c, tensor=f"{c.tensor} with the mask {form} {tuple(mask.shape)}") for c in seen.comparisons
        ]
    return Evidence(tuple(comparisons), expectation.set_by)


def _layouts(inputs: Inputs) -> dict[str, Tensor]:
    """The same mask in every form that the contract allows for it."""
    assert inputs.mask is not None
    mask, case = inputs.mask, inputs.case
    full = mask.expand(case.batch_size, case.num_heads, case.seq_len, case.seq_len)
    forms = {
        "as given": mask,
        "expanded": full,
        "dense": full.contiguous(),
        "non-contiguous": full.transpose(-1, -2).contiguous().transpose(-1, -2),
        "a slice of a larger one": torch.cat([full, ~full], dim=-1)[..., : case.seq_len],
    }
    if mask.dim() == 2:
        forms["with leading ones"] = mask[None, None]
    if mask.dim() == 4 and mask.shape[0] == 1:
        forms["without the batch dimension"] = mask[0]
    return forms


def check_a_mask_of_keys_may_hide_any_of_them(trial: Trial) -> Evidence:
    """A mask over keys may hide the first ones, or some in between, for each item, for each head or for all alike.

    Catches masks of keys that are taken for lengths, as kernels for padded batches want them.
    """
    inputs, case, comparisons, set_by = trial.inputs, trial.case, [], ""
    index = torch.arange(case.seq_len, device=case.device)
    holes = (index + torch.arange(case.batch_size, device=case.device)[:, None]) % 3 == 1  # (B, S)
    by_head = (index + torch.arange(case.num_heads, device=case.device)[:, None]) % 3 == 0  # (H, S)
    left = index < case.seq_len // 2
    forms = {
        "that hides the first keys": left.expand(case.batch_size, 1, 1, -1),
        "with holes": holes[:, None, None],
        "for all items": left[None],
        "for all items, in four dimensions": holes[:1, None, None],
        "for each head": by_head[None, :, None] | holes[:, None, None],
    }
    for form, mask in forms.items():
        masked = inputs.with_mask(mask)
        seen = evidence(
            trial.expect(masked, gradients=case.mode == "training"), trial.subject.answer(masked, case.mode).tensors
        )
        comparisons += [replace(c, tensor=f"{c.tensor} with a mask of keys {form}") for c in seen.comparisons]
        set_by = seen.set_by
    return Evidence(tuple(comparisons), set_by)


def check_masked_keys_have_no_influence(trial: Trial) -> Evidence:
    """Other content in masked keys leaves every row that is not its own unchanged.

    Catches inverted polarity, masks added as 0/1, masks on the query axis, windows and causality off by one.
    """
    inputs = trial.inputs
    hidden = inputs.hidden
    assert hidden is not None
    token = inputs.case.seq_len - 1
    if inputs.mask is not None and inputs.case.mask not in ("causal_mask", "padding_causal"):
        mask = inputs.mask.clone()
        mask[..., token] = True
        mask[..., 0] = False  # so that no row is empty
        inputs = inputs.with_mask(mask)
    changed = inputs.x.clone()
    changed[:, token] = 50.0 * changed[:, token].flip(-1) + 20.0
    before = trial.subject.infer(inputs)
    after = trial.subject.infer(replace(inputs, x=changed))
    expectation = trial.expect(inputs)
    comparison = same_as(
        "output after another content of the last key",
        after[:, :token],
        before[:, :token],
        expectation.budgets["output"][:, :token],
    )
    return Evidence((comparison,), expectation.set_by)


def check_masked_keys_lose_to_any_allowed_logit(trial: Trial) -> Evidence:
    """A masked key has no influence even where all allowed logits are about -2e4 and its own is +2e4.

    Catches small finite fills such as -1e4, additive or not, in masks or behind the causal flag only.
    """
    inputs = _with_logits_of_two_levels(trial.inputs, allowed=-2e4, masked=2e4)
    return trial.compare_output(inputs, trial.prepare(inputs).infer(inputs))


def _with_logits_of_two_levels(inputs: Inputs, allowed: float, masked: float) -> Inputs:
    """Weights under which a key's logit is its first channel, and x that sets it by whether the key is padding.

    W_q = 0 and b_q = 1 make every query all ones; W_k copies channel 0 into all of a head's channels, so a logit is
    sqrt(d_k) times that channel.
    """
    weights = {name: tensor.clone() for name, tensor in inputs.weights.items()}
    weights["W_q.weight"].zero_()
    weights["W_q.bias"].fill_(1.0)
    weights["W_k.weight"].zero_()
    weights["W_k.weight"][:, 0] = 1.0
    weights["W_k.bias"].zero_()
    x = inputs.x.clone()
    root = inputs.case.head_dim**0.5
    if inputs.mask is None:  # the causal flag, which hides the last token from all but itself
        padding = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]) == x.shape[1] - 1
    else:
        padding = inputs.mask.reshape(x.shape[0], x.shape[1])
    logits = torch.where(padding, masked, allowed + inputs.x[..., 0])  # allowed ones differ by about 1
    x[..., 0] = logits / root
    return replace(inputs, x=x, weights=weights)


def check_fully_masked_row_is_as_declared(trial: Trial) -> Evidence:
    """A row whose keys are all masked gives what is declared; other rows and all gradients stay right.

    Catches NaN that a single empty row, or a head without any key, spreads into the weight gradients of the whole
    batch.
    """
    assert trial.inputs.mask is not None
    mask = trial.inputs.mask.clone()
    if trial.case.mask == "padding":
        mask[0] = True  # an item of nothing but padding
    elif trial.case.mask == "per_head":
        mask[0, 1] = True  # a whole head
    else:
        mask[0, 1, 2] = True  # a row in one head only
        mask[1, :, 0] = True  # a row in all heads
    inputs = trial.inputs.with_mask(mask)
    answer = trial.subject.answer(inputs, trial.case.mode)
    declared, seen = trial.implementation.fully_masked_row, _policy_seen(trial, inputs, answer.output)
    if seen != declared:
        raise CheckFailedError(
            f"a fully masked row gives {_IN_WORDS[seen]}, and {_IN_WORDS[declared]} is declared; if that is meant, "
            f'declare fully_masked_row="{seen}" (in a file of plain code: FULLY_MASKED_ROW = "{seen}")'
        )
    if declared == "nan":
        # The declared hazard: the row is NaN, and so is whatever gradient it reaches.
        return trial.compare_output(inputs, answer.output)
    for name, gradient in answer.gradients.items():
        if not bool(gradient.isfinite().all()):
            raise CheckFailedError(f"the gradient of {name} is not finite")
    return evidence(trial.expect(inputs, gradients=trial.case.mode == "training"), answer.tensors)


_IN_WORDS: dict[FullyMaskedRow, str] = {"zero": "zero", "uniform": "the mean of V", "nan": "NaN"}


def _policy_seen(trial: Trial, inputs: Inputs, output: Tensor) -> FullyMaskedRow:
    """The policy that explains an output as a whole; the declared one if none or several do."""
    declared = trial.implementation.fully_masked_row
    for policy in (declared, *_IN_WORDS):
        would_be = replace(trial, implementation=replace(trial.implementation, fully_masked_row=policy))
        if all(comparison.passed for comparison in would_be.compare_output(inputs, output).comparisons):
            return policy
    return declared


def check_mask_and_flag_may_empty_a_row_together(trial: Trial) -> Evidence:
    """Where padding at the left and the causal flag together leave a row no key, it gives what is declared.

    Catches guards against empty rows that look at the mask alone: a decoder on a batch that is padded on the left.
    """
    if "causal" not in trial.implementation.mask_kinds:
        return Evidence()  # it takes no flag
    left = torch.arange(trial.case.seq_len, device=trial.case.device) < 2
    mask = left.expand(trial.case.batch_size, 1, 1, -1).clone()
    mask[0] = False
    inputs = replace(trial.inputs, mask=mask, is_causal=True)
    answer = trial.subject.answer(inputs, trial.case.mode)
    if trial.implementation.fully_masked_row == "nan":
        return trial.compare_output(inputs, answer.output)  # the declared hazard reaches gradients as well
    return evidence(trial.expect(inputs, gradients=trial.case.mode == "training"), answer.tensors)


def check_a_row_may_lose_its_first_512_keys(trial: Trial) -> Evidence:
    """A sliding window that hides whole leading blocks of keys gives the formula's output and gradients.

    Catches online softmax that computes exp(-inf - -inf) in a block without any unmasked key, or differentiates it.
    """
    index = torch.arange(trial.case.seq_len)
    distance = index[:, None] - index[None, :]
    window = (distance < 0) | (distance >= 10)  # each query sees itself and the nine keys before it
    inputs = trial.inputs.with_mask(window.to(trial.case.device))
    answer = trial.subject.answer(inputs, trial.case.mode)
    return evidence(trial.expect(inputs, gradients=trial.case.mode == "training"), answer.tensors)


def check_an_all_false_mask_changes_nothing(trial: Trial) -> Evidence:
    """A mask that hides nothing gives the output of no mask."""
    seq_len = trial.case.seq_len
    expectation = trial.expect(trial.inputs.with_mask(None))
    nothing = torch.zeros(seq_len, seq_len, dtype=torch.bool, device=trial.case.device)
    without = trial.subject.infer(trial.inputs.with_mask(None))
    with_mask = trial.subject.infer(trial.inputs.with_mask(nothing))
    comparison = same_as("output with an all-False mask", with_mask, without, expectation.budgets["output"])
    return Evidence((comparison,), expectation.set_by)


def check_the_flag_adds_to_the_mask(trial: Trial) -> Evidence:
    """With a mask and the causal flag together, a key is hidden if either hides it.

    Catches modules that drop the mask beside the flag (some in one mode only), or the flag beside the mask.
    """
    if "causal" not in trial.implementation.mask_kinds:
        return Evidence()  # it takes no flag
    inputs = replace(trial.inputs, is_causal=True)
    answer = trial.subject.answer(inputs, trial.case.mode)
    return evidence(trial.expect(inputs, gradients=trial.case.mode == "training"), answer.tensors)


CHECKS = (
    Check(
        check_mask_layouts_mean_the_same,
        core(("causal_mask", "padding", "padding_causal", "per_head", "dense")),
    ),
    Check(check_mask_layouts_mean_the_same, core(("dense",), modes=("training",))),
    # With as many items as heads, a mask for each head could be mistaken for one for each item.
    Check(check_mask_layouts_mean_the_same, one(replace(SQUARE, mask="per_head"))),
    Check(
        check_masked_keys_have_no_influence,
        core(("causal", "causal_mask", "padding", "padding_causal", "per_head", "dense")),
    ),
    Check(check_a_mask_of_keys_may_hide_any_of_them, core(("padding",), modes=("inference", "training"))),
    Check(check_masked_keys_lose_to_any_allowed_logit, only_wide(core(("padding", "causal")))),
    Check(
        check_mask_and_flag_may_empty_a_row_together,
        core(("padding",), modes=("inference", "training")),
        bars_timing=False,
    ),
    Check(
        check_fully_masked_row_is_as_declared,
        core(("dense", "padding", "per_head"), modes=("inference", "training")),
        bars_timing=False,
    ),
    *(
        Check(
            check_a_row_may_lose_its_first_512_keys, one(replace(LONG, mask="causal_mask", mode=mode), also_slow=False)
        )
        for mode in ("inference", "training")
    ),
    Check(check_an_all_false_mask_changes_nothing, core(("causal_mask",))),
    Check(check_the_flag_adds_to_the_mask, core(("padding",), modes=("inference", "training"))),
    Check(check_the_flag_adds_to_the_mask, one(replace(PAST_A_BLOCK, mask="padding"), also_slow=False)),
)
