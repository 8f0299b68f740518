"""Checks of state: nothing is changed, nothing is remembered, nothing is shared."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.verification.check import Check, CheckFailedError, Evidence, Trial, core, evidence, require_equal
from harness.verification.inputs import Inputs, make_inputs
from implementations.spec import PROJECTION_NAMES


def check_inputs_are_left_alone(trial: Trial) -> Evidence:
    """A call changes neither x nor the mask nor the weights, nor its backward pass the gradient handed to it."""
    inputs, subject = trial.inputs, trial.subject
    watched = {"x": inputs.x, "the output's gradient": inputs.cotangent}
    watched |= {f"parameter {n}": p for n, p in subject.module.named_parameters()}
    if inputs.mask is not None:
        watched["the mask"] = inputs.mask
    before = {name: tensor.detach().clone() for name, tensor in watched.items()}
    subject.answer(inputs, trial.case.mode)
    for name, tensor in watched.items():
        require_equal(f"a call changed {name}", tensor.detach(), before[name])
    return Evidence()


def check_calls_repeat_bit_for_bit(trial: Trial) -> Evidence:
    """In eval, the same call gives the same bits, whatever was computed in between; the global RNG stands still."""
    other = make_inputs(trial.case, trial.seed + 1)
    rng = torch.get_rng_state()
    first = trial.subject.infer(trial.inputs)
    trial.subject.infer(replace(other, mask=trial.inputs.mask))
    second = trial.subject.infer(trial.inputs)
    require_equal("the same call gave other values", second, first)
    require_equal("a call in eval moved the global random state", torch.get_rng_state(), rng)
    return Evidence()


def check_a_call_has_no_memory(trial: Trial) -> Evidence:
    """A second call with other data and another mask, of the same and of another length, gives its own right answer.

    Catches masks, keys or whole outputs that are kept from call to call; also if they are kept for the very tensor
    that came: the last call finds other data in the tensors of the first.
    """
    comparisons, set_by = [], ""
    own = replace(trial.inputs, x=trial.inputs.x.clone(), mask=_copy(trial.inputs.mask))
    for more, into in ((0, None), (4, None), (0, own)):
        trial.subject.infer(own)
        drawn = make_inputs(replace(trial.case, seq_len=trial.case.seq_len + more), trial.seed + 1)
        second = replace(drawn, weights=trial.inputs.weights)
        output = trial.subject.infer(second if into is None else _written_over(into, second))
        words = f"{more} tokens longer" if into is None else "into whose x and mask other data were written"
        seen = trial.compare_output(second, output)
        comparisons += [replace(c, tensor=f"output of a second call, {words}") for c in seen.comparisons]
        set_by = seen.set_by
    return Evidence(tuple(comparisons), set_by)


def _copy(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.clone()


def _written_over(inputs: Inputs, by: Inputs) -> Inputs:
    """The same tensors, x and mask, with other data in them."""
    inputs.x.copy_(by.x)
    if inputs.mask is not None and by.mask is not None:
        inputs.mask.copy_(by.mask)
    return inputs


def check_new_weights_count_at_once(trial: Trial) -> Evidence:
    """After weights are loaded anew or written over in place, the next call uses them, in eval and in training.

    Catches projections that are fused or cast once and kept, as a validation between two epochs finds out.
    """
    drawn = [make_inputs(trial.case, trial.seed + number) for number in (1, 2)]
    loaded, written = (replace(trial.inputs, weights=each.weights) for each in drawn)
    module, comparisons, set_by = trial.subject.module, [], ""
    trial.subject.infer(trial.inputs)
    for words, inputs in (("loaded", loaded), ("written over", written)):
        state = trial.implementation.pack(inputs.weights)
        if words == "loaded":
            module.load_state_dict(state, strict=False)
        else:
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    parameter.copy_(state[name])
        for mode in ("inference", "training"):
            module.train(mode == "training")
            with torch.set_grad_enabled(mode == "training"):
                output = trial.subject.call(inputs.x, inputs.mask, is_causal=inputs.is_causal)
            seen = trial.compare_output(inputs, output)
            comparisons += [replace(c, tensor=f"output in {mode} after weights were {words}") for c in seen.comparisons]
            set_by = seen.set_by
    return Evidence(tuple(comparisons), set_by)


def check_outputs_never_alias(trial: Trial) -> Evidence:
    """An output shares no memory with x, with a parameter or with another call's output."""
    first = trial.subject.infer(trial.inputs)
    kept = first.clone()
    second = trial.subject.infer(replace(trial.inputs, x=trial.inputs.x.flip(0)))
    require_equal("a second call overwrote the first call's output", first, kept)
    others = {"x": trial.inputs.x, "another output": second}
    others |= dict(trial.subject.module.named_parameters())
    for name, tensor in others.items():
        if _storage(first) == _storage(tensor):
            raise CheckFailedError(f"the output shares memory with {name}")
    return Evidence()


def check_modes_agree(trial: Trial) -> Evidence:
    """Train or eval, with or without gradients: the output is the same up to rounding.

    Catches dropout that is active in eval, and fast paths that compute something else.
    """
    expectation = trial.expect(trial.inputs)
    inputs, comparisons = trial.inputs, []
    for training in (True, False):
        for with_gradients in (True, False):
            trial.subject.module.train(training)
            with torch.set_grad_enabled(with_gradients):
                output = trial.subject.call(inputs.x, inputs.mask, is_causal=inputs.is_causal)
            (comparison,) = evidence(expectation, {"output": output}).comparisons
            words = f"{'train' if training else 'eval'}, {'grad' if with_gradients else 'no_grad'}"
            comparisons.append(replace(comparison, tensor=f"output in {words}"))
    return Evidence(tuple(comparisons), expectation.set_by)


def check_weights_survive_the_round_trip(trial: Trial) -> Evidence:
    """The eight parameters, loaded and read back, are the same bit for bit."""
    back = trial.implementation.unpack(dict(trial.subject.module.named_parameters()))
    if set(back) != set(PROJECTION_NAMES):
        raise CheckFailedError(f"read back {', '.join(sorted(back))}, expected {', '.join(PROJECTION_NAMES)}")
    for name in PROJECTION_NAMES:
        require_equal(f"{name} changed on the way", back[name].detach(), trial.inputs.weights[name])
    return Evidence()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


CHECKS = (
    Check(
        check_inputs_are_left_alone,
        core(("none", "padding", "dense"), modes=("inference", "training")),
        general=True,
    ),
    Check(check_calls_repeat_bit_for_bit, core(("none", "causal", "dense")), general=True),
    Check(check_a_call_has_no_memory, core(("causal", "padding"))),
    Check(check_new_weights_count_at_once, core(("none", "causal")), general=True),
    Check(check_outputs_never_alias, core(("none",)), general=True),
    Check(check_modes_agree, core(("none", "causal", "padding"), modes=("training",)), general=True),
    Check(check_weights_survive_the_round_trip, core(("none",)), general=True),
)
