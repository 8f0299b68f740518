"""Types of options that several commands take."""

from __future__ import annotations

import click


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
