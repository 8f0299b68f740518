"""The profiler prints to file descriptor 2: `capfd` keeps that out of a failing test's report too."""

import pytest
import torch
import torch.nn.functional as F

from harness.measurement import memory
from harness.measurement.memory import footprint

MIB = 2**20

pytestmark = pytest.mark.usefixtures("capfd")


@pytest.fixture
def qkv():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with torch.no_grad():
        yield [torch.randn(1, 8, 1024, 64) for _ in range(3)]
    torch.set_num_threads(threads)


def naive(q, k, v):
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def test_materialised_scores_are_counted_to_the_byte(qkv):
    found = footprint(lambda: naive(*qkv))
    scores = 8 * 1024 * 1024 * 4
    assert found.peak_bytes == 2 * scores == 64 * MIB, "scores and weights live at once"
    assert found.kernels == ("aten::bmm", "aten::_softmax")


def test_fused_attention_needs_its_output_and_a_workspace_for_each_thread(qkv):
    found = footprint(lambda: F.scaled_dot_product_attention(*qkv))
    output, rows = 8 * 1024 * 64 * 4, 8 * 1024 * 4  # and the log-sum-exp of each row
    workspace = 2 * (256 * 512 + 2 * 256 + 256 * 64) * 4
    assert found.peak_bytes == output + rows + workspace
    assert found.peak_bytes / MIB == pytest.approx(3.16, abs=0.005)
    assert found.kernels == ("aten::_scaled_dot_product_flash_attention_for_cpu",)


def test_the_same_call_needs_the_same_bytes_again(qkv):
    assert len({footprint(lambda: naive(*qkv)).peak_bytes for _ in range(3)}) == 1


def test_what_was_allocated_before_is_not_counted(qkv):
    held = [torch.empty(MIB) for _ in range(4)]
    assert footprint(lambda: torch.empty(MIB, dtype=torch.uint8)).peak_bytes == MIB
    assert len(held) == 4


def test_a_call_that_allocates_nothing_peaks_at_zero(qkv):
    assert footprint(lambda: qkv[0].add_(qkv[1])).peak_bytes == 0


def test_the_public_trace_gives_the_same_figures_where_the_private_tree_is_missing(qkv, monkeypatch):
    by_tree = footprint(lambda: naive(*qkv))

    def gone(_profiler):
        raise AttributeError("no such thing in this version")

    monkeypatch.setattr(memory, "_from_event_tree", gone)
    by_trace = footprint(lambda: naive(*qkv))
    assert (by_trace.peak_bytes, by_trace.kernels) == (by_tree.peak_bytes, by_tree.kernels)
    assert by_trace.source != by_tree.source


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_allocator_keeps_the_peak(qkv):
    on_device = [tensor.cuda() for tensor in qkv]
    naive(*on_device)  # the first call also allocates the library's workspace
    found = footprint(lambda: naive(*on_device), "cuda")
    assert found.peak_bytes >= 64 * MIB
    assert "aten::bmm" in found.kernels
