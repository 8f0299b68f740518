"""Real weights: one attention layer of a safetensors file.

Random weights make nearly uniform attention and no outliers; trained ones do not, so they are where an
implementation is most usefully tried. How models name their tensors is in `harness.namings`, and what text makes of
a model's first layer in `harness.layer_input`. Shapes: d_model features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from harness.errors import UserError
from harness.namings import NAMINGS, LayoutError, Naming, Place, naming_from, with_zero_biases
from harness.records import describe

_CAST_FROM = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_NAMES_SHOWN = 4


@dataclass(frozen=True)
class LayerWeights:
    """One trained attention layer."""

    projections: dict[str, Tensor]
    """float32 tensors by `implementations.spec.PROJECTION_NAMES`, laid out (out, in) as `nn.Linear` does."""
    d_model: int
    num_heads: int
    source: str
    """Where they come from, in words."""


def load_layer(path: Path, layer: int, num_heads: int | None = None, mapping: Sequence[str] = ()) -> LayerWeights:
    """Read one attention layer, and only that, from a safetensors file.

    Args:
        path: the file; a config.json beside it says the number of heads.
        layer: number of the layer, from 0.
        num_heads: number of heads, needed where no config.json says it.
        mapping: how the file names the parameters, where it is none of `NAMINGS`; see `harness.namings.naming_from`.

    Raises:
        UserError: the file is missing or not safetensors; its names fit no naming; there is no such layer;
            the number of heads is unknown, contradicted, or does not divide d_model; or a tensor is missing,
            or has a shape or dtype that does not fit.
    """
    with opened(path) as file:
        names = list(file.keys())
        naming, places = recognise(path, names, mapping)
        place = next((place for place in places if place.number == layer), None)
        if place is None:
            raise UserError(f"{path} has no layer {layer}; it has layers {_ranges([each.number for each in places])}")
        there = [end for end in naming.optional if naming.full_name(place, end) in names]
        tensors = {end: read(path, file, naming.full_name(place, end)) for end in (*naming.tensors, *there)}
    projections = _project(path, naming, tensors)
    d_model = _common_size(path, projections)
    num_heads = _number_of_heads(path, num_heads)
    if num_heads < 1 or d_model % num_heads:
        raise UserError(f"{path}: d_model {d_model} is not divisible by num_heads {num_heads}; pass other --num-heads")
    return LayerWeights(projections, d_model, num_heads, _in_words(path, naming, place))


def recognise(path: Path, names: list[str], mapping: Sequence[str] = ()) -> tuple[Naming, list[Place]]:
    """The naming that fits a file, and the layers there are.

    Raises:
        UserError: none fits, or the file holds several models.
    """
    for naming in (naming_from(mapping),) if mapping else NAMINGS:
        places = naming.find(names)
        prefixes = sorted({place.prefix for place in places})
        if len(prefixes) > 1 and naming.is_numbered:
            raise UserError(f"{path} holds several models ({', '.join(prefixes)}); give a file with one")
        if places:
            return naming, places
    shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "") or "none"
    if mapping:
        raise UserError(f"{path}: no tensor is named as --map says ({mapping[0]}); it has {shown}")
    known = "; ".join(naming.example for naming in NAMINGS)
    raise UserError(
        f"{path}: no attention layer is named in a way that is known ({known}); give the names by --map; it has {shown}"
    )


def _in_words(path: Path, naming: Naming, place: Place) -> str:
    details = [f"{naming.name} naming"]
    if place.prefix:
        details.append(f"prefix {place.prefix!r}")
    if naming.note:
        details.append(naming.note)
    return f"layer {place.number} of {path.name} ({', '.join(details)})"


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file, open for reading single tensors.

    Raises:
        UserError: there is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise UserError(f"{path} is not a file; give the .safetensors file of a model")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} cannot be read as safetensors ({error}); was it downloaded whole, and is it the weights "
            "themselves and not a pointer to them?"
        ) from None


def read(path: Path, file: Any, name: str) -> Tensor:  # noqa: ANN401 - safetensors leaves its methods untyped
    """One tensor of an open file, as float32.

    Raises:
        UserError: it is not there, or quantised.
    """
    if name not in file.keys():  # noqa: SIM118 - an open file is no mapping
        raise UserError(f"{path} has no tensor {name}, which its naming asks for; give other names by --map")
    tensor: Tensor = file.get_tensor(name)
    if tensor.dtype not in _CAST_FROM:
        raise UserError(f"{path}: {name} is {tensor.dtype}; quantised weights are not read, give the original ones")
    return tensor.float()


def _project(path: Path, naming: Naming, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    try:
        projections = naming.project(tensors)
    except LayoutError as error:
        raise UserError(f"{path}: {error}") from None
    return {name: tensor.contiguous() for name, tensor in with_zero_biases(projections).items()}


def _common_size(path: Path, projections: Mapping[str, Tensor]) -> int:
    """d_model, once every weight is (d_model, d_model) and every bias (d_model,)."""
    queries = projections["W_q.weight"]
    d_model = queries.shape[-1] if queries.dim() else 0
    for name, tensor in projections.items():
        expected = (d_model, d_model) if name.endswith(".weight") else (d_model,)
        if tensor.shape != expected:
            raise UserError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, and d_model {d_model} (the features that W_q.weight "
                f"takes) asks for {expected}{_why(name, tensor, d_model)}"
            )
    return d_model


def _why(name: str, weight: Tensor, d_model: int) -> str:
    """The usual reason for a shape that does not fit."""
    if weight.dim() != 2 or weight.shape[1] != d_model:
        return ""
    if name in ("W_k.weight", "W_v.weight") and len(weight) < d_model:
        return "; fewer key and value heads than query heads (grouped-query attention) do not fit here"
    return "; heads whose features do not add up to d_model do not fit here"


class ModelConfig(BaseModel):
    """What is used of the config.json beside a file."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    num_attention_heads: int | None = Field(None, validation_alias=AliasChoices("num_attention_heads", "n_head"))
    model_type: str = ""
    norm_eps: float | None = Field(
        None, gt=0, validation_alias=AliasChoices("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps")
    )
    pad_token_id: int | None = None


def model_config(path: Path) -> ModelConfig:
    """The config.json beside a file; all defaults if there is none.

    Raises:
        UserError: it is there and makes no sense.
    """
    config = path.parent / "config.json"
    if not config.is_file():
        return ModelConfig.model_validate({})
    try:
        return ModelConfig.model_validate_json(config.read_bytes())
    except ValidationError as error:
        raise UserError(f"{config}: {describe(error)}; mend it or take it away") from None
    except OSError as error:
        raise UserError(f"{config} cannot be read: {error}") from None


def _number_of_heads(path: Path, given: int | None) -> int:
    configured = model_config(path).num_attention_heads
    if given is not None and configured is not None and given != configured:
        raise UserError(
            f"config.json beside {path} says {configured} heads, and {given} were asked for: other heads "
            "make another model; leave out --num-heads"
        )
    num_heads = configured if given is None else given
    if num_heads is None:
        raise UserError(f"no config.json beside {path} says num_attention_heads; pass --num-heads")
    return num_heads


def _ranges(layers: Sequence[int]) -> str:
    """Layer numbers for a reader: ``0 to 5`` where none is missing, else one by one."""
    if len(layers) > 2 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers))
