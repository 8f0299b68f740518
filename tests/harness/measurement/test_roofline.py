import pytest
import torch

from harness.measurement.roofline import RoofTask, measure_roofs


@pytest.fixture(autouse=True)
def _threads_stay():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_every_dtype_and_thread_count_has_a_roof_that_is_reached():
    roofs = measure_roofs(RoofTask(("float32", "bfloat16"), (1, 2)))
    assert [(roof.dtype, roof.threads) for roof in roofs] == [
        ("float32", 1),
        ("bfloat16", 1),
        ("float32", 2),
        ("bfloat16", 2),
    ]
    assert all(1e8 < roof.flops_per_s < 1e14 for roof in roofs)
    assert all(1e8 < roof.bytes_per_s < 1e13 for roof in roofs)
