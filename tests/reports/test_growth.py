import pytest

from reports import growth
from reports.frames import read


@pytest.fixture
def fits(make_run):
    """``fits(...)`` builds a run and returns its fits by implementation."""

    def make(**changes):
        run = read(make_run(checked=False, **changes))
        declared = {i.name: i.memory_growth for i in run.info.implementations}
        return {fit.implementation: fit for fit in growth.fit(run.measurements, declared)}

    return make


def test_linear_and_quadratic_growth_are_told_apart(fits):
    found = fits(lengths=(1024, 2048, 4096))
    assert found["sdpa"].exponent == pytest.approx(1.0, abs=0.01)
    assert 1.8 < found["document"].exponent <= 2.0
    assert {fit.growth for fit in found.values()} == {"as declared"}


def test_growth_beyond_the_declaration_is_said(fits, make_run):
    run = read(make_run(lengths=(1024, 2048, 4096), checked=False))
    found = growth.fit(run.measurements, {"document": "O(S)", "sdpa": "O(S^2)"})
    said = {fit.implementation: fit.growth for fit in found}
    assert said["document"] == "faster than declared"
    assert said["sdpa"] == "slower than declared"


def test_two_lengths_are_too_few(fits):
    found = fits(lengths=(128, 2048))
    assert {fit.growth for fit in found.values()} == {"too few lengths"}


def test_lengths_of_different_series_are_not_mixed(fits):
    found = fits(lengths=(128, 2048), masks=("none", "causal", "padding"))
    assert {fit.growth for fit in found.values()} == {"too few lengths"}
