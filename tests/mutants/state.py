"""Memory between calls, shared and changed tensors, randomness, and modes that disagree."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .right import MultiHead
from .zoo import wrong


class Remembering(MultiHead):
    """Base of mutants that keep something between calls."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.memory: dict[object, Tensor] = {}


@wrong("outputs_never_alias", "an output buffer shared by all calls")
class OutputBufferReused(Remembering):
    """In eval, outputs of one shape share one buffer."""

    def output(self, merged: Tensor) -> Tensor:
        output = super().output(merged)
        if self.training or torch.is_grad_enabled():
            return output
        return self.memory.setdefault(output.shape, torch.empty_like(output)).copy_(output)


@wrong("a_call_has_no_memory", "flashinfer-bench#414")
class OutputOfFirstCall(Remembering):
    """In eval, the first output of a shape is given again for any later input."""

    def output(self, merged: Tensor) -> Tensor:
        output = super().output(merged)
        if self.training or torch.is_grad_enabled():
            return output
        return self.memory.setdefault(output.shape, output).clone()


@wrong("a_call_has_no_memory")
class OutputKeptForTheTensor(MultiHead):
    """In eval, an output is kept for the x that it came of, known by its identity: fast wherever one x is timed."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.kept: dict[tuple[int, int], tuple[Tensor, Tensor | None, Tensor]] = {}

    def forward(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        output = super().forward(x, mask, is_causal=is_causal)
        if self.training or torch.is_grad_enabled():
            return output
        # The tensors are kept too: as long as they live, no other one has their identity.
        return self.kept.setdefault((id(x), id(mask)), (x, mask, output))[-1].clone()


@wrong("a_call_has_no_memory")
class FirstMaskKept(Remembering):
    """The first mask of a shape is used for all later ones of that shape."""

    def check_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        mask = super().check_mask(x, mask)
        return None if mask is None else self.memory.setdefault(mask.dim(), mask.clone())


@wrong("a_call_has_no_memory")
class KeysCachedForLength(Remembering):
    """Keys of the first call stay in front of those of the next, as in a cache that nobody emptied."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        kept = self.memory.setdefault("k", k.detach().clone())
        if kept.shape[0] == k.shape[0] and kept.shape[-2] <= k.shape[-2]:
            k = torch.cat([kept, k[..., kept.shape[-2] :, :]], dim=-2)
        return super().logits(q, k)


@wrong("a_call_has_no_memory")
class CausalMaskOfFirstLength(Remembering):
    """The causal mask is built once; what lies beyond its length is visible."""

    def causal(self, logits: Tensor) -> Tensor:
        future = self.memory.setdefault("future", super().causal(logits))
        missing = logits.shape[-1] - future.shape[-1]
        size = logits.shape[-1]
        return F.pad(future, (0, missing, 0, missing), value=False)[:size, :size] if missing else future


@wrong("calls_repeat_bit_for_bit")
class RunningMeanSubtracted(Remembering):
    """X is centred by a running mean of all calls."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        mean = self.memory.get("mean", torch.zeros_like(x[0, 0])) if x.numel() else 0.0
        if x.numel():
            self.memory["mean"] = 0.9 * mean + 0.1 * x.detach().mean(dim=(0, 1))
        return super().forward(x - mean, mask, is_causal=is_causal)


@wrong("inputs_are_left_alone", "an input changed in place")
class InputChanged(MultiHead):
    """X is scaled in place behind its last use."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        output = super().forward(x, mask, is_causal=is_causal)
        with torch.no_grad():
            x.mul_(1.5)
        return output


@wrong("inputs_are_left_alone", "an input changed in place")
class MaskChanged(MultiHead):
    """What is hidden is collected in the caller's mask."""

    def weights(self, logits: Tensor, hidden: Tensor | None) -> Tensor:
        weights = super().weights(logits, hidden)
        if hidden is not None and 0 not in hidden.stride():
            hidden[..., -1] = True
        return weights


@wrong("inputs_are_left_alone")
class ParameterChanged(MultiHead):
    """A call decays W_o."""

    def output(self, merged: Tensor) -> Tensor:
        output = super().output(merged)
        self.W_o.weight.data.mul_(0.999)
        return output


@wrong("outputs_never_alias", "an output buffer shared by all calls")
class OutputWrittenIntoInput(MultiHead):
    """In eval without gradients, the output takes the place of x."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        output = super().forward(x, mask, is_causal=is_causal)
        free = not torch.is_grad_enabled() and 0 not in x.stride()
        return x.copy_(output) if free else output


@wrong("modes_agree", "pytorch#124464", "timm PR 1978")
class DropoutInEval(MultiHead):
    """Dropout is passed on without asking for the mode."""

    def softmax(self, logits: Tensor) -> Tensor:
        return F.dropout(super().softmax(logits), 0.1, training=True)


@wrong("calls_repeat_bit_for_bit", "pytorch#124464")
class RareDropoutInEval(MultiHead):
    """Dropout of one weight in a thousand, in eval as well."""

    def softmax(self, logits: Tensor) -> Tensor:
        return F.dropout(super().softmax(logits), 1e-3, training=True)


@wrong("modes_agree")
class DropoutInTraining(MultiHead):
    """Dropout that nobody asked for, in train mode."""

    def softmax(self, logits: Tensor) -> Tensor:
        return F.dropout(super().softmax(logits), 0.1, training=self.training)


@wrong("calls_repeat_bit_for_bit", "timm PR 1978")
class RandomStateMoved(MultiHead):
    """Dropout of nothing still draws its numbers."""

    def softmax(self, logits: Tensor) -> Tensor:
        torch.rand(1)
        return super().softmax(logits)


@wrong("calls_repeat_bit_for_bit", "TabPFN#800")
class SumsInRandomOrder(MultiHead):
    """Keys are summed in another order at each call, with a generator of its own."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.generator = torch.Generator().manual_seed(0)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        order = torch.randperm(v.shape[-2], generator=self.generator)
        return super().mix(weights[..., order], v[..., order, :])


@wrong("modes_agree")
class FastPathInEval(MultiHead):
    """In eval without gradients, b_v is forgotten."""

    def project(self, letter: str, x: Tensor) -> Tensor:
        projected = super().project(letter, x)
        fast = letter == "v" and not self.training and not torch.is_grad_enabled()
        return projected - self.W_v.bias if fast else projected


@wrong("weights_survive_the_round_trip", pack=lambda weights: {name: w.bfloat16().to(w) for name, w in weights.items()})
class ParametersLoadedInBfloat16(MultiHead):
    """Loading rounds the parameters to bfloat16."""


@wrong(
    "weights_survive_the_round_trip",
    unpack=lambda weights: {name: w.T if w.dim() == 2 else w for name, w in weights.items()},
)
class ParametersReadBackTransposed(MultiHead):
    """Parameters and their gradients are read back as (in, out)."""


@wrong("new_weights_count_at_once")
class FusedWeightsKept(MultiHead):
    """In eval, the three projections are fused at the first call and used ever after."""

    def project(self, letter: str, x: Tensor) -> Tensor:
        if self.training or torch.is_grad_enabled():
            return super().project(letter, x)
        if not hasattr(self, "fused"):
            layers = (self.W_q, self.W_k, self.W_v)
            self.fused = torch.cat([w.weight for w in layers]), torch.cat([w.bias for w in layers])
        return F.linear(x, *self.fused).chunk(3, dim=-1)["qkv".index(letter)]
