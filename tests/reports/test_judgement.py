import math

import pytest

from harness.records import RunFolder
from harness.statistics import compare
from reports.advice import advise
from reports.frames import read
from reports.judgement import judge
from reports.tables import Names


@pytest.fixture
def judged(make_run):
    """``judged(...)`` builds a run with one workload and returns its verdict."""

    def make(**changes):
        (verdict,) = judge(read(make_run(**{"lengths": (512,), "checked": False, **changes}))).verdicts
        return verdict

    return make


FAR = {"document": 1.0, "einsum": 0.7, "sdpa": 0.3, "torch_mha": 0.5, "torch_mha_weights": 0.6}


def test_the_winner_is_named_with_its_lead_over_the_baseline_and_its_interval(judged):
    verdict = judged(speed={**FAR, "torch_mha": 0.1}, baseline="document", noise=0.005)

    assert verdict.outcome == "fastest"
    assert verdict.best == ("torch_mha",)
    held = verdict.lead
    assert verdict.line() == (
        "S 512, causal, float32, inference, 2 threads: torch_mha is fastest, "
        f"{1 / held.ratio:.2f}x faster than document [{1 / held.high:.2f}, {1 / held.low:.2f}] (80 rounds)"
    )


def test_a_winning_baseline_is_held_against_the_next_group(judged):
    verdict = judged(speed=FAR, noise=0.005)
    assert verdict.best == ("sdpa",)
    assert verdict.rival == "torch_mha"
    assert "faster than torch_mha [" in verdict.line()


def test_the_interval_is_the_harness_own_with_the_records_looks_and_pairs(make_run):
    run = make_run(lengths=(512,), checked=False)
    (verdict,) = judge(read(run)).verdicts
    records = {record.implementation: record for record in RunFolder(run).measurements()}
    expected = compare(records["document"].samples, records["sdpa"].samples, looks=4, pairs=10, resolution=0.02)
    assert verdict.against_reference["document"] == expected


def test_implementations_that_cannot_be_told_apart_are_named_together(judged):
    verdict = judged(speed={**FAR, "torch_mha": 0.3}, noise=0.003)
    assert verdict.outcome == "tied"
    assert set(verdict.best) == {"sdpa", "torch_mha"}
    assert " are tied for fastest, " in verdict.line()


def test_workloads_that_differ_in_length_only_stand_next_to_each_other(make_run):
    run = make_run(lengths=(512, 128), masks=("causal", "none"), modes=("training", "inference"), checked=False)
    places = [(v.workload.mode, v.workload.mask, v.workload.seq_len) for v in judge(read(run)).verdicts]
    assert [place[-1] for place in places] == [128, 512] * 4
    assert [place[:2] for place in places[::2]] == [place[:2] for place in places[1::2]]
    assert places[0][0] == places[3][0] != places[4][0]


def test_too_few_rounds_are_called_unresolved_never_equal(judged):
    verdict = judged(speed={**FAR, "torch_mha": 0.3}, rounds=7)
    assert verdict.outcome == "unresolved"
    assert "unresolved between " in verdict.line()
    assert "no interval" not in verdict.line() or math.isinf(verdict.lead.high)


def test_without_the_baseline_ratios_are_against_the_fastest_and_it_is_said(judged):
    verdict = judged(speed=FAR, untimed={("sdpa", "float32"): ("wrong", "off by one")})
    assert verdict.baseline_missing
    assert verdict.reference == verdict.best[0] == "torch_mha"
    assert verdict.line().endswith("; the baseline has no time, so ratios are against torch_mha")


def test_a_planned_workload_without_records_is_interrupted(judged):
    verdict = judged(unmeasured=lambda _workload, _name: True)
    assert verdict.outcome == "interrupted"
    assert verdict.line() == "S 512, causal, float32, inference, 2 threads: not measured (interrupted)"


def test_a_cell_cut_short_names_who_is_missing(judged):
    verdict = judged(unmeasured=lambda _workload, name: name == "torch_mha")
    assert verdict.not_measured == ("torch_mha",)
    assert verdict.line().endswith("; not measured (interrupted): torch_mha")


def test_one_time_alone_is_compared_with_nothing(judged):
    verdict = judged(implementations=("sdpa",), speed={"sdpa": 0.3})
    assert verdict.outcome == "only one"
    assert verdict.line().endswith("only sdpa has a time (80 rounds), so nothing is compared")


def test_a_wrong_implementation_is_never_ranked(judged):
    verdict = judged(speed={**FAR, "einsum": 0.01}, untimed={("einsum", "float32"): ("wrong", "off by one")})
    assert "einsum" not in [standing.name for standing in verdict.standings]


def test_titles_name_only_the_further_axes_in_which_workloads_differ(make_run):
    verdicts = judge(read(make_run(lengths=(128, 512), threads=(1, 2), checked=False))).verdicts
    assert [verdict.title for verdict in verdicts] == [
        "S 128, causal, float32, inference, 1 thread",
        "S 512, causal, float32, inference, 1 thread",
        "S 128, causal, float32, inference, 2 threads",
        "S 512, causal, float32, inference, 2 threads",
    ]


def test_a_workload_left_out_to_end_in_time_says_so(judged):
    key = "b1-s512-d512-h8-causal-float32-inference-cpu-t2"
    verdict = judged(left_out={key: "it may take 40 s, and 2 s were left"})
    assert verdict.outcome == "left out"
    assert verdict.line() == "S 512, causal, float32, inference, 2 threads: left out to end in time"


def test_attention_alone_and_forwards_with_gradients_are_purposes_of_their_own(make_run):
    run = read(make_run(modes=("inference", "forward"), scopes=("module", "attention")))
    judgement = judge(run)
    claims = " ".join(headline.claim for headline in advise(run, judgement, Names(run.info.implementations)).headlines)
    for purpose in ("inference", "forward with gradients", "inference of attention alone"):
        assert purpose in claims
    titles = [verdict.title for verdict in judgement.verdicts]
    assert "S 128, causal, float32, attention alone, forward with gradients, 2 threads" in titles
