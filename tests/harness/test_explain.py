"""The document's table comes out of a real forward pass, and a module that does something else is caught."""

import io
import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

from harness import explain as explain_module
from harness.errors import UserError
from harness.explain import (
    NotTheDocumentError,
    check_shapes,
    explain,
    explain_rows_json,
    observe,
    render,
    symbolic,
    what_faster_versions_change,
)
from implementations.document import MultiHeadAttention

SIZES = {"batch_size": 2, "seq_len": 10, "d_model": 512, "num_heads": 8}

# The document's section 4, with the sizes above put in.
FEATURES = (2, 10, 512)
SCORES = (2, 8, 10, 10)
MASK = "Mask\N{FULLWIDTH LEFT PARENTHESIS}可选\N{FULLWIDTH RIGHT PARENTHESIS}"
TABLE = [
    ("输入", "x", "(batch_size, seq_len, d_model)", FEATURES),
    ("线性投影", "self.W_q(x)", "(batch_size, seq_len, d_model)", FEATURES),
    ("分头", "view(..., num_heads, d_k)", "(batch_size, seq_len, num_heads, d_k)", (2, 10, 8, 64)),
    ("维度置换", "transpose(1, 2)", "(batch_size, num_heads, seq_len, d_k)", (2, 8, 10, 64)),
    ("点积计算", "Q @ K.transpose(-2, -1)", "(batch_size, num_heads, seq_len, seq_len)", SCORES),
    ("缩放", "/ sqrt(d_k)", "(batch_size, num_heads, seq_len, seq_len)", SCORES),
    (MASK, "masked_fill", "(batch_size, num_heads, seq_len, seq_len)", SCORES),
    ("Softmax", "F.softmax", "(batch_size, num_heads, seq_len, seq_len)", SCORES),
    ("聚合 V", "attn_weights @ V", "(batch_size, num_heads, seq_len, d_k)", (2, 8, 10, 64)),
    ("维度还原", "transpose(1, 2).view", "(batch_size, seq_len, d_model)", FEATURES),
    ("输出投影", "self.W_o", "(batch_size, seq_len, d_model)", FEATURES),
]


@pytest.fixture(scope="module")
def steps():
    return explain(**SIZES)


def printed(table, width=220) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_the_table_is_the_documents_row_by_row(steps):
    seen = [(step.row.name_zh, step.row.operation, symbolic(step.row), step.observed) for step in steps]
    assert seen == TABLE


@pytest.mark.parametrize(("batch_size", "seq_len", "d_model", "num_heads"), [(1, 1, 1, 1), (3, 7, 12, 3), (1, 5, 8, 1)])
def test_every_symbolic_shape_equals_the_observed_one(batch_size, seq_len, d_model, num_heads):
    sizes = {"batch_size": batch_size, "seq_len": seq_len, "d_model": d_model, "num_heads": num_heads}
    sizes["d_k"] = d_model // num_heads
    for step in explain(batch_size, seq_len, d_model, num_heads):
        assert step.observed == tuple(sizes[name] for name in step.row.shape), step.row.name


def test_bytes_are_those_of_a_float32_tensor_of_that_shape(steps):
    assert [step.nbytes for step in steps] == [4 * torch.Size(step.observed).numel() for step in steps]


def test_views_are_told_from_new_memory(steps):
    assert [step.row.name for step in steps if not step.allocates] == ["Split heads", "Transpose"]


def test_with_one_head_nothing_is_out_of_order_so_merging_copies_nothing():
    restore = {step.row.name: step for step in explain(2, 5, 8, 1)}["Restore dimensions"]
    assert not restore.allocates


def run(module: nn.Module) -> list:
    """Explain another module in the document's place, at B2 S5 d_model 8 H2 (d_k 4)."""
    steps = observe(module, torch.randn(2, 5, 8), torch.zeros(5, 5, dtype=torch.bool))
    check_shapes(steps, {"batch_size": 2, "seq_len": 5, "d_model": 8, "num_heads": 2, "d_k": 4})
    return steps


class SplitsTheWrongWay(MultiHeadAttention):
    """Same operations in the same order, but heads and head features change places."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.num_heads, self.d_k = self.d_k, self.num_heads


class ScalesAfterTheSoftmax(MultiHeadAttention):
    """Same operations in another order; every shape is right."""

    def forward(self, x, mask=None):
        b, s, _ = x.size()
        Q, K, V = (w(x).view(b, s, self.num_heads, self.d_k).transpose(1, 2) for w in (self.W_q, self.W_k, self.W_v))
        weights = F.softmax((Q @ K.transpose(-2, -1)).masked_fill(mask, -1e9), dim=-1)
        weights = weights / torch.sqrt(torch.tensor(self.d_k, dtype=torch.float32))
        return self.W_o((weights @ V).transpose(1, 2).contiguous().view(b, s, -1))


def test_the_documents_module_passes_where_wrong_ones_are_caught():
    assert len(run(MultiHeadAttention(8, 2))) == len(TABLE)


def test_a_wrong_shape_is_caught_at_its_step():
    with pytest.raises(NotTheDocumentError, match=r"'Split heads'.*\(2, 5, 4, 2\).*= \(2, 5, 2, 4\)"):
        run(SplitsTheWrongWay(8, 2))


def test_explain_itself_refuses_a_module_whose_shapes_are_not_the_documents(monkeypatch):
    monkeypatch.setattr(explain_module, "MultiHeadAttention", SplitsTheWrongWay)
    with pytest.raises(NotTheDocumentError, match="'Split heads'"):
        explain(2, 5, 8, 2)


def test_another_order_of_operations_is_caught_though_every_shape_is_right():
    with pytest.raises(NotTheDocumentError, match=r"calls .*matmul, masked_fill, softmax, tensor, sqrt, div"):
        run(ScalesAfterTheSoftmax(8, 2))


def test_a_fused_kernel_is_not_taken_for_the_documents_steps():
    class Fused(MultiHeadAttention):
        def forward(self, x, mask=None):
            q, k, v = (w(x).unflatten(-1, (2, 4)).transpose(1, 2) for w in (self.W_q, self.W_k, self.W_v))
            return self.W_o(F.scaled_dot_product_attention(q, k, v, attn_mask=~mask).transpose(1, 2).flatten(2))

    with pytest.raises(NotTheDocumentError, match="scaled_dot_product_attention"):
        run(Fused(8, 2))


@pytest.mark.parametrize("width", [80, 220])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_printed_table_loses_no_text_in_either_language(steps, lang, width):
    text = "".join(printed(render(steps, lang), width).split())
    assert "…" not in text
    if width == 220:
        for step, faster in zip(steps, what_faster_versions_change(lang), strict=True):
            name = step.row.name_zh if lang == "zh" else step.row.name
            for part in (name, step.row.operation, symbolic(step.row), str(step.observed), faster):
                assert "".join(part.split()) in text.replace("│", "")


def test_faster_versions_are_told_alike_in_both_languages():
    english, chinese = what_faster_versions_change("en"), what_faster_versions_change("zh")
    assert len(english) == len(TABLE)
    assert [bool(line) for line in english] == [bool(line) for line in chinese]
    assert "never exists" in dict(zip([row[0] for row in TABLE], english, strict=True))["点积计算"]


def test_json_rows_are_plain_values(steps):
    rows = json.loads(json.dumps(explain_rows_json(steps)))
    assert rows[4] == {
        "step": "Dot product",
        "step_zh": "点积计算",
        "operation": "Q @ K.transpose(-2, -1)",
        "symbolic_shape": ["batch_size", "num_heads", "seq_len", "seq_len"],
        "shape": list(SCORES),
        "bytes": 6400,
        "allocates": True,
        "in_faster_versions": what_faster_versions_change("en")[4],
        "in_faster_versions_zh": what_faster_versions_change("zh")[4],
    }


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("size", [0, -3])
def test_a_size_that_is_not_positive_is_refused_by_name(name, size):
    with pytest.raises(UserError, match=f"^{name} is {size}, and must be at least 1$"):
        explain(**SIZES | {name: size})


def test_heads_that_do_not_divide_d_model_are_refused_with_both_numbers():
    with pytest.raises(UserError, match="d_model 512 is not divisible by num_heads 7") as caught:
        explain(**SIZES | {"num_heads": 7})
    assert "\n" not in str(caught.value)


def test_a_pass_that_would_not_fit_is_refused_before_it_runs(monkeypatch):
    monkeypatch.setattr(explain_module.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**20))
    with pytest.raises(UserError, match=r"needs about .* MiB, and 1 MiB are free"):
        explain(**SIZES)
