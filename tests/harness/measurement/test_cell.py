import math
from dataclasses import replace

import pytest
import torch

from harness.measurement import cell as cell_module
from harness.measurement import work
from harness.measurement.cell import CellTask, measure_cell
from harness.measurement.state import RuntimeState

pytestmark = pytest.mark.usefixtures("capfd")  # the profiler prints to file descriptor 2


@pytest.fixture(autouse=True)
def _leave_no_trace():
    state = RuntimeState.capture()
    yield
    state.restore()


@pytest.fixture
def measure(workload, settings):
    """``measure("sdpa", ..., plugins=...)`` gives the measurements of one cell by implementation."""

    def run(*names, plugins=(), **changes):
        task = CellTask(workload.model_copy(update=changes), names, tuple(plugins), replace(settings, cell_seconds=60))
        return {measurement.implementation: measurement for measurement in measure_cell(task).measurements}

    return run


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(("mask", "dtype"), [("causal", "float32"), ("padding", "bfloat16"), ("none", "float64")])
def test_right_implementations_get_times_memory_errors_and_kernels(measure, workload, mask, dtype, mode):
    changes = {"mask": mask, "dtype": dtype, "mode": mode, "padded_share": 0.25 if mask == "padding" else 0.0}
    names = ("document", "einsum", "sdpa", "torch_mha", "torch_mha_weights")
    found = measure(*names, **changes)
    assert tuple(found) == names
    for measurement in found.values():
        assert (measurement.status, measurement.reasons) == ("measured", ())
        assert len(measurement.samples.round) == 12
        assert measurement.rounds_stopped_by == "max_rounds"
        assert (measurement.looks, measurement.pairs) == (1, 10)
        assert measurement.first_call_s > 0
        assert measurement.peak_bytes > 0
        assert 0 < measurement.budget_used < 1
        assert measurement.max_error > 0
        assert measurement.kernels
        assert measurement.flops == work.flops(measurement.workload)
        assert measurement.output_bytes == 2 * 9 * 16 * {"float32": 4, "bfloat16": 2, "float64": 8}[dtype]
        assert (measurement.saved_bytes > 0) == (mode == "training")
        assert 0 < measurement.workspace_bytes <= measurement.peak_bytes - measurement.output_bytes


def test_attention_alone_is_measured_of_functions_and_declined_by_modules(measure):
    found = measure("sdpa", "einsum", "torch_mha", scope="attention", mode="training")
    assert {name: each.status for name, each in found.items()} == {
        "sdpa": "measured",
        "einsum": "measured",
        "torch_mha": "unsupported",
    }
    assert found["torch_mha"].reasons == ("it is a whole module: it has no attention of its own to time",)
    assert 0 < found["sdpa"].budget_used < 1


def test_attention_alone_that_is_wrong_is_not_timed(measure, write_plugin):
    found = measure("sdpa", "inverted", plugins=[write_plugin("inverted", INVERTED)], scope="attention")
    assert (found["sdpa"].status, found["inverted"].status) == ("measured", "wrong")


def test_a_forward_that_keeps_a_graph_is_measured_as_a_pass_of_its_own(measure):
    found = measure("sdpa", "torch_mha", mode="forward")
    assert {each.status for each in found.values()} == {"measured"}
    assert all(each.saved_bytes > 0 for each in found.values())


def test_all_implementations_of_a_cell_share_their_rounds(measure):
    found = measure("document", "sdpa")
    assert found["document"].samples.round == found["sdpa"].samples.round


INVERTED = "hidden = ~hidden"
LATE = "logits = logits * (1.0 if calls < 6 else 1.5)"


def test_an_inverted_mask_is_wrong_and_has_no_samples(measure, write_plugin):
    found = measure("sdpa", "inverted", plugins=[write_plugin("inverted", INVERTED)])
    wrong = found["inverted"]
    assert wrong.status == "wrong"
    assert wrong.samples is wrong.peak_bytes is wrong.repeats is None
    assert wrong.budget_used > 1e3
    assert wrong.max_error > 0.1
    (reason,) = wrong.reasons
    assert reason.startswith("the output differs from the oracle at (")
    assert "set by float32 rounding" in reason
    assert found["sdpa"].status == "measured"
    assert found["sdpa"].pairs == 0, "a wrong one is held against nobody"


def test_a_right_output_with_a_wrong_gradient_is_wrong_in_training_only(measure, write_plugin):
    plugin = write_plugin("cut", "logits = logits.detach()")
    assert measure("cut", plugins=[plugin])["cut"].status == "measured"
    in_training = measure("cut", plugins=[plugin], mode="training")["cut"]
    assert in_training.status == "crashed"
    assert "no gradient reached W_q.weight" in in_training.reasons[0]
    halved = write_plugin("halved", "logits = logits / 2 + logits.detach() / 2")
    wrong = measure("halved", plugins=[halved], mode="training")["halved"]
    assert wrong.status == "wrong"
    assert wrong.reasons[0].startswith("the gradient of ")


def test_an_implementation_that_turns_wrong_while_it_is_timed_is_not_ranked(measure, write_plugin):
    wrong = measure("late", plugins=[write_plugin("late", LATE)])["late"]
    assert wrong.status == "wrong"
    assert wrong.reasons[0].startswith("after the last timed block, the output differs")
    assert wrong.samples is None
    assert wrong.budget_used > 1


@pytest.mark.parametrize("from_call", [1, 5])
def test_an_exception_costs_only_its_own_implementation(measure, write_plugin, from_call):
    fault = f"if calls >= {from_call}: raise ValueError('boom')"
    found = measure("raises", "sdpa", plugins=[write_plugin("raises", fault)])
    assert (found["raises"].status, found["raises"].reasons) == ("crashed", ("ValueError: boom",))
    assert found["raises"].samples is None
    assert found["sdpa"].status == "measured"
    assert len(found["sdpa"].samples.round) == 12


def test_an_output_of_another_dtype_or_shape_is_wrong(measure, write_plugin):
    found = measure("wide", plugins=[write_plugin("wide", "v = v.repeat(1, 1, 1, 2)")])["wide"]
    assert found.status == "crashed", "the projection cannot take it"


def test_unsupported_verify_only_and_unavailable_are_told_apart_with_their_reasons(measure, tmp_path):
    plugin = tmp_path / "three.py"
    plugin.write_text(
        "from implementations.spec import Implementation\n"
        "from implementations.sdpa import attend\n"
        "def make(name, **changes):\n"
        "    return Implementation(name=name, summary='', source='', attend=attend, **changes)\n"
        "IMPLEMENTATIONS = (\n"
        "    make('forward_only', gradients=False, dtypes=('float16',)),\n"
        "    make('never_timed', verify_only={'cpu': 'it is interpreted'}),\n"
        "    make('missing', unavailable=lambda device: 'not installed: it'),\n"
        ")\n"
    )
    found = measure("forward_only", "never_timed", "missing", plugins=[plugin], mode="training")
    assert {name: (each.status, each.reasons) for name, each in found.items()} == {
        "forward_only": (
            "unsupported",
            ("dtype float32 is not supported (supported: float16)", "it has no backward, so it cannot train"),
        ),
        "never_timed": ("skipped", ("verify-only: it is interpreted",)),
        "missing": ("unavailable", ("not installed: it",)),
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_cuda_device_its_workloads_are_unavailable(measure):
    missing = measure("sdpa", device="cuda")["sdpa"]
    assert (missing.status, missing.reasons) == ("unavailable", ("torch sees no CUDA device",))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_workload_is_measured_on_the_device(measure):
    found = measure("sdpa", "einsum", device="cuda")
    assert {each.status for each in found.values()} == {"measured"}
    assert found["sdpa"].memory_source == "torch.cuda.max_memory_allocated"


def test_what_does_not_fit_into_memory_is_skipped_with_both_numbers(measure, monkeypatch):
    monkeypatch.setattr(work, "free_memory_bytes", lambda: 1000)
    skipped = measure("sdpa")["sdpa"]
    assert skipped.status == "skipped"
    assert "predicted to need" in skipped.reasons[0]
    assert "are free" in skipped.reasons[0]


def test_denormal_inputs_are_refused_and_flushing_stays_as_it_was(measure, monkeypatch):
    make_inputs = cell_module.make_inputs

    def tiny(*arguments):
        inputs = make_inputs(*arguments)
        inputs.x.mul_(1e-39)
        return inputs

    monkeypatch.setattr(cell_module, "make_inputs", tiny)
    before = RuntimeState.capture().values[-1]
    with pytest.raises(ValueError, match="subnormal numbers"):
        measure("sdpa")
    assert RuntimeState.capture().values[-1] == before


def test_threads_flags_and_random_numbers_meet_every_block_as_they_were(measure, write_plugin):
    meddles = "torch.set_num_threads(3); torch.manual_seed(calls); torch.backends.cuda.enable_flash_sdp(False)"
    # Many calls make a block; the first call of each must find everything as it was when timing began.
    minds = "assert (torch.get_num_threads(), torch.backends.cuda.flash_sdp_enabled()) == (1, True)"
    found = measure("minds", "meddles", plugins=[write_plugin("meddles", meddles), write_plugin("minds", minds)])
    assert (found["minds"].status, found["minds"].reasons) == ("measured", ())


def test_the_phases_are_named_and_timed(workload, settings):
    result = measure_cell(CellTask(workload, ("sdpa",), (), settings))
    assert result.phases_s.keys() == {"answers", "warm-up", "timed", "memory"}
    assert all(seconds > 0 for seconds in result.phases_s.values())


def test_a_cell_sets_the_threads_of_its_workload(measure):
    measure("sdpa", threads=1)
    assert torch.get_num_threads() == 1


def test_an_error_of_nan_is_kept_as_the_largest(measure, write_plugin):
    wrong = measure("nan", plugins=[write_plugin("nan", "logits = logits * float('nan')")])["nan"]
    assert wrong.status == "wrong"
    assert math.isinf(wrong.budget_used)


def test_an_answer_of_the_same_bits_is_not_judged_twice_and_one_of_others_is(measure, write_plugin, monkeypatch):
    judged = []
    judge = cell_module.ShapeOracle.judge

    def counting(self, implementation, answer):
        judged.append(implementation.name)
        return judge(self, implementation, answer)

    monkeypatch.setattr(cell_module.ShapeOracle, "judge", counting)
    drifts = write_plugin("drifts", "logits = logits + 1e-7 * calls")
    found = measure("einsum", "drifts", plugins=[drifts], dtype="float64")
    assert found["einsum"].status == "measured"
    assert judged.count("einsum") == 1
    assert judged.count("drifts") == 2


def test_a_kernel_that_takes_no_hooks_has_a_time_and_an_unknown_count_of_saved_bytes(measure, write_plugin):
    refuses = "assert not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(True) is None"
    found = measure("sdpa", "refuses", plugins=[write_plugin("refuses", refuses)], mode="training")
    assert {each.status for each in found.values()} == {"measured"}
    assert found["refuses"].saved_bytes is None
    assert found["refuses"].peak_bytes > 0
    assert found["sdpa"].saved_bytes > 0
