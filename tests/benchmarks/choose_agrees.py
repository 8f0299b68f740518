"""Does ``mha choose`` say of one workload what a sweep says of it?

``python tests/benchmarks/choose_agrees.py`` runs the preset ``models``, then chooses for each of its workloads anew;
with ``--run FOLDER`` the sweep is one that there is.

The two agree on a workload if the one that is recommended belongs to the sweep's first group, or if the sweep itself
could not tell. Where they do not, both are printed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click

from harness.records import Workload
from reports.choice import choose
from reports.frames import read
from reports.judgement import Verdict, judge

SHAPE = ("batch_size", "seq_len", "d_model", "num_heads", "mask", "dtype", "scope", "device", "threads")


def run(*words: str) -> None:
    """One command of ours in a process of its own, as a user would run it."""
    command = [sys.executable, "-c", "from harness.cli import main; main()", *words]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def options(workload: Workload) -> list[str]:
    """The workload as `mha choose` takes it."""
    words = [f"--{name.replace('_', '-')}={getattr(workload, name)}" for name in SHAPE]
    words += [f"--padded-share={workload.padded_share}"] if workload.padded_share else []
    return [*words, f"--pass={workload.mode}"]


def agreement(verdict: Verdict, recommended: str) -> str:
    """How a recommendation stands to a sweep's verdict."""
    if verdict.outcome == "unresolved":
        return "the sweep could not tell"
    return "agree" if recommended in verdict.best else "differ"


@click.command()
@click.option("--run", "sweep", type=click.Path(path_type=Path), help="A run of the preset; a new one by default.")
@click.option("--seconds", default=10.0, show_default=True, help="Of each choice's rounds.")
def main(sweep: Path | None, seconds: float) -> None:
    """Print for each workload whether the two agree, and the counts."""
    with tempfile.TemporaryDirectory(prefix="mha-agreement-") as scratch:
        if sweep is None:
            sweep = Path(scratch) / "sweep"
            run("bench", "--preset", "models", "--output", str(sweep))
        counts: Counter[str] = Counter()
        for number, verdict in enumerate(judge(read(sweep)).verdicts):
            folder = Path(scratch) / f"choice-{number}"
            run("choose", *options(verdict.workload), f"--seconds={seconds}", "--output", str(folder))
            recommended = choose(folder).recommended
            how = agreement(verdict, recommended)
            counts[how] += 1
            click.echo(f"{how}: {verdict.line()}; chosen: {recommended}")
    click.echo(", ".join(f"{how} {count}" for how, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
