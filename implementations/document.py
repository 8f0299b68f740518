"""The document's module: multi-head attention written out step by step.

    MultiHead(x) = Concat(head_1 ... head_H) W_o,   head_i = softmax(Q_i K_i^T / sqrt(d_k)) V_i

(Vaswani et al. 2017.) Names, order of operations, assertion, float32 scale and finite fill are the document's
and stay as they are, also where the project's contract asks for more: `IMPLEMENTATION` declares those places.
The class stands alone on torch, so that a reader can take it away.

Shapes: B batch_size, S seq_len, H num_heads, d_k = d_model / H.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the document's import
from torch import Tensor, nn

from implementations.spec import Behaviour, Case, Implementation, KnownFailure, Limit


class MultiHeadAttention(nn.Module):
    """Multi-head self-attention.

    Args:
        d_model: features of input and output.
        num_heads: number of heads H; divides d_model.

    Raises:
        AssertionError: num_heads does not divide d_model.
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        assert d_model % num_heads == 0, "d_model must be divisible by num_heads"
        self.d_k = d_model // num_heads  # features of one head
        self.num_heads = num_heads

        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within x.

        Args:
            x: (B, S, d_model), neither B nor S zero.
            mask: bool, True = masked, broadcastable to (B, H, S, S), or None. A row whose keys are all masked
                attends to every key alike.

        Returns:
            (B, S, d_model), dtype and device of x.

        Raises:
            RuntimeError: torch's own, for a mask that is not bool or does not fit, an empty x, or any mask in
                float16.
        """
        batch_size, seq_len, _ = x.size()

        # Step 1: project to Q, K and V, and split each into heads.
        Q = self.W_q(x).view(batch_size, seq_len, self.num_heads, self.d_k).transpose(1, 2)  # (B, H, S, d_k)
        K = self.W_k(x).view(batch_size, seq_len, self.num_heads, self.d_k).transpose(1, 2)  # (B, H, S, d_k)
        V = self.W_v(x).view(batch_size, seq_len, self.num_heads, self.d_k).transpose(1, 2)  # (B, H, S, d_k)

        # Step 2: scaled dot products. The scale has no dimensions, so it promotes no dtype.
        attn_score = Q @ K.transpose(-2, -1)  # (B, H, S, S)
        attn_score = attn_score / torch.sqrt(torch.tensor(self.d_k, dtype=torch.float32))  # (B, H, S, S)

        # Step 3: give masked positions a score so low that their weight rounds to zero.
        if mask is not None:
            attn_score = attn_score.masked_fill(mask, -1e9)  # (B, H, S, S)

        # Step 4: normalise each row to weights, and take the weighted sum of V.
        attn_weights = F.softmax(attn_score, dim=-1)  # (B, H, S, S)
        attn_output = attn_weights @ V  # (B, H, S, d_k)

        # Step 5: put the heads side by side again, and project.
        attn_output = attn_output.transpose(1, 2).contiguous()  # (B, S, H, d_k)
        attn_output = attn_output.view(batch_size, seq_len, -1)  # (B, S, d_model)
        output: Tensor = self.W_o(attn_output)  # (B, S, d_model)
        return output


def _is_empty(case: Case) -> bool:
    return case.batch_size == 0 or case.seq_len == 0


def _fill_overflows(case: Case) -> bool:
    return case.dtype == "float16" and case.mask != "none"


IMPLEMENTATION = Implementation(
    name="document",
    summary="The document's module, step by step; materialises the (B, H, S, S) scores and weights",
    source="https://arxiv.org/abs/1706.03762, as the document writes it out",
    build=MultiHeadAttention,
    fully_masked_row="uniform",
    has_causal_flag=False,
    memory_growth="O(S^2)",
    # sqrt(d_k) is rounded to float32 before it divides the scores.
    rounds_like={"float64": "float32"},
    limits=(
        Limit(
            reason="float16 cannot hold the fill -1e9: masked_fill raises, also if all is False",
            applies=_fill_overflows,
        ),
        Limit(
            reason="an empty batch or sequence: view(batch_size, seq_len, -1) cannot infer -1",
            applies=_is_empty,
        ),
    ),
    semantics=(
        Behaviour(
            answers={"logits_below_a_finite_fill": "all of it", "float16_with_a_mask": "raises RuntimeError"},
            source="its fill of -1e9",
        ),
        Behaviour(answers={"empty_input": "raises RuntimeError"}, source="its view(batch_size, seq_len, -1)"),
        Behaviour(
            answers={"nan_in_a_masked_key": "it leaks"},
            source="0 * NaN is NaN: https://github.com/pytorch/pytorch/issues/101967",
        ),
        Behaviour(
            answers={"compile_bfloat16": "raises BackendCompilerFailed"},
            source="a scale that is a tensor: https://github.com/pytorch/pytorch/issues/191203",
            devices=("cpu",),
        ),
        Behaviour(
            answers={
                "nan_query": "NaN",
                "additive_mask": "refused by RuntimeError",
                "double_backward": "right",
                "forward_mode": "right",
                "vmap": "right",
                "autocast": "right, in bfloat16",
                "copies": "same bits",
                "compile": "right",
                "export": "right",
            },
            source="seen on torch 2.13",
            devices=("cpu",),
        ),
    ),
    known_failures=(
        KnownFailure(
            check="wrong_mask_dtype_is_a_type_error",
            reason="torch's masked_fill raises RuntimeError: it only supports boolean masks",
            source="seen on torch 2.13",
        ),
        KnownFailure(
            check="wrong_mask_shape_is_a_value_error",
            reason="torch raises RuntimeError about the sizes: where the mask meets the scores, or at W_o if "
            "it enlarged them; a mask of 0 or 1 dimensions, or of 5 with a leading 1, is accepted",
            source="seen on torch 2.13",
        ),
    ),
)
