"""Types of options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class Percent(click.ParamType[float, float]):
    """A share such as ``2%`` or ``0.02``."""

    name = "percent"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Turn the text into a number between 0 and 1."""
        if isinstance(value, float):
            return value
        try:
            share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 < share < 1:
            self.fail(f"{value!r} is not a share such as 2% or 0.02", param, ctx)
        return share


class Size(click.ParamType[int, int]):
    """A number of bytes such as ``2GiB`` or ``500MB``."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Turn the text into bytes."""
        from pydantic import ByteSize, TypeAdapter, ValidationError

        try:
            size = int(TypeAdapter(ByteSize).validate_python(value))
        except ValidationError:
            size = 0
        if size <= 0:
            self.fail(f"{value!r} is not a size such as 2GiB or 500MB", param, ctx)
        return size


def seed_option(of_what: str) -> Callable[[CommandT], CommandT]:
    """``--seed N``, as large as torch and Python's generators take it."""
    seeds = click.IntRange(0, 2**32 - 1)
    return click.option("--seed", type=seeds, default=0, show_default=True, help=f"Of {of_what}.")
