"""Real weights and real text instead of random numbers: trained projections have outliers that no randn has."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from harness.checkpoints import LayerWeights, load_layer
from harness.layer_input import LayerInput, input_for
from harness.verification.inputs import DTYPES, Inputs, causal_mask, make_inputs
from implementations.spec import Case, MaskKind, Mode

CHECKS: tuple[tuple[str, Mode], ...] = (
    ("output_is_like_the_input", "inference"),
    ("matches_the_oracle", "inference"),
    ("softmax_rows_sum_to_one", "inference"),
    ("masked_keys_have_no_influence", "inference"),
    ("gradients_match_the_oracle", "training"),
)
"""Names of the checks that say something about given weights, and the pass that each is about."""

MASKS: tuple[MaskKind, ...] = ("none", "padding", "causal", "padding_causal")


@dataclass(frozen=True)
class RealWeights:
    """One attention layer of a checkpoint, with text that its embeddings turn into x where they are known."""

    path: Path
    layer: int = 0
    num_heads: int | None = None
    mapping: tuple[str, ...] = ()
    """How the file names the parameters, if it is of no known family: ``OURS=THEIRS`` each."""

    def load(self) -> tuple[LayerWeights, LayerInput]:
        """The projections, and an input like that of the first layer.

        Raises:
            UserError: the file does not fit; see `harness.checkpoints`.
        """
        return _load(self)

    def cases(self, check: str, dtype: str, device: str) -> Iterator[Case]:
        """The cases of one check: the text's own shape, under each mask kind."""
        layer, text = self.load()
        batch_size, seq_len, _ = text.x.shape
        for name, mode in CHECKS:
            for mask in MASKS if name == check else ():
                if mask == "none" and name == "masked_keys_have_no_influence":
                    continue
                yield Case(batch_size, seq_len, layer.d_model, layer.num_heads, dtype, mask, mode, device)

    def inputs(self, case: Case, seed: int) -> Inputs:
        """Inputs of a case: the layer's weights, its input with that one's own padding; the rest is drawn."""
        layer, text = self.load()
        random = make_inputs(case, seed)
        weights = {n: w.to(device=case.device, dtype=DTYPES[case.dtype]) for n, w in layer.projections.items()}
        padding = text.mask.to(case.device)
        masks = {
            "padding": padding,
            "padding_causal": padding | causal_mask(case.seq_len, case.device),
        }
        return replace(
            random,
            x=text.x.to(device=case.device, dtype=DTYPES[case.dtype]),
            weights=weights,
            mask=masks.get(case.mask, random.mask),
        )

    @property
    def arguments(self) -> str:
        """How the command line names them."""
        heads = "" if self.num_heads is None else f" --num-heads {self.num_heads}"
        names = "".join(f" --map {shlex.quote(entry)}" for entry in self.mapping)
        return f" --weights {shlex.quote(str(self.path))} --layer {self.layer}{heads}{names}"


@cache
def _load(real: RealWeights) -> tuple[LayerWeights, LayerInput]:
    layer = load_layer(real.path, real.layer, real.num_heads, real.mapping)
    return layer, input_for(real.path, layer.d_model, real.mapping)
