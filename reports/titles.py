"""Names for workloads: only what differs within a run is repeated, what all share is said once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.records import Workload
from reports import text


@dataclass(frozen=True)
class Axis:
    """One property in which workloads may differ."""

    field: str
    """Field of `Workload`."""
    heading: str
    """Heading of its column."""
    words: Callable[[Workload], str]
    """Its value as part of a title."""
    always: bool = False
    """Whether a title names it even if all workloads share it."""
    number: bool = False


PASSES = {"inference": "inference", "forward": "forward with gradients", "training": "training"}
SCOPES = {"module": "whole module", "attention": "attention alone"}


def purpose(workload: Workload) -> str:
    """What somebody would do who has such a workload: the pass, and whether of attention alone."""
    return PASSES[workload.mode] + ("" if workload.scope == "module" else f" of {SCOPES[workload.scope]}")


AXES = (
    Axis("seq_len", "S", lambda w: f"S {w.seq_len}", always=True, number=True),
    Axis("mask", "mask", lambda w: w.mask if w.mask != "none" else "no mask", always=True),
    Axis("dtype", "dtype", lambda w: w.dtype, always=True),
    Axis("scope", "scope", lambda w: SCOPES[w.scope]),
    Axis("mode", "pass", lambda w: PASSES[w.mode], always=True),
    Axis("threads", "threads", lambda w: text.plural(w.threads, "thread"), always=True, number=True),
    Axis("batch_size", "B", lambda w: f"B {w.batch_size}", number=True),
    Axis("d_model", "d_model", lambda w: f"d_model {w.d_model}", number=True),
    Axis("num_heads", "heads", lambda w: text.plural(w.num_heads, "head"), number=True),
    Axis("device", "device", lambda w: w.device),
)


class Titles:
    """Titles of the workloads of one run."""

    def __init__(self, workloads: Iterable[Workload]) -> None:
        self._workloads = list(workloads)
        self.varying = tuple(axis for axis in AXES if len(self._values(axis)) > 1)
        """The axes in which the workloads differ."""

    def _values(self, axis: Axis) -> set[object]:
        return {getattr(workload, axis.field) for workload in self._workloads}

    @property
    def columns(self) -> tuple[Axis, ...]:
        """Axes that a table about workloads has a column for: S, and whatever differs."""
        return tuple(axis for axis in AXES if axis in self.varying or axis.field == "seq_len")

    def of(self, workload: Workload, *, leaving_out: tuple[str, ...] = ()) -> str:
        """E.g. ``S 2048, causal, float32, inference, 2 threads``."""
        return ", ".join(
            axis.words(workload)
            for axis in AXES
            if (axis.always or axis in self.varying) and axis.field not in leaving_out
        )

    def common(self) -> str:
        """What all workloads share, in words; empty without workloads."""
        if not self._workloads:
            return ""
        first = self._workloads[0]
        return ", ".join(axis.words(first) for axis in AXES if axis not in self.columns)

    def describe(self, some: Iterable[Workload]) -> str:
        """What only some of the workloads have in common: ``S 128 or 256; float32``; may be empty."""
        chosen = list(some)
        parts = []
        for axis in self.varying:
            words = {getattr(w, axis.field): axis.words(w) for w in chosen}
            if len(words) < len(self._values(axis)):
                parts.append(" or ".join(words[value] for value in sorted(words)))
        return "; ".join(parts)
