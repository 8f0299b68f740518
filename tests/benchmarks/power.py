"""How small a true difference is found, how surely, and is its direction ever wrong?

``python tests/benchmarks/power.py``

One does n times the work of the other's n + 1, so that the slowdown is known exactly: 3 % (33 and 34), 5 % (20 and 21),
20 % (5 and 6). Found is a verdict that names the slower one; wrong is one that names the other.
"""

from __future__ import annotations

import time
from statistics import median

import click
from rich.console import Console
from rich.table import Table
from trials import attention, compared, neighbour, repeated, workload

SLOWDOWNS = {"3 %": (33, 0.01), "5 %": (20, 0.02), "20 %": (5, 0.02)}
"""By name, the calls of the faster one, and the resolution that is asked for."""
SMALL = {"seq_len": 16, "d_model": 64}
"""So that tens of calls make one of a few milliseconds."""


@click.command()
@click.option("--trials", default=60, show_default=True, help="For each slowdown and neighbour.")
@click.option("--seconds", default=3.2, show_default=True, help="Of a trial.")
@click.option("--threads", default=1, show_default=True)
def main(trials: int, seconds: float, threads: int) -> None:
    """Print for each slowdown the share found, the share in the wrong direction, and the rounds it took."""
    begin = time.monotonic()
    table = Table("slowdown", "resolution", "neighbour", "found", "unresolved", "tied", "wrong direction", "rounds")
    for busy in (False, True):
        with neighbour(busy=busy):
            for name, (times, resolution) in SLOWDOWNS.items():
                held = []
                for number in range(trials):
                    slow, fast = (repeated(attention(workload(threads, **SMALL)), times + more) for more in (1, 0))
                    how = {"seconds": seconds, "resolution": resolution, "threads": threads, "seed": number}
                    held.append(compared(slow, fast, **how))
                shares = [
                    f"{sum(each.verdict == verdict for each in held) / trials:.0%}"
                    for verdict in ("slower", "unresolved", "tied", "faster")
                ]
                rounds = f"{median(each.rounds for each in held):.0f}"
                table.add_row(name, f"{resolution:.0%}", "a hog" if busy else "none", *shares, rounds)
    screen = Console(width=120)
    screen.print(table)
    screen.print(f"{trials} trials a row, {seconds:g} s each, {(time.monotonic() - begin) / 60:.0f} minutes")


if __name__ == "__main__":
    main()
