"""The machine's noise: identical calls under the sweep's own protocol."""

import json
import math

import pytest
import torch

from harness.cli import run
from harness.measurement.noise import NoiseTask, measure_noise
from harness.records import Noise, NoiseTrial


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trial(factor: float, verdict: str = "tied") -> NoiseTrial:
    return NoiseTrial(verdict=verdict, low=1 / factor, high=factor, rounds=80, timed_s=1.0)


def test_half_of_an_intervals_width_is_what_it_resolves():
    assert trial(1.02).resolves == pytest.approx(0.02)
    shifted = NoiseTrial(verdict="unresolved", low=1.0, high=1.0404, rounds=80, timed_s=1.0)
    assert shifted.resolves == pytest.approx(0.02), "a shift of the interval is no width"
    assert math.isinf(NoiseTrial(verdict="unresolved", low=0.0, high=math.inf, rounds=5, timed_s=1.0).resolves)


def test_the_noise_is_the_median_of_the_trials_and_the_worst_is_told():
    noise = Noise(threads=1, seconds=1.0, resolution=0.02, trials=(trial(1.01), trial(1.2, "unresolved"), trial(1.03)))
    assert noise.resolves == pytest.approx(0.03)
    assert noise.worst == pytest.approx(0.2)
    assert (noise.count("tied"), noise.count("faster", "slower")) == (2, 0)


def test_a_record_without_an_interval_survives_its_file():
    open_ended = NoiseTrial(verdict="unresolved", low=0.0, high=math.inf, rounds=5, timed_s=1.0)
    noise = Noise(threads=1, seconds=1.0, resolution=0.02, trials=(open_ended,))
    assert Noise.model_validate_json(noise.model_dump_json(exclude_defaults=True)) == noise


def test_trials_time_one_implementation_against_itself():
    noise = measure_noise(NoiseTask(trials=2, seconds=0.3, threads=1, resolution=0.02))
    assert len(noise.trials) == 2
    assert all(each.rounds >= 9 and 0 < each.low < each.high for each in noise.trials)
    assert torch.get_num_threads() == 1


def test_the_command_prints_counts_and_what_is_resolved(capfd):
    assert run(["noise", "--trials", "2", "--seconds", "0.2", "--threads", "1"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("2 trials of 0.2 s, 1 thread, nothing different:")
    assert "This machine resolves " in out


def test_the_command_writes_its_trials_as_json(capfd):
    assert run(["noise", "--trials", "1", "--seconds", "0.2", "--threads", "1", "--json", "-"]) == 0
    written = json.loads(capfd.readouterr().out)
    assert len(written["trials"]) == 1
    assert written["resolves"] == pytest.approx(written["worst"])
