"""Weights load into whatever module an implementation builds, or one line says which do not."""

import pytest
import torch
from torch import nn

from harness.registry import one_line
from harness.subject import Answer, prepare
from harness.verification.inputs import make_inputs
from implementations.spec import Case, Implementation

CASE = Case(batch_size=2, seq_len=3, d_model=4, num_heads=2)


def prepared(**changes):
    """A subject whose module has the four projections, with additions, or with None in the place of some."""

    def build(d_model, num_heads):
        module = nn.Module()
        for name in ("W_q", "W_k", "W_v", "W_o"):
            setattr(module, name, nn.Linear(d_model, d_model))
        for name, value in changes.items():
            delattr(module, name) if value is None else setattr(module, name, value)
        module.register_buffer("causality", torch.ones(8, 8, dtype=torch.bool).triu(1))
        return module

    implementation = Implementation(name="mine", summary="", source="", build=build)
    return prepare(implementation, CASE, make_inputs(CASE).weights)


def test_buffers_of_a_modules_own_stay_as_they_were_built() -> None:
    module = prepared().module
    assert torch.equal(module.causality, torch.ones(8, 8, dtype=torch.bool).triu(1))
    assert torch.equal(module.W_v.bias, make_inputs(CASE).weights["W_v.bias"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"W_q": nn.Linear(4, 4, bias=False)}, "the module: it has no W_q.bias; name its projections W_q, W_k, W_v, "),
        ({"out": nn.Linear(4, 4)}, "the module: nothing is given for its out.weight, out.bias; name"),
        (
            {"W_o": None, "out": nn.Linear(4, 4, bias=False)},
            "nothing is given for its out.weight and it has no W_o.weight, W_o.bias;",
        ),
        (
            {"W_k": nn.Linear(4, 2)},
            "RuntimeError: Error(s) in loading state_dict for Module: size mismatch for W_k.wei",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named_in_one_line(changes, words: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        prepared(**changes)
    assert words in one_line(caught.value)


def test_a_digest_tells_answers_apart_by_a_single_bit_a_shape_or_a_dtype():
    output = torch.ones(2, 3, 4)
    digest = Answer(output, {}).digest()
    assert digest == Answer(output.clone(), {}).digest()
    assert digest == Answer(output.transpose(1, 2).contiguous().transpose(1, 2), {}).digest(), "whatever its strides"
    one_bit = output.clone()
    one_bit[1, 2, 3] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    others = [
        Answer(one_bit, {}),
        Answer(output.view(3, 2, 4), {}),
        Answer(output.bfloat16(), {}),
        Answer(output, {"x": output}),
    ]
    assert digest not in {other.digest() for other in others}
    assert isinstance(Answer(output.bfloat16(), {}).digest(), int)
