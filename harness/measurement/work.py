"""What a call costs on paper: floating point operations and memory, from the shape alone.

B batch, H heads, S sequence, d_k head dim, d_model = H * d_k.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.measurement.limits import free_memory_bytes
from harness.records import Workload
from harness.verification.inputs import DTYPES
from harness.verification.oracle import CHUNK_ELEMENTS
from implementations.spec import Implementation

_SCORE_COPIES = {"inference": 3, "forward": 4, "training": 6}
"""Copies of the (B, H, S, S) scores that live at once where the scores are materialised: scores, scaled or masked
scores, weights; otherwise also those saved for the backward pass, and in training their gradients."""
_ACTIVATIONS = {"inference": 10, "forward": 11, "training": 24}
"""Tensors of (B, S, d_model): Q, K, V, heads, merged, output, contiguous copies; in training also gradients."""
_WORKSPACE_PER_THREAD = (256 * 512 + 2 * 256) * 4
"""Bytes that torch's CPU flash kernel takes for each thread, apart from its (256, d_k) accumulator."""
_CAUSAL = ("causal", "causal_mask", "padding_causal")
_ORACLE_CHUNKS = 12
"""Chunks of float64 scores that the oracle holds at once, rounding simulated and gradients included."""


def flops(workload: Workload) -> int:
    """Floating point operations of one call: ``4 B H S^2 d_k`` for attention, ``8 B S d_model^2`` for projections.

    Training counts three times the forward (the backward has two products for each of the forward's);
    recomputation is not counted. Causality does not halve the figure: whether a kernel skips what is masked is
    what its time shows, and one figure for all keeps rates comparable. `flops_unmasked` is the other one.
    """
    return _flops(workload, workload.seq_len * workload.seq_len)


def flops_unmasked(workload: Workload) -> int:
    """The same, of attention only for pairs of query and key that the mask leaves: what cannot be avoided."""
    seq_len = workload.seq_len
    kept = seq_len * (seq_len + 1) // 2 if workload.mask in _CAUSAL else seq_len * seq_len
    # A hidden tail takes its share of all pairs, and of a causal triangle the square of that: a triangle of its own.
    share = workload.padded_share**2 if workload.mask in _CAUSAL else workload.padded_share
    return _flops(workload, round(kept * (1.0 - share)))


def _flops(workload: Workload, pairs: int) -> int:
    attention = 4 * workload.batch_size * pairs * workload.d_model
    projections = 8 * workload.batch_size * workload.seq_len * workload.d_model**2 if _projects(workload) else 0
    return (attention + projections) * (3 if workload.mode == "training" else 1)


def bytes_moved(workload: Workload) -> int:
    """Bytes that one call cannot avoid to move: inputs, weights, mask and results, once each.

    Training reads its inputs once more for the backward, and the cotangent, and writes all gradients.
    """
    element = DTYPES[workload.dtype].itemsize
    activation = workload.batch_size * workload.seq_len * workload.d_model * element
    weights = 4 * (workload.d_model**2 + workload.d_model) * element if _projects(workload) else 0
    inputs = weights + activation * (1 if _projects(workload) else 3)  # x, or q, k and v
    mask = 0 if workload.mask in ("none", "causal") else _mask_elements(workload, given=True)
    forward = inputs + mask + activation
    return forward if workload.mode != "training" else forward + inputs + mask + activation + inputs


def figures(workload: Workload) -> dict[str, Any]:
    """What a call costs on paper, by the names of `Measurement`."""
    return {
        "flops": flops(workload),
        "flops_unmasked": flops_unmasked(workload),
        "bytes_moved": bytes_moved(workload),
    }


def _projects(workload: Workload) -> bool:
    return workload.scope == "module"


def predicted_peak_bytes(implementation: Implementation, workload: Workload) -> int:
    """Bytes that one call may allocate at its peak, on the safe side, from the declared growth with S."""
    element = DTYPES[workload.dtype].itemsize
    scores = workload.batch_size * workload.num_heads * workload.seq_len**2
    activation = workload.batch_size * workload.seq_len * workload.d_model * element
    needed = activation * _ACTIVATIONS[workload.mode]
    needed += workload.threads * (_WORKSPACE_PER_THREAD + 256 * workload.d_model // workload.num_heads * 4)
    # A mask is inverted, merged with another one, and turned into an additive one: copies of its own shape.
    needed += _mask_elements(workload) * (4 + 2 * element)
    if workload.mode == "training":
        needed += 8 * workload.d_model**2 * element  # gradients of the weights, and of their packed form
    if implementation.memory_growth == "O(S^2)":
        needed += scores * element * _SCORE_COPIES[workload.mode]
        if workload.mask != "none":
            needed += scores * (2 + element)  # the mask expanded to all items and heads, bool and additive
    return needed


def _mask_elements(workload: Workload, *, given: bool = False) -> int:
    """Elements of the mask: as it is handed over, or at most, where some expand or build one."""
    batch_size, num_heads, square = workload.batch_size, workload.num_heads, workload.seq_len**2
    return {
        "none": 0,
        "causal": square,
        "causal_mask": square,
        "padding": batch_size * (workload.seq_len if given else square),  # two dimensions for those who want them
        "padding_causal": batch_size * square,
        "per_head": num_heads * square,
        "dense": batch_size * num_heads * square,
    }[workload.mask]


def oracle_bytes(workload: Workload) -> int:
    """Bytes for holding a call's answer against the oracle, in float64, on the safe side."""
    tokens = workload.batch_size * workload.seq_len
    row = workload.batch_size * workload.num_heads * workload.seq_len
    chunk = min(max(CHUNK_ELEMENTS, row), row * workload.seq_len)
    return 8 * (chunk * _ORACLE_CHUNKS + tokens * workload.d_model * 30 + 4 * workload.d_model**2 * 6)


def memory_shortfall(implementation: Implementation, workload: Workload) -> str:
    """Why a call is predicted not to fit into memory, with both numbers; empty if it fits."""
    weights = 4 * workload.d_model**2 * DTYPES[workload.dtype].itemsize
    call = predicted_peak_bytes(implementation, workload)
    needed = weights + max(call, oracle_bytes(workload))
    free = torch.cuda.mem_get_info()[0] if workload.device == "cuda" else free_memory_bytes()
    if needed <= free:
        return ""
    return f"predicted to need {_gib(needed)} at its peak, and {_gib(free)} are free"


def _gib(count: int) -> str:
    return f"{count / 1024**3:.3g} GiB"
