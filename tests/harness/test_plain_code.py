"""Plain code becomes an implementation: a function, or a class, with constants for what it declares."""

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.plain_code import CONSTANTS
from harness.registry import load_registry
from harness.subject import build_module
from implementations.spec import Implementation

FUNCTION = '''
def attend(q, k, v, mask, *, is_causal):
    """Looks at every key alike.

    And more about it.
    """
    return v.mean(dim=-2, keepdim=True).expand_as(v)
'''
CLASS = """
from torch import nn

class Mine(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.W_q = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        return self.W_q(x)
"""


def adopted(folder: Path, source: str) -> Implementation:
    path = folder / "mine.py"
    path.write_text(source)
    registry = load_registry([path])
    return list(registry.values())[-1].implementation


def refusal(folder: Path, source: str) -> str:
    with pytest.raises(UserError) as caught:
        adopted(folder, source)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder / "mine.py") in message
    return message


def test_a_function_is_named_after_its_file_and_described_by_its_docstring(tmp_path: Path) -> None:
    implementation = adopted(tmp_path, FUNCTION)
    assert implementation.name == "mine"
    assert implementation.summary == "Looks at every key alike."
    assert implementation.source == str(tmp_path / "mine.py")
    assert implementation.attend is not None
    assert implementation.fully_masked_row == "zero"


def test_a_class_is_built_from_d_model_and_num_heads(tmp_path: Path) -> None:
    implementation = adopted(tmp_path, CLASS)
    assert implementation.name == "mine"
    assert build_module(implementation, 6, 2).W_q.in_features == 6


@pytest.mark.parametrize(
    ("forward", "flag"),
    [("self, x, mask=None", False), ("self, x, mask=None, *, is_causal=False", True), ("self, x, mask, **how", True)],
)
def test_a_class_gets_the_causal_flag_only_if_its_forward_takes_it(tmp_path: Path, forward: str, flag: bool) -> None:
    assert adopted(tmp_path, CLASS.replace("self, x, mask=None", forward)).has_causal_flag is flag


def test_everything_an_implementation_declares_can_be_a_constant(tmp_path: Path) -> None:
    declared = """
from implementations.spec import KnownFailure, Limit
NAME = "other"
FULLY_MASKED_ROW = "uniform"
DTYPES = ["float32", "float64"]
HAS_CAUSAL_FLAG = False
ROUNDS_LIKE = {"float64": "float32"}
LIMITS = [Limit("no empty batch", lambda case: case.batch_size == 0)]
KNOWN_FAILURES = (KnownFailure("modes_agree", "it does not", "seen"),)
"""
    implementation = adopted(tmp_path, declared + FUNCTION)
    assert implementation.name == "other"
    assert implementation.fully_masked_row == "uniform"
    assert implementation.dtypes == ("float32", "float64")
    assert not implementation.has_causal_flag
    assert implementation.rounds_like == {"float64": "float32"}
    assert implementation.limits[0].reason == "no empty batch"
    assert implementation.known_failures[0].check == "modes_agree"
    assert set(CONSTANTS) >= {"SUMMARY", "SOURCE", "DEVICES", "MASK_KINDS", "GRADIENTS", "MEMORY_GROWTH", "SLOW_ON"}


@pytest.mark.parametrize(
    ("constant", "words"),
    [
        ('FULLY_MASKED_ROW = "zeros"', "FULLY_MASKED_ROW does not fit"),
        (
            "import torch\nDTYPES = (torch.float32,)",
            "DTYPES does not fit (it declares what Implementation's dtypes does)",
        ),
        ('DTYPES = ("fp32",)', "dtypes cannot be 'fp32'; there are: float64, float32, bfloat16, float16"),
        ("KNOWN_FAILURES = ('modes_agree',)", "KNOWN_FAILURES does not fit"),
        ('KERNELS = {"cpu": "aten::bmm"}', "KERNELS does not fit"),
        ("NAME = 'a b'", "'a b' cannot be the name of an implementation"),
    ],
)
def test_a_constant_that_does_not_fit_is_refused_by_name(tmp_path: Path, constant: str, words: str) -> None:
    assert words in refusal(tmp_path, f"{constant}\n{FUNCTION}")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (FUNCTION + CLASS, "attend and Mine could be meant; say which by IMPLEMENTATION = Implementation(name=..., "),
        (CLASS + CLASS.replace("Mine", "Yours"), "Mine and Yours could be meant; say which by IMPLEMENTATION = "),
        ("def attend(q, k, v): ...", "attend(q, k, v) cannot be called as attend(q, k, v, mask, is_causal=False)"),
        (CLASS.replace("x, mask=None", "x"), "Mine.forward(self, x) cannot be called as forward(x, mask)"),
        (CLASS.replace("d_model, num_heads", "d_model"), "found Mine(d_model); give build=lambda d_model, num_heads:"),
        ("from torch.nn import MultiheadAttention", "found none of them"),
    ],
)
def test_code_that_is_ambiguous_or_cannot_be_called_is_refused_with_what_to_write(tmp_path, source, words) -> None:
    assert words in refusal(tmp_path, source)


def test_names_that_begin_with_an_underscore_are_helpers(tmp_path: Path) -> None:
    source = CLASS.replace("Mine", "_Helper") + CLASS.replace("Mine", "Yours")
    assert adopted(tmp_path, source).build.__name__ == "Yours"
    assert adopted(tmp_path, FUNCTION + CLASS.replace("Mine", "_Helper")).attend is not None
