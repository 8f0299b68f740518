"""How cases are drawn: small ones often, large ones rarely, every odd form now and then.

Alternatives stand in the order of simplicity, since shrinking goes towards the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import get_args

from hypothesis import strategies as st

from harness.verification.fuzz.cases import FuzzCase, MaskLayout, MaskPlan, Pattern, Rows, XLayout
from implementations.spec import ALL_DTYPES, Implementation

WORK = 720_000
"""Elements of (B, H, S, S) that a case may have: B = 2 at S = 600, so that the oracle takes a fraction of a second."""
LONGEST = 600
LONGEST_WHERE_SLOW = 16
"""For interpreted kernels, whose calls take seconds."""
HEAD_DIMS = (1, 2, 3, 5, 8, 12, 16, 32, 33, 64, 80, 128)
AXES = tuple("".join(axes) for n in (2, 3, 4) for axes in product(*(f"{letter}1" for letter in "bhqk"[-n:])))
"""Every broadcastable form of a mask with two, three or four dimensions."""
X_SCALES = (1e-3, 0.1, 10.0)
ITEM_SCALES = (1e-3, 17.3, 300.0)
"""17.3 makes an item's logits about 300 times as large."""
LOGIT_SCALES = (1e-3, 0.1, 10.0, 300.0)
SIMPLEST_DTYPES = ("float32", *(dtype for dtype in ALL_DTYPES if dtype != "float32"))
TELLING_DTYPES = ("float32", "float64")
"""Drawn twice as often, for their budgets are narrow."""
NUM_HEADS = (1, 2, 3, 4, 2, 3, 4, 5, 6)
PLAIN = 9
"""How often a scale is 1 for each three times that it is unusual: large ones widen the budgets of 16 bits until hardly
anything would be seen there, and several at once do so everywhere."""


@dataclass(frozen=True)
class Space:
    """What of all cases an implementation meets."""

    dtypes: tuple[str, ...]
    modes: tuple[str, ...]
    is_slow: bool
    """Whether a call takes seconds."""
    device: str

    @classmethod
    def of(cls, implementation: Implementation, dtypes: tuple[str, ...], device: str) -> Space:
        """Everything that the implementation does not decline as a whole; of slow ones only short sequences."""
        return cls(
            dtypes=tuple(d for d in SIMPLEST_DTYPES if d in dtypes and d in implementation.dtypes),
            modes=("inference", "training") if implementation.gradients else ("inference",),
            is_slow=device in implementation.slow_on,
            device=device,
        )


@st.composite
def cases(draw: st.DrawFn, space: Space) -> FuzzCase:
    """Any case of a space whose scores have at most `WORK` elements.

    What is too large is cut after it is drawn. Bounds that depend on what was drawn before would let the number of
    choices depend on it too (a range of one number is no choice, two equal ranges are one), and a case with fewer
    choices counts as simpler: shrinking would end at S = 190.
    """
    seq_len = draw(_lengths(space.is_slow))
    batch_size = min(draw(st.integers(0, 4)), WORK // seq_len**2)
    num_heads = min(draw(st.sampled_from(NUM_HEADS)), WORK // (seq_len**2 * max(1, batch_size)))
    return FuzzCase(
        batch_size=batch_size,
        seq_len=seq_len,
        num_heads=num_heads,
        head_dim=draw(st.sampled_from(HEAD_DIMS)),
        dtype=draw(st.sampled_from(space.dtypes + tuple(d for d in space.dtypes if d in TELLING_DTYPES))),
        mode=draw(st.sampled_from(space.modes)),
        device=space.device,
        is_causal=draw(st.booleans()),
        mask=draw(st.none() | masks() | masks() | masks()),
        x_layout=draw(st.sampled_from(get_args(XLayout))),
        x_scale=draw(_scales(X_SCALES)),
        item_scale=draw(_scales(ITEM_SCALES)),
        logit_scale=draw(_scales(LOGIT_SCALES)),
        numbers=draw(st.integers(0, 1000)),
    )


def masks() -> st.SearchStrategy[MaskPlan]:
    """Any form, density and layout of a mask; forms that tell keys apart more often than others."""
    telling = tuple(axes for axes in AXES if axes.endswith("k"))
    return st.builds(
        MaskPlan,
        axes=st.sampled_from(telling) | st.sampled_from(AXES),
        hides=st.sampled_from(get_args(Pattern)),
        rows=st.sampled_from(get_args(Rows)),
        layout=st.sampled_from((*get_args(MaskLayout), "expanded")),
        density=st.sampled_from((0.1, 0.5, 0.9)),
        band=_lengths(is_slow=False),
    )


def _lengths(is_slow: bool) -> st.SearchStrategy[int]:
    """Mostly up to 16, often past a small block, now and then a kernel's block sizes and what lies around them."""
    blocks = st.builds(lambda block, by: block + by, st.sampled_from((32, 64, 128)), st.integers(-1, 2))
    small = st.integers(1, LONGEST_WHERE_SLOW)
    ranges = [st.integers(1, 5), small, small, small]
    if not is_slow:
        ranges += [st.integers(1, 70), st.integers(1, 70), blocks, st.integers(1, LONGEST)]
    return st.one_of(ranges)


def _scales(unusual: tuple[float, ...]) -> st.SearchStrategy[float]:
    """Mostly 1."""
    return st.sampled_from((1.0,) * PLAIN + unusual)
