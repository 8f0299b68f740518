import gc
import time

import pytest
import torch

from harness.measurement.stopwatch import Clocks, CpuStopwatch, CudaStopwatch, clocks_for, sm_clock_mhz


def fake_clocks(**readings):
    """Clocks that read these figures one after another."""
    return Clocks(**{name: iter(values).__next__ for name, values in readings.items()})


def test_a_block_is_divided_by_its_repeats_and_its_switches_are_not():
    clocks = fake_clocks(wall=[10.0, 16.0], cpu=[1.0, 4.0], switches=[5, 7])
    block = CpuStopwatch(clocks, lambda: None).block(lambda: None, 3)
    assert (block.wall_s, block.cpu_s, block.involuntary_switches) == (2.0, 1.0, 2)


def test_the_garbage_collector_is_off_during_a_block_and_back_on_after_an_error():
    seen = []
    stopwatch = CpuStopwatch(clocks_for(1), lambda: None)
    stopwatch.block(lambda: seen.append(gc.isenabled()), 2)
    with pytest.raises(ZeroDivisionError):
        stopwatch.block(lambda: 1 / 0, 1)
    assert seen == [False, False]
    assert gc.isenabled()


def test_a_disabled_garbage_collector_stays_disabled():
    gc.disable()
    try:
        CpuStopwatch(clocks_for(1), lambda: None).block(lambda: None, 1)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_state_is_restored_before_each_block_and_outside_its_time():
    events = []
    clocks = Clocks(wall=lambda: events.append("clock") or 0.0, cpu=lambda: 0.0, switches=lambda: 0)
    CpuStopwatch(clocks, lambda: events.append("restore")).block(lambda: events.append("call"), 1)
    assert events == ["restore", "clock", "call", "clock"]


def test_sleeping_takes_wall_time_and_no_cpu_time():
    block = CpuStopwatch(clocks_for(1), lambda: None).block(lambda: time.sleep(0.02), 1)
    assert block.wall_s >= 0.02
    assert block.cpu_s < 0.01


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_device_is_timed_and_not_the_launch():
    device = torch.device("cuda")
    matrix = torch.randn(4096, 4096, device=device)
    stopwatch = CudaStopwatch(device, lambda: None)
    small, large = (stopwatch.block(lambda rows=rows: matrix[:rows] @ matrix, 10).wall_s for rows in (512, 4096))
    assert 3 < large / small < 16


def test_the_clock_of_a_cuda_device_is_told_where_the_driver_tells_it(monkeypatch):
    def silent():
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    monkeypatch.setattr(torch.cuda, "clock_rate", lambda: 1980)
    assert sm_clock_mhz("cuda") == 1980
    assert sm_clock_mhz("cpu") is None
    monkeypatch.setattr(torch.cuda, "clock_rate", silent)
    assert sm_clock_mhz("cuda") is None
