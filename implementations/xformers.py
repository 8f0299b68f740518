"""xformers' memory_efficient_attention: on CUDA by its own dispatcher, on the CPU its interpreted Triton kernel.

xformers has no CPU operator. Its Triton split-K forward kernel is real code all the same, and Triton's
interpreter runs it block by block in numpy: exact enough to verify, thousands of times too slow to time.
Shapes: B batch, H heads, S_q/S_k query/key length, d_k head dim; xformers wants (B, S, H, d_k).
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's own alias
from torch import Tensor

from implementations.spec import Behaviour, Case, Implementation, Limit

_KERNEL_HEAD_DIMS = (16, 32, 64, 128, 256, 512)
_BIAS_ALIGNMENT = 8


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, is_causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(d_k)) v; the arguments are those of `implementations.spec.Attend`.

    Heads are padded with zeros to a size the kernels have; the scale is that of the real d_k.
    """
    _, _, _, head_dim = q.shape
    bias = _bias(q, k, mask, is_causal=is_causal)
    inputs = [_to_kernel(tensor) for tensor in (q, k, v)]
    scale = 1.0 / math.sqrt(head_dim)
    if q.device.type == "cuda":
        out = _ops().memory_efficient_attention(*inputs, attn_bias=bias, scale=scale)
    else:
        operator = _interpreted_operator()
        with _environment(TRITON_INTERPRET="1"), _quiet_interpreter():
            out = _ops().memory_efficient_attention_forward(*inputs, attn_bias=bias, scale=scale, op=operator)
    heads: Tensor = out[..., :head_dim].transpose(1, 2)
    return heads


def _to_kernel(tensor: Tensor) -> Tensor:
    """(B, H, S, d_k) to a contiguous (B, S, H, padded d_k)."""
    head_dim = tensor.shape[-1]
    padded = next(size for size in _KERNEL_HEAD_DIMS if size >= head_dim)
    return F.pad(tensor.transpose(1, 2), (0, padded - head_dim)).contiguous()


def _bias(q: Tensor, k: Tensor, mask: Tensor | None, *, is_causal: bool) -> Any:  # noqa: ANN401 - untyped library
    """What is hidden, as xformers takes it: its causal object, or an additive bias of exactly (B, H, S_q, S_k).

    A bool bias would be *added* as 0 and 1. Rows must be aligned, so they are slices of longer ones.
    """
    batch_size, num_heads, q_len, _ = q.shape
    k_len = k.shape[-2]
    if mask is None and not is_causal:
        return None
    if mask is None and q.device.type == "cuda":
        return _ops().LowerTriangularMask()
    hidden = torch.zeros(1, 1, dtype=torch.bool, device=q.device) if mask is None else mask
    if is_causal:
        hidden = hidden | torch.ones(q_len, k_len, dtype=torch.bool, device=q.device).triu(diagonal=1)
    aligned_len = math.ceil(k_len / _BIAS_ALIGNMENT) * _BIAS_ALIGNMENT
    bias = torch.zeros(batch_size, num_heads, q_len, aligned_len, dtype=q.dtype, device=q.device)[..., :k_len]
    return bias.masked_fill_(hidden, -math.inf)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _quiet_interpreter() -> Iterator[None]:
    """Leave out what says nothing about the result: a deprecated call, numpy's word on -inf minus -inf."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="tl.make_block_ptr is deprecated", category=UserWarning)
        warnings.filterwarnings("ignore", message="invalid value encountered", category=RuntimeWarning)
        yield


@cache
def _ops() -> Any:  # noqa: ANN401 - xformers ships no types
    """Import `xformers.ops` without its warnings about C++ extensions, which this project does not need on CPU."""
    logging.getLogger("xformers").setLevel(logging.ERROR)
    if torch.cuda.is_available():
        import xformers.ops as ops
    else:
        # Both are read while the kernels are being defined; the first again at a call, which imports more of Triton.
        with _environment(TRITON_INTERPRET="1", XFORMERS_ENABLE_TRITON="1"), warnings.catch_warnings():
            warnings.simplefilter("ignore", category=DeprecationWarning)  # of its own calls into Triton
            import xformers.ops as ops

            import_module("xformers.ops.fmha.triton_splitk")
    return ops


@cache
def _interpreted_operator() -> Any:  # noqa: ANN401 - xformers ships no types
    """The split-K forward operator, allowed on the CPU and in float32, which its interpreter can do."""
    _ops()
    from xformers.ops.fmha.triton_splitk import FwOp

    class InterpretedSplitK(FwOp):  # type: ignore[misc]  # the base class is untyped
        SUPPORTED_DEVICES = {"cpu"}  # noqa: RUF012 - the library's own class attribute
        SUPPORTED_DTYPES = FwOp.SUPPORTED_DTYPES | {torch.float32}
        SPLIT_K = 1  # an additive bias is not supported with more
        NAME = "triton_splitKF-interpreted"

    return InterpretedSplitK


def _unavailable(device: str) -> str:
    missing = [name for name in ("xformers", "triton") if find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        return f"not installed: {names} (wheels exist for Linux on x86-64: pip install mha-harness[xformers])"
    if device == "cuda" and not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return ""


def _on_cpu(case: Case) -> bool:
    return case.device == "cpu"


IMPLEMENTATION = Implementation(
    name="xformers",
    summary="xformers memory_efficient_attention; without a GPU its Triton kernel, interpreted",
    source="https://facebookresearch.github.io/xformers/components/ops.html",
    attend=attend,
    dtypes=("float32", "bfloat16", "float16"),
    fully_masked_row="zero",
    memory_growth="O(S)",
    verify_only={"cpu": "Triton's interpreter runs the kernel on the CPU: exact, but its time says nothing"},
    slow_on=("cpu",),
    limits=(
        Limit("the interpreted kernel is forward only", lambda c: _on_cpu(c) and c.mode == "training"),
        Limit("the kernel refuses bfloat16 off an A100 or newer", lambda c: _on_cpu(c) and c.dtype == "bfloat16"),
        Limit("from head_dim 65 on the kernel asks for a CUDA device", lambda c: _on_cpu(c) and c.head_dim > 64),
        Limit("head_dim above 512 is not supported", lambda c: c.head_dim > _KERNEL_HEAD_DIMS[-1]),
    ),
    semantics=(
        Behaviour(
            answers={"nan_in_a_masked_key": "it leaks"},
            source="0 * NaN is NaN: https://github.com/pytorch/pytorch/issues/101967",
            devices=("cpu",),
        ),
        Behaviour(
            answers={
                "nan_query": "NaN without a mask; 0 with a mask",
                "float16_with_a_mask": "right",
                "logits_below_a_finite_fill": "none",
                "additive_mask": "refused by TypeError",
                "empty_input": "empty output",
                "copies": "same bits",
            },
            source="seen on xformers 0.0.35, interpreted",
            devices=("cpu",),
        ),
    ),
    unavailable=_unavailable,
)
