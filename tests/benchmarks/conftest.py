"""The harness's own samples, played back into pytest-benchmark.

pytest-benchmark times one callable at a time, one after the other, and noise that comes and goes is then taken for a
difference. So the harness measures a workload's implementations side by side, and a timer plays its samples back: the
tables, groups, JSON, ``--benchmark-compare`` and histograms are pytest-benchmark's, the rounds are the harness's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from harness.children import Children, Died, Task
from harness.errors import UserError
from harness.measurement.cell import CellTask, Settings, measure_cell
from harness.measurement.presets import load_preset
from harness.measurement.sweep import timeout_s
from harness.plugins import load_with_plugins
from harness.records import Measurement, Workload

BASELINE = "sdpa"
RESOLUTION = 0.02


def pytest_addoption(parser: pytest.Parser) -> None:
    """What is measured; a user's own files come by ``--mha-plugin``, an option of the installed pytest plugin."""
    group = parser.getgroup("multi-head attention")
    group.addoption("--mha-preset", default="quick", help="Preset, or a TOML file; quick by default.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Benchmarks take minutes: they run where benchmarks are asked for, and nowhere else."""
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in mine:
        item.add_marker(pytest.mark.timeout(0))  # a cell has a time-out of its own
        if not config.getoption("--benchmark-only", default=False):
            item.add_marker(pytest.mark.skip(reason="runs with --benchmark-only"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """An item for each workload and implementation."""
    config = metafunc.config
    if "measurement" not in metafunc.fixturenames:
        return
    try:
        preset = load_preset(config.getoption("--mha-preset", default="quick"))
        plugins = tuple(Path(path).resolve() for path in config.getoption("mha_plugin"))
        names = tuple(load_with_plugins(plugins))
    except UserError as error:
        raise pytest.UsageError(str(error)) from None
    settings = Settings(cell_seconds=preset.cell_seconds, max_rounds=preset.max_rounds, resolution=RESOLUTION)
    items = [
        pytest.param(CellTask(workload, names, plugins, settings), name, id=f"{name}-{workload.key}")
        for workload in preset.workloads()
        for name in names
    ]
    metafunc.parametrize(("cell", "name"), items)


@cache
def _measured(cell: CellTask) -> dict[str, Measurement] | Died:
    """All implementations of a workload, side by side, in a process of their own."""
    with Children(workers=1) as children:
        result = children.run(Task(measure_cell, (cell,), timeout_s(cell.workload, cell.settings)))
    return result if isinstance(result, Died) else {each.implementation: each for each in result.measurements}


class Replay:
    """A timer that plays samples back: each pair of readings is as far apart as the next sample says."""

    __name__ = "replay"

    def __init__(self, samples_s: Sequence[float]) -> None:
        self._readings = iter([reading for sample in samples_s for reading in (0.0, sample)])

    def __call__(self) -> float:
        return next(self._readings)


@pytest.fixture
def measurement(cell: CellTask, name: str, request: pytest.FixtureRequest) -> Measurement:
    """What the harness measured; this item's timer plays it back.

    It has to be asked for before ``benchmark``, which reads its timer from the marker when it is made.
    """
    found = _measured(cell)
    if isinstance(found, Died):
        pytest.fail(f"the cell's process gave no result: {found.reason}")
    mine = found[name]
    if mine.status in ("unsupported", "unavailable", "skipped"):
        pytest.skip("; ".join(mine.reasons))
    if mine.samples is None:
        pytest.fail(f"{mine.status}: {'; '.join(mine.reasons)}")
    marker = pytest.mark.benchmark(group=_title(cell.workload), timer=Replay(mine.samples.wall_s))
    request.node.add_marker(marker)
    return mine


def _title(workload: Workload) -> str:
    return f"{workload.label} {workload.key}"
