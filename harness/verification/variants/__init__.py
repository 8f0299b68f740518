"""Attention gone wrong in ways that are known, each as a small formula: what would the answer be if ...?

A variant takes the right formula of one call and gives the output that its fault would lead to, in float64, or None
where the call has nothing that the fault could touch (no mask, no causality, one head). Its docstring is the fault in
words. `harness.verification.diagnosis` holds what an implementation gave against all of them.
"""

from harness.verification.variants import layout, masking, softmax
from harness.verification.variants.backward import BACKWARD_VARIANTS
from harness.verification.variants.formula import VARIANTS, Formula, Variant, in_words
from harness.verification.variants.memory import MEMORY_VARIANTS

__all__ = [
    "BACKWARD_VARIANTS",
    "MEMORY_VARIANTS",
    "VARIANTS",
    "Formula",
    "Variant",
    "in_words",
    "layout",
    "masking",
    "softmax",
]
