import pytest
import torch

from harness.measurement.state import RuntimeState, flushes_denormals, refuse_denormals


@pytest.fixture(autouse=True)
def _leave_no_trace():
    state = RuntimeState.capture()
    yield
    state.restore()


def test_what_a_call_changed_is_restored():
    before = RuntimeState.capture()
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.manual_seed(12345)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.set_flush_denormal(True)
    before.restore()
    after = RuntimeState.capture()
    assert all(
        torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        for one, other in zip(before.values, after.values, strict=True)
    )


def test_flushing_of_denormals_is_seen():
    torch.set_flush_denormal(True)
    flushed = flushes_denormals()
    torch.set_flush_denormal(False)
    assert flushed
    assert not flushes_denormals()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_denormal_inputs_are_refused_with_their_number(dtype):
    x = torch.randn(4, 4, dtype=dtype)
    x[0, 1] = x[2, 3] = torch.finfo(dtype).smallest_normal / 4
    with pytest.raises(ValueError, match=r"^x has 2 subnormal numbers .* scale the inputs up$"):
        refuse_denormals({"x": x})


def test_zeros_and_small_normal_numbers_are_accepted():
    refuse_denormals({"x": torch.tensor([0.0, torch.finfo(torch.float32).smallest_normal])})


def test_subnormals_of_float16_are_accepted_for_they_are_normal_where_they_are_computed_with():
    refuse_denormals({"x": torch.tensor([1e-6], dtype=torch.float16)})
