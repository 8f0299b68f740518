"""The right function with too large an error, and dtypes lost on the way."""

from __future__ import annotations

import torch
from torch import Tensor

from .right import MultiHead
from .zoo import equivalent, wrong


def rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to another dtype and back."""
    return tensor.to(dtype).to(tensor.dtype)


def in_two_parts(tensor: Tensor) -> Tensor:
    """The sum of two bfloat16 numbers that is nearest."""
    high = rounded(tensor, torch.bfloat16)
    return high + rounded(tensor - high, torch.bfloat16)


@wrong("matches_the_oracle", "pytorch#163588", numeric=True)
class Bfloat16Inside(MultiHead):
    """Everything between the projections is computed in bfloat16."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        low = (each.to(torch.bfloat16) for each in (q, k, v))
        return super().attend(*low, mask, is_causal).to(q.dtype)


@wrong("attention_weights_match_the_oracle", numeric=True)
class SoftmaxInHalf(MultiHead):
    """Weights are float16."""

    def softmax(self, logits: Tensor) -> Tensor:
        return super().softmax(logits.half()).to(logits.dtype)


@wrong("large_logits_leave_other_items_alone", "pytorch#119131", numeric=True)
class LogitsInHalf(MultiHead):
    """Logits are stored as float16."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return rounded(super().logits(q, k), torch.float16)


@wrong("matches_the_oracle", "flash-attention#1138", numeric=True)
class ValuesInBfloat16(MultiHead):
    """V is stored as bfloat16."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, rounded(v, torch.bfloat16))


@wrong("matches_the_oracle", numeric=True)
class ProductsWithTenBits(MultiHead):
    """The products of Q and K take 10 bits of each factor, as TF32 does."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(rounded(q, torch.float16), rounded(k, torch.float16))


@wrong("attention_weights_match_the_oracle", numeric=True)
class WeightsInEightBits(MultiHead):
    """Weights are multiples of 1/255."""

    def softmax(self, logits: Tensor) -> Tensor:
        weights = super().softmax(logits)
        return weights + ((weights * 255.0).round() / 255.0 - weights).detach()


@wrong("matches_the_oracle", numeric=True)
class Float32InsideFloat64(MultiHead):
    """Attention is computed in float32 whatever x is."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        return super().attend(q.float(), k.float(), v.float(), mask, is_causal).to(q.dtype)


@wrong("errors_are_small_on_the_whole", "flash-attention#1138", numeric=True)
class WeightsInFloat8(MultiHead):
    """Where x has 16 bits, weights are stored in 8: four significant ones."""

    def softmax(self, logits: Tensor) -> Tensor:
        weights = super().softmax(logits)
        if logits.dtype in (torch.float32, torch.float64):
            return weights
        return weights + (rounded(weights, torch.float8_e4m3fn) - weights).detach()


@wrong("errors_are_small_on_the_whole", numeric=True)
class ShortWeightsInBfloat16(MultiHead):
    """Where x is bfloat16, weights keep three of its eight significant bits."""

    def softmax(self, logits: Tensor) -> Tensor:
        weights = super().softmax(logits)
        if logits.dtype != torch.bfloat16:
            return weights
        return weights + (rounded(weights, torch.float8_e5m2) - weights).detach()


@wrong("matches_the_oracle", numeric=True)
class ProductsInTwoBfloat16Parts(MultiHead):
    """Factors are sums of two bfloat16 numbers, 16 bits in all, as in a float32 product emulated with bfloat16."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(in_two_parts(q), in_two_parts(k))

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(in_two_parts(weights), in_two_parts(v))


@wrong("attention_weights_match_the_oracle", numeric=True)
class WeightsOfFortyBits(MultiHead):
    """Weights are multiples of 2^-40: more than float32 can tell, and less than float64 promises."""

    def softmax(self, logits: Tensor) -> Tensor:
        weights = super().softmax(logits)
        return weights + ((weights.double() * 2.0**40).round() / 2.0**40 - weights.double()).detach().to(weights.dtype)


@wrong("gradients_match_the_oracle", numeric=True)
class GradientsInBfloat16(MultiHead):
    """The backward pass rounds the gradient of the merged heads to bfloat16."""

    def merge(self, heads: Tensor) -> Tensor:
        merged = super().merge(heads)
        if merged.requires_grad:
            merged.register_hook(lambda gradient: rounded(gradient, torch.bfloat16))
        return merged


@wrong("output_is_like_the_input")
class OutputInFloat64(MultiHead):
    """The output is float64 whatever x is."""

    def output(self, merged: Tensor) -> Tensor:
        return super().output(merged).double()


@wrong("output_is_like_the_input")
class OutputInFloat32(MultiHead):
    """The output is float32 whatever x is: right until x has 16 or 64 bits."""

    def output(self, merged: Tensor) -> Tensor:
        return super().output(merged).float()


@equivalent("float64 loses nothing that float32 keeps, and the result is rounded once")
class Float64Inside(MultiHead):
    """Attention is computed in float64 and rounded back."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        return super().attend(q.double(), k.double(), v.double(), mask, is_causal).to(q.dtype)


@equivalent(
    "the contract speaks of finite inputs; what becomes of a NaN is shown in the semantics table, and fused kernels "
    "do the same",
    "pytorch#141128",
    "pytorch#101967",
)
class NanOutputsBecomeZero(MultiHead):
    """A NaN in a row's query comes out as 0."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, v).nan_to_num(nan=0.0)
