"""How often are identical implementations called different? Ours beside three usual ways, in the same time.

``python tests/benchmarks/false_verdicts.py``

Each comparison holds two modules of one implementation, equal in everything, against each other, first quietly and then
with a process beside that keeps a core busy. All ways take turns, each with the same seconds. What "different" means
was fixed before anything ran:

- *interleaved rounds* (this harness): the verdict is faster or slower, at the default resolution;
- *Mann-Whitney*: one is timed after the other, and the test on their samples gives p < 0.01, the error rate of ours;
- *pytest-benchmark*: one is timed after the other by its fixture, and its own ``median:5%`` check, as
  ``--benchmark-compare-fail`` uses it, fails on the second against the first;
- *torch.utils.benchmark*: ``blocked_autorange`` of one after the other, and their medians differ when both are trimmed
  to the significant figures that the measurements themselves claim.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import click
from pytest_benchmark.fixture import BenchmarkFixture
from pytest_benchmark.utils import NameWrapper, parse_compare_fail
from rich.console import Console
from rich.table import Table
from scipy.stats import mannwhitneyu
from torch.utils.benchmark import Timer
from torch.utils.benchmark.utils.common import trim_sigfig
from trials import Call, attention, compared, neighbour, workload

SMALL = {"seq_len": 64, "d_model": 256}
"""Of the call: less than a block, so that as many rounds as possible fit into the time."""
BLOCK_S = 0.005
"""Of a sample for Mann-Whitney: as long as one of ours."""
P_VALUE = 0.01
Way = Callable[[Call, Call, float, int, int], str]


def interleaved(one: Call, other: Call, seconds: float, threads: int, seed: int) -> str:
    """This harness."""
    verdict = compared(one, other, seconds=seconds, resolution=0.02, threads=threads, seed=seed).verdict
    return "different" if verdict in ("faster", "slower") else verdict


def mann_whitney(one: Call, other: Call, seconds: float, _threads: int, _seed: int) -> str:
    """A rank test on samples taken one after the other."""
    samples = [_sampled(call, seconds / 2) for call in (one, other)]
    return "different" if mannwhitneyu(*samples).pvalue < P_VALUE else "not different"


def pytest_benchmark(one: Call, other: Call, seconds: float, _threads: int, _seed: int) -> str:
    """A fixed threshold on medians taken one after the other."""
    first, second = ({"median": by_its_fixture(call, seconds / 2)} for call in (one, other))
    return "different" if parse_compare_fail("median:5%").fails(second, first) else "not different"


def torch_benchmark(one: Call, other: Call, seconds: float, threads: int, _seed: int) -> str:
    """Medians one after the other, to the figures that are said to be significant."""
    taken = [
        Timer("call()", globals={"call": call}, num_threads=threads).blocked_autorange(min_run_time=seconds / 2)
        for call in (one, other)
    ]
    first, second = (trim_sigfig(each.median, each.significant_figures) for each in taken)
    return "different" if first != second else "not different"


def _sampled(call: Call, seconds: float) -> list[float]:
    """Seconds of one call, block after block."""
    begin = time.perf_counter()
    call()
    repeats = max(1, round(BLOCK_S / (time.perf_counter() - begin)))
    samples = []
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        samples.append((time.perf_counter() - start) / repeats)
    return samples


def by_its_fixture(call: Call, seconds: float) -> float:
    """The median that pytest-benchmark's fixture finds with its default options, in so many seconds."""
    silent = SimpleNamespace(debug=lambda *_, **__: None)
    fixture = BenchmarkFixture(
        node=SimpleNamespace(name="call", nodeid="call"),
        disable_gc=False,
        timer=NameWrapper(time.perf_counter),
        min_rounds=5,
        min_time=5e-6,
        max_time=seconds,
        precision=None,
        confidence=None,
        warmup=False,
        warmup_iterations=100_000,
        calibration_precision=10,
        add_stats=lambda _stats: None,
        logger=silent,
        warner=silent,
        disabled=False,
        cprofile=None,
        cprofile_loops=None,
        cprofile_dump=None,
    )
    fixture(call)
    return float(fixture.stats.stats.median)


WAYS: dict[str, Way] = {
    "interleaved rounds (ours)": interleaved,
    "Mann-Whitney, p < 0.01": mann_whitney,
    "pytest-benchmark, median:5%": pytest_benchmark,
    "torch.utils.benchmark": torch_benchmark,
}


@click.command()
@click.option("--comparisons", default=300, show_default=True, help="Of each way: half quietly, half beside a hog.")
@click.option("--seconds", default=3.2, show_default=True, help="Of a comparison, the same for every way.")
@click.option("--threads", default=1, show_default=True)
@click.option("--neighbour", "neighbours", type=click.Choice(["none", "hog"]), multiple=True, help="One half only.")
def main(comparisons: int, seconds: float, threads: int, neighbours: tuple[str, ...]) -> None:
    """Print for each way how many comparisons of equals were called different."""
    halves = [neighbour == "hog" for neighbour in neighbours or ("none", "hog")]
    counts: dict[tuple[str, bool], Counter[str]] = {(way, busy): Counter() for way in WAYS for busy in halves}
    begin = time.monotonic()
    for busy in halves:
        with neighbour(busy=busy):
            for number in range(comparisons // 2):
                one, other = attention(workload(threads, **SMALL)), attention(workload(threads, **SMALL))
                for name, way in WAYS.items():
                    counts[name, busy][way(one, other, seconds, threads, number)] += 1
    table = Table("way", "neighbour", "different", "tied", "unresolved", "not different")
    for (name, busy), found in counts.items():
        shares = [f"{found[what] / found.total():.1%}" for what in ("different", "tied", "unresolved", "not different")]
        table.add_row(name, "a hog" if busy else "none", *(share if share != "0.0%" else "0" for share in shares))
    screen = Console(width=120)
    screen.print(table)
    screen.print(
        f"{comparisons // 2} comparisons of equals in each row, {seconds:g} s each, {threads} thread(s), "
        f"{(time.monotonic() - begin) / 60:.0f} minutes"
    )


if __name__ == "__main__":
    main()
