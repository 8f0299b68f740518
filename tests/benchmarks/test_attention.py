"""Every implementation on every workload of a preset, in pytest-benchmark's tables.

pytest tests/benchmarks --benchmark-only
pytest tests/benchmarks --benchmark-only --mha-preset default --benchmark-autosave --benchmark-compare
"""


def test_attention(measurement, benchmark) -> None:
    benchmark.extra_info.update(
        peak_bytes=measurement.peak_bytes, flops=measurement.flops, kernels=list(measurement.kernels)
    )
    benchmark.pedantic(lambda: None, rounds=len(measurement.samples.round), iterations=1)
    assert benchmark.stats.stats.data == list(measurement.samples.wall_s), "what is shown is what was measured"
