"""The document's table of shapes, filled from a forward pass that really ran.

The document's own module runs under a mode that sees every tensor operation, so its code exists once and the
table cannot drift from it: a sequence of operations, or a shape, other than the document's is an error.
"""
# ruff: noqa: RUF001 - full-width punctuation is how Chinese is written

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import torch
from rich.table import Column, Table
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from harness.errors import UserError
from implementations.document import MultiHeadAttention

Language = Literal["en", "zh"]


class NotTheDocumentError(RuntimeError):
    """The module's operations or shapes are not those of the document's table."""


@dataclass(frozen=True)
class Row:
    """A row of the document's table, before anything ran."""

    name: str
    name_zh: str
    operation: str
    """The code, as the document writes it."""
    shape: tuple[str, ...]
    """Names of the sizes of its result."""
    calls: tuple[str, ...] = ()
    """Torch functions that the row stands for, in order; the last one gives its result."""
    calls_not_shown: tuple[str, ...] = ()
    """Torch functions that follow it without a row of their own."""
    faster: str = ""
    """What faster versions do instead; empty if nothing else."""
    faster_zh: str = ""


_FEATURES = ("batch_size", "seq_len", "d_model")
_SPLIT = ("batch_size", "seq_len", "num_heads", "d_k")
_HEADS = ("batch_size", "num_heads", "seq_len", "d_k")
_SCORES = ("batch_size", "num_heads", "seq_len", "seq_len")

ROWS = (
    Row("Input", "输入", "x", _FEATURES),
    Row(
        "Linear projection",
        "线性投影",
        "self.W_q(x)",
        _FEATURES,
        calls=("linear",),
        faster="Q, K and V from one matmul with the stacked weights",
        faster_zh="权重堆叠，一次矩阵乘法同时得到 Q、K、V",
    ),
    Row("Split heads", "分头", "view(..., num_heads, d_k)", _SPLIT, calls=("view",)),
    Row(
        "Transpose",
        "维度置换",
        "transpose(1, 2)",
        _HEADS,
        calls=("transpose",),
        calls_not_shown=("linear", "view", "transpose") * 2,  # K and V
        faster="left out by kernels that read (batch_size, seq_len, num_heads, d_k)",
        faster_zh="直接读取 (batch_size, seq_len, num_heads, d_k) 的内核无需置换",
    ),
    Row(
        "Dot product",
        "点积计算",
        "Q @ K.transpose(-2, -1)",
        _SCORES,
        calls=("transpose", "matmul"),
        faster="one tile at a time on chip: a tensor of this shape never exists",
        faster_zh="在片上逐块计算：这一形状的张量从不存在",
    ),
    Row(
        "Scale",
        "缩放",
        "/ sqrt(d_k)",
        _SCORES,
        calls=("tensor", "sqrt", "div"),
        faster="on each tile, inside the kernel",
        faster_zh="在内核中对每一块进行",
    ),
    Row(
        "Mask (optional)",
        "Mask（可选）",
        "masked_fill",
        _SCORES,
        calls=("masked_fill",),
        faster="causality as a flag: no mask is read, tiles wholly in the future are skipped",
        faster_zh="因果性只是一个标志：不读取 mask，完全位于未来的块直接跳过",
    ),
    Row(
        "Softmax",
        "Softmax",
        "F.softmax",
        _SCORES,
        calls=("softmax",),
        faster="online: a running maximum and sum for each row, no stored weights",
        faster_zh="在线计算：每行只保留当前最大值与累加和，不存储权重",
    ),
    Row(
        "Aggregate V",
        "聚合 V",
        "attn_weights @ V",
        _HEADS,
        calls=("matmul",),
        faster="in the same pass: the partial sum is rescaled as each tile arrives",
        faster_zh="同一遍内完成：每到一块就重新缩放部分和",
    ),
    Row(
        "Restore dimensions",
        "维度还原",
        "transpose(1, 2).view",
        _FEATURES,
        calls=("transpose", "contiguous", "view"),
        faster="no copy where the kernel writes (batch_size, seq_len, num_heads, d_k)",
        faster_zh="内核直接写出 (batch_size, seq_len, num_heads, d_k) 时无需复制",
    ),
    Row("Output projection", "输出投影", "self.W_o", _FEATURES, calls=("linear",)),
)
"""The document's table (its section 4), row by row."""


@dataclass(frozen=True)
class Call:
    """A torch function that ran and returned a tensor."""

    function: str
    shape: tuple[int, ...]
    nbytes: int
    allocates: bool
    """Whether the result has memory of its own, instead of being a view of an argument."""


@dataclass(frozen=True)
class Step:
    """A row of the document's table, with what was really seen."""

    row: Row
    observed: tuple[int, ...]
    """Shape of the step's tensor in the forward pass."""
    nbytes: int
    """Size of that tensor in bytes."""
    allocates: bool
    """Whether the step takes new memory; False for a view of an earlier step's tensor."""


def explain(batch_size: int, seq_len: int, d_model: int, num_heads: int) -> list[Step]:
    """Run the document's module once, in float32 with a causal mask, and describe each step.

    Raises:
        UserError: a size is not positive, num_heads does not divide d_model, or the pass would not fit into
            memory.
        NotTheDocumentError: the module no longer does what the document's table says.
    """
    sizes = {"batch_size": batch_size, "seq_len": seq_len, "d_model": d_model, "num_heads": num_heads}
    _check_sizes(sizes)
    _check_memory(batch_size, seq_len, d_model, num_heads)
    x = torch.randn(batch_size, seq_len, d_model)
    mask = torch.ones(seq_len, seq_len, dtype=torch.bool).triu(diagonal=1)
    steps = observe(MultiHeadAttention(d_model, num_heads), x, mask)
    check_shapes(steps, sizes | {"d_k": d_model // num_heads})
    return steps


def observe(module: nn.Module, x: Tensor, mask: Tensor) -> list[Step]:
    """Run ``module(x, mask)`` and give each row of the table the tensor that it made.

    Args:
        module: one that should do what the document's does, operation by operation.
        x: (batch_size, seq_len, d_model).
        mask: bool, True = masked, broadcastable to (batch_size, num_heads, seq_len, seq_len).

    Raises:
        NotTheDocumentError: the module calls other functions, or in another order.
    """
    recorder = _Recorder()
    with torch.no_grad(), recorder:
        module(x, mask)
    _check_calls([call.function for call in recorder.calls])
    steps = []
    calls = iter(recorder.calls)
    for row in ROWS:
        mine = [next(calls) for _ in row.calls] or [Call("", tuple(x.shape), x.nbytes, allocates=True)]
        steps.append(Step(row, mine[-1].shape, mine[-1].nbytes, any(call.allocates for call in mine)))
        for _ in row.calls_not_shown:
            next(calls)
    return steps


def check_shapes(steps: Sequence[Step], sizes: Mapping[str, int]) -> None:
    """Hold every observed shape against the document's, evaluated with the real sizes.

    Args:
        steps: what was seen.
        sizes: batch_size, seq_len, d_model, num_heads and d_k.

    Raises:
        NotTheDocumentError: a shape differs; names the first such step.
    """
    for step in steps:
        expected = tuple(sizes[name] for name in step.row.shape)
        if step.observed != expected:
            raise NotTheDocumentError(
                f"step {step.row.name!r} ({step.row.operation}) gave shape {step.observed}, "
                f"and the document says {symbolic(step.row)} = {expected}"
            )


def what_faster_versions_change(lang: Language = "en") -> list[str]:
    """For each row of the table, what faster implementations do instead; empty where nothing differs."""
    return [row.faster_zh if lang == "zh" else row.faster for row in ROWS]


_HEADINGS: Mapping[Language, tuple[str, ...]] = {
    "en": ("Step", "Operation", "Shape", "Here", "Memory", "In faster versions"),
    "zh": ("步骤", "操作", "形状变化", "实际形状", "内存", "更快的实现"),
}
_VIEW: Mapping[Language, str] = {"en": "view", "zh": "视图"}


def render(steps: Sequence[Step], lang: Language = "en") -> Table:
    """The steps as the document's table, with the shapes really seen, and what faster versions do."""
    # Chinese has no spaces to break lines at: fold, or rich would cut the text short.
    table = Table(*(Column(heading, overflow="fold") for heading in _HEADINGS[lang]), show_lines=True)
    for step, faster in zip(steps, what_faster_versions_change(lang), strict=True):
        name = step.row.name_zh if lang == "zh" else step.row.name
        memory = readable_bytes(step.nbytes) if step.allocates else _VIEW[lang]
        table.add_row(name, step.row.operation, symbolic(step.row), str(step.observed), memory, faster)
    return table


def explain_rows_json(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The steps as plain values, in both languages."""
    return [
        {
            "step": step.row.name,
            "step_zh": step.row.name_zh,
            "operation": step.row.operation,
            "symbolic_shape": list(step.row.shape),
            "shape": list(step.observed),
            "bytes": step.nbytes,
            "allocates": step.allocates,
            "in_faster_versions": step.row.faster,
            "in_faster_versions_zh": step.row.faster_zh,
        }
        for step in steps
    ]


def symbolic(row: Row) -> str:
    """The row's shape as the document writes it, e.g. ``(batch_size, seq_len, d_model)``."""
    return f"({', '.join(row.shape)})"


def readable_bytes(nbytes: float) -> str:
    """A number of bytes with a binary unit, e.g. ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} GiB"


class _Recorder(TorchFunctionMode):
    """Notes every torch function that returns a tensor, and keeps no tensor alive."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            shared = any(_memory_of(argument) == _memory_of(result) for argument in args)
            self.calls.append(Call(func.__name__, tuple(result.shape), result.nbytes, allocates=not shared))
        return result


def _memory_of(value: object) -> int | None:
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else None


def _check_calls(seen: list[str]) -> None:
    expected = [name for row in ROWS for name in row.calls + row.calls_not_shown]
    if seen != expected:
        raise NotTheDocumentError(
            f"the module calls {', '.join(seen)}, and the document's table stands for {', '.join(expected)} "
            f"(torch {torch.__version__})"
        )


def _check_sizes(sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"{name} is {size}, and must be at least 1")
    if sizes["d_model"] % sizes["num_heads"]:
        raise UserError(
            f"d_model {sizes['d_model']} is not divisible by num_heads {sizes['num_heads']}: "
            "each head gets d_model / num_heads features; change one of the two"
        )


def _check_memory(batch_size: int, seq_len: int, d_model: int, num_heads: int) -> None:
    scores = batch_size * num_heads * seq_len**2
    features = batch_size * seq_len * d_model
    # At its peak the pass holds two tensors of scores (before and after a step), x, Q, K, V and matmul's
    # copies of them, in float32; the mask takes a byte for each pair of positions.
    needed = 4 * (2 * scores + 8 * features + 4 * d_model**2) + seq_len**2
    available = psutil.virtual_memory().available
    if needed > available:
        raise UserError(
            f"this forward pass needs about {readable_bytes(needed)}, and {readable_bytes(available)} are "
            "free; choose a smaller batch_size or seq_len"
        )
