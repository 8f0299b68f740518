"""Presets: which workloads a run compares, as TOML files; built in by name, or the user's own by path.

A preset holds sweeps, and a sweep stands for all combinations of its lists::

    title = "My model"
    cell_seconds = 5.0
    max_rounds = 160

    [[sweep]]
    label = "My model"
    source = "config.json of my model"
    batch_size = [1, 8]
    seq_len = 1024
    d_model = 768
    num_heads = 12
    mask = ["causal"]
    dtype = ["float32", "bfloat16"]
    mode = ["inference", "training"]
    threads = ["all", 1]
    scope = ["module", "attention"]

``mode`` is inference, forward (one that keeps what a backward needs) or training; ``scope`` is module unless given, and
``attention`` times an implementation's `attend` alone.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from harness.errors import UserError
from harness.measurement import work
from harness.measurement.limits import usable_cores
from harness.records import Workload
from implementations.spec import MaskKind

_FOLDER = Path(__file__).resolve().parents[1] / "presets"


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _thread_count(value: object) -> object:
    # A union of types would name each of its members in an error, and none of what is allowed.
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError('should be "all" (the physical cores that may be used) or a whole number of at least 1')


_Filled = Field(min_length=1)
_Count = Annotated[int, Field(strict=True, ge=1)]
_Counts = Annotated[tuple[_Count, ...], BeforeValidator(_listed), Field(min_length=1)]
_Threads = Annotated[tuple[Annotated[Any, BeforeValidator(_thread_count)], ...], BeforeValidator(_listed)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sweep(_Table):
    """All combinations of these lists; a single value stands for a list of one."""

    label: str = Field(min_length=1)
    """Name of the shape, e.g. ``BERT-base``."""
    source: str = Field(min_length=1)
    """Where the figures come from: a paper, a configuration file."""
    batch_size: _Counts
    seq_len: _Counts
    d_model: _Counts
    num_heads: _Counts
    mask: Annotated[tuple[MaskKind, ...], BeforeValidator(_listed), Field(min_length=1)]
    dtype: Annotated[
        tuple[Literal["float64", "float32", "bfloat16", "float16"], ...],
        BeforeValidator(_listed),
        Field(min_length=1),
    ]
    mode: Annotated[tuple[Literal["inference", "forward", "training"], ...], BeforeValidator(_listed), _Filled]
    scope: Annotated[tuple[Literal["module", "attention"], ...], BeforeValidator(_listed), _Filled] = ("module",)
    threads: Annotated[_Threads, Field(min_length=1)]
    device: Literal["cpu", "cuda"] = "cpu"
    padded_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of the keys that padding hides, over the batch; required where a mask has padding."""

    @model_validator(mode="after")
    def _has_the_share_that_padding_needs(self) -> Self:
        padded = [mask for mask in self.mask if mask.startswith("padding")]
        if padded and self.padded_share is None:
            raise ValueError(f"padded_share (above 0, below 1) is required with mask {padded[0]!r}")
        return self

    @model_validator(mode="after")
    def _heads_divide_the_model(self) -> Self:
        for d_model, num_heads in itertools.product(self.d_model, self.num_heads):
            if d_model % num_heads:
                raise ValueError(f"num_heads must divide d_model, and {num_heads} does not divide {d_model}")
        return self

    def workloads(self) -> Iterator[Workload]:
        """One for each combination."""
        for threads, batch_size, seq_len, d_model, num_heads, mask, dtype, mode, scope in itertools.product(
            *(self.threads, self.batch_size, self.seq_len, self.d_model, self.num_heads),
            *(self.mask, self.dtype, self.mode, self.scope),
        ):
            yield Workload(
                label=self.label,
                batch_size=batch_size,
                seq_len=seq_len,
                d_model=d_model,
                num_heads=num_heads,
                dtype=dtype,
                mask=mask,
                mode=mode,
                scope=scope,
                device=self.device,
                threads=usable_cores() if threads == "all" else threads,
                padded_share=(self.padded_share or 0.0) if mask.startswith("padding") else 0.0,
            )


class Preset(_Table):
    """A preset file."""

    title: str = Field(min_length=1)
    """What it is for, in a line."""
    cell_seconds: float = Field(gt=0)
    """Time budget for the timed rounds of one workload."""
    max_rounds: int = Field(strict=True, ge=9)
    """Rounds after which sampling ends in any case."""
    sweep: tuple[Sweep, ...] = Field(min_length=1)

    @field_validator("sweep", mode="after")
    @classmethod
    def _one_share_of_padding_for_a_workload(cls, sweeps: tuple[Sweep, ...]) -> tuple[Sweep, ...]:
        shares: dict[str, float] = {}
        for workload in _all_workloads(sweeps):
            if shares.setdefault(workload.key, workload.padded_share) != workload.padded_share:
                raise ValueError(f"two sweeps give workload {workload.key} different values of padded_share")
        return sweeps

    def workloads(self) -> tuple[Workload, ...]:
        """Small to large, so that an interrupted run has the cheap ones; each once, under its first label."""
        unique: dict[str, Workload] = {}
        for workload in _all_workloads(self.sweep):
            unique.setdefault(workload.key, workload)
        return tuple(sorted(unique.values(), key=work.flops))


def _all_workloads(sweeps: tuple[Sweep, ...]) -> Iterator[Workload]:
    return itertools.chain.from_iterable(sweep.workloads() for sweep in sweeps)


def preset_names() -> tuple[str, ...]:
    """Names of the built-in presets."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def load_preset(name_or_path: str) -> Preset:
    """Load a built-in preset by name, or a file by its path.

    Args:
        name_or_path: a path if it ends in ``.toml`` or has a folder in it, else a name.

    Raises:
        UserError: no such preset or file, not TOML, or a wrong key or value; one line that names it.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml" and len(path.parts) == 1:
        path = _FOLDER / f"{name_or_path}.toml"
        if name_or_path not in preset_names():
            raise UserError(
                f"no preset named {name_or_path!r}; there are {', '.join(preset_names())}, "
                "or give the path of your own file, ending in .toml"
            )
    content = _read(path)
    try:
        return Preset.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path}: {_explain(error)}") from None


def preset_of(sweep: Mapping[str, object], *, title: str, cell_seconds: float, max_rounds: int) -> Preset:
    """A preset of one sweep that was not read from a file.

    Raises:
        UserError: a wrong value; one line that names its key.
    """
    content = {"title": title, "cell_seconds": cell_seconds, "max_rounds": max_rounds, "sweep": [sweep]}
    try:
        return Preset.model_validate(content)
    except ValidationError as error:
        raise UserError(_explain(error).removeprefix("sweep[1]").removeprefix(": ").removeprefix(".")) from None


def model_shape(name: str) -> Workload:
    """The first workload of a known model, as the preset ``models`` has it.

    Args:
        name: its label, without regard to case, hyphens and the like: ``gpt2`` is GPT-2.

    Raises:
        UserError: no such model; names those there are.
    """
    workloads = load_preset("models").workloads()
    shapes: dict[str, Workload] = {}
    for workload in workloads:
        shapes.setdefault(_plain(workload.label), workload)
    if _plain(name) not in shapes:
        labels = dict.fromkeys(workload.label for workload in workloads)
        raise UserError(f"no model named {name!r} is known; there are {', '.join(labels)}")
    return shapes[_plain(name)]


def _plain(label: str) -> str:
    return re.sub(r"[^a-z0-9]", "", label.lower())


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"preset {path}: no such file; built-in presets: {', '.join(preset_names())}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"preset {path}: not readable: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not TOML: {error}") from None


def _explain(error: ValidationError) -> str:
    """The first thing wrong in one line: key, what came, what is allowed; and how many more there are."""
    # A misspelt key is also a missing one: it is the spelling that the user can see.
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    table = Sweep if len(first["loc"]) > 1 else Preset
    expected = _EXPLANATIONS.get(first["type"], _message)(first, table)
    came = "" if first["type"] == "missing" or isinstance(first["input"], (dict, list)) else f"got {first['input']!r}, "
    more = error.error_count() - 1
    key = _key(first["loc"])
    return (f"{key}: " if key else "") + came + expected + (f" (and {more} more)" if more else "")


def _key(location: tuple[int | str, ...]) -> str:
    """``sweep[2].mask[1]``, counted from 1 as a reader counts tables."""
    return "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def _message(first: Any, _table: type[_Table]) -> str:  # noqa: ANN401 - pydantic's own error dict
    return str(first["msg"]).removeprefix("Value error, ")


def _allowed_keys(_first: Any, table: type[_Table]) -> str:  # noqa: ANN401 - pydantic's own error dict
    return f"no such key; allowed: {', '.join(table.model_fields)}"


_EXPLANATIONS: dict[str, Callable[[Any, type[_Table]], str]] = {
    "extra_forbidden": _allowed_keys,
    "literal_error": lambda first, _table: f"allowed: {first['ctx']['expected']}",
    "missing": lambda _first, _table: "this key is required",
}
"""By pydantic's type of error, where its own message does not say what is allowed."""
