"""Describes the machine and the software that a run's figures hold for."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import psutil
import torch

from harness.measurement.limits import allowed_cpus, usable_cores
from harness.records import Environment

_PACKAGES = ("torch", "xformers", "triton", "numpy", "scipy")
_CHECKOUT = Path(__file__).resolve().parents[2]


def describe_environment() -> Environment:
    """Machine, software, and what else was running."""
    processor, cores, system = _processor(), usable_cores(), f"{platform.system()} {platform.release()}"
    torch_config = _torch_config()
    return Environment(
        machine_id=_short_hash(processor, cores, system, torch.__version__, torch.__config__.show()),
        processor=processor,
        cores=cores,
        affinity=describe_cpus(allowed_cpus()),
        memory_bytes=psutil.virtual_memory().total,
        system=system,
        python=platform.python_version(),
        packages={name: _version(name) for name in _PACKAGES},
        torch_config=torch_config,
        accelerator=torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        commit=commit_of(_CHECKOUT),
        busy_cores=round(cores_kept_busy(), 2),
    )


def cores_kept_busy(seconds: float = 0.5) -> float:
    """How many cores the machine's other processes keep busy while this one sleeps."""
    return psutil.cpu_percent(interval=seconds) / 100.0 * (psutil.cpu_count() or 1)


def describe_cpus(cpus: Iterable[int]) -> str:
    """Numbers of CPUs, runs of them as the system writes them: ``0-3,8``."""
    ordered = sorted(cpus)
    runs = [list(run) for _, run in groupby(enumerate(ordered), key=lambda each: each[1] - each[0])]
    ends = [(run[0][1], run[-1][1]) for run in runs]
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ends)


def _short_hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


def _processor() -> str:
    """The processor's trade name where the system tells it."""
    listing = Path("/proc/cpuinfo")
    text = listing.read_text(errors="replace") if listing.exists() else ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _torch_config() -> dict[str, str]:
    """BLAS, OpenMP and CPU capability as torch reports them, and what else decides which kernels run."""
    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    openmp = re.search(r"OpenMP\s+(\S+)", torch.__config__.parallel_info())
    return {
        "BLAS": blas[1] if blas else "",
        "OpenMP": openmp[1] if openmp else "",
        "CPU capability": torch.backends.cpu.get_cpu_capability(),
        "oneDNN": "on" if "USE_MKLDNN=1" in torch.__config__.show() else "off",
        "CUDA": torch.version.cuda or "",
        "float32 matmul precision": torch.get_float32_matmul_precision(),
    }


def commit_of(checkout: Path) -> str:
    """Commit of a checkout, with ``+changes`` when it is not clean; empty where there is no repository or no git."""
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return ""

    def ask(*arguments: str) -> str:
        # The environment is passed on without git's own variables, which a hook sets and which name another repository.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        answer = subprocess.run(  # noqa: S603 - fixed arguments, and git's own full path
            [git, "-C", str(checkout), *arguments], capture_output=True, text=True, check=False, env=environment
        )
        return answer.stdout.strip()

    commit = ask("rev-parse", "--short=12", "HEAD")
    return commit + ("+changes" if commit and ask("status", "--porcelain") else "")
