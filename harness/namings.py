"""How families of models name the tensors of an attention layer, and how each becomes the four projections.

A family is one entry of `NAMINGS`; a file of no known family is read by a mapping that its user gives.
Shapes: d_model features. A weight of `nn.Linear` is (out, in); GPT-2's Conv1D keeps it as (in, out).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from harness.errors import UserError
from implementations.spec import PROJECTION_NAMES

_LAYER = "{layer}"


class LayoutError(ValueError):
    """Tensors whose shapes are not those of multi-head attention as this project has it; says why."""


@dataclass(frozen=True)
class Recipe:
    """How a family computes the input of its first attention layer from token ids."""

    model_types: tuple[str, ...]
    """``model_type`` in config.json of the models that it holds for."""
    tables: Mapping[str, tuple[str, ...]]
    """For each tensor of `harness.layer_input.Embeddings`, its names behind any prefix: a file has one of them."""
    norm: Literal["layer", "rms"]
    norm_eps: float
    """Where config.json does not say it."""


@dataclass(frozen=True)
class Naming:
    """How a family of models names the tensors of an attention layer."""

    name: str
    layer: str
    """Begin of the names in one layer, behind any prefix; ``{layer}`` stands for its number."""
    tensors: tuple[str, ...]
    """Ends of the names of tensors that each layer has; the first one tells which layers there are."""
    project: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    """From the tensors, by end of name, to projections by `PROJECTION_NAMES`; a bias that is left out is zero.

    Raises LayoutError if they do not fit.
    """
    optional: tuple[str, ...] = ()
    """Ends of the names of tensors that a layer may lack."""
    recipe: Recipe | None = None
    note: str = ""
    """What of the model's attention is not part of the projections, for the user."""
    any_prefix: bool = True

    def find(self, names: Iterable[str]) -> list[Place]:
        """The layers of this naming that a file has, in order."""
        template = re.escape(self.layer + self.tensors[0]).replace(re.escape(_LAYER), r"(?P<layer>\d+)")
        pattern = re.compile(f"(?P<prefix>{'(?:.*[.])?' if self.any_prefix else ''}){template}")
        found = [match.groupdict() for name in names if (match := pattern.fullmatch(name))]
        if _LAYER in self.layer + self.tensors[0]:
            places = [Place(match["prefix"] or "", int(match["layer"] or 0)) for match in found]
            return sorted(places, key=lambda place: place.number)
        prefixes = sorted((match["prefix"] or "" for match in found), key=_natural)
        return [Place(prefix, number) for number, prefix in enumerate(prefixes)]

    def full_name(self, place: Place, end: str) -> str:
        """Name in the file of one tensor of a layer."""
        return place.prefix + (self.layer + end).replace(_LAYER, str(place.number))

    @property
    def is_numbered(self) -> bool:
        """Whether names have the layer's number; without it, layers are counted in the order of their prefixes."""
        return _LAYER in self.layer + self.tensors[0]

    @property
    def example(self) -> str:
        """What it looks for, for a message."""
        return f"{self.name}: {self.layer}{self.tensors[0]}"


@dataclass(frozen=True)
class Place:
    """Where in a file a layer is."""

    prefix: str
    """What stands before the layer's names."""
    number: int


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sorts layer 10 behind layer 9."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def _linears(**modules: str) -> dict[str, str]:
    """Names of weight and bias for each linear layer: ours to theirs."""
    return {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in modules.items() for kind in ("weight", "bias")}


def _renaming(theirs_of: Mapping[str, str]) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {ours: tensors[theirs] for ours, theirs in theirs_of.items() if theirs in tensors}


def _thirds(name: str, kind: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """W_q, W_k and W_v out of one (3 d_model, d_model) weight or (3 d_model,) bias."""
    fits = tensor.dim() == 1 and len(tensor) % 3 == 0
    if kind == "weight":
        fits = tensor.dim() == 2 and len(tensor) == 3 * tensor.shape[1]
    if not fits:
        raise LayoutError(
            f"{name} has shape {tuple(tensor.shape)}, and queries, keys and values of d_model features each were "
            "expected in it; fewer key and value heads than query heads do not fit here"
        )
    return zip((f"W_{letter}.{kind}" for letter in "qkv"), tensor.chunk(3), strict=True)


def _project_gpt2(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Queries, keys and values packed in c_attn: (d_model, 3 d_model) as Conv1D keeps it, or nn.Linear's transpose."""
    weight, output = tensors["c_attn.weight"], tensors["c_proj.weight"]
    if weight.dim() == 2 and weight.shape[1] == 3 * weight.shape[0]:
        weight, output = weight.T, output.T if output.dim() == 2 else output
    biases = {"W_o.bias": tensors["c_proj.bias"]} if "c_proj.bias" in tensors else {}
    if "c_attn.bias" in tensors:
        biases |= _thirds("c_attn.bias", "bias", tensors["c_attn.bias"])
    return {**dict(_thirds("c_attn.weight", "weight", weight)), "W_o.weight": output, **biases}


def _project_torch(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    projections = dict(_thirds("in_proj_weight", "weight", tensors["in_proj_weight"]))
    if "in_proj_bias" in tensors:
        projections |= _thirds("in_proj_bias", "bias", tensors["in_proj_bias"])
    return projections | {
        f"W_o.{k}": tensors[f"out_proj.{k}"] for k in ("weight", "bias") if f"out_proj.{k}" in tensors
    }


_BERT = _linears(W_q="self.query", W_k="self.key", W_v="self.value", W_o="output.dense")
BERT = Naming(
    name="BERT",
    layer="encoder.layer.{layer}.attention.",
    tensors=tuple(_BERT.values()),
    project=_renaming(_BERT),
    recipe=Recipe(
        model_types=("bert",),
        tables={
            "token": ("embeddings.word_embeddings.weight",),
            "position": ("embeddings.position_embeddings.weight",),
            "token_type": ("embeddings.token_type_embeddings.weight",),
            # The oldest checkpoints use the names of the TensorFlow original.
            "norm_weight": ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma"),
            "norm_bias": ("embeddings.LayerNorm.bias", "embeddings.LayerNorm.beta"),
        },
        norm="layer",
        norm_eps=1e-12,
    ),
)

GPT2 = Naming(
    name="GPT-2",
    layer="h.{layer}.attn.",
    tensors=("c_attn.weight", "c_proj.weight"),
    optional=("c_attn.bias", "c_proj.bias"),
    project=_project_gpt2,
    recipe=Recipe(
        model_types=("gpt2",),
        tables={
            "token": ("wte.weight",),
            "position": ("wpe.weight",),
            "norm_weight": ("h.0.ln_1.weight",),
            "norm_bias": ("h.0.ln_1.bias",),
        },
        norm="layer",
        norm_eps=1e-5,
    ),
)

_LLAMA = _linears(W_q="q_proj", W_k="k_proj", W_v="v_proj", W_o="o_proj")
LLAMA = Naming(
    name="LLaMA",
    layer="layers.{layer}.self_attn.",
    tensors=tuple(name for name in _LLAMA.values() if name.endswith(".weight")),
    optional=tuple(name for name in _LLAMA.values() if name.endswith(".bias")),
    project=_renaming(_LLAMA),
    recipe=Recipe(
        model_types=("llama", "mistral", "qwen2"),
        tables={"token": ("embed_tokens.weight",), "norm_weight": ("layers.0.input_layernorm.weight",)},
        norm="rms",
        norm_eps=1e-6,
    ),
    note="without its rotary positions",
)

TORCH = Naming(
    name="nn.MultiheadAttention",
    layer="",
    tensors=("in_proj_weight", "out_proj.weight"),
    optional=("in_proj_bias", "out_proj.bias"),
    project=_project_torch,
)

NAMINGS: tuple[Naming, ...] = (BERT, GPT2, LLAMA, TORCH)
"""Every naming that is known; the first that fits a file is used."""


def naming_from(mapping: Sequence[str]) -> Naming:
    """A naming that the user gives.

    Args:
        mapping: ``OURS=THEIRS`` for each of `PROJECTION_NAMES` (biases may be left out), where ``{layer}`` in a full
            name of theirs stands for the layer's number.

    Raises:
        UserError: one is not of this form, names no parameter of ours or names one twice, or a weight is missing.
    """
    theirs_of: dict[str, str] = {}
    for entry in mapping:
        ours, equals, theirs = entry.partition("=")
        if not equals or not theirs or ours not in PROJECTION_NAMES or ours in theirs_of:
            raise UserError(
                f"--map {entry}: expected OURS=THEIRS as in W_q.weight=encoder.{{layer}}.attn.q.weight, once for each "
                f"of {', '.join(PROJECTION_NAMES)}"
            )
        theirs_of[ours] = theirs
    missing = [name for name in PROJECTION_NAMES if name.endswith(".weight") and name not in theirs_of]
    if missing:
        raise UserError(f"--map says nothing of {', '.join(missing)}; only biases may be left out")
    return Naming("given", "", tuple(theirs_of.values()), _renaming(theirs_of), any_prefix=False)


def with_zero_biases(projections: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All eight parameters in the order of `PROJECTION_NAMES`; a bias that is not there is zero."""
    complete = dict(projections)
    for name in PROJECTION_NAMES:
        if name not in complete and name.endswith(".bias"):
            weight = projections[name.replace(".bias", ".weight")]
            complete[name] = torch.zeros(weight.shape[0] if weight.dim() else 0)
    return {name: complete[name] for name in PROJECTION_NAMES}
