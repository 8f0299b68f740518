"""The zoo: wrong implementations of multi-head attention that the verifier has to catch, grouped by kind.

The folder is a plugin as well, so any mutant can be seen failing:
``mha verify mask_inverted --plugin tests/mutants/__init__.py``.
"""

from __future__ import annotations

from harness.verification.selftest import Mutant

from . import (
    causal,
    empty_rows,
    errors,
    gradients,
    heads,
    masks,
    modules,
    polarity,
    precision,
    scale,
    shapes,
    softmax,
    state,
)
from .faults import FAULTS

__all__ = ["FAULTS", "IMPLEMENTATIONS", "MUTANTS"]

_GROUPS = (
    polarity,
    masks,
    empty_rows,
    causal,
    softmax,
    scale,
    heads,
    modules,
    precision,
    gradients,
    state,
    shapes,
    errors,
)

MUTANTS = tuple(mutant for group in _GROUPS for mutant in vars(group).values() if isinstance(mutant, Mutant))
IMPLEMENTATIONS = tuple(mutant.implementation for mutant in MUTANTS)
