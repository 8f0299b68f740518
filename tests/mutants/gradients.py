"""Right outputs, wrong backward passes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .right import MultiHead
from .zoo import wrong


class _Softmax(torch.autograd.Function):
    """Softmax whose backward a mutant chooses."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, backward: Any) -> Tensor:
        weights = logits.softmax(dim=-1)
        ctx.save_for_backward(weights)
        ctx.chosen = backward
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.chosen(*ctx.saved_tensors, gradient), None


def scaled_gradient(tensor: Tensor, factor: float) -> Tensor:
    """The same values with a gradient `factor` times as large."""
    return tensor * factor + (tensor * (1.0 - factor)).detach()


@wrong("gradients_match_the_oracle")
class ValuesDetached(MultiHead):
    """Nothing reaches W_v."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, v.detach())


@wrong("gradients_match_the_oracle")
class KeysDetached(MultiHead):
    """Nothing reaches W_k, and x gets nothing through the keys."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k.detach())


@wrong("gradients_match_the_oracle")
class QueriesDetached(MultiHead):
    """Nothing reaches W_q, and x gets nothing through the queries."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q.detach(), k)


@wrong("gradients_match_the_oracle")
class WeightsDetached(MultiHead):
    """The gradient flows through the values only; the parameters of Q and K get zeros."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        return scaled_gradient(super().weights(logits, hidden), 0.0)


@wrong("gradients_match_the_oracle")
class GradientOfXDetachedFromKeys(MultiHead):
    """W_k learns, but x gets nothing through the keys."""

    def project(self, letter: str, x: Tensor) -> Tensor:
        return super().project(letter, x.detach() if letter == "k" else x)


@wrong("gradients_match_the_oracle")
class KeyGradientMissing(MultiHead):
    """x gets its gradient through the keys, W_k zeros."""

    def project(self, letter: str, x: Tensor) -> Tensor:
        if letter != "k":
            return super().project(letter, x)
        return x @ self.W_k.weight.detach().T + self.W_k.bias.detach() + 0.0 * super().project(letter, x)


@wrong("gradients_match_the_oracle")
class GradientDoubled(MultiHead):
    """Everything behind the merged heads gets twice its gradient."""

    def merge(self, heads: Tensor) -> Tensor:
        return scaled_gradient(super().merge(heads), 2.0)


@wrong("gradients_match_the_oracle")
class ScaleMissingInBackward(MultiHead):
    """Gradients of Q and K lack 1/sqrt(d_k)."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return scaled_gradient(super().logits(q, k), 1.0 / self.scale(q.shape[-1]))


@wrong("gradients_match_the_oracle")
class SoftmaxPassedStraightThrough(MultiHead):
    """The backward of softmax is the identity."""

    def softmax(self, logits: Tensor) -> Tensor:
        return _Softmax.apply(logits, lambda weights, gradient: gradient)


@wrong("gradients_match_the_oracle")
class SoftmaxBackwardWithoutRowSum(MultiHead):
    """P dP, without the row sum of P dP subtracted."""

    def softmax(self, logits: Tensor) -> Tensor:
        return _Softmax.apply(logits, lambda weights, gradient: weights * gradient)


@wrong("masked_keys_get_no_gradient")
class MaskForgottenInBackward(MultiHead):
    """The backward recomputes the weights without the mask."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        unmasked = self.softmax(logits)
        return unmasked + (super().weights(logits, hidden) - unmasked).detach()


@wrong("gradients_match_the_oracle")
class LongBackwardCutOff(MultiHead):
    """Past 128 keys, values get no gradient."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, torch.cat([v[..., :128, :], v[..., 128:, :].detach()], dim=-2))


@wrong("gradients_match_the_oracle")
class OnlyFirstItemLearns(MultiHead):
    """The gradient of all items but the first is lost."""

    def merge(self, heads: Tensor) -> Tensor:
        merged = super().merge(heads)
        return torch.cat([merged[:1], merged[1:].detach()])


@wrong("gradients_match_the_oracle")
class GradientClipped(MultiHead):
    """Gradients of the merged heads are clipped to +-1."""

    def merge(self, heads: Tensor) -> Tensor:
        merged = super().merge(heads)
        if merged.requires_grad:
            merged.register_hook(lambda gradient: gradient.clamp(-1.0, 1.0))
        return merged


@wrong("gradients_match_the_oracle", "FlexAttention: no backward on the CPU")
class NoBackward(MultiHead):
    """The output carries no graph."""

    def output(self, merged: Tensor) -> Tensor:
        return super().output(merged).detach()


@wrong("inputs_are_left_alone")
class CotangentChanged(MultiHead):
    """The backward pass scales the gradient that it was handed, in place, and scales back its own."""

    def output(self, merged: Tensor) -> Tensor:
        output = super().output(merged)
        return _InPlaceBackward.apply(output)


class _InPlaceBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        right = gradient.clone()
        gradient.mul_(0.5)
        return right


@wrong("an_earlier_call_can_still_be_differentiated")
class BackwardUsesLatestCall(MultiHead):
    """What the backward needs is kept on the module, so a second call overwrites the first one's."""

    kept: Tensor

    def softmax(self, logits: Tensor) -> Tensor:
        weights = super().softmax(logits)
        self.kept = weights.detach()
        return _Softmax.apply(logits, lambda _, gradient: self._from_kept(gradient))

    def _from_kept(self, gradient: Tensor) -> Tensor:
        return self.kept * (gradient - (self.kept * gradient).sum(dim=-1, keepdim=True))


@wrong("eval_can_be_differentiated")
class NoGraphInEval(MultiHead):
    """In eval no graph is kept, whether gradients are enabled or not."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.training):
            return super().forward(x, mask, is_causal=is_causal)


@wrong("frozen_parameters_leave_other_gradients_right")
class QueriesDecideAboutGradients(MultiHead):
    """No graph is kept unless the queries want a gradient, though keys and values may."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        heads = super().attend(q, k, v, mask, is_causal)
        return heads if q.requires_grad else heads.detach()

    def project(self, letter: str, x: Tensor) -> Tensor:
        projected = super().project(letter, x)
        return projected if self.W_q.weight.requires_grad or letter != "q" else projected.detach()


@wrong("gradients_match_the_oracle")
class LastWholeBlockSkippedInBackward(MultiHead):
    """Where 64 divides the length, values of the last block get no gradient: it is taken for an empty rest."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        if v.shape[-2] == 0 or v.shape[-2] % 64:
            return super().mix(weights, v)
        return super().mix(weights, torch.cat([v[..., :-64, :], v[..., -64:, :].detach()], dim=-2))


class _WeightsReused(torch.autograd.Function):
    """P V whose backward writes into the weights that its forward kept."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, v: Tensor) -> Tensor:
        ctx.kept = (weights.detach().clone(), v.detach().clone())
        return weights @ v

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        weights, v = ctx.kept
        dv = weights.transpose(-1, -2) @ gradient
        weights.mul_(0.5)
        return gradient @ v.transpose(-1, -2), dv


@wrong("a_graph_can_be_used_twice")
class BackwardOverwritesWhatItNeeds(MultiHead):
    """The backward works in the buffer of saved weights, which a second backward finds changed."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return _WeightsReused.apply(weights, v)


class _ReadsCotangentAsDense(torch.autograd.Function):
    """The identity, whose backward takes the memory of the cotangent for contiguous."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if gradient.is_contiguous():
            return gradient
        memory = gradient.as_strided((gradient.untyped_storage().size() // gradient.element_size(),), (1,), 0)
        return memory.repeat(gradient.numel() // len(memory) + 1)[: gradient.numel()].reshape(gradient.shape)


@wrong("cotangents_may_have_any_strides")
class CotangentReadAsDense(MultiHead):
    """The backward ignores the strides of the gradient handed to it: that of a sum is expanded."""

    def output(self, merged: Tensor) -> Tensor:
        return _ReadsCotangentAsDense.apply(super().output(merged))


class _SoftmaxRebuiltWithoutMaximum(torch.autograd.Function):
    """Softmax whose backward rebuilds the weights from exponentials that overflow."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.save_for_backward(logits)
        return logits.softmax(dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        exponentials = ctx.saved_tensors[0].exp()
        weights = exponentials / exponentials.sum(-1, keepdim=True)
        return weights * (gradient - (weights * gradient).sum(-1, keepdim=True))


@wrong("large_logits_leave_other_items_alone")
class MaximumForgottenInBackward(MultiHead):
    """The backward rebuilds the weights without subtracting the row's maximum."""

    def softmax(self, logits: Tensor) -> Tensor:
        return _SoftmaxRebuiltWithoutMaximum.apply(logits)
