"""Does a run of ten thousand measurements keep memory flat, and is its report there in ten seconds?

``python tests/benchmarks/scale.py``

First a hundred tiny cells really run, each in a process of its own: the sweep's resident memory at the tenth and at the
last. Then a synthetic run folder (2,000 workloads of five implementations, 80 rounds each) is read as a resumed sweep
does, which has nothing left to do, and is rendered: seconds, sizes and resident memory of each step.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from pathlib import Path

import click
import psutil

from harness.children import Children, Died, Task
from harness.measurement.cell import Settings
from harness.measurement.environment import describe_environment
from harness.measurement.sweep import run_sweep
from harness.records import FORMAT_VERSION, ImplementationInfo, Measurement, RunFolder, RunInfo, Samples, Workload
from harness.registry import load_registry, select
from reports import render

NAMES = ("document", "einsum", "sdpa", "torch_mha", "torch_mha_weights")
ROUNDS = 80
TINY_CELLS = 100
MIB = 1024**2


def workloads() -> tuple[Workload, ...]:
    """2,000 of them."""
    axes = itertools.product(
        (1, 2, 4, 8, 16),
        [2**power * factor for power in range(6, 11) for factor in (2, 3)],
        ("none", "causal", "causal_mask", "padding", "padding_causal"),
        ("float32", "bfloat16"),
        ("inference", "training"),
        (1, 2),
    )
    return tuple(
        Workload(
            label="synthetic",
            batch_size=batch_size,
            seq_len=seq_len,
            d_model=512,
            num_heads=8,
            dtype=dtype,
            mask=mask,
            mode=mode,
            threads=threads,
            padded_share=0.25 if mask.startswith("padding") else 0.0,
        )
        for batch_size, seq_len, mask, dtype, mode, threads in axes
    )


def measurement(workload: Workload, name: str, rng: random.Random) -> Measurement:
    """Times around what the shape suggests."""
    middle = 1e-9 * workload.batch_size * workload.seq_len**1.5 * (1 + NAMES.index(name) / 10)
    wall_s = tuple(middle * rng.lognormvariate(0.0, 0.03) for _ in range(ROUNDS))
    samples = Samples(round=tuple(range(ROUNDS)), wall_s=wall_s, cpu_s=wall_s, involuntary_switches=(0,) * ROUNDS)
    return Measurement(
        implementation=name,
        workload=workload,
        status="measured",
        samples=samples,
        repeats=1,
        looks=2,
        pairs=10,
        peak_bytes=workload.seq_len * 4096,
        flops=10**9,
        kernels=("aten::bmm",),
    )


def run_info(planned: tuple[Workload, ...]) -> RunInfo:
    """Of a run that plans these."""
    described = [
        ImplementationInfo(
            name=name,
            summary="synthetic",
            source="synthetic",
            origin="synthetic",
            dtypes=("float32", "bfloat16"),
            devices=("cpu",),
            mask_kinds=("none",),
            gradients=True,
            fully_masked_row="zero",
            memory_growth="O(S)",
        )
        for name in NAMES
    ]
    return RunInfo(
        format_version=FORMAT_VERSION,
        run_id="synthetic",
        created="2026-01-01T00:00:00+00:00",
        command="mha bench",
        preset="synthetic",
        baseline="sdpa",
        resolution=0.02,
        seed=0,
        environment=describe_environment(),
        implementations=tuple(described),
        workloads=planned,
    )


def write(folder: Path) -> int:
    """The run folder; gives the number of measurements."""
    planned, rng = workloads(), random.Random(0)
    run = RunFolder(folder)
    run.create(run_info(planned))
    for workload, name in itertools.product(planned, NAMES):
        run.append(measurement(workload, name, rng))
    return len(planned) * len(NAMES)


def resident_mib() -> float:
    """Of this process."""
    return psutil.Process().memory_info().rss / MIB


def resume(folder: Path) -> tuple[float, float, float]:
    """Seconds of a sweep that finds everything done, and resident MiB before and after."""
    run = RunFolder(folder)
    registered = select(load_registry(), NAMES)
    planned = run.info().workloads
    before, begin = resident_mib(), time.perf_counter()
    run_sweep(run, planned, registered, (), Settings(cell_seconds=1.0), lambda *_: (), lambda *_: None)
    return time.perf_counter() - begin, before, resident_mib()


def run_cells(folder: Path) -> tuple[float, float]:
    """Resident MiB of a sweep at its tenth cell and at its last."""
    planned = tuple(
        Workload(
            label="tiny",
            batch_size=1,
            seq_len=seq_len,
            d_model=16,
            num_heads=2,
            dtype="float32",
            mask="causal",
            mode="inference",
        )
        for seq_len in range(1, TINY_CELLS + 1)
    )
    run = RunFolder(folder)
    run.create(run_info(planned))
    seen: list[float] = []
    settings = Settings(cell_seconds=0.05, max_rounds=9)
    registered = select(load_registry(), ("sdpa", "einsum"))
    run_sweep(run, planned, registered, (), settings, lambda *_: (), lambda *_: seen.append(resident_mib()))
    return seen[10], seen[-1]


def rendered(folder: Path, out: Path) -> tuple[float, float]:
    """Seconds from a fresh process's start of work to the report, and its resident MiB."""
    begin = time.perf_counter()
    render(folder, out)
    return time.perf_counter() - begin, resident_mib()


def in_a_fresh_process(function: object, *arguments: object) -> tuple[float, ...]:
    """What a function gives in a process of its own."""
    with Children(workers=1) as children:
        result = children.run(Task(function, arguments, 600.0))  # type: ignore[arg-type]
    if isinstance(result, Died):
        raise click.ClickException(result.reason)
    return result


@click.command()
def main() -> None:
    """Print seconds and memory."""
    with tempfile.TemporaryDirectory(prefix="mha-scale-") as root:
        tenth, last = run_cells(Path(root) / "cells")
        click.echo(f"a sweep of {TINY_CELLS} cells: resident {tenth:.0f} MiB at the tenth, {last:.0f} at the last")
        folder, out = Path(root) / "run", Path(root) / "report"
        count = write(folder)
        size = (folder / "measurements.jsonl").stat().st_size / MIB
        click.echo(f"{count:,} measurements of {len(workloads()):,} workloads, {size:.0f} MiB")
        seconds, before, after = in_a_fresh_process(resume, folder)
        click.echo(f"a resumed sweep with nothing to do: {seconds:.1f} s, resident {before:.0f} to {after:.0f} MiB")
        seconds, after = in_a_fresh_process(rendered, folder, out)
        html = (out / "report.html").stat().st_size / MIB
        click.echo(f"its report: {seconds:.1f} s, {html:.1f} MiB of HTML, resident {after:.0f} MiB")


if __name__ == "__main__":
    main()
