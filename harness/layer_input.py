"""What a model's first attention layer meets: real text where the file allows it, and what comes closest elsewhere.

Shapes: B batch, S sequence, d_model features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from harness.checkpoints import model_config, opened, read, recognise
from harness.errors import UserError
from harness.namings import Recipe

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

_RANDOM_LENGTHS = (24, 17, 9, 3)
"""Of the items of random input: different, for the same reason."""


@dataclass(frozen=True)
class Embeddings:
    """What makes the first layer's input: norm(token + position + token type 0), without what a model lacks."""

    token: Tensor
    """(vocabulary, d_model)."""
    position: Tensor | None
    """(longest sequence, d_model)."""
    token_type: Tensor | None
    """(token types, d_model)."""
    norm_weight: Tensor
    """(d_model,)."""
    norm_bias: Tensor | None
    """(d_model,)."""
    norm: Literal["layer", "rms"]
    norm_eps: float
    pad_id: int
    """Token that fills up the shorter sequences."""

    def embed(self, ids: Tensor) -> Tensor:
        """From ids (B, S) to what the layer meets (B, S, d_model)."""
        x = self.token[ids]
        if self.position is not None:
            x = x + self.position[: ids.shape[1]]
        if self.token_type is not None:
            x = x + self.token_type[0]
        if self.norm == "rms":
            return F.rms_norm(x, x.shape[-1:], self.norm_weight, self.norm_eps)
        return F.layer_norm(x, x.shape[-1:], self.norm_weight, self.norm_bias, self.norm_eps)


class EmbeddedText(NamedTuple):
    """Real text as a first layer meets it."""

    x: Tensor
    """float32 (B, S, d_model)."""
    mask: Tensor
    """bool (B, 1, 1, S), True = masked: the padding."""


@dataclass(frozen=True)
class LayerInput:
    """An input for a layer."""

    x: Tensor
    """float32 (B, S, d_model)."""
    mask: Tensor
    """bool (B, 1, 1, S), True = masked: the padding."""
    source: str
    """What it is, in words."""


def input_for(path: Path, d_model: int, mapping: Sequence[str] = ()) -> LayerInput:
    """The input that comes closest to the model's own: text, random tokens, or random numbers.

    Args:
        path: safetensors file, perhaps with its tokenizer.json beside it.
        d_model: features of the layer.
        mapping: names given by the user; see `harness.checkpoints.load_layer`.

    Raises:
        UserError: the file is there and broken; see `load_embeddings` and `embed_text`.
    """
    reason = _why_no_embeddings(path, mapping)
    if reason:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(len(_RANDOM_LENGTHS), max(_RANDOM_LENGTHS), d_model, generator=generator)
        return LayerInput(x, _padding(_RANDOM_LENGTHS), f"random input, for {reason}")
    reason = _why_no_text(path)
    if reason:
        embedded = embed_text(path, _random_tokens(load_embeddings(path)))
        return LayerInput(*embedded, f"random tokens in the model's own embeddings, for {reason}")
    return LayerInput(*embed_text(path), "English sentences in the model's own embeddings")


def load_embeddings(path: Path) -> Embeddings:
    """Read what makes the first layer's input from a safetensors file.

    Raises:
        UserError: the file is missing or not safetensors, its names fit no naming, how the model computes its input
            is not known, or a tensor is missing or does not fit.
    """
    config = model_config(path)
    with opened(path) as file:
        recipe, prefix, names = _recipe(path, file)
        tensors = {}
        for field, ends in recipe.tables.items():
            there = [prefix + end for end in ends if prefix + end in names]
            tensors[field] = read(path, file, there[0] if there else prefix + ends[0])
    pad_id = max(0, config.pad_token_id or 0)  # a model without one writes null or -1; padding is masked anyway
    _check_embeddings(path, tensors, pad_id)
    return Embeddings(
        token=tensors["token"],
        position=tensors.get("position"),
        token_type=tensors.get("token_type"),
        norm_weight=tensors["norm_weight"],
        norm_bias=tensors.get("norm_bias"),
        norm=recipe.norm,
        norm_eps=config.norm_eps or recipe.norm_eps,
        pad_id=pad_id,
    )


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
    _check_tokens(tokens, embeddings)
    lengths = [len(item) for item in tokens]
    ids = torch.tensor([item + [embeddings.pad_id] * (max(lengths) - len(item)) for item in tokens])  # (B, S)
    return EmbeddedText(embeddings.embed(ids), _padding(lengths))


def _padding(lengths: Sequence[int]) -> Tensor:
    return (torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None])[:, None, None, :]


def _random_tokens(embeddings: Embeddings) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    longest = len(embeddings.position) if embeddings.position is not None else max(_RANDOM_LENGTHS)
    return [
        torch.randint(len(embeddings.token), (min(length, longest),), generator=generator).tolist()
        for length in _RANDOM_LENGTHS
    ]


def _recipe(path: Path, file: Any) -> tuple[Recipe, str, list[str]]:  # noqa: ANN401 - safetensors leaves it untyped
    """How the model of a file computes its input, the prefix of its names, and all of them."""
    names = list(file.keys())
    naming, places = recognise(path, names)
    if naming.recipe is None:
        raise UserError(f"{path}: no embeddings are known of {naming.name}; give the layer an input of your own")
    model_type = model_config(path).model_type
    if model_type not in ("", *naming.recipe.model_types):
        raise UserError(
            f"{path}: its config.json says model_type {model_type!r}, and only the embeddings of "
            f"{', '.join(naming.recipe.model_types)} are known; give the layer an input of your own"
        )
    return naming.recipe, places[0].prefix, names


def _why_no_embeddings(path: Path, mapping: Sequence[str]) -> str:
    """Why a model's own embeddings cannot be used, though its file is as it should be; empty if they can."""
    if mapping:
        return "no embeddings are known of names given by --map"
    config = model_config(path)
    with opened(path) as file:
        names = list(file.keys())
        naming, places = recognise(path, names)
    if naming.recipe is None:
        return f"no embeddings are known of {naming.name}"
    if config.model_type not in ("", *naming.recipe.model_types):
        return f"the embeddings of model_type {config.model_type!r} are not known"
    lacking = [
        ends[0] for ends in naming.recipe.tables.values() if not {places[0].prefix + e for e in ends} & set(names)
    ]
    return f"the file has no {', '.join(lacking)}" if lacking else ""


def _why_no_text(path: Path) -> str:
    """Why real text cannot be used; empty if it can."""
    try:
        import tokenizers  # noqa: F401 - whether it is there
    except ImportError:
        return "tokenizers is not installed (pip install 'mha-harness[text]')"
    return "" if _tokenizer_file(path).is_file() else f"there is no {_tokenizer_file(path).name} beside the file"


def _check_embeddings(path: Path, tensors: Mapping[str, Tensor], pad_id: int) -> None:
    d_model = tensors.get("norm_bias", tensors["norm_weight"]).numel()
    for field, tensor in tensors.items():
        dims = 1 if field.startswith("norm") else 2
        if tensor.dim() != dims or tensor.shape[-1] != d_model or tensor.numel() == 0:
            raise UserError(
                f"{path}: the {field} embedding has shape {tuple(tensor.shape)}, and {dims} "
                f"dimensions ending in d_model {d_model} were expected"
            )
    if pad_id >= len(tensors["token"]):
        raise UserError(f"{path}: pad_token_id {pad_id} is outside the vocabulary of {len(tensors['token'])}")


def _tokenizer_file(path: Path) -> Path:
    return path.parent / "tokenizer.json"


def _tokenize(path: Path, text: Sequence[str] | Sequence[Sequence[int]]) -> list[list[int]]:
    """Token ids of each item; a tokenizer is only needed where an item is a string."""
    tokenizer = _tokenizer(_tokenizer_file(path)) if any(isinstance(item, str) for item in text) else None
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


def _check_tokens(tokens: Sequence[Sequence[int]], embeddings: Embeddings) -> None:
    vocabulary = len(embeddings.token)
    longest = len(embeddings.position) if embeddings.position is not None else None
    if not tokens:
        raise UserError("there is no text: give at least one")
    for number, item in enumerate(tokens, start=1):
        if not item or (longest is not None and len(item) > longest):
            allowed = f"1 to {longest}" if longest is not None else "1 or more"
            raise UserError(f"text {number} has {len(item)} tokens, and the model takes {allowed}")
        if not 0 <= min(item) <= max(item) < vocabulary:
            raise UserError(
                f"text {number} has token ids {min(item)} to {max(item)}, and the model has 0 to {vocabulary - 1}"
            )
