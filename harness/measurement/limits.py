"""What this process may use: cores and memory, with affinity and control groups (containers) taken into account."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Physical cores that this process may run on, at least 1: its affinity and a container's quota respected."""
    cores = len({_core_of(cpu) for cpu in allowed_cpus()})
    physical = psutil.cpu_count(logical=False) or cores
    return max(1, min(cores, physical, *_cpu_quotas()))


def allowed_cpus() -> set[int]:
    """Logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core_of(cpu: int) -> tuple[str, ...]:
    """Identity of the physical core behind a logical one; the logical one's own where the system tells nothing."""
    topology = _CPUS / f"cpu{cpu}" / "topology"
    try:
        return tuple((topology / name).read_text() for name in ("physical_package_id", "core_id"))
    except OSError:
        return (str(cpu),)


def free_memory_bytes(root: Path = _CGROUP_ROOT, listing: Path = _OWN_CGROUPS) -> int:
    """Bytes that can be allocated without swapping, or without hitting a control group's limit where that is less.

    Args:
        root: where control groups are mounted.
        listing: file that names the groups this process is in.
    """
    return min(int(psutil.virtual_memory().available), *_memory_headrooms(root, listing))


def _memory_headrooms(root: Path, listing: Path) -> Iterator[int]:
    for group in _groups(root, listing, "memory"):
        for limit, usage, cache in (
            ("memory.max", "memory.current", "inactive_file"),  # version 2
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
        ):
            allowed, used = _number(group / limit), _number(group / usage)
            if allowed is not None and used is not None:
                yield max(0, allowed - used + _statistic(group / "memory.stat", cache))
    yield 1 << 62  # no limit at all


def _cpu_quotas() -> Iterator[int]:
    for group in _groups(_CGROUP_ROOT, _OWN_CGROUPS, "cpu"):
        path = group / "cpu.max"  # "QUOTA PERIOD", in microseconds
        quota, _, period = path.read_text().partition(" ") if path.exists() else ("max", "", "")
        if quota != "max":
            yield max(1, int(quota) // int(period))
    yield 1 << 30


def _groups(root: Path, listing: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's groups and their ancestors: the tightest limit of all of them holds."""
    for line in listing.read_text().splitlines() if listing.exists() else ():
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            mount = root
        elif controller in controllers.split(","):
            mount = root / controller
        else:
            continue
        group = mount / name.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder == mount or mount in folder.parents)


def _number(path: Path) -> int | None:
    text = path.read_text().strip() if path.exists() else "max"
    return None if text == "max" else int(text)


def _statistic(path: Path, name: str) -> int:
    """A line "NAME VALUE" of a statistics file; 0 if it is missing."""
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)
