"""How a mutant is declared: a subclass of `MultiHead` with one override, and a decorator that says what it stands for.

    @wrong("masked_keys_have_no_influence", "rasbt/LLMs-from-scratch#1061")
    class MaskInverted(MultiHead):
        '''True is taken as "keep".'''

The decorator takes the check that is expected to name the fault and the public reports that the mutant stands for.
The docstring is the mutant's description, the file its group.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from harness.verification.selftest import Mutant
from implementations.spec import Implementation

from .right import MultiHead

Declare = Callable[[type[MultiHead]], Mutant]


def wrong(expected_check: str, *faults: str, numeric: bool = False, **declared: Any) -> Declare:
    """A wrong implementation.

    Args:
        expected_check: the check that names the fault.
        faults: public reports of such a fault, as `faults.FAULTS` spells them.
        numeric: whether it computes the right function with too large an error.
        declared: what the implementation says of itself, by field of `Implementation`.
    """

    def declare(module: type[MultiHead]) -> Mutant:
        return Mutant(
            implementation=_implementation(module, declared),
            group=_group(module),
            stands_for=_description(module),
            faults=faults,
            expected_check=expected_check,
            numeric=numeric,
        )

    return declare


def equivalent(argument: str, *faults: str, **declared: Any) -> Declare:
    """A change that is no fault, with the argument why; a check that fails on it raises a false alarm."""

    def declare(module: type[MultiHead]) -> Mutant:
        return Mutant(
            implementation=_implementation(module, declared),
            group=_group(module),
            stands_for=_description(module),
            faults=faults,
            equivalent=argument,
        )

    return declare


def _implementation(module: type[MultiHead], declared: dict[str, Any]) -> Implementation:
    name = re.sub(r"(?<!^)(?=[A-Z])|(?<=[a-z])(?=\d{3})", "_", module.__name__).lower()
    return Implementation(name, summary=_description(module), source=_group(module), build=module, **declared)


def _description(module: type[MultiHead]) -> str:
    return " ".join(inspect.cleandoc(module.__doc__ or "").split())


def _group(module: type[MultiHead]) -> str:
    return module.__module__.rpartition(".")[2]
