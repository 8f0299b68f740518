"""Options that describe one workload, and the preset that they make: what `choose` and `compare` measure."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from harness.cli.console import CommandT

if TYPE_CHECKING:
    from harness.measurement.presets import Preset

_SHAPE = ("batch_size", "seq_len", "d_model", "num_heads")
MASKS = ("none", "causal", "causal_mask", "padding", "padding_causal", "per_head", "dense")
"""As `implementations.spec` has them, which imports torch."""
_OPTIONS = (
    click.option(
        "--like", metavar="MODEL", help="Take what is not given from a known model, such as gpt2 or bert-base."
    ),
    click.option("--batch-size", type=click.IntRange(1)),
    click.option("--seq-len", type=click.IntRange(1)),
    click.option("--d-model", type=click.IntRange(1)),
    click.option("--num-heads", type=click.IntRange(1)),
    click.option("--mask", type=click.Choice(MASKS), help="Without --like: none."),
    click.option(
        "--padded-share",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        help="Of keys, for padding masks (0.25).",
    ),
    click.option(
        "--dtype", type=click.Choice(["float64", "float32", "bfloat16", "float16"]), help="Without --like: float32."
    ),
    click.option(
        "--pass",
        "mode",
        type=click.Choice(["inference", "forward", "training"]),
        help="forward keeps what a backward would need. Without --like: inference.",
    ),
    click.option(
        "--scope",
        type=click.Choice(["module", "attention"]),
        help="The whole module (the default), or attention functions alone.",
    ),
    click.option("--device", type=click.Choice(["cpu", "cuda"]), help="cpu by default."),
    click.option("--threads", type=click.IntRange(1), help="Of torch; as many as there are cores by default."),
)


def workload_options(command: CommandT) -> CommandT:
    """``--like MODEL``, or a shape, mask, dtype, pass, scope, device and threads; `preset_from` takes their values."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), command)


def is_given(workload: dict[str, Any]) -> bool:
    """Whether any of these options was used."""
    return any(value is not None for value in workload.values())


def preset_from(workload: dict[str, Any], seconds: float) -> Preset:
    """The workload that is asked for, a model's where nothing is given.

    Raises:
        UsageError: neither a model nor all of the shape is given.
        UserError: a value that does not fit, or no such model.
    """
    from harness.measurement.presets import model_shape, preset_of

    like = workload.pop("like")
    given = {name: value for name, value in workload.items() if value is not None}
    missing = [f"--{name.replace('_', '-')}" for name in _SHAPE if name not in given]
    if like is None and missing:
        raise click.UsageError(f"give {', '.join(missing)}, or a model by --like")
    sweep: dict[str, Any] = {"label": "chosen", "source": "command line", "mask": "none", "dtype": "float32"}
    sweep |= {"mode": "inference", "threads": "all"}
    if like is not None:
        known = model_shape(like)
        sweep |= {"label": known.label, **{name: getattr(known, name) for name in (*_SHAPE, "mask", "dtype", "mode")}}
        sweep |= {"padded_share": known.padded_share} if known.padded_share else {}
    sweep |= given
    if sweep["mask"].startswith("padding"):
        sweep.setdefault("padded_share", 0.25)
    return preset_of(sweep, title="One workload", cell_seconds=seconds, max_rounds=1280)
