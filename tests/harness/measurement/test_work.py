import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from harness.measurement import calls, work
from harness.measurement.cell import case_of
from harness.measurement.memory import footprint
from harness.registry import load_registry
from harness.subject import prepare
from harness.verification.inputs import make_inputs

TIMED = ("document", "einsum", "sdpa", "torch_mha", "torch_mha_weights")


def timed_call(workload, name="document"):
    inputs = make_inputs(case_of(workload), padded_share=0.25)
    implementation = load_registry()[name].implementation
    return calls.timed_call(prepare(implementation, inputs.case, inputs.weights), inputs, workload)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_flops_are_those_that_torch_counts_for_the_written_out_module(workload, mode):
    workload = workload.model_copy(update={"mode": mode, "mask": "none", "seq_len": 24})
    call = timed_call(workload)
    with FlopCounterMode(display=False) as counter:
        call()
    assert work.flops(workload) == counter.get_total_flops()


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_flops_of_attention_alone_are_those_that_torch_counts(workload, mode):
    workload = workload.model_copy(update={"mode": mode, "mask": "none", "seq_len": 24, "scope": "attention"})
    call = timed_call(workload, "einsum")
    with FlopCounterMode(display=False) as counter:
        call()
    assert work.flops(workload) == counter.get_total_flops()


@pytest.mark.parametrize("mask", ["causal", "causal_mask", "padding", "padding_causal", "none"])
def test_unmasked_flops_count_the_pairs_that_the_mask_leaves(workload, mask):
    share = 0.25 if mask.startswith("padding") else 0.0
    workload = workload.model_copy(update={"mask": mask, "seq_len": 64, "padded_share": share, "scope": "attention"})
    hidden = torch.zeros(64, 64, dtype=torch.bool)
    hidden[:, 64 - int(64 * share) :] = True
    if "causal" in mask:
        hidden |= torch.ones(64, 64, dtype=torch.bool).triu(1)
    pairs = int((~hidden).sum())
    assert work.flops_unmasked(workload) == pytest.approx(work.flops(workload) * pairs / 64**2, rel=5e-3)


def test_bytes_moved_are_every_operand_and_result_once(workload):
    workload = workload.model_copy(update={"mask": "dense"})
    x, weights, mask = 2 * 9 * 16 * 4, 4 * (16 * 16 + 16) * 4, 2 * 2 * 9 * 9
    assert work.bytes_moved(workload) == x + weights + mask + x
    trained = workload.model_copy(update={"mode": "training"})
    assert work.bytes_moved(trained) == 2 * (x + weights + mask + x) + x + weights, "and x's and the weights' gradients"
    alone = workload.model_copy(update={"scope": "attention"})
    assert work.bytes_moved(alone) == 3 * x + mask + x
    assert work.bytes_moved(workload.model_copy(update={"mask": "causal"})) == x + weights + x, "a flag moves nothing"


def test_causality_does_not_halve_the_flops(workload):
    assert work.flops(workload) == work.flops(workload.model_copy(update={"mask": "none"}))


@pytest.mark.usefixtures("capfd")
@pytest.mark.parametrize("mode", ["inference", "forward", "training"])
@pytest.mark.parametrize(
    ("mask", "dtype"),
    [("none", "float32"), ("causal", "float32"), ("causal", "bfloat16"), ("padding", "float32"), ("dense", "bfloat16")],
)
@pytest.mark.parametrize("name", TIMED)
def test_no_call_needs_more_than_predicted_and_predictions_are_not_wild(workload, name, mask, dtype, mode):
    workload = workload.model_copy(
        update={"seq_len": 256, "d_model": 64, "num_heads": 4, "mask": mask, "dtype": dtype, "mode": mode}
    )
    workload = workload.model_copy(update={"threads": torch.get_num_threads()})
    call = timed_call(workload, name)
    call()
    call.release()
    needed = footprint(call).peak_bytes
    predicted = work.predicted_peak_bytes(load_registry()[name].implementation, workload)
    assert needed <= predicted < 12 * needed


def test_a_shortfall_names_what_is_needed_and_what_is_free(workload, monkeypatch):
    monkeypatch.setattr(work, "free_memory_bytes", lambda: 3 * 2**30)
    implementation = load_registry()["document"].implementation
    large = workload.model_copy(update={"seq_len": 32768, "d_model": 512, "num_heads": 8})
    reason = work.memory_shortfall(implementation, large)
    assert reason.startswith("predicted to need ")
    assert reason.endswith(" GiB at its peak, and 3 GiB are free")
    assert work.memory_shortfall(implementation, workload) == ""


def test_a_declared_linear_growth_is_predicted_to_fit_where_the_scores_do_not(workload, monkeypatch):
    monkeypatch.setattr(work, "free_memory_bytes", lambda: 20 * 2**30)
    large = workload.model_copy(
        update={"batch_size": 1, "seq_len": 32768, "d_model": 512, "num_heads": 8, "mask": "none"}
    )
    registry = load_registry()
    assert work.memory_shortfall(registry["einsum"].implementation, large)
    assert not work.memory_shortfall(registry["sdpa"].implementation, large)
