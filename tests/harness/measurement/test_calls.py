from itertools import pairwise

import pytest
import torch

from harness.measurement import calls
from harness.measurement.cell import case_of
from harness.registry import load_registry
from harness.subject import prepare
from harness.verification.inputs import make_inputs


def timed_call(workload, name):
    inputs = make_inputs(case_of(workload))
    implementation = load_registry()[name].implementation
    subject = prepare(implementation, inputs.case, inputs.weights)
    return calls.timed_call(subject, inputs, workload), subject, inputs


@pytest.mark.parametrize("name", ["document", "einsum", "sdpa", "torch_mha"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_what_is_timed_gives_the_answer_that_verification_gets(workload, name, mode):
    call, subject, inputs = timed_call(workload.model_copy(update={"mode": mode}), name)
    call()
    timed = {key: tensor.clone() for key, tensor in call.answer().tensors.items()}
    verified = subject.answer(inputs, mode).tensors
    assert timed.keys() == verified.keys()
    assert all(torch.equal(timed[key], verified[key]) for key in timed)


@pytest.mark.parametrize("name", ["einsum", "sdpa"])
@pytest.mark.parametrize("mask", ["none", "causal", "dense"])
@pytest.mark.parametrize("mode", ["inference", "forward", "training"])
def test_attention_timed_alone_still_is_judged_by_the_answer_of_the_module(workload, name, mask, mode):
    workload = workload.model_copy(update={"mode": mode, "mask": mask, "scope": "attention", "dtype": "float64"})
    call, subject, inputs = timed_call(workload, name)
    call()
    call()
    timed = call.answer().tensors
    verified = subject.answer(inputs, "training" if mode == "training" else "inference").tensors
    assert timed.keys() == verified.keys()
    for key, tensor in timed.items():
        torch.testing.assert_close(tensor, verified[key], rtol=1e-12, atol=1e-12)


def test_attention_timed_alone_gets_contiguous_heads_and_none_of_the_projections(workload, monkeypatch):
    call, subject, _ = timed_call(workload.model_copy(update={"scope": "attention"}), "sdpa")
    seen = []
    monkeypatch.setattr(call, "_attend", lambda *qkv, **rest: seen.append(qkv) or qkv[0])
    monkeypatch.setattr(subject.module, "forward", None)
    call()
    assert [(tuple(t.shape), t.is_contiguous()) for t in seen[0][:3]] == [((2, 2, 9, 8), True)] * 3


def test_a_whole_module_has_no_attention_to_time(workload):
    with pytest.raises(TypeError, match="torch_mha is a whole module"):
        timed_call(workload.model_copy(update={"scope": "attention"}), "torch_mha")


def test_a_forward_with_gradients_trains_and_keeps_a_graph_but_no_gradients(workload):
    call, subject, inputs = timed_call(workload.model_copy(update={"mode": "forward"}), "sdpa")
    call()
    answer = call.answer()
    assert subject.module.training
    assert answer.gradients == {}
    assert all(parameter.grad is None for parameter in subject.module.parameters())
    torch.testing.assert_close(answer.output, subject.train(inputs).output)


def test_a_forward_that_keeps_no_graph_has_no_answer(workload, monkeypatch):
    call, subject, _ = timed_call(workload.model_copy(update={"mode": "forward"}), "sdpa")
    forward = subject.module.forward
    monkeypatch.setattr(subject.module, "forward", lambda *x, **more: forward(*x, **more).detach())
    call()
    with pytest.raises(RuntimeError, match="belongs to no graph"):
        call.answer()


@pytest.mark.parametrize("scope", ["module", "attention"])
@pytest.mark.parametrize("mode", ["forward", "training"])
def test_what_is_saved_for_the_backward_is_counted_to_the_byte(workload, mode, scope):
    workload = workload.model_copy(update={"mode": mode, "scope": scope, "mask": "none"})
    call, _, _ = timed_call(workload, "einsum")
    projected = 2 * 9 * 16 * 4  # B, S, d_model, float32
    scores = 2 * 2 * 9 * 9 * 4  # B, H, S, S
    # einsum: the scaled q, k, v and the weights; in a module also what W_o is given. x, q, k, v where given: inputs.
    saved = call.saved_bytes()
    assert saved >= scores
    assert saved % 4 == 0
    assert saved == scores + (4 * projected if scope == "module" else projected)
    assert saved == call.saved_bytes(), "and nothing of it stays"


def test_inference_saves_nothing(workload):
    call, _, _ = timed_call(workload, "einsum")
    call()
    assert call.saved_bytes() == 0
    assert call.output_bytes() == 2 * 9 * 16 * 4


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
