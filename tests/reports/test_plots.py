from xml.etree import ElementTree as ET

import pytest

from reports import overview_plots, plots
from reports.frames import read
from reports.judgement import judge
from reports.tables import Names


@pytest.fixture
def drawn(make_run):
    """``drawn(...)`` builds a run and returns its plots."""

    def make(**changes):
        run = read(make_run(checked=False, **changes))
        names = Names(run.info.implementations)
        return plots.draw(judge(run), names, [i.name for i in run.info.implementations], run.info.resolution)

    return make


def texts(plot):
    return [
        "".join(element.itertext())
        for element in ET.fromstring(plot.svg).iter("{http://www.w3.org/2000/svg}text")  # noqa: S314 - our own file
    ]


def test_one_figure_for_each_combination_that_has_two_lengths(drawn):
    made = drawn(lengths=(128, 512), masks=("none", "causal"), modes=("inference", "training"))
    assert [plot.title for plot in made.drawn] == [
        "no mask, float32, inference, 2 threads",
        "causal, float32, inference, 2 threads",
        "no mask, float32, training, 2 threads",
        "causal, float32, training, 2 threads",
    ]


def test_guides_legend_and_axes_are_labelled(drawn):
    (plot,) = drawn().drawn
    said = texts(plot)
    assert {"O(S)", "O(S²)", "S", "128", "512", "2048", "peak memory in MiB"} <= set(said)
    assert {"document", "sdpa", "torch_mha_weights ⚠ NaN"} <= set(said)
    assert "time relative to sdpa, below 1 is faster" in said


def test_accuracy_and_roofline_are_drawn_with_plain_numbers_on_their_axes(make_run):
    run = read(make_run(checked=False))
    judgement = judge(run)
    names = Names(run.info.implementations)
    bare = plots.Plots((), 0, plots.styles(each.name for each in run.info.implementations))
    drawn = overview_plots.added(bare, judgement.measurements, names, run.info.roofs).drawn
    assert [plot.slug for plot in drawn] == ["01-accuracy", "02-roofline"]
    for plot in drawn:
        assert not [said for said in texts(plot) if "$" in said]


def test_workloads_of_a_single_length_share_a_figure_of_ratios(drawn):
    (plot,) = drawn(lengths=(512,), masks=("none", "causal", "padding")).drawn
    said = texts(plot)
    assert "S 512, no mask, float32, inference, 2 threads" in said
    assert "S 512, padding, float32, inference, 2 threads" in said


def test_figures_beyond_the_limit_are_counted_not_dropped_in_silence(drawn):
    made = drawn(lengths=(16, 32), masks=tuple(f"m{number}" for number in range(plots.MAX_FIGURES + 3)), rounds=8)
    assert len(made.drawn) == plots.FIGURES_OF_MANY
    assert made.left_out == plots.MAX_FIGURES + 3 - plots.FIGURES_OF_MANY


def test_too_few_rounds_for_an_interval_still_draw(drawn):
    assert len(drawn(rounds=3).drawn) == 1


def test_many_lengths_do_not_crowd_the_axis(drawn):
    (plot,) = drawn(lengths=tuple(range(64, 64 * 31, 64)), rounds=8).drawn
    said = texts(plot)
    assert said.count("1920") == 3, "the longest is always labelled, on each of the three axes"
    assert not {"64", "1856"} & set(said)


def test_colours_and_markers_are_the_same_in_every_figure_and_never_repeat_as_a_pair():
    made = plots.styles([str(number) for number in range(30)])
    pairs = {(style.colour, style.marker) for style in made.values()}
    assert len(pairs) == 30
    first = [style for _, style in zip(range(8), made.values(), strict=False)]
    assert len({style.colour for style in first}) == len({style.marker for style in first}) == 8


def test_a_figure_is_an_image_that_can_be_opened(drawn):
    (plot,) = drawn().drawn
    assert plot.png.startswith(b"\x89PNG")
    assert ET.fromstring(plot.svg).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - our own file
