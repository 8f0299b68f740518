"""The four projections: exchanged, skipped, or without their biases."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .right import MultiHead
from .zoo import equivalent, wrong


@wrong("gradients_match_the_oracle")
class QueriesAndKeysExchanged(MultiHead):
    """W_q projects keys, W_k queries."""

    def project(self, letter: str, x: Tensor) -> Tensor:
        return super().project({"q": "k", "k": "q"}.get(letter, letter), x)


@wrong("matches_the_oracle")
class KeysAndValuesExchanged(MultiHead):
    """W_k projects values, W_v keys."""

    def project(self, letter: str, x: Tensor) -> Tensor:
        return super().project({"v": "k", "k": "v"}.get(letter, letter), x)


@wrong("matches_the_oracle")
class QueriesAndValuesExchanged(MultiHead):
    """W_q projects values, W_v queries."""

    def project(self, letter: str, x: Tensor) -> Tensor:
        return super().project({"v": "q", "q": "v"}.get(letter, letter), x)


@wrong("gradients_match_the_oracle")
class QueriesProjectedByW_k(MultiHead):  # noqa: N801 - the parameter's name
    """W_q is never used."""

    def project(self, letter: str, x: Tensor) -> Tensor:
        return super().project("k" if letter == "q" else letter, x)


@wrong("matches_the_oracle")
class OutputProjectionSkipped(MultiHead):
    """The merged heads are the output."""

    def output(self, merged: Tensor) -> Tensor:
        return merged + 0.0 * super().output(merged)


@wrong("matches_the_oracle")
class OutputProjectionTransposed(MultiHead):
    """W_o is laid out (in, out)."""

    def output(self, merged: Tensor) -> Tensor:
        return F.linear(merged, self.W_o.weight.T, self.W_o.bias)


@wrong("matches_the_oracle")
class QueryBiasDropped(MultiHead):
    """b_q has no effect."""

    def project(self, letter: str, x: Tensor) -> Tensor:
        projected = super().project(letter, x)
        return projected - self.W_q.bias if letter == "q" else projected


@wrong("matches_the_oracle")
class ValueBiasDropped(MultiHead):
    """b_v has no effect."""

    def project(self, letter: str, x: Tensor) -> Tensor:
        projected = super().project(letter, x)
        return projected - self.W_v.bias if letter == "v" else projected


@wrong("matches_the_oracle")
class OutputBiasDropped(MultiHead):
    """b_o has no effect."""

    def output(self, merged: Tensor) -> Tensor:
        return super().output(merged) - self.W_o.bias


@wrong("matches_the_oracle")
class OutputBiasTwice(MultiHead):
    """b_o is added once by the product and once by hand."""

    def output(self, merged: Tensor) -> Tensor:
        return super().output(merged) + self.W_o.bias


@wrong("matches_the_oracle")
class ResidualAdded(MultiHead):
    """X is added to the output."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        return x + super().forward(x, mask, is_causal=is_causal)


@wrong("matches_the_oracle", "mean of V passes loose tests")
class OutputOfZeros(MultiHead):
    """Nothing but zeros."""

    def output(self, merged: Tensor) -> Tensor:
        return 0.0 * super().output(merged)


@wrong("matches_the_oracle")
class PositionsAdded(MultiHead):
    """Queries and keys carry their position."""

    def split(self, projected: Tensor) -> Tensor:
        heads = super().split(projected)
        return heads + 0.1 * heads.new_ones(heads.shape[-2], 1).cumsum(0)


@equivalent("b_k adds the same number q b_k to all logits of a row, which softmax ignores")
class KeyBiasDropped(MultiHead):
    """b_k has no effect."""

    def project(self, letter: str, x: Tensor) -> Tensor:
        projected = super().project(letter, x)
        return projected - self.W_k.bias if letter == "k" else projected


@equivalent("nothing is changed: the control of the zoo")
class NothingChanged(MultiHead):
    """The right module that all mutants start from."""
