"""Two versions of one file, timed side by side in several fresh processes: what did a change do?

One process is not enough. Where the two versions' code and data happen to lie in it favours one of them by a percent
or so, in all rounds alike, and no interval from that process shows it. So each process is a run of its own, and a
verdict needs all of them (`reports.versions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from harness import bench
from harness.bench import Advance, Bench, Request
from harness.errors import UserError
from harness.measurement.presets import Preset
from harness.plugins import load_with_plugins
from harness.records import BAD_CHECK_STATUSES, CheckRecord
from harness.registry import Registry, Version

OLD, NEW = "old", "new"
LEAST_PROCESSES = 3


@dataclass(frozen=True)
class Pair:
    """Two versions of one implementation."""

    name: str
    """Of the implementation."""
    old: str
    """The name under which the old version is registered."""
    new: str


@dataclass(frozen=True)
class VersionsRequest:
    """What a comparison of two versions is asked to do."""

    old: Path
    new: Path
    names: tuple[str, ...]
    """Implementations; empty means all that both files have."""
    preset_name: str
    preset: Preset
    threshold: float
    processes: int
    seed: int
    command: str


@dataclass(frozen=True)
class VersionRuns:
    """The runs of a comparison, one for each process."""

    pairs: tuple[Pair, ...]
    runs: tuple[Bench, ...]

    def verify(self, advance: Advance) -> None:
        """Verify both versions once; every run gets the checks."""
        first, *others = self.runs
        first.verify(advance)
        checks = first.folder.checks()
        for run in others:
            for record in checks:
                run.folder.append(record)

    def failures(self) -> list[CheckRecord]:
        """Checks that the new version fails."""
        new = {pair.new for pair in self.pairs}
        checks = self.runs[0].folder.checks()
        return [each for each in checks if each.implementation in new and each.status in BAD_CHECK_STATUSES]


def begin(request: VersionsRequest, folder: Path, now: datetime) -> VersionRuns:
    """Start the runs of a comparison in ``folder/process-1``, ``folder/process-2``, ...

    Raises:
        UserError: a file cannot be imported, the two have nothing in common, or the folder holds runs already.
    """
    versions = (Version(request.old, OLD), Version(request.new, NEW))
    pairs = pair_up(load_with_plugins(versions), request.names)
    whole = Request(
        names=tuple(name for pair in pairs for name in (pair.old, pair.new)),
        plugins=versions,
        preset_name=request.preset_name,
        preset=request.preset,
        baseline=pairs[0].old,
        resolution=request.threshold,
        max_rounds=None,
        seed=request.seed,
        command=request.command,
    )
    numbers = range(request.processes)
    runs = [
        bench.begin(replace(whole, seed=request.seed + number), folder / f"process-{number + 1}", now)
        for number in numbers
    ]
    return VersionRuns(pairs, tuple(runs))


def pair_up(registry: Registry, names: Sequence[str]) -> tuple[Pair, ...]:
    """What the two files have in common; a single implementation in each is the same one, whatever it is called.

    Raises:
        UserError: a name is missing in one of the files, or they share none.
    """
    old, new = (_of_version(registry, label) for label in (OLD, NEW))
    if not names and len(old) == len(new) == 1:
        return (Pair(*new, *old.values(), *new.values()),)
    missing = [
        f"{name!r} in the {label} file" for name in names for label, has in ((OLD, old), (NEW, new)) if name not in has
    ]
    if missing:
        raise UserError(f"there is no {', no '.join(missing)}; old: {', '.join(old)}; new: {', '.join(new)}")
    shared = [name for name in names or old if name in new]
    if not shared:
        raise UserError(
            f"the two files have no implementation in common; old: {', '.join(old)}; new: {', '.join(new)}; give them "
            "the same name, or keep one in each file"
        )
    return tuple(Pair(name, old[name], new[name]) for name in shared)


def _of_version(registry: Registry, label: str) -> dict[str, str]:
    """Registered names by those that the file gives."""
    return {
        name.removesuffix(f"({label})"): name
        for name, registered in registry.items()
        if isinstance(registered.plugin, Version) and registered.plugin.label == label
    }
