"""Is peak memory the same to the byte in another process, and that of the scores what it must be?

``python tests/benchmarks/memory_to_the_byte.py``

Attention alone is measured twice, in two fresh processes, for every implementation that is a function, in every pass.
And where scores are materialised, their size is known: einsum in inference without a mask holds at its peak the
(B, H, S, S) scores and their softmax, and a scaled copy of q.
"""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from harness.children import Children, Died, Task
from harness.measurement.cell import CellTask, Settings, measure_cell
from harness.measurement.limits import usable_cores
from harness.records import Measurement, Workload
from harness.registry import load_registry

LENGTHS = (256, 512, 1024)
FIGURES = ("peak_bytes", "output_bytes", "saved_bytes", "workspace_bytes")
SETTINGS = Settings(cell_seconds=0.1, max_rounds=9)


def workload(seq_len: int, mode: str) -> Workload:
    """B 1, H 8, d_k 64, float32, no mask."""
    return Workload(
        label="memory",
        batch_size=1,
        seq_len=seq_len,
        d_model=512,
        num_heads=8,
        dtype="float32",
        mask="none",
        mode=mode,  # type: ignore[arg-type]  # pydantic checks it
        scope="attention",
        threads=usable_cores(),
    )


def measured(given: Workload, names: tuple[str, ...]) -> dict[str, Measurement]:
    """Every implementation's figures, in a fresh process."""
    with Children(workers=1) as children:
        result = children.run(Task(measure_cell, (CellTask(given, names, (), SETTINGS),), 600.0))
    if isinstance(result, Died):
        raise click.ClickException(result.reason)
    return {each.implementation: each for each in result.measurements if each.status == "measured"}


@click.command()
def main() -> None:
    """Print figures of two processes side by side, and the scores'."""
    names = tuple(name for name, each in load_registry().items() if each.implementation.attend is not None)
    table = Table(
        "S", "pass", "implementation", "peak", "output", "saved", "workspace", "second process", "peak / scores"
    )
    same = total = 0
    for seq_len in LENGTHS:
        scores = 8 * seq_len**2 * 4
        for mode in ("inference", "forward", "training"):
            one, other = (measured(workload(seq_len, mode), names) for _ in range(2))
            for name, first in one.items():
                figures = [getattr(first, figure) for figure in FIGURES]
                again = [getattr(other[name], figure) for figure in FIGURES]
                total, same = total + 1, same + (figures == again)
                verdict = "equal" if figures == again else f"{again}"
                as_known = figures[0] == 2 * scores + figures[1]  # a copy of q is as large as the output
                known = "2 scores and a q" if as_known else f"{figures[0] / scores:.2f} scores"
                table.add_row(str(seq_len), mode, name, *(f"{figure:,}" for figure in figures), verdict, known)
    screen = Console(width=140)
    screen.print(table)
    screen.print(f"{same} of {total} equal to the byte in two processes")


if __name__ == "__main__":
    main()
