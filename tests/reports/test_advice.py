import pytest

from reports.advice import advise
from reports.frames import read
from reports.judgement import judge
from reports.tables import Names

FAR = {"document": 1.0, "einsum": 0.7, "sdpa": 0.3, "torch_mha": 0.5, "torch_mha_weights": 0.6}


@pytest.fixture
def advised(make_run):
    """``advised(...)`` builds a run and returns what its report says first."""

    def make(**changes):
        run = read(make_run(**{"speed": FAR, "noise": 0.003, **changes}))
        return advise(run, judge(run), Names(run.info.implementations))

    return make


def test_the_headline_says_what_to_use_for_what_and_on_how_much_evidence(advised):
    (headline,) = advised(modes=("inference", "training")).headlines
    assert headline.claim == "Use sdpa for inference and training."
    assert headline.evidence == ("Ahead of all others in 6 of 6 workloads.",)


def test_equals_are_recommended_together(advised):
    (headline,) = advised(speed={**FAR, "torch_mha": 0.3}).headlines
    assert headline.claim == "Use sdpa or torch_mha for inference."
    assert headline.evidence == ("Ahead of all others in 3 of 3 workloads; between the two, tied in 3.",)


def test_a_single_workload_is_not_counted(advised):
    (headline,) = advised(lengths=(512,)).headlines
    assert headline.evidence == ("Ahead of all others on the only workload.",)
    (headline,) = advised(speed={**FAR, "torch_mha": 0.3}, lengths=(512,)).headlines
    assert headline.evidence == ("Ahead of all others on the only workload; between the two, tied.",)


def test_where_another_wins_is_said_with_its_conditions(advised):
    (headline,) = advised(
        dtypes=("float32", "bfloat16"),
        masks=("none", "causal", "padding"),
        lengths=(128, 512),
        unmeasured=lambda workload, name: name == "sdpa" and workload.dtype == "bfloat16" and workload.mask == "none",
    ).headlines
    assert headline.claim == "Use sdpa for inference."
    assert headline.evidence == (
        "Ahead of all others in 10 of 12 workloads.",
        "torch_mha wins 2 workloads (among no mask; bfloat16).",
    )


def test_noise_that_hides_every_difference_recommends_nobody(advised):
    (headline,) = advised(speed=dict.fromkeys(FAR, 1.0), noise=0.5).headlines
    assert headline.claim == "For inference nothing could be told apart."
    assert "unresolved does not mean equal" in headline.evidence[0]


def test_when_all_are_tied_nobody_is_ahead_of_others(advised):
    (headline,) = advised(speed=dict.fromkeys(FAR, 1.0)).headlines
    assert headline.evidence == ("Tied with others in 3 of 3 workloads.",)


def test_an_even_split_recommends_nobody_for_everything(advised):
    (headline,) = advised(
        dtypes=("float32", "bfloat16"),
        modes=("inference", "training"),
        untimed={("sdpa", "bfloat16"): ("unsupported", "no bfloat16 here")},
    ).headlines
    assert headline.claim == "For inference and training it depends."
    assert set(headline.evidence) == {
        "Use sdpa in 6 of 12 workloads (among float32).",
        "Use torch_mha in 6 of 12 workloads (among bfloat16).",
    }


def test_every_other_implementation_has_a_reason_why_it_lost(advised):
    losers = advised().losers
    assert [line.split(":")[0] for line in losers] == [
        "document",
        "einsum",
        "torch_mha",
        "torch_mha_weights ⚠ NaN",
        "xformers",
    ]
    assert "behind the fastest in 3 of 3 workloads, at typically " in losers[0]
    assert "the peak memory of sdpa" in losers[0]
    assert losers[-1] == "xformers: skipped in 3 workloads (verify-only: its kernel is interpreted on this machine)."


def test_a_hazardous_winner_is_recommended_with_a_warning_only(advised):
    advice = advised(speed={**FAR, "torch_mha_weights": 0.1})
    assert advice.headlines[0].claim == "Use torch_mha_weights ⚠ NaN for inference."
    assert "torch_mha_weights gives NaN in a row whose keys are all masked." in advice.warnings


def test_failed_checks_are_warned_of_beside_the_verdict(advised):
    assert "9 checks of 864 failed: xformers (9)." in advised().warnings


def test_a_missing_baseline_is_warned_of(advised):
    assert (
        "The baseline triton has no time in 3 workloads: ratios there are against the fastest."
        in advised(baseline="triton").warnings
    )
