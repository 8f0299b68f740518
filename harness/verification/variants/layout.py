"""Projections, heads, keys and values that are exchanged, left out, or laid out wrongly."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the field's own alias
from torch import Tensor

from harness.verification.variants.formula import Formula, variant

# Projections.


@variant("the projections")
def queries_and_keys_exchanged(f: Formula) -> Tensor:
    """Queries and keys are exchanged."""
    return f.attending(q=f.k, k=f.q)


@variant("the projections")
def keys_and_values_exchanged(f: Formula) -> Tensor:
    """Keys and values are exchanged."""
    return f.attending(k=f.v, v=f.k)


@variant("the projections")
def queries_and_values_exchanged(f: Formula) -> Tensor:
    """Queries and values are exchanged."""
    return f.attending(q=f.v, v=f.q)


@variant("the projections")
def queries_are_keys(f: Formula) -> Tensor:
    """W_k projects the queries too; W_q is not used."""
    return f.attending(q=f.k)


@variant("the projections")
def values_are_keys(f: Formula) -> Tensor:
    """W_k projects the values too; W_v is not used."""
    return f.attending(v=f.k)


@variant("the projections")
def b_q_missing(f: Formula) -> Tensor:
    """The bias b_q is missing."""
    return f.attending(q=f.split(f.project("q") - f.w["W_q.bias"]))


@variant("the projections")
def b_v_missing(f: Formula) -> Tensor:
    """The bias b_v is missing."""
    return f.attending(v=f.split(f.project("v") - f.w["W_v.bias"]))


@variant("the projections")
def b_o_missing(f: Formula) -> Tensor:
    """The bias b_o is missing."""
    return f.hiding(f.hidden) - f.w["W_o.bias"]


@variant("the projections")
def b_o_twice(f: Formula) -> Tensor:
    """The bias b_o is added twice."""
    return f.hiding(f.hidden) + f.w["W_o.bias"]


@variant("the projections")
def all_biases_missing(f: Formula) -> Tensor:
    """No bias has any effect."""
    q, k, v = (f.split(f.project(letter) - f.w[f"W_{letter}.bias"]) for letter in "qkv")
    return f.attending(q, k, v) - f.w["W_o.bias"]


@variant("the projections")
def w_o_missing(f: Formula) -> Tensor:
    """The output projection W_o is missing: the merged heads are the output."""
    return f.merge(f.softmax(f.logits, f.hidden) @ f.v)


@variant("the projections")
def w_o_transposed(f: Formula) -> Tensor:
    """W_o is taken as (in, out) instead of (out, in)."""
    merged = f.merge(f.softmax(f.logits, f.hidden) @ f.v)
    return F.linear(merged, f.w["W_o.weight"].T, f.w["W_o.bias"])


def _transposed(f: Formula, letter: str) -> Tensor:
    return f.split(F.linear(f.x, f.w[f"W_{letter}.weight"].T, f.w[f"W_{letter}.bias"]))


@variant("the projections")
def w_q_transposed(f: Formula) -> Tensor:
    """W_q is taken as (in, out) instead of (out, in)."""
    return f.attending(q=_transposed(f, "q"))


@variant("the projections")
def w_k_transposed(f: Formula) -> Tensor:
    """W_k is taken as (in, out) instead of (out, in)."""
    return f.attending(k=_transposed(f, "k"))


@variant("the projections")
def w_v_transposed(f: Formula) -> Tensor:
    """W_v is taken as (in, out) instead of (out, in)."""
    return f.attending(v=_transposed(f, "v"))


@variant("the projections")
def queries_not_projected(f: Formula) -> Tensor:
    """Queries are x itself: W_q is missing."""
    return f.attending(q=f.split(f.x))


@variant("the projections")
def keys_not_projected(f: Formula) -> Tensor:
    """Keys are x itself: W_k is missing."""
    return f.attending(k=f.split(f.x))


@variant("the projections")
def values_not_projected(f: Formula) -> Tensor:
    """Values are x itself: W_v is missing."""
    return f.attending(v=f.split(f.x))


@variant("the projections")
def residual_added(f: Formula) -> Tensor:
    """The input x is added to the output, as a residual."""
    return f.hiding(f.hidden) + f.x


def _rounded_weights(f: Formula, dtype: torch.dtype) -> Tensor:
    w = {name: weight.to(dtype).double() for name, weight in f.w.items()}
    q, k, v = (f.split(F.linear(f.x, w[f"W_{letter}.weight"], w[f"W_{letter}.bias"])) for letter in "qkv")
    merged = f.merge(f.softmax(q @ k.mT / math.sqrt(f.head_dim), f.hidden) @ v)
    return F.linear(merged, w["W_o.weight"], w["W_o.bias"])


@variant("the projections")
def parameters_in_bfloat16(f: Formula) -> Tensor:
    """The parameters are rounded to bfloat16."""
    return _rounded_weights(f, torch.bfloat16)


@variant("the projections")
def parameters_in_float16(f: Formula) -> Tensor:
    """The parameters are rounded to float16."""
    return _rounded_weights(f, torch.float16)


@variant("the projections")
def output_is_zero(f: Formula) -> Tensor:
    """The output is all zeros."""
    return torch.zeros_like(f.x)


@variant("the projections")
def output_is_x(f: Formula) -> Tensor:
    """The output is x itself."""
    return f.x


# Heads.


@variant("heads")
def merged_without_transpose(f: Formula) -> Tensor:
    """Heads are merged without transpose: (B, H, S, d_k) is reshaped as it lies."""
    heads = f.softmax(f.logits, f.hidden) @ f.v
    return f.output(heads.reshape(f.x.shape))


def _split_by(f: Formula, split: Callable[[Tensor], Tensor]) -> Tensor:
    return f.attending(*(split(f.project(letter)) for letter in "qkv"))


@variant("heads")
def split_without_transpose(f: Formula) -> Tensor:
    """Heads are split without transpose: (B, S, d_model) is reshaped to (B, H, S, d_k) as it lies."""
    return _split_by(f, lambda t: t.reshape(f.batch_size, f.num_heads, f.seq_len, f.head_dim))


@variant("heads")
def split_and_merged_without_transpose(f: Formula) -> Tensor:
    """Heads are split and merged without transpose, by plain reshapes."""
    q, k, v = (f.project(letter).reshape(f.batch_size, f.num_heads, f.seq_len, f.head_dim) for letter in "qkv")
    heads = f.softmax(q @ k.mT / math.sqrt(f.head_dim), f.hidden) @ v
    return f.output(heads.reshape(f.x.shape))


@variant("heads")
def heads_interleaved(f: Formula) -> Tensor:
    """Heads are split wrongly: head h takes every H-th channel instead of a block of channels."""
    return _split_by(f, lambda t: t.reshape(*t.shape[:2], f.head_dim, f.num_heads).permute(0, 3, 1, 2))


@variant("heads")
def merged_interleaved(f: Formula) -> Tensor:
    """Heads are merged wrongly: the channels of all heads are interleaved."""
    heads = f.softmax(f.logits, f.hidden) @ f.v
    return f.output(heads.permute(0, 2, 3, 1).flatten(2))


@variant("heads")
def merged_in_reverse(f: Formula) -> Tensor:
    """Heads are merged in reverse order."""
    return f.finish(f.softmax(f.logits, f.hidden).flip(1), f.v.flip(1))


@variant("heads")
def attends_over_heads(f: Formula) -> Tensor | None:
    """(B, S, H, d_k) is handed where (B, H, S, d_k) is meant: heads attend to heads within a token."""
    q, k, v = (each.transpose(1, 2) for each in (f.q, f.k, f.v))
    heads = (q @ k.mT / math.sqrt(f.head_dim)).softmax(dim=-1) @ v
    return f.output(heads.flatten(2))


@variant("heads")
def first_key_head_for_all(f: Formula) -> Tensor:
    """All heads use the first head's keys."""
    return f.attending(k=f.k[:, :1].expand_as(f.k))


@variant("heads")
def first_value_head_for_all(f: Formula) -> Tensor:
    """All heads use the first head's values."""
    return f.attending(v=f.v[:, :1].expand_as(f.v))


@variant("heads")
def heads_averaged(f: Formula) -> Tensor:
    """Every head carries the mean of all heads."""
    heads = f.softmax(f.logits, f.hidden) @ f.v
    return f.output(f.merge(heads.mean(dim=1, keepdim=True).expand_as(heads)))


@variant("heads")
def last_head_missing(f: Formula) -> Tensor:
    """The last head contributes nothing."""
    used = torch.arange(f.num_heads, device=f.x.device) < f.num_heads - 1
    return f.attending(v=f.v * used[:, None, None])


@variant("heads")
def last_values_from_first_head(f: Formula) -> Tensor:
    """The last head uses the first head's values."""
    return f.attending(v=torch.cat([f.v[:, :-1], f.v[:, :1]], dim=1))


@variant("heads")
def keys_reshaped(f: Formula) -> Tensor:
    """Keys are reshaped to (B, H, d_k, S) instead of transposed."""
    k = f.k.contiguous().reshape(*f.k.shape[:2], f.head_dim, f.seq_len)
    return f.attending(k=k.mT)


# Keys, values, items.


@variant("keys and values")
def last_key_dropped(f: Formula) -> Tensor:
    """The last key is dropped behind the softmax: a loop over keys that ends one too early."""
    weights = f.softmax(f.logits, f.hidden)
    return f.finish(torch.cat([weights[..., :-1], torch.zeros_like(weights[..., -1:])], dim=-1))


@variant("keys and values")
def last_key_never_seen(f: Formula) -> Tensor | None:
    """The last key takes no part in the softmax."""
    last = torch.arange(f.seq_len, device=f.x.device) == f.seq_len - 1
    return f.hiding(last[None, :] if f.hidden is None else f.hidden | last)


@variant("keys and values")
def first_key_only(f: Formula) -> Tensor:
    """Every row sees the first key only."""
    return f.finish(torch.zeros_like(f.logits).index_fill(-1, torch.tensor(0, device=f.x.device), 1.0))


@variant("keys and values")
def own_key_only(f: Formula) -> Tensor:
    """Every token attends to itself only."""
    return f.finish(torch.eye(f.seq_len, dtype=f.logits.dtype, device=f.x.device).expand_as(f.logits))


@variant("keys and values")
def values_one_late(f: Formula) -> Tensor:
    """Values are read one token further than the weights say."""
    return f.attending(v=f.v.roll(-1, dims=-2))


@variant("keys and values")
def values_one_early(f: Formula) -> Tensor:
    """Values are read one token earlier than the weights say."""
    return f.attending(v=f.v.roll(1, dims=-2))


@variant("keys and values")
def keys_averaged_over_items(f: Formula) -> Tensor:
    """Keys are averaged over the batch."""
    return f.attending(k=f.k.mean(dim=0, keepdim=True).expand_as(f.k))


@variant("keys and values")
def x_read_in_order(f: Formula) -> Tensor:
    """The input x is read as (S, B, d_model): attention runs over the batch."""
    q, k, v = (each.permute(2, 1, 0, 3) for each in (f.q, f.k, f.v))  # (S, H, B, d_k)
    heads = (q @ k.mT / math.sqrt(f.head_dim)).softmax(dim=-1) @ v
    return f.output(heads.permute(2, 0, 1, 3).flatten(2))


@variant("keys and values")
def strides_of_x_ignored(f: Formula) -> Tensor | None:
    """The memory of x is read in order, whatever its strides are."""
    x = f.call.x
    enough = x.storage_offset() + x.numel() <= x.untyped_storage().nbytes() // x.element_size()
    if x.is_contiguous() or not enough:
        return None
    return f.reading(x.as_strided(x.shape, (f.seq_len * f.d_model, f.d_model, 1)))


@variant("keys and values")
def step_of_x_ignored(f: Formula) -> Tensor | None:
    """The channels of x are read one after the other, though they lie further apart."""
    x = f.call.x
    return f.reading(x.as_strided(x.shape, (*x.stride()[:-1], 1))) if x.stride(-1) > 1 else None
