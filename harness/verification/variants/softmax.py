"""The scale, and functions that are not the softmax over the keys."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - the field's own alias
from torch import Tensor

from harness.verification.variants.formula import Formula, variant

# The scale.


@variant("the scale")
def scale_missing(f: Formula) -> Tensor:
    """The factor 1/sqrt(d_k) is missing."""
    return f.shaping(f.logits * math.sqrt(f.head_dim))


@variant("the scale")
def scale_twice(f: Formula) -> Tensor:
    """The factor 1/sqrt(d_k) is applied twice."""
    return f.shaping(f.logits / math.sqrt(f.head_dim))


@variant("the scale")
def scale_inverted(f: Formula) -> Tensor:
    """Logits are multiplied by sqrt(d_k) instead of divided."""
    return f.shaping(f.logits * f.head_dim)


@variant("the scale")
def scale_from_d_model(f: Formula) -> Tensor | None:
    """The scale is 1/sqrt(d_model) instead of 1/sqrt(d_k)."""
    return None if f.num_heads == 1 else f.shaping(f.logits / math.sqrt(f.num_heads))


@variant("the scale")
def scale_of_whole_root(f: Formula) -> Tensor:
    """sqrt(d_k) is cut to a whole number before it divides."""
    return f.shaping(f.logits * (math.sqrt(f.head_dim) / math.isqrt(f.head_dim)))


def _scale_in(f: Formula, dtype: torch.dtype) -> Tensor:
    root = math.sqrt(f.head_dim)
    return f.shaping(f.logits * root * float(torch.tensor(1.0 / root, dtype=dtype)))


@variant("the scale")
def scale_in_bfloat16(f: Formula) -> Tensor:
    """The scale is rounded to bfloat16."""
    return _scale_in(f, torch.bfloat16)


@variant("the scale")
def scale_in_float16(f: Formula) -> Tensor:
    """The scale is rounded to float16."""
    return _scale_in(f, torch.float16)


@variant("the scale")
def root_in_float32(f: Formula) -> Tensor:
    """sqrt(d_k) is rounded to float32 before it divides."""
    root = math.sqrt(f.head_dim)
    return f.shaping(f.logits * (root / float(torch.tensor(root, dtype=torch.float32))))


@variant("the scale")
def scale_behind_softmax(f: Formula) -> Tensor:
    """1/sqrt(d_k) multiplies the weights instead of the logits."""
    root = math.sqrt(f.head_dim)
    return f.finish(f.softmax(f.logits * root, f.hidden) / root)


@variant("the scale")
def logits_negated(f: Formula) -> Tensor:
    """The logits have the wrong sign."""
    return f.shaping(-f.logits)


# The softmax.


def _softmax_over(f: Formula, dim: int) -> Tensor:
    logits = f.logits if f.hidden is None else f.logits.masked_fill(f.hidden, -math.inf)
    return f.finish(logits.softmax(dim=dim).nan_to_num(0.0))


@variant("the softmax")
def softmax_over_queries(f: Formula) -> Tensor:
    """Softmax runs over the query axis: columns sum to 1 instead of rows."""
    return _softmax_over(f, -2)


@variant("the softmax")
def softmax_over_heads(f: Formula) -> Tensor:
    """Softmax runs over the heads."""
    return _softmax_over(f, 1)


@variant("the softmax")
def softmax_over_items(f: Formula) -> Tensor:
    """Softmax runs over the batch."""
    return _softmax_over(f, 0)


@variant("the softmax")
def mean_of_values(f: Formula) -> Tensor:
    """All visible keys weigh alike: the output is the mean of their values."""
    return f.shaping(0.0 * f.logits)


@variant("the softmax")
def best_key_takes_all(f: Formula) -> Tensor:
    """The best key takes all, as if by argmax."""
    return f.shaping(1e6 * f.logits)


@variant("the softmax")
def softmax_missing(f: Formula) -> Tensor:
    """There is no softmax: the logits themselves weigh the values."""
    return f.finish(f.logits if f.hidden is None else f.logits.masked_fill(f.hidden, 0.0))


@variant("the softmax")
def powers_of_two(f: Formula) -> Tensor:
    """The softmax takes powers of 2 instead of e."""
    return f.shaping(f.logits * math.log(2.0))


def _powers(f: Formula, dims: tuple[int, ...] = ()) -> Tensor | None:
    """A softmax that subtracts another maximum, in the dtype under test: where it overflows is the point."""
    logits = f.logits if f.hidden is None else f.logits.masked_fill(f.hidden, -math.inf)
    if not logits.numel():
        return None
    powers = (logits - logits.amax(dim=dims, keepdim=True) if dims else logits).to(f.dtype).exp()
    return f.finish(f.emptied((powers / powers.sum(dim=-1, keepdim=True)).double(), f.hidden))


@variant("the softmax")
def no_maximum_subtracted(f: Formula) -> Tensor | None:
    """The softmax subtracts no row maximum, and exp overflows."""
    return _powers(f)


@variant("the softmax")
def one_maximum_for_all(f: Formula) -> Tensor | None:
    """The softmax subtracts one maximum of the whole tensor, so rows far below it become 0/0."""
    return _powers(f, (0, 1, 2, 3))


@variant("the softmax")
def one_maximum_for_each_head(f: Formula) -> Tensor | None:
    """The softmax subtracts one maximum for each head, so rows far below it become 0/0."""
    return _powers(f, (2, 3))


def _with_extra_keys(f: Formula, number: int) -> Tensor:
    logits = f.logits if f.hidden is None else f.logits.masked_fill(f.hidden, -math.inf)
    weights = F.pad(logits, (0, number)).softmax(dim=-1)[..., : f.seq_len]
    return f.finish(f.emptied(weights, f.hidden))


@variant("the softmax")
def attention_sink(f: Formula) -> Tensor:
    """1 is added to the denominator, as if a key of logit 0 took part."""
    return _with_extra_keys(f, 1)


@variant("the softmax")
def padding_to_eight_takes_part(f: Formula) -> Tensor | None:
    """Keys are padded to a multiple of 8, and the padding takes part in the softmax."""
    return _with_extra_keys(f, -f.seq_len % 8) if f.seq_len % 8 else None


@variant("the softmax")
def sigmoid_weights(f: Formula) -> Tensor:
    """Each weight is a sigmoid of its own logit."""
    return f.finish(f.logits.sigmoid() if f.hidden is None else f.logits.sigmoid().masked_fill(f.hidden, 0.0))


@variant("the softmax")
def logits_capped_at_50(f: Formula) -> Tensor:
    """Logits are capped by 50 tanh(x / 50)."""
    return f.shaping(50.0 * (f.logits / 50.0).tanh())


@variant("the softmax")
def logits_clamped_at_30(f: Formula) -> Tensor:
    """Logits are clamped to +-30."""
    return f.shaping(f.logits.clamp(-30.0, 30.0))
