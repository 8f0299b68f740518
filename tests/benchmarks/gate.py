"""Can a gate be trusted? Alarms on identical code, and what share of true regressions of 5 % it catches.

``python tests/benchmarks/gate.py``

Two files with one implementation go through what ``mha compare --old --new`` does: three fresh processes, in each of
them rounds side by side, and a regression only if all of them say so. First they are identical; then the new one makes
21 calls where the old one makes 20. Beside it, on the same files, what pytest-benchmark's documentation tells a CI to
do: the old one in a process, later the new one in another, each with the default options, and
``--benchmark-compare-fail=median:5%`` on the two.

The first half of the comparisons has the machine to itself, the second half runs beside a process that keeps a core
busy. The whole takes two hours; with ``--log FILE`` every verdict is kept there as it falls, and a study that was
interrupted goes on from it.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from false_verdicts import by_its_fixture
from pytest_benchmark.utils import parse_compare_fail
from rich.console import Console
from rich.progress import track
from rich.table import Table
from trials import MAX_ROUNDS, attention_of, neighbour, workload

from harness.children import Children, Died, Task
from harness.measurement.cell import CellResult, CellTask, Settings, measure_cell
from harness.registry import Version
from harness.statistics import compare
from reports.comparison import change_of
from reports.versions import hull

PROCESSES = 3
THRESHOLD = 0.02
RIVAL_S = 1.0
"""What pytest-benchmark gives a benchmark by default."""
FILE = """
import torch.nn.functional as F

def attend(q, k, v, mask=None, *, is_causal=False):
    for _ in range({calls}):
        y = F.scaled_dot_product_attention(q, k, v, None if mask is None else ~mask, is_causal=is_causal)
    return y
"""
SMALL = {"seq_len": 64, "d_model": 256}
"""A call's twenty repetitions take about a millisecond."""
CALLS = {"5 % slower": 21, "identical": 20}
"""How many calls the new one makes where the old one makes 20."""


@dataclass(frozen=True)
class Trial:
    """One comparison by both gates."""

    busy: bool
    code: str
    seed: int
    seconds: float
    threads: int


def ours(old: Path, new: Path, seconds: float, threads: int, seed: int) -> str:
    """The verdict of several fresh processes."""
    versions = (Version(old, "old"), Version(new, "new"))
    names = tuple(version.named(version.path.stem) for version in versions)
    held = []
    for number in range(PROCESSES):
        settings = Settings(seconds, MAX_ROUNDS, THRESHOLD, PROCESSES * seed + number, names[0])
        cell = _in_a_fresh_process(CellTask(workload(threads, **SMALL, scope="attention"), names, versions, settings))
        first, second = (each.samples for each in cell.measurements)
        assert first is not None
        assert second is not None, "both were measured"
        looks = cell.measurements[0].looks or 1
        held.append(compare(second, first, looks=looks, pairs=1, resolution=THRESHOLD))
    return change_of(*hull(held), THRESHOLD)


def _in_a_fresh_process(task: CellTask) -> CellResult:
    with Children(workers=1) as children:
        outcome = children.run(Task(measure_cell, (task,), 300.0))
    assert not isinstance(outcome, Died), outcome
    return outcome


def pytest_benchmark(old: Path, new: Path, threads: int) -> str:
    """A fixed threshold on medians of one process after the other."""
    medians = []
    for file in (old, new):
        with Children(workers=1) as children:
            median = children.run(Task(_median_of, (file, threads), 300.0))
        assert not isinstance(median, Died), median
        medians.append(median)
    before, after = ({"median": median} for median in medians)
    return "regressed" if parse_compare_fail("median:5%").fails(after, before) else "unchanged"


def _median_of(file: Path, threads: int) -> float:
    return by_its_fixture(attention_of(file, workload(threads, **SMALL, scope="attention")), RIVAL_S)


def study(trials: list[Trial], log: Path) -> list[tuple[Trial, str, str]]:
    """Both gates' verdicts on each trial; those that the log holds are not made again."""
    made: dict[Trial, tuple[str, str]] = {}
    if log.exists():
        for line in log.read_text(encoding="utf-8").splitlines():
            held = json.loads(line)
            made[Trial(**held["trial"])] = held["ours"], held["rival"]
    with tempfile.TemporaryDirectory() as scratch, log.open("a", encoding="utf-8") as file:
        old = write(Path(scratch) / "before.py", 20)
        new = {code: write(Path(scratch) / f"after_{calls}.py", calls) for code, calls in CALLS.items()}
        for busy, those in itertools.groupby(track(trials, "comparing"), key=lambda trial: trial.busy):
            with ExitStack() as beside:
                for number, trial in enumerate(each for each in those if each not in made):
                    if number == 0:
                        beside.enter_context(neighbour(busy=busy))
                    verdicts = (
                        ours(old, new[trial.code], trial.seconds, trial.threads, trial.seed),
                        pytest_benchmark(old, new[trial.code], trial.threads),
                    )
                    made[trial] = verdicts
                    file.write(json.dumps({"trial": asdict(trial), "ours": verdicts[0], "rival": verdicts[1]}) + "\n")
                    file.flush()
    return [(trial, *made[trial]) for trial in trials]


def write(file: Path, calls: int) -> Path:
    """An implementation that makes so many calls."""
    file.write_text(FILE.format(calls=calls), encoding="utf-8")
    return file


@click.command()
@click.option("--comparisons", default=500, show_default=True, help="Of identical code: half quietly, half not.")
@click.option("--regressions", default=120, show_default=True, help="True ones of 5 %: half quietly, half not.")
@click.option("--seconds", default=3.2, show_default=True, help="Of timed rounds in a process.")
@click.option("--threads", default=1, show_default=True)
@click.option("--log", type=click.Path(path_type=Path, dir_okay=False), help="Keep verdicts here, and go on from them.")
def main(comparisons: int, regressions: int, seconds: float, threads: int, log: Path | None) -> None:
    """Print how often each gate raises an alarm, on identical code and on true regressions."""
    numbers = {"5 % slower": regressions // 2, "identical": comparisons // 2}
    trials = [
        Trial(busy, code, seed, seconds, threads)
        for busy in (False, True)
        for code, number in numbers.items()
        for seed in range(number)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        verdicts = study(trials, log or Path(scratch) / "log")
    counts: dict[tuple[str, str, bool], Counter[str]] = {}
    for trial, harness, rival in verdicts:
        for gate, verdict in (("mha compare", harness), ("pytest-benchmark, median:5%", rival)):
            counts.setdefault((gate, trial.code, trial.busy), Counter())[verdict] += 1
    table = Table("gate", "code", "neighbour", "alarms", "of", "unchanged", "unresolved", "improved")
    for (gate, code, busy), found in sorted(counts.items()):
        others = (str(found[change]) for change in ("unchanged", "unresolved", "improved"))
        table.add_row(gate, code, "a hog" if busy else "none", str(found["regressed"]), str(found.total()), *others)
    screen = Console(width=120)
    screen.print(table)
    screen.print(f"{seconds:g} s a process, {threads} thread(s)")


if __name__ == "__main__":
    main()
