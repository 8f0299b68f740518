"""How numbers and names are written: with as many digits as the noise leaves, and units that people read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from harness.records import Noise
from harness.statistics import Comparison

MEBIBYTE = 1024**2


def significant(value: float, digits: int = 3) -> str:
    """A number with this many significant digits, never in scientific notation: 1234, 12.3, 0.0123."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    # The exponent is that of the rounded number: 9.996 is 10.0 at three digits, not 10.00.
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{decimals}f}"


def scientific(value: float) -> str:
    """An error or a budget: 1.2e-07."""
    return f"{value:.2g}" if math.isfinite(value) else "not finite"


def latency(seconds: float) -> str:
    """A time in the unit that fits: 1.23 s, 4.56 ms, 78.9 µs."""
    # Below 0.9995 ms, three digits round to at most 999 µs.
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 0.9995:
            return f"{significant(seconds * factor)} {unit}"
    return f"{significant(seconds * 1e6)} µs"


def mebibytes(size: float) -> str:
    """A number of bytes in MiB, with three significant digits."""
    if 0 < size < 0.01 * MEBIBYTE:
        return "<0.01 MiB"
    return f"{significant(size / MEBIBYTE)} MiB"


def multiple(value: float) -> str:
    """A multiple with two to three digits: 4.1x, 0.052x, 130x."""
    return f"{significant(value, 2 if value < 100 else 3)}x" if math.isfinite(value) else "not finite"


def plural(number: int, noun: str) -> str:
    """1 round, 2 rounds, 3 of anything that takes an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Iterable[str]) -> str:
    """Names in a sentence: a, b and c."""
    parts = list(names)
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else "none"


def span(values: Sequence[float]) -> str:
    """Smallest to largest of some multiples: 1.1x to 4.2x, or only 1.1x where they read the same."""
    low, high = multiple(min(values)), multiple(max(values))
    return low if low == high else f"{low} to {high}"


def typical(values: Sequence[float]) -> str:
    """The median of some multiples, and the largest where it reads otherwise: 2.1x (up to 4.2x)."""
    middle, largest = multiple(median(values)), multiple(max(values))
    return middle if middle == largest else f"typically {middle} (up to {largest})"


def clip(text: str, length: int) -> str:
    """The first `length` characters, with a mark where something is cut off."""
    return text if len(text) <= length else text[: length - 1] + "…"


def noise_sentence(noise: Noise) -> str:
    """How fine a difference the machine can tell: ``This machine resolves 1.4% in 3 s (at worst 2.1%)``."""
    if math.isinf(noise.resolves):
        return f"This machine resolves nothing in {noise.seconds:g} s: too few rounds for an interval."
    worst = "no interval in the worst trial" if math.isinf(noise.worst) else f"at worst {noise.worst:.1%}"
    return f"This machine resolves {noise.resolves:.1%} in {noise.seconds:g} s ({worst})."


def relation(comparison: Comparison) -> str:
    """How the first stands against the second: ``4.1x faster [3.9, 4.3]``, ``tied, 1.00x [0.99, 1.01]``."""
    verdict = comparison.verdict
    figures = _figures(comparison)
    if figures is None:
        return f"unresolved, {significant(comparison.ratio)}x, no interval from {comparison.rounds} rounds"
    ratio, interval = figures
    return f"{ratio}x {verdict} {interval}" if verdict in ("faster", "slower") else f"{verdict}, {ratio}x {interval}"


def lead_over(name: str, comparison: Comparison) -> str:
    """The same in a sentence: ``4.1x faster than document [3.9, 4.3]``."""
    verdict = comparison.verdict
    figures = _figures(comparison)
    if figures is None:
        return f"unresolved against {name}: {comparison.rounds} rounds give no interval"
    ratio, interval = figures
    if verdict in ("faster", "slower"):
        return f"{ratio}x {verdict} than {name} {interval}"
    link = "tied with" if verdict == "tied" else "unresolved against"
    return f"{link} {name}, {ratio}x its time {interval}"


def _figures(comparison: Comparison) -> tuple[str, str] | None:
    """Ratio and interval with the digits that the interval's width leaves; None without a finite interval.

    ``faster`` is told by the other's time over its own, so that both directions read as a number above 1.
    """
    ratio, low, high = comparison.ratio, comparison.low, comparison.high
    if low <= 0 or math.isinf(high):
        return None
    if comparison.verdict == "faster":
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    width = max(high - low, 1e-3)
    # Half of the width is the noise: it shows in the last digit; but no end is written as 0, nor as 1.
    decimals = min(3, max(0, math.ceil(-math.log10(width / 2))))
    while decimals < 3 and any(
        end != (plain := float(f"{end:.{decimals}f}")) and plain in (0, 1) for end in (low, high)
    ):
        decimals += 1
    return f"{ratio:.{decimals}f}", f"[{low:.{decimals}f}, {high:.{decimals}f}]"


def printable(text: str) -> str:
    """One line without control characters, which XML cannot hold and a label cannot show."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)
