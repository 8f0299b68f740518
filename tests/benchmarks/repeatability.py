"""Does a second run say the same? And what share of a run's measuring is spent inside timed blocks?

``python tests/benchmarks/repeatability.py`` runs the default preset twice, in two new folders, and compares; with
``--runs ONE OTHER`` it compares two runs that there are.

*Order.* Of every two implementations that both runs told apart on a workload (faster or slower, by the reports'
statistics), the faster one must be the same. *Intervals.* Each implementation's ratio to the baseline has an interval
in either run; the two should overlap. *Overhead.* The measuring phase is all that happens in cells: timed blocks, the
rest of the rounds, warm-up, answers held against the oracle, memory. Verification by the suite comes before it.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from harness.records import Measurement, RunFolder, RunInfo, Samples
from harness.statistics import Comparison, compare

MEASURING = ("timed", "warm-up", "answers", "memory", "rest")
"""Phases of a sweep's cells."""


def run_default(folder: Path, preset: str) -> None:
    """Run a preset as a user would."""
    command = [sys.executable, "-c", "from harness.cli import main; main()", "bench", "--preset", preset]
    subprocess.run([*command, "--output", str(folder)], check=False)


def cells(folder: RunFolder) -> dict[str, dict[str, Measurement]]:
    """What has a time, by workload and implementation."""
    found: dict[str, dict[str, Measurement]] = {}
    for measurement in folder.each_measurement():
        if measurement.samples is not None:
            found.setdefault(measurement.workload.key, {})[measurement.implementation] = measurement
    return found


def held(cell: Mapping[str, Measurement], first: str, second: str, info: RunInfo) -> Comparison:
    """One implementation against another, as the reports hold them."""
    one, other = cell[first], cell[second]
    return compare(
        samples_of(one),
        samples_of(other),
        looks=one.looks or 1,
        pairs=one.pairs or 1,
        resolution=info.resolution,
    )


def samples_of(measurement: Measurement) -> Samples:
    """Those that `cells` made sure of."""
    assert measurement.samples is not None
    return measurement.samples


def report_order(runs: tuple[RunFolder, RunFolder]) -> None:
    """Print how the orders of two runs agree."""
    one, other = (cells(run) for run in runs)
    infos = [run.info() for run in runs]
    counts: Counter[str] = Counter()
    for key in one.keys() & other.keys():
        for first, second in itertools.combinations(sorted(one[key].keys() & other[key].keys()), 2):
            verdicts = [
                held(cell[key], first, second, info).verdict for cell, info in zip((one, other), infos, strict=True)
            ]
            told = [verdict for verdict in verdicts if verdict in ("faster", "slower")]
            counts["told apart by neither" if not told else "by one" if len(told) == 1 else "by both"] += 1
            if len(told) == 2 and told[0] != told[1]:
                counts["reversed"] += 1
                click.echo(f"reversed: {key}: {first} against {second}: {told[0]}, then {told[1]}")
    click.echo(
        f"pairs of implementations on a workload: {counts.total() - counts['reversed']}; told apart by both runs "
        f"{counts['by both']}, by one {counts['by one']}, by neither {counts['told apart by neither']}; "
        f"in reversed order {counts['reversed']}"
    )


def report_overlap(runs: tuple[RunFolder, RunFolder]) -> None:
    """Print how many intervals of two runs overlap."""
    one, other = (cells(run) for run in runs)
    infos = [run.info() for run in runs]
    overlapping = total = 0
    for key in one.keys() & other.keys():
        for name in sorted(one[key].keys() & other[key].keys()):
            baseline = infos[0].baseline
            if name == baseline or baseline not in one[key] or baseline not in other[key]:
                continue
            first, second = (
                held(cell[key], name, baseline, info) for cell, info in zip((one, other), infos, strict=True)
            )
            total += 1
            if first.low <= second.high and second.low <= first.high:
                overlapping += 1
            else:
                click.echo(
                    f"apart: {key}: {name}: [{first.low:.3f}, {first.high:.3f}], then "
                    f"[{second.low:.3f}, {second.high:.3f}] ({first.rounds} and {second.rounds} rounds)"
                )
    click.echo(
        f"intervals of the ratio to {infos[0].baseline}: {overlapping} of {total} overlap ({overlapping / total:.0%})"
    )


def blocks_s(run: RunFolder) -> float:
    """Seconds inside of timed blocks."""
    return sum(
        sum(measurement.samples.wall_s) * (measurement.repeats or 1)
        for measurement in run.each_measurement()
        if measurement.samples is not None
    )


def report_overhead(run: RunFolder) -> None:
    """Print where the measuring phase went."""
    phases = run.info().phases_s
    total = sum(phases.get(phase, 0.0) for phase in MEASURING)
    inside = blocks_s(run)
    parts = [("inside timed blocks", inside), ("between them", phases.get("timed", 0.0) - inside)]
    parts += [(phase, phases.get(phase, 0.0)) for phase in MEASURING if phase != "timed"]
    shares = ", ".join(f"{name} {seconds / total:.1%}" for name, seconds in parts)
    click.echo(f"{run.path}: measuring took {total:.0f} s: {shares}")


@click.command()
@click.option("--runs", nargs=2, type=click.Path(path_type=Path), help="Compare these instead of running.")
@click.option("--preset", default="default", show_default=True)
def main(runs: tuple[Path, Path] | None, preset: str) -> None:
    """Run twice, and print order, overlap and overhead."""
    for pair in _pairs(runs, preset):
        report_order(pair)
        report_overlap(pair)
        for run in pair:
            report_overhead(run)


def _pairs(runs: tuple[Path, Path] | None, preset: str) -> Iterator[tuple[RunFolder, RunFolder]]:
    if runs:
        yield RunFolder(runs[0]), RunFolder(runs[1])
        return
    with tempfile.TemporaryDirectory(prefix="mha-repeatability-") as root:
        folders = (Path(root) / "one", Path(root) / "other")
        for folder in folders:
            run_default(folder, preset)
        yield RunFolder(folders[0]), RunFolder(folders[1])


if __name__ == "__main__":
    main()
