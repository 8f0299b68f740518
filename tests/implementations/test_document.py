"""The document's module computes the formula, and departs from the contract only where it declares so."""

import math

import pytest
import torch
from torch import Tensor

from implementations.document import IMPLEMENTATION, MultiHeadAttention
from implementations.spec import PROJECTION_NAMES, Case

BATCH_SIZE, SEQ_LEN, D_MODEL, NUM_HEADS = 3, 5, 24, 4
D_K = D_MODEL // NUM_HEADS


@pytest.fixture
def module() -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(D_MODEL, NUM_HEADS).eval()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(BATCH_SIZE, SEQ_LEN, D_MODEL, generator=torch.Generator().manual_seed(1))


def causal(seq_len: int = SEQ_LEN) -> Tensor:
    return torch.ones(seq_len, seq_len, dtype=torch.bool).triu(1)


def formula(module: MultiHeadAttention, x: Tensor, mask: Tensor | None, b: int, i: int) -> Tensor:
    """Row i of batch item b in float64, key by key and head by head, without a line of the module."""

    def project(name: str, token: Tensor) -> Tensor:
        linear = getattr(module, name)
        return linear.weight.double() @ token + linear.bias.double()

    tokens = x[b].double()
    heads = []
    for h in range(NUM_HEADS):
        part = slice(h * D_K, (h + 1) * D_K)
        query = project("W_q", tokens[i])[part]
        keys = [j for j in range(SEQ_LEN) if mask is None or not mask[i, j]]
        logits = [float(query @ project("W_k", tokens[j])[part]) / math.sqrt(D_K) for j in keys]
        weights = [math.exp(logit) for logit in logits]
        values = [project("W_v", tokens[j])[part] * w for j, w in zip(keys, weights, strict=True)]
        heads.append(sum(values) / sum(weights))
    return project("W_o", torch.cat(heads))


@pytest.mark.parametrize("mask", [None, causal()], ids=["none", "causal"])
def test_it_computes_the_formula(module, x, mask):
    with torch.no_grad():
        y = module(x, mask)
        expected = torch.stack(
            [torch.stack([formula(module, x, mask, b, i) for i in range(SEQ_LEN)]) for b in range(BATCH_SIZE)]
        )
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=1e-6)


def test_its_parameters_have_the_shared_names(module):
    assert tuple(module.state_dict()) == PROJECTION_NAMES
    assert (module.d_k, module.num_heads) == (D_K, NUM_HEADS)


def test_heads_that_do_not_divide_d_model_trip_the_documents_assertion():
    with pytest.raises(AssertionError, match="d_model must be divisible by num_heads"):
        MultiHeadAttention(10, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_float32_scale_promotes_nothing(module, x, dtype):
    assert module.to(dtype)(x.to(dtype), causal()).dtype == dtype


def test_float16_without_a_mask_stays_float16(module, x):
    assert module.half()(x.half()).dtype == torch.float16


def test_float64_is_only_as_precise_as_its_float32_scale(module, x):
    # Weights of a size that makes the logits matter; d_k = 6, whose root float32 rounds.
    module.double().load_state_dict({name: 3 * value for name, value in module.state_dict().items()})
    with torch.no_grad():
        y = module(x.double())
        expected = torch.stack([formula(module, x, None, 0, i) for i in range(SEQ_LEN)])
    error = float((y[0] - expected).abs().max())
    assert 1e-12 < error < 1e-5
    assert IMPLEMENTATION.rounds_like == {"float64": "float32"}


def test_a_fully_masked_row_is_the_mean_of_v_as_declared(module, x):
    mask = torch.zeros(SEQ_LEN, SEQ_LEN, dtype=torch.bool)
    mask[2] = True
    with torch.no_grad():
        mean = module.W_o(module.W_v(x).mean(dim=1))
        torch.testing.assert_close(module(x, mask)[:, 2], mean)
    assert IMPLEMENTATION.fully_masked_row == "uniform"


def case(**changes) -> Case:
    return Case(**{"batch_size": 2, "seq_len": 5, "d_model": D_MODEL, "num_heads": NUM_HEADS} | changes)


@pytest.mark.parametrize("mask", [causal(), torch.zeros(1, 1, dtype=torch.bool)], ids=["causal", "all False"])
def test_float16_with_any_mask_raises_and_is_a_declared_limit(module, x, mask):
    with pytest.raises(RuntimeError, match="overflow"):
        module.half()(x.half(), mask)
    assert "float16" in " ".join(IMPLEMENTATION.why_not(case(dtype="float16", mask="causal")))
    assert not IMPLEMENTATION.why_not(case(dtype="float16", mask="none"))
    assert not IMPLEMENTATION.why_not(case(dtype="bfloat16", mask="causal"))


@pytest.mark.parametrize(("batch_size", "seq_len"), [(0, 5), (2, 0), (0, 0)])
def test_an_empty_input_raises_and_is_a_declared_limit(module, batch_size, seq_len):
    with pytest.raises(RuntimeError, match="cannot reshape tensor of 0 elements"):
        module(torch.empty(batch_size, seq_len, D_MODEL))
    assert IMPLEMENTATION.why_not(case(batch_size=batch_size, seq_len=seq_len))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_a_mask_that_is_not_bool_gives_torchs_error_as_declared(module, x, dtype):
    with pytest.raises(RuntimeError, match="only supports boolean masks"):
        module(x, causal().to(dtype))
    assert "wrong_mask_dtype_is_a_type_error" in {known.check for known in IMPLEMENTATION.known_failures}


@pytest.mark.parametrize(
    ("batch_size", "shape"),
    [(3, (5, 6)), (3, (2, 1, 1, 5)), (3, (3, 5, 5)), (1, (3, 1, 1, 5)), (3, (2, 3, 4, 5, 5))],
)
def test_a_mask_that_does_not_fit_gives_torchs_error_as_declared(module, x, batch_size, shape):
    with pytest.raises(RuntimeError, match=r"must match the size|cannot be multiplied"):
        module(x[:batch_size], torch.zeros(shape, dtype=torch.bool))
    assert "wrong_mask_shape_is_a_value_error" in {known.check for known in IMPLEMENTATION.known_failures}


@pytest.mark.parametrize("shape", [(), (SEQ_LEN,), (1, BATCH_SIZE, NUM_HEADS, SEQ_LEN, SEQ_LEN)])
def test_masks_of_too_few_or_too_many_dimensions_are_accepted_as_declared(module, x, shape):
    with torch.no_grad():
        assert module(x, torch.zeros(shape, dtype=torch.bool)).shape == x.shape


def test_a_logit_below_the_fill_loses_to_a_masked_key():
    """Why the contract's extreme logits stop above -1e9."""
    module = MultiHeadAttention(2, 1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        for name in ("W_v", "W_o"):
            getattr(module, name).weight.copy_(torch.eye(2))
        module.W_q.weight[0, 0], module.W_k.weight[0, 0] = 1e6, -1e6
        x = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]])
        y = module(x, torch.tensor([[False, True], [False, False]]))
    assert y[0, 0, 1] == 1.0
