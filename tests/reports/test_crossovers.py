"""Where the winner changes, and how surely that is known."""

import pytest

from reports.content import compose
from reports.crossovers import crossovers
from reports.frames import read
from reports.judgement import judge

RESOLUTION = 0.02
ALONE = ("sdpa", "torch_mha")


@pytest.fixture
def found(make_run):
    """``found(speed_at, ...)`` gives the crossings of a run whose attention costs what `speed_at` says at each S."""

    def make(**changes):
        given = {"implementations": ALONE, "speed": {"sdpa": 0.3, "torch_mha": 0.3}, "noise": 0.002, "checked": False}
        return crossovers(judge(read(make_run(**{**given, **changes}))), RESOLUTION)

    return make


def at(**speeds):
    """Share of attention's cost by S and implementation."""
    return {name: dict(zip((128, 512, 2048), by_length, strict=True)) for name, by_length in speeds.items()}


def test_a_crossing_lies_between_the_last_win_of_one_and_the_first_of_the_other(found):
    (crossing,) = found(speed_by_length=at(sdpa=(3.0, 1.0, 0.3), torch_mha=(1.0, 0.3, 1.0)))
    assert (crossing.before, crossing.after) == ("torch_mha", "sdpa")
    assert (crossing.last, crossing.first, crossing.undecided) == (512, 2048, ())
    assert 512 < crossing.estimate < 2048
    assert crossing.series == "causal, float32, inference, 2 threads"


def test_where_neither_is_shown_to_be_faster_belongs_to_the_uncertainty(found):
    (crossing,) = found(speed_by_length=at(sdpa=(5.0, 0.5, 0.3), torch_mha=(1.0, 0.5, 1.0)))
    assert (crossing.last, crossing.first, crossing.undecided) == (128, 2048, (512,))


def test_without_a_change_of_winner_there_is_no_crossing(found):
    assert found(speed_by_length=at(sdpa=(0.3, 0.3, 0.3), torch_mha=(1.0, 1.0, 1.0))) == []
    assert found(speed_by_length=at(sdpa=(0.3, 0.3, 0.3), torch_mha=(0.3, 0.3, 0.3))) == []


def test_the_report_has_a_table_of_crossings(make_run):
    speeds = at(sdpa=(3.0, 1.0, 0.3), torch_mha=(1.0, 0.3, 1.0))
    run = read(make_run(implementations=ALONE, speed_by_length=speeds, noise=0.002, checked=False))
    table = compose(run, judge(run)).crossovers
    (row,) = table.rows
    assert [cell.text for cell in row][1:5] == ["S 512", "torch_mha", "S 2048", "sdpa"]
