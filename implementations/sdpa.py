"""torch's fused attention, F.scaled_dot_product_attention, by whatever kernel its dispatcher picks.

Its boolean mask has the opposite polarity of this project's: True there means "takes part". An inverted mask
is a fault that no shape check sees, hence the one `logical_not` below is the whole adapter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the field's own alias
from torch import Tensor

from implementations.spec import Behaviour, Implementation


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, is_causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(d_k)) v; the arguments are those of `implementations.spec.Attend`.

    torch documents `attn_mask` together with `is_causal` as an error, so that case merges the two into one mask.
    """
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    keep = mask.logical_not()
    if is_causal:
        keep = keep & torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


IMPLEMENTATION = Implementation(
    name="sdpa",
    summary="F.scaled_dot_product_attention: fused kernels picked by torch's dispatcher",
    source="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
    attend=attend,
    fully_masked_row="zero",
    memory_growth="O(S)",
    kernels={
        "cpu": ("aten::_scaled_dot_product_flash_attention_for_cpu",),
        "cuda": (
            "aten::_scaled_dot_product_flash_attention",
            "aten::_scaled_dot_product_efficient_attention",
            "aten::_scaled_dot_product_cudnn_attention",
        ),
    },
    semantics=(
        Behaviour(
            answers={"nan_in_a_masked_key": "it leaks"},
            source="0 * NaN is NaN: https://github.com/pytorch/pytorch/issues/101967",
            devices=("cpu",),
        ),
        Behaviour(
            answers={"nan_query": "0 without a mask and in training; NaN with a mask"},
            source="https://github.com/pytorch/pytorch/issues/141128",
            devices=("cpu",),
        ),
        Behaviour(
            answers={"double_backward": "raises RuntimeError", "forward_mode": "raises NotImplementedError"},
            source="https://github.com/pytorch/pytorch/issues/116350",
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
    ),
)
