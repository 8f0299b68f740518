"""torch.nn.MultiheadAttention, one entry for each of its two paths.

``need_weights=False`` goes through fused attention (and, in eval without gradients, through a native fast path);
``need_weights=True`` materialises the weights. The two differ in speed, memory and on fully masked rows.
Shapes: B batch, H heads, S sequence, d_model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from implementations.projections import check_mask
from implementations.spec import Behaviour, Case, Implementation, KnownFailure, Tensors


class TorchMHA(nn.Module):
    """nn.MultiheadAttention behind this project's call: self-attention, batch first, bool mask."""

    def __init__(self, d_model: int, num_heads: int, *, need_weights: bool) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads != 0:
            raise ValueError(f"d_model must be divisible by num_heads, got {d_model} and {num_heads}")
        self.mha = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        """Attend within x (B, S, d_model); see `implementations.projections.ProjectedAttention.forward`."""
        if x.dim() != 3 or x.shape[-1] != self.mha.embed_dim:
            raise ValueError(f"x must be (batch, seq, d_model={self.mha.embed_dim}), got {tuple(x.shape)}")
        batch_size, seq_len, _ = x.shape
        num_heads = self.mha.num_heads
        if mask is not None:
            check_mask(mask, (batch_size, num_heads, seq_len, seq_len))
        if batch_size == 0:
            mask, is_causal = None, False  # there is nothing to hide, and torch cannot reshape a mask of no items
        if is_causal:
            # The module wants the dense mask beside the flag: without it, eval drops causality in silence.
            future = torch.ones(seq_len, seq_len, dtype=torch.bool, device=x.device).triu(diagonal=1)
            mask = future if mask is None else mask | future
        attn_mask = None if mask is None else _as_attn_mask(mask, batch_size, num_heads, seq_len)
        y: Tensor = self.mha(x, x, x, attn_mask=attn_mask, need_weights=self.need_weights)[0]
        return y


def _as_attn_mask(mask: Tensor, batch_size: int, num_heads: int, seq_len: int) -> Tensor:
    """From broadcastable to (B, H, S, S) to what the module takes: (S, S) or (B*H, S, S), True = masked."""
    if all(size == 1 for size in mask.shape[:-2]):
        return mask.reshape(mask.shape[-2:]).expand(seq_len, seq_len)
    return mask.expand(batch_size, num_heads, seq_len, seq_len).reshape(-1, seq_len, seq_len)


def pack(projections: Tensors) -> dict[str, Tensor]:
    """Four projections to the module's own layout: W_q, W_k, W_v stacked in one in_proj of (3 d_model, d_model)."""
    return {
        "mha.in_proj_weight": torch.cat([projections[f"W_{p}.weight"] for p in "qkv"]),
        "mha.in_proj_bias": torch.cat([projections[f"W_{p}.bias"] for p in "qkv"]),
        "mha.out_proj.weight": projections["W_o.weight"],
        "mha.out_proj.bias": projections["W_o.bias"],
    }


def unpack(state: Tensors) -> dict[str, Tensor]:
    """The reverse of `pack`, for parameters and for their gradients."""
    projections = {"W_o.weight": state["mha.out_proj.weight"], "W_o.bias": state["mha.out_proj.bias"]}
    for kind in ("weight", "bias"):
        for name, part in zip("qkv", state[f"mha.in_proj_{kind}"].chunk(3), strict=True):
            projections[f"W_{name}.{kind}"] = part
    return projections


def _in_the_fast_path(case: Case) -> bool:
    return case.mode == "inference"


_SOURCE = "https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html"
_ISSUES = "https://github.com/pytorch/pytorch/issues"
_EMPTY_ROWS_IN_THE_FAST_PATH = "https://github.com/pytorch/pytorch/pull/190486"

_OF_BOTH_PATHS = (
    Behaviour(
        answers={"nan_in_a_masked_key": "it leaks"},
        source=f"0 * NaN is NaN: {_ISSUES}/101967",
        devices=("cpu",),
    ),
    Behaviour(
        answers={
            "float16_with_a_mask": "right",
            "logits_below_a_finite_fill": "none",
            "additive_mask": "refused by TypeError",
            "empty_input": "empty output",
            "vmap": "right, one by one",
            "autocast": "right, in bfloat16",
            "copies": "same bits",
            "compile": "right",
            "compile_bfloat16": "right",
            "export": "right",
        },
        source="seen on torch 2.13",
        devices=("cpu",),
    ),
)

IMPLEMENTATIONS = (
    Implementation(
        name="torch_mha",
        summary="nn.MultiheadAttention(need_weights=False): fused attention, native fast path in eval",
        source=_SOURCE,
        build=lambda d_model, num_heads: TorchMHA(d_model, num_heads, need_weights=False),
        fully_masked_row="zero",
        memory_growth="O(S^2)",
        kernels={"cpu": ("aten::_native_multi_head_attention", "aten::_scaled_dot_product_flash_attention_for_cpu")},
        pack=pack,
        unpack=unpack,
        known_failures=(
            KnownFailure(
                check="fully_masked_row_is_as_declared",
                reason="in eval without gradients the native fast path gives NaN, where training gives 0",
                source=f"{_EMPTY_ROWS_IN_THE_FAST_PATH}; seen on torch 2.13",
                applies=_in_the_fast_path,
            ),
            KnownFailure(
                check="mask_and_flag_may_empty_a_row_together",
                reason="in eval without gradients the native fast path gives NaN, where training gives 0",
                source=f"{_EMPTY_ROWS_IN_THE_FAST_PATH}; seen on torch 2.13",
                applies=_in_the_fast_path,
            ),
        ),
        semantics=(
            *_OF_BOTH_PATHS,
            Behaviour(
                answers={
                    "fully_masked_row": "NaN in inference; 0 in training",
                    "gradient_of_a_fully_masked_row": "finite",
                },
                source=_EMPTY_ROWS_IN_THE_FAST_PATH,
                devices=("cpu",),
            ),
            Behaviour(
                answers={"nan_query": "NaN without a mask and with a mask; 0 in training"},
                source=f"{_ISSUES}/141128",
                devices=("cpu",),
            ),
            Behaviour(
                answers={"double_backward": "raises RuntimeError", "forward_mode": "raises NotImplementedError"},
                source=f"{_ISSUES}/116350",
                devices=("cpu",),
            ),
        ),
    ),
    Implementation(
        name="torch_mha_weights",
        summary="nn.MultiheadAttention(need_weights=True): materialises the weights",
        source=_SOURCE,
        build=lambda d_model, num_heads: TorchMHA(d_model, num_heads, need_weights=True),
        fully_masked_row="nan",
        memory_growth="O(S^2)",
        pack=pack,
        unpack=unpack,
        semantics=(
            *_OF_BOTH_PATHS,
            Behaviour(answers={"gradient_of_a_fully_masked_row": "not finite"}, source=f"{_ISSUES}/41508"),
            Behaviour(
                answers={"nan_query": "NaN", "double_backward": "right", "forward_mode": "right"},
                source="seen on torch 2.13",
                devices=("cpu",),
            ),
        ),
    ),
)
