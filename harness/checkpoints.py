"""Real weights and real text: one attention layer of a safetensors file, and the input that text gives it.

Random weights make nearly uniform attention and no outliers; trained ones do not, so they are where an
implementation is most usefully tried. A family of models is one entry of `NAMINGS`.
Shapes: B batch, S sequence, d_model features.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from harness.errors import UserError
from harness.records import describe

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DEFAULT_TEXT = (
    "Attention lets every word look at every other word.",
    "The river rose overnight, and by morning the lower road was gone.",
    "She paid.",
    "Nobody in the workshop could say why the old clock, which had not been wound for thirty years, had "
    "begun to strike again, or why it struck only when the door was locked.",
)
"""Sentences of very different lengths, so that padding is real."""

_CAST_FROM = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_NAMES_SHOWN = 4


@dataclass(frozen=True)
class Naming:
    """How a family of models names the tensors of an attention layer, and of the input to its first layer."""

    name: str
    layer: str
    """Begin of the names in one layer, behind any prefix; ``{layer}`` stands for its number."""
    tensors: tuple[str, ...]
    """Ends of the names of the tensors to read; the first one tells which layers there are."""
    project: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    """From the tensors, by end of name, to projections by `implementations.spec.PROJECTION_NAMES`."""
    model_type: str
    """``model_type`` in config.json of the models whose input is computed as `Embeddings` says."""
    embeddings: Mapping[str, tuple[str, ...]]
    """For each tensor of `Embeddings`, its names behind any prefix: a file has one of them."""


def _renamed(**modules: str) -> dict[str, str]:
    """Names of weight and bias for each linear layer: theirs to ours."""
    return {f"{theirs}.{kind}": f"{ours}.{kind}" for ours, theirs in modules.items() for kind in ("weight", "bias")}


_BERT_LINEARS = _renamed(W_q="self.query", W_k="self.key", W_v="self.value", W_o="output.dense")

BERT = Naming(
    name="BERT",
    layer="encoder.layer.{layer}.attention.",
    tensors=tuple(_BERT_LINEARS),
    project=lambda tensors: {ours: tensors[theirs] for theirs, ours in _BERT_LINEARS.items()},
    model_type="bert",
    embeddings={
        "token": ("embeddings.word_embeddings.weight",),
        "position": ("embeddings.position_embeddings.weight",),
        "token_type": ("embeddings.token_type_embeddings.weight",),
        # The oldest checkpoints use the names of the TensorFlow original.
        "norm_weight": ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma"),
        "norm_bias": ("embeddings.LayerNorm.bias", "embeddings.LayerNorm.beta"),
    },
)

NAMINGS: tuple[Naming, ...] = (BERT,)
"""Every naming that is known; the first that fits a file is used."""


@dataclass(frozen=True)
class LayerWeights:
    """One trained attention layer."""

    projections: dict[str, Tensor]
    """float32 tensors by `implementations.spec.PROJECTION_NAMES`, laid out (out, in) as `nn.Linear` does."""
    d_model: int
    num_heads: int
    source: str
    """Where they come from, in words."""


@dataclass(frozen=True)
class Embeddings:
    """What makes the first layer's input: LayerNorm(token + position + token type 0)."""

    token: Tensor
    """(vocabulary, d_model)."""
    position: Tensor
    """(longest sequence, d_model)."""
    token_type: Tensor
    """(token types, d_model)."""
    norm_weight: Tensor
    """(d_model,)."""
    norm_bias: Tensor
    """(d_model,)."""
    norm_eps: float
    pad_id: int
    """Token that fills up the shorter sequences."""


class EmbeddedText(NamedTuple):
    """Real text as a first layer meets it."""

    x: Tensor
    """float32 (B, S, d_model)."""
    mask: Tensor
    """bool (B, 1, 1, S), True = masked: the padding."""


def load_layer(path: Path, layer: int, num_heads: int | None = None) -> LayerWeights:
    """Read one attention layer, and only that, from a safetensors file.

    Args:
        path: the file; a config.json beside it says the number of heads.
        layer: number of the layer, from 0.
        num_heads: number of heads, needed where no config.json says it.

    Raises:
        UserError: the file is missing or not safetensors; its names fit no naming; there is no such layer;
            the number of heads is unknown, contradicted, or does not divide d_model; or a tensor is missing,
            or has a shape or dtype that does not fit.
    """
    with _opened(path) as file:
        naming, prefix, layers = _recognise(path, list(file.keys()))
        if layer not in layers:
            raise UserError(f"{path} has no layer {layer}; it has layers {_ranges(layers)}")
        begin = prefix + naming.layer.format(layer=layer)
        tensors = {end: _read(path, file, begin + end) for end in naming.tensors}
    projections = {name: tensor.contiguous() for name, tensor in naming.project(tensors).items()}
    d_model = _common_size(path, projections)
    num_heads = _number_of_heads(path, num_heads)
    if num_heads < 1 or d_model % num_heads:
        raise UserError(f"{path}: d_model {d_model} is not divisible by num_heads {num_heads}; pass other --num-heads")
    source = f"layer {layer} of {path.name} ({naming.name} naming{f', prefix {prefix!r}' if prefix else ''})"
    return LayerWeights(projections, d_model, num_heads, source)


def load_embeddings(path: Path) -> Embeddings:
    """Read what makes the first layer's input from a safetensors file.

    Raises:
        UserError: the file is missing or not safetensors, its names fit no naming, config.json says that the
            model computes its input in another way, or a tensor is missing or does not fit.
    """
    config = _config(path)
    with _opened(path) as file:
        names = list(file.keys())
        naming, prefix, _ = _recognise(path, names)
        if config.model_type not in ("", naming.model_type):
            raise UserError(
                f"{path}: its config.json says model_type {config.model_type!r}, and only the input of "
                f"{naming.model_type!r} is known; give the layer an input of your own"
            )
        tensors = {}
        for field, ends in naming.embeddings.items():
            there = [prefix + end for end in ends if prefix + end in names]
            tensors[field] = _read(path, file, there[0] if there else prefix + ends[0])
    _check_embeddings(path, tensors, config.pad_token_id)
    return Embeddings(**tensors, norm_eps=config.layer_norm_eps, pad_id=config.pad_token_id)


def embed_text(path: Path, text: Sequence[str] | Sequence[Sequence[int]] = DEFAULT_TEXT) -> EmbeddedText:
    """The input of a model's *first* layer for real text, padded to the longest.

    A later layer meets the output of those before it, so its logits on this input are not the model's.

    Args:
        path: safetensors file; for text, with its tokenizer.json beside it.
        text: strings, or sequences of token ids: one for each batch item.

    Raises:
        UserError: see `load_embeddings`; for strings, tokenizers is not installed or tokenizer.json is
            missing; or an item has no tokens, more than the model has positions for, or an id outside its
            vocabulary.
    """
    embeddings = load_embeddings(path)
    tokens = _tokenize(path, [text] if isinstance(text, str) else text)
    _check_tokens(tokens, vocabulary=len(embeddings.token), longest=len(embeddings.position))
    lengths = torch.tensor([len(item) for item in tokens])
    seq_len = int(lengths.max())
    ids = torch.tensor([item + [embeddings.pad_id] * (seq_len - len(item)) for item in tokens])  # (B, S)
    summed = embeddings.token[ids] + embeddings.position[:seq_len] + embeddings.token_type[0]  # (B, S, d_model)
    x = F.layer_norm(summed, summed.shape[-1:], embeddings.norm_weight, embeddings.norm_bias, embeddings.norm_eps)
    mask = torch.arange(seq_len) >= lengths[:, None]  # (B, S)
    return EmbeddedText(x, mask[:, None, None, :])


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
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


def _recognise(path: Path, names: list[str]) -> tuple[Naming, str, list[int]]:
    """The naming that fits, what stands before it in every name, and the layers there are."""
    for naming in NAMINGS:
        layer = re.escape(naming.layer).replace(re.escape("{layer}"), r"(?P<layer>\d+)")
        pattern = re.compile(rf"(?P<prefix>(?:.*\.)?){layer}{re.escape(naming.tensors[0])}")
        found = [match for name in names if (match := pattern.fullmatch(name))]
        prefixes = sorted({match["prefix"] for match in found})
        if len(prefixes) > 1:
            raise UserError(f"{path} holds several models ({', '.join(prefixes)}); give a file with one")
        if prefixes:
            return naming, prefixes[0], sorted(int(match["layer"]) for match in found)
    shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
    known = "; ".join(f"{naming.name}: {naming.layer}{naming.tensors[0]}" for naming in NAMINGS)
    raise UserError(f"{path}: no attention layer is named in a way that is known ({known}); it has {shown or 'none'}")


def _read(path: Path, file: Any, name: str) -> Tensor:  # noqa: ANN401 - safetensors leaves its methods untyped
    if name not in file.keys():  # noqa: SIM118 - an open file is no mapping
        raise UserError(f"{path} has no tensor {name}, which its naming asks for")
    tensor: Tensor = file.get_tensor(name)
    if tensor.dtype not in _CAST_FROM:
        raise UserError(f"{path}: {name} is {tensor.dtype}; quantised weights are not read, give the original ones")
    return tensor.float()


def _common_size(path: Path, projections: Mapping[str, Tensor]) -> int:
    """d_model, once every weight is (d_model, d_model) and every bias (d_model,)."""
    d_model = projections["W_q.bias"].numel()
    for name, tensor in projections.items():
        expected = (d_model, d_model) if name.endswith(".weight") else (d_model,)
        if tensor.shape != expected:
            raise UserError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, and d_model {d_model} (the size of "
                f"W_q.bias) asks for {expected}"
            )
    return d_model


def _check_embeddings(path: Path, tensors: Mapping[str, Tensor], pad_id: int) -> None:
    d_model = tensors["norm_bias"].numel()
    for field, tensor in tensors.items():
        dims = 1 if field.startswith("norm") else 2
        if tensor.dim() != dims or tensor.shape[-1] != d_model or tensor.numel() == 0:
            raise UserError(
                f"{path}: the {field} embedding has shape {tuple(tensor.shape)}, and {dims} "
                f"dimensions ending in d_model {d_model} were expected"
            )
    if pad_id >= len(tensors["token"]):
        raise UserError(f"{path}: pad_token_id {pad_id} is outside the vocabulary of {len(tensors['token'])}")


class _Config(BaseModel):
    """What is used of the config.json beside a file, with BERT's values where it is silent."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    num_attention_heads: int | None = None
    model_type: str = ""
    layer_norm_eps: float = Field(default=1e-12, gt=0)
    pad_token_id: int = Field(default=0, ge=0)


def _config(path: Path) -> _Config:
    """The config.json beside a file; all defaults if there is none."""
    config = path.parent / "config.json"
    if not config.is_file():
        return _Config()
    try:
        return _Config.model_validate_json(config.read_bytes())
    except ValidationError as error:
        raise UserError(f"{config}: {describe(error)}; mend it or take it away") from None
    except OSError as error:
        raise UserError(f"{config} cannot be read: {error}") from None


def _number_of_heads(path: Path, given: int | None) -> int:
    configured = _config(path).num_attention_heads
    if given is not None and configured is not None and given != configured:
        raise UserError(
            f"config.json beside {path} says {configured} heads, and {given} were asked for: other heads "
            "make another model; leave out --num-heads"
        )
    num_heads = configured if given is None else given
    if num_heads is None:
        raise UserError(f"no config.json beside {path} says num_attention_heads; pass --num-heads")
    return num_heads


def _tokenize(path: Path, text: Sequence[str] | Sequence[Sequence[int]]) -> list[list[int]]:
    """Token ids of each item; a tokenizer is only needed where an item is a string."""
    tokenizer = _tokenizer(path.parent / "tokenizer.json") if any(isinstance(item, str) for item in text) else None
    return [
        list(tokenizer.encode(item).ids) if tokenizer and isinstance(item, str) else [int(i) for i in item]
        for item in text
    ]


def _tokenizer(path: Path) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UserError(
            "text needs the tokenizers package: pip install 'mha-harness[text]', or give token ids"
        ) from None
    if not path.is_file():
        raise UserError(f"text needs the model's tokenizer, and {path} is not there; add it, or give token ids")
    try:
        tokenizer = Tokenizer.from_buffer(path.read_bytes())
    except Exception as error:  # noqa: BLE001 - tokenizers raises a bare Exception for a file it cannot use
        raise UserError(f"{path} is not a tokenizer that can be used: {error}") from None
    # The file may ask for padding to a fixed length and for cutting: neither happens unseen here.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _check_tokens(tokens: Sequence[Sequence[int]], *, vocabulary: int, longest: int) -> None:
    if not tokens:
        raise UserError("there is no text: give at least one")
    for number, item in enumerate(tokens, start=1):
        if not 1 <= len(item) <= longest:
            raise UserError(f"text {number} has {len(item)} tokens, and the model takes 1 to {longest}")
        if not 0 <= min(item) <= max(item) < vocabulary:
            raise UserError(
                f"text {number} has token ids {min(item)} to {max(item)}, and the model has 0 to {vocabulary - 1}"
            )


def _ranges(layers: Sequence[int]) -> str:
    """Layer numbers for a reader: ``0 to 5`` where none is missing, else one by one."""
    if len(layers) > 2 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers))
