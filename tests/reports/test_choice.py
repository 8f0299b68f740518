"""One workload, one recommendation."""

import pytest

from harness.errors import UserError
from reports.choice import choose

FAR = {"document": 1.0, "einsum": 0.7, "sdpa": 0.3, "torch_mha": 0.5, "torch_mha_weights": 0.6}


@pytest.fixture
def chosen(make_run):
    """``chosen(memory_limit=..., ...)`` builds a run of one workload and sums it up."""

    def make(memory_limit=None, **changes):
        run = make_run(**{"lengths": (512,), "checked": False, "speed": FAR, "noise": 0.003, **changes})
        return choose(run, memory_limit)

    return make


def test_the_fastest_is_recommended_with_its_figures_and_the_next_behind(chosen):
    choice = chosen()
    assert choice.recommended == "sdpa"
    assert choice.sentence.startswith("Use sdpa for inference (whole module, causal mask, float32): ")
    assert "4.00 MiB at its peak; torch_mha is 1.3" in choice.sentence
    assert choice.sentence.endswith("].")


def test_everybody_else_is_told_why_it_lost(chosen):
    choice = chosen(untimed={("einsum", "float32"): ("wrong", "the output differs")})
    assert choice.candidates[0].why == ""
    whys = {each.name: each.why for each in choice.candidates[1:]}
    assert whys["torch_mha"].startswith("1.3")
    assert "slower than sdpa [" in whys["torch_mha"]
    assert whys["einsum"] == "the output differs"
    assert whys["xformers"].startswith("verify-only: ")
    assert [each.place for each in choice.candidates] == [1, 2, 3, 4, None, None]


def test_equals_are_named_as_tied_and_what_cannot_be_told_apart_as_such(chosen):
    tied = chosen(speed={**FAR, "torch_mha": 0.3})
    assert "; tied with " in tied.sentence
    assert {each.verdict for each in tied.candidates[:2]} == {"recommended", "tied"}
    unresolved = chosen(speed={**FAR, "torch_mha": 0.3}, rounds=7)
    assert "; not told apart from " in unresolved.sentence
    assert "which does not mean equal" in unresolved.candidates[1].why
    assert any(line.startswith("Only 7 rounds fitted") for line in unresolved.cautions)


def test_a_memory_limit_excludes_and_says_both_sizes(chosen):
    choice = chosen(memory_limit=10 * 2**20, speed={**FAR, "einsum": 0.1})
    assert choice.recommended == "sdpa"
    einsum = next(each for each in choice.candidates if each.name == "einsum")
    assert (einsum.place, einsum.verdict) == (None, "too large")
    assert einsum.why == "it takes 20.0 MiB, and the limit is 10.0 MiB"


def test_where_nobody_fits_nothing_is_recommended(chosen):
    choice = chosen(memory_limit=1)
    assert choice.recommended == ""
    assert choice.sentence.startswith("Nothing can be recommended for inference (")
    assert "<0.01 MiB" in choice.sentence


def test_a_hazardous_choice_is_flagged(chosen):
    choice = chosen(speed={**FAR, "torch_mha_weights": 0.1})
    assert choice.recommended == "torch_mha_weights"
    assert "torch_mha_weights gives NaN in a row whose keys are all masked." in choice.cautions


def test_the_code_makes_the_recommended_module(chosen):
    code = chosen().code()
    assert len(code.splitlines()) == 3
    namespace: dict[str, object] = {}
    exec(code, namespace)  # noqa: S102 - the code that users are told to paste
    assert namespace["attention"].d_model == 512


def test_a_run_of_several_workloads_is_no_choice(make_run):
    with pytest.raises(UserError, match="a choice is about one workload"):
        choose(make_run(lengths=(128, 512)))
