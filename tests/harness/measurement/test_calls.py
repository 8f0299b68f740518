from itertools import pairwise

import pytest
import torch

from harness.measurement.calls import TimedCall
from harness.measurement.cell import case_of
from harness.registry import load_registry
from harness.subject import prepare
from harness.verification.inputs import make_inputs


def timed_call(workload, name):
    inputs = make_inputs(case_of(workload))
    implementation = load_registry()[name].implementation
    subject = prepare(implementation, inputs.case, inputs.weights)
    return TimedCall(subject, inputs, workload.mode), subject, inputs


@pytest.mark.parametrize("name", ["document", "einsum", "sdpa", "torch_mha"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_what_is_timed_gives_the_answer_that_verification_gets(workload, name, mode):
    call, subject, inputs = timed_call(workload.model_copy(update={"mode": mode}), name)
    call()
    timed = {key: tensor.clone() for key, tensor in call.answer().tensors.items()}
    verified = subject.answer(inputs, mode).tensors
    assert timed.keys() == verified.keys()
    assert all(torch.equal(timed[key], verified[key]) for key in timed)


def test_gradients_of_repeated_calls_do_not_add_up(workload):
    call, _, _ = timed_call(workload.model_copy(update={"mode": "training"}), "sdpa")
    call()
    first = {key: gradient.clone() for key, gradient in call.answer().gradients.items()}
    call()
    assert all(torch.equal(gradient, first[key]) for key, gradient in call.answer().gradients.items())


def test_inference_keeps_no_graph_and_runs_in_eval_mode(workload):
    call, subject, _ = timed_call(workload, "sdpa")
    call()
    assert not call.answer().output.requires_grad
    assert not subject.module.training


def test_a_released_answer_is_gone(workload):
    call, _, _ = timed_call(workload.model_copy(update={"mode": "training"}), "sdpa")
    call()
    call.release()
    with pytest.raises(RuntimeError, match="no answer before the first call"):
        call.answer()


def test_a_module_without_the_flag_is_handed_one_mask_that_is_built_beforehand(workload, monkeypatch):
    call, subject, _ = timed_call(workload, "document")
    seen = []
    forward = subject.module.forward
    monkeypatch.setattr(subject.module, "forward", lambda x, mask: seen.append(mask) or forward(x, mask))
    call()
    call()
    assert seen[0] is seen[1]
    assert torch.equal(seen[0], torch.ones(9, 9, dtype=torch.bool).triu(1))


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_no_two_calls_in_a_row_get_the_same_tensor(workload, monkeypatch, mode):
    call, subject, _ = timed_call(workload.model_copy(update={"mode": mode}), "sdpa")
    seen = []
    forward = subject.module.forward
    monkeypatch.setattr(subject.module, "forward", lambda x, *rest, **more: seen.append(x) or forward(x, *rest, **more))
    for _ in range(5):
        call()
    assert all(one is not other for one, other in pairwise(seen))
    assert len({x.data_ptr() for x in seen}) == 4
    assert all(torch.equal(x, seen[0]) for x in seen)
