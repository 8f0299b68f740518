"""Probes: each tells right from wrong behaviour, and what is declared is held against what is seen."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.cli import run
from harness.errors import UserError
from harness.registry import load_registry, select
from harness.verification import semantics
from harness.verification.probe import Finding, NotServedError, Questioned, ask
from harness.verification.semantics import CHEAP, PROBES, Questions, declared, put_all
from implementations.einsum import attend as right_attend
from implementations.projections import ProjectedAttention
from implementations.spec import Behaviour, Implementation, KnownFailure, Limit

# As they load, torch's compiler and its decompositions warn of deprecated calls of their own.
torch_may_warn = pytest.mark.filterwarnings("ignore")
REGISTRY = load_registry()
BUILT_IN = tuple(REGISTRY)
COMPILED = [name for name in BUILT_IN if "cpu" not in REGISTRY[name].implementation.slow_on]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(module=None, attend=None, **described) -> Implementation:
    """An implementation of a module's class or of an attention function."""
    if attend is None and module is None:
        attend = right_attend
    return Implementation(name="made", summary="", source="a test", build=module, attend=attend, **described)


def seen(implementation: Implementation, probe: str) -> Finding:
    return next(each for each in PROBES if each.name == probe).put_to(Questioned(implementation))


# What is declared of the built-in implementations.


@pytest.mark.parametrize("probe", CHEAP)
@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_implementations_answer_as_they_declare(name: str, probe: str) -> None:
    implementation = REGISTRY[name].implementation
    finding = semantics.put(next(p for p in PROBES if p.name == probe), implementation, Questions())
    if not finding.answered:
        pytest.skip(f"{finding.answer}: {finding.evidence}")
    if probe == "kernel":
        return  # which one it is depends on the machine
    assert finding.answer == declared(implementation, "cpu")[probe].answer, finding.evidence


def test_every_probe_but_the_kernel_is_declared_for_what_runs_everywhere() -> None:
    for name in COMPILED:
        missing = {probe.name for probe in PROBES} - set(declared(REGISTRY[name].implementation, "cpu"))
        assert missing == {"kernel"}, name


@pytest.mark.parametrize(("policy", "row"), [("uniform", "mean of V"), ("zero", "0"), ("nan", "NaN")])
def test_the_policy_for_empty_rows_is_a_declaration(policy: str, row: str) -> None:
    found = declared(made(fully_masked_row=policy), "cpu")
    assert found["fully_masked_row"].answer == row
    assert found["gradient_of_a_fully_masked_row"].answer == ("not finite" if policy == "nan" else "finite")


def test_a_policy_that_is_declared_to_fail_counts_only_in_explicit_words() -> None:
    failure = KnownFailure("fully_masked_row_is_as_declared", "sometimes", "a test")
    words = Behaviour({"fully_masked_row": "NaN in inference; 0 in training"}, "a test")
    assert "fully_masked_row" not in declared(made(known_failures=(failure,)), "cpu")
    explicit = declared(made(known_failures=(failure,), semantics=(words,)), "cpu")
    assert explicit["fully_masked_row"].answer == "NaN in inference; 0 in training"


def test_a_behaviour_is_declared_for_its_devices_only() -> None:
    implementation = made(semantics=(Behaviour({"nan_query": "0"}, "a test", devices=("cuda",)),))
    assert "nan_query" not in declared(implementation, "cpu")
    assert declared(implementation, "cuda")["nan_query"].answer == "0"


# Circumstances.


def test_equal_answers_are_said_once_and_others_with_their_circumstances() -> None:
    same = ask({"in inference": lambda: Finding("0"), "in training": lambda: Finding("0")})
    assert same.answer == "0"
    answers = {"in inference": Finding("NaN"), "in training": Finding("0"), "with a mask": Finding("NaN")}
    mixed = ask({words: (lambda finding=finding: finding) for words, finding in answers.items()})
    assert mixed.answer == "NaN in inference and with a mask; 0 in training"


def test_whatever_is_raised_is_an_answer_and_a_declared_limit_is_none() -> None:
    def refuse():
        raise NotServedError("forward only")

    assert ask({"in inference": lambda: 1 / 0}).answer == "raises ZeroDivisionError"
    partly = ask({"in inference": lambda: Finding("0"), "in training": refuse})
    assert partly == Finding("0", "in training: forward only")
    assert not ask({"in training": refuse}).answered


# Each probe sees the behaviour that it asks about.


def test_a_fully_masked_row_of_ones_is_something_else() -> None:
    def ones(q, k, v, mask, *, is_causal):
        empty = torch.zeros(()) if mask is None else mask.all(-1, keepdim=True)
        return torch.where(empty.bool(), torch.ones(()), right_attend(q, k, v, mask, is_causal=is_causal))

    assert seen(made(attend=ones), "fully_masked_row").answer == "something else"
    assert seen(made(), "fully_masked_row").answer == "0"


def test_nan_gradients_of_an_empty_row_are_seen_even_where_the_loss_leaves_it_out() -> None:
    def naive(q, k, v, mask, *, is_causal):
        logits = q @ k.mT / math.sqrt(q.shape[-1])
        logits = logits if mask is None else logits.masked_fill(mask, -math.inf)
        return logits.softmax(-1) @ v

    finding = seen(made(attend=naive, fully_masked_row="nan"), "gradient_of_a_fully_masked_row")
    assert finding.answer == "not finite"
    assert "W_v.weight" in finding.evidence


def test_nan_of_a_masked_key_stays_out_where_values_are_cleaned() -> None:
    def clean(q, k, v, mask, *, is_causal):
        return right_attend(q, k.nan_to_num(0.0), v.nan_to_num(0.0), mask, is_causal=is_causal)

    assert seen(made(), "nan_in_a_masked_key").answer == "it leaks"
    assert seen(made(attend=clean), "nan_in_a_masked_key").answer == "it stays out"


def test_a_swallowed_nan_query_is_told_from_one_that_comes_out() -> None:
    def swallow(q, k, v, mask, *, is_causal):
        return right_attend(q, k, v, mask, is_causal=is_causal).nan_to_num(0.0)

    assert seen(made(), "nan_query").answer == "NaN"
    assert seen(made(attend=swallow), "nan_query").answer == "0"


@pytest.mark.parametrize(("fill", "words"), [(-1e9, "all of it"), (-math.inf, "none"), (-5e9, "none")])
def test_a_finite_fill_shows_where_allowed_logits_lie_below_it(fill: float, words: str) -> None:
    def filled(q, k, v, mask, *, is_causal):
        logits = q @ k.mT / math.sqrt(q.shape[-1])
        return (logits if mask is None else logits.masked_fill(mask, fill)).softmax(-1) @ v

    assert seen(made(attend=filled), "logits_below_a_finite_fill").answer == words


class Lenient(ProjectedAttention):
    """Takes any mask: numbers are added to the logits."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads, self._added)
        self._bias = None

    def forward(self, x, mask=None, *, is_causal=False):
        numbers = mask is not None and mask.dtype != torch.bool
        self._bias = mask if numbers else None
        return super().forward(x, None if numbers else mask, is_causal=is_causal)

    def _added(self, q, k, v, mask, *, is_causal):
        if self._bias is None:
            return right_attend(q, k, v, mask, is_causal=is_causal)
        return (q @ k.mT / math.sqrt(q.shape[-1]) + self._bias).softmax(-1) @ v


def test_what_becomes_of_a_mask_of_numbers_is_told() -> None:
    answer = seen(made(module=Lenient), "additive_mask").answer
    assert answer == "read like bool with 0 and -inf; read otherwise with 0 and 1"
    assert seen(made(), "additive_mask").answer == "refused by TypeError"


def test_limits_are_lifted_where_the_question_is_about_what_lies_beyond() -> None:
    limits = (Limit("no half precision", lambda case: case.dtype == "float16"),)
    assert seen(made(limits=limits), "float16_with_a_mask").answer == "right"


@torch_may_warn
def test_wrong_copies_derivatives_and_vmap_are_seen() -> None:
    class Counting(ProjectedAttention):
        """Its output depends on which instance it is, and on a number that no derivative sees."""

        def __init__(self, d_model, num_heads):
            super().__init__(d_model, num_heads, right_attend)

        def __deepcopy__(self, memo):
            twin = Counting(self.d_model, self.num_heads)
            twin.load_state_dict(self.state_dict())
            twin.W_o.bias.data += 1.0
            return twin

    def detached(q, k, v, mask, *, is_causal):
        return right_attend(q, k, v, mask, is_causal=is_causal) + q.pow(3).detach() * q

    assert "other bits after deepcopy" in seen(made(module=Counting), "copies").answer
    assert seen(made(attend=detached), "double_backward").answer == "wrong"
    assert seen(made(attend=detached), "forward_mode").answer == "wrong"

    def branching(q, k, v, mask, *, is_causal):
        return right_attend(q, k, v if bool((q > 100).any()) else v + 0, mask, is_causal=is_causal)

    assert seen(made(attend=branching), "vmap").answer.startswith("raises")


def test_the_kernel_that_ran_is_named() -> None:
    assert "scaled_dot_product" in seen(REGISTRY["sdpa"].implementation, "kernel").answer
    assert seen(REGISTRY["einsum"].implementation, "kernel").answer.startswith("bmm, _softmax")


# Compiled variants.


class Permuted(nn.Module):
    """Right in eager mode; K goes straight to (B, H, d_k, S), which torch's compiler takes for a transposed K."""

    axis = -1

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        for name in ("W_q", "W_k", "W_v", "W_o"):
            setattr(self, name, nn.Linear(d_model, d_model))

    def forward(self, x, mask=None, *, is_causal=False):
        q, k, v = (w(x).view(*x.shape[:2], self.num_heads, self.d_k) for w in (self.W_q, self.W_k, self.W_v))
        logits = torch.matmul(q.transpose(1, 2), self.keys(k)) * self.d_k**-0.5
        heads = torch.matmul(logits.softmax(dim=self.axis), v.transpose(1, 2))
        return self.W_o(heads.transpose(1, 2).flatten(2))

    def keys(self, k):
        return k.permute(0, 2, 3, 1)


class OverQueries(Permuted):
    """Wrong in eager mode: softmax over queries, which torch's compiler takes for one over keys."""

    axis = -2

    def keys(self, k):
        return k.transpose(1, 2).transpose(-2, -1)


def inference_only(module: type[nn.Module]) -> Implementation:
    return made(module=module, mask_kinds=("none",), dtypes=("float32",), gradients=False)


def compiled(implementation: Implementation) -> Finding:
    finding = seen(implementation, "compile")
    if finding.answer == "no compiler":
        pytest.skip(finding.evidence)
    return finding


@torch_may_warn
def test_a_module_that_only_its_compiler_makes_wrong_is_told_from_one_that_is_wrong() -> None:
    finding = compiled(inference_only(Permuted))
    assert finding.answer == "wrong, though eager is right"
    assert "eager: output off by" in finding.evidence


@torch_may_warn
def test_a_fault_that_the_compiler_hides_is_told() -> None:
    assert compiled(inference_only(OverQueries)).answer == "right, though eager is wrong"


@torch_may_warn
def test_a_module_that_breaks_the_graph_is_compiled_in_parts() -> None:
    def printing(q, k, v, mask, *, is_causal):
        torch._dynamo.graph_break()
        return right_attend(q, k, v, mask, is_causal=is_causal)

    implementation = made(attend=printing, mask_kinds=("none",), gradients=False)
    assert compiled(implementation).answer == "right, in parts"


def test_a_machine_without_a_compiler_gives_no_answer(tmp_path: Path) -> None:
    arguments = ["verify", "einsum", "--semantics", "--check", "compile", "--json", "-"]
    environment = {**os.environ, "CXX": str(tmp_path / "absent"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    code = f"from harness.cli import main; main({arguments!r})"
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    (record,) = json.loads(result.stdout)
    assert (record["status"], record["answer"]) == ("no_answer", "no compiler")
    assert result.returncode == 0


def test_slow_implementations_are_not_compiled() -> None:
    implementation = made(slow_on=("cpu",))
    assert seen(implementation, "compile").answer == "not tried"
    assert seen(implementation, "nan_query").answered


# Records, children and the command.

PLUGIN = """
import math, os, time
import torch
from implementations.einsum import attend as right
from implementations.spec import Behaviour, Implementation

def attend(q, k, v, mask, *, is_causal):
    if bool(q[:, 0].isnan().all()):  # every query of the first head
        {deed}
    return right(q, k, v, mask, is_causal=is_causal)

IMPLEMENTATION = Implementation(
    name="mine", summary="a test's", source="a test", attend=attend,
    semantics=(Behaviour({answers!r}, "the author's word"),),
)
"""


@pytest.fixture
def plugin(tmp_path: Path):
    """``plugin(deed, **answers)`` writes an implementation that does a deed when a query is NaN."""

    def write(deed: str = "pass", **answers: str) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(PLUGIN.format(deed=deed, answers=answers))
        return path

    return write


def records_of(path: Path, *probes: str):
    registered = select(load_registry([path]), ["mine"])
    return {record.probe: record for record in put_all(registered, Questions(probes))}


def test_a_crash_is_an_answer_and_the_probes_after_it_are_put(plugin) -> None:
    path = plugin("os._exit(7)", nan_query="NaN")
    records = records_of(path, "nan_in_a_masked_key", "nan_query", "copies")
    assert list(records) == ["nan_in_a_masked_key", "nan_query", "copies"]
    assert records["nan_query"].status == "differs"
    assert records["nan_query"].answer == "kills its process"
    assert "exited with status 7" in records["nan_query"].evidence
    assert records["copies"].answer == "same bits"


def test_no_end_is_no_answer(plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    # The limit is fixed by the probe's cost; a child imports the module afresh, so the deed sets its own alarm.
    deed = "import faulthandler; faulthandler.dump_traceback_later(0.2, exit=True, file=2); time.sleep(60)"
    record = records_of(plugin(deed, nan_query="NaN"), "nan_query")["nan_query"]
    assert (record.status, record.answer) == ("no_answer", "none in time")


def test_what_is_not_declared_is_shown_and_no_failure(plugin) -> None:
    records = records_of(plugin(), "nan_query", "fully_masked_row")
    assert records["nan_query"].status == "undeclared"
    assert records["fully_masked_row"].status == "as_declared"


def test_the_command_shows_a_difference_fails_and_says_how_to_ask_again(plugin, capfd) -> None:
    path = plugin(nan_query="0")
    arguments = ("verify", "mine", "--plugin", str(path), "--semantics", "--check", "nan_query")
    assert run(arguments) == 1
    out = " ".join(capfd.readouterr().out.split())
    assert "mine: nan_query differs from what is declared" in out
    assert "Seen: NaN. Declared: 0." in out
    assert "declared by: the author's word" in out
    assert f"again: mha verify mine --semantics --check nan_query --plugin {path}" in out


def test_the_command_puts_implementations_side_by_side(capfd) -> None:
    assert run(["verify", "document", "sdpa", "--semantics", "--check", "fully_masked_row"]) == 0
    out = capfd.readouterr().out
    row = next(line for line in out.splitlines() if "mean of V" in line)
    assert row.index("mean of V") < row.rindex(" 0 ")
    assert "2 answers: 2 as declared" in out


def test_the_command_writes_answers_as_json(capfd) -> None:
    assert run(["verify", "sdpa", "--semantics", "--check", "nan_query", "--json", "-"]) == 0
    (record,) = json.loads(capfd.readouterr().out)
    assert record["status"] == "as_declared"
    assert record["declared_source"].endswith("issues/141128")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--check", "looks_right"), "no probe named looks_right; there are: fully_masked_row"),
        (("--dtype", "float32"), "takes no --dtype; leave that out"),
    ],
)
def test_what_does_not_fit_semantics_is_one_line(capfd, arguments: tuple[str, ...], words: str) -> None:
    assert run(["verify", "sdpa", "--semantics", *arguments]) == 2
    err = capfd.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_an_answer_declared_for_no_probe_is_refused_before_anything_runs(plugin) -> None:
    with pytest.raises(UserError, match="'mine' declares semantics of nan_qery; probes are: fully_masked_row"):
        records_of(plugin(nan_qery="NaN"), "nan_query")


def test_answers_that_a_run_holds_are_not_asked_for_again() -> None:
    registered = [REGISTRY["einsum"]]
    skip = {("einsum", "nan_query")}
    records = list(put_all(registered, Questions(("nan_query", "copies")), skip=skip))
    assert [record.probe for record in records] == ["copies"]
