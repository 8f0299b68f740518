"""Would the tests notice if the verifier itself were wrong? Mutation testing of the error budget and the comparator.

``tox -e mutation`` (or ``python tests/benchmarks/mutate_checker.py``) lets Cosmic Ray change one operator, number,
comparison or statement at a time in a copy of the checkout, runs the tests below on each change, and prints the score
and every change that they did not notice. At most ``--sample`` changes are tried, drawn with ``--seed`` from all there
are; what only changes an annotation is no change, for annotations are never evaluated here.
"""

from __future__ import annotations

import ast
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem, WorkResult

CHECKOUT = Path(__file__).resolve().parents[2]
MODULES = ("harness/verification/rounding.py", "harness/verification/check.py")
"""The budget (simulated rounding and its spread), and what holds answers against it."""
TESTS = (
    "tests/harness/verification/test_rounding.py",
    "tests/harness/verification/test_oracle.py",
    "tests/harness/verification/fuzz/test_trial.py",
    "tests/harness/test_mutants.py",
    "tests/test_contract.py",
)
"""Quick ones first: the first failure ends the run."""
SELECTION = "not (test_contract or test_mutants) or (test_contract and sdpa) or accuracy"
"""Of these tests, those that the budget decides: one right implementation, and all faults of accuracy."""
TIMEOUT_S = 400.0
SESSION = "session.sqlite"


def copy_checkout(target: Path) -> Path:
    """The tracked files, as they are now, in a folder of their own."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (CHECKOUT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, target / name)
    return target


def prepare(folder: Path) -> None:
    """Write Cosmic Ray's configuration, and list all changes."""
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", SELECTION]
    command = shlex.join(["env", f"PYTHONPATH={folder}", *pytest, *TESTS])
    lines = [
        "[cosmic-ray]",
        f"module-path = {list(MODULES)}",
        f"timeout = {TIMEOUT_S}",
        "excluded-modules = []",
        f'test-command = "{command}"',
        "[cosmic-ray.distributor]",
        'name = "local"',
    ]
    (folder / "mutation.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    cosmic_ray(folder, "init", "mutation.toml", SESSION)


def cosmic_ray(folder: Path, *arguments: str) -> None:
    """Run one of its commands in a copy, to the end."""
    subprocess.run([*_COSMIC_RAY, *arguments], cwd=folder, check=True)


_COSMIC_RAY = (sys.executable, "-m", "cosmic_ray.cli")


def annotation_spans(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations begin and end, as (line, column)."""
    nodes: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            nodes.append(node.returns)
        elif isinstance(node, (ast.arg, ast.AnnAssign)):
            nodes.append(node.annotation)
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in nodes
        if node is not None
    ]


def is_a_change(item: WorkItem, spans: dict[str, list[tuple[tuple[int, int], tuple[int, int]]]]) -> bool:
    """Whether it changes what runs."""
    (mutation,) = item.mutations
    return not any(begin <= mutation.start_pos < end for begin, end in spans[str(mutation.module_path)])


def key(item: WorkItem) -> tuple[object, ...]:
    """What names a change in every copy."""
    (mutation,) = item.mutations
    return (str(mutation.module_path), mutation.operator_name, mutation.occurrence, str(mutation.operator_args))


def keep_only(folder: Path, chosen: set[tuple[object, ...]]) -> None:
    """Mark all other changes of a copy as skipped."""
    with use_db(str(folder / SESSION), mode=WorkDB.Mode.open) as database:
        for item in list(database.pending_work_items):
            if key(item) not in chosen:
                database.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))


def results(folder: Path) -> Iterator[tuple[WorkItem, WorkResult]]:
    """Every change that was tried, with what came of it."""
    with use_db(str(folder / SESSION), mode=WorkDB.Mode.open) as database:
        items = {item.job_id: item for item in database.work_items}
        for job_id, result in database.results:
            if result.worker_outcome != WorkerOutcome.SKIPPED:
                yield items[job_id], result


def draw(folder: Path, sample: int, seed: int) -> list[tuple[object, ...]]:
    """The changes to try."""
    spans = {module: annotation_spans((CHECKOUT / module).read_text(encoding="utf-8")) for module in MODULES}
    with use_db(str(folder / SESSION), mode=WorkDB.Mode.open) as database:
        everything = sorted(key(item) for item in database.pending_work_items if is_a_change(item, spans))
    click.echo(
        f"{len(everything)} changes to {' and '.join(MODULES)}, of which {min(sample, len(everything))} are tried"
    )
    return random.Random(seed).sample(everything, min(sample, len(everything)))


def run_all(folders: Sequence[Path]) -> None:
    """Try each copy's changes, the copies side by side."""
    running = [subprocess.Popen([*_COSMIC_RAY, "exec", "mutation.toml", SESSION], cwd=folder) for folder in folders]
    for process in running:
        process.wait()


@click.command()
@click.option("--sample", default=200, show_default=True, help="How many changes are tried.")
@click.option("--seed", default=0, show_default=True, help="Of the sample.")
@click.option("--jobs", default=2, show_default=True, help="Copies of the checkout that work side by side.")
def main(sample: int, seed: int, jobs: int) -> None:
    """Print the score, and the changes that no test noticed."""
    with tempfile.TemporaryDirectory(prefix="mha-mutation-") as root:
        folders = [copy_checkout(Path(root) / str(number)) for number in range(jobs)]
        for folder in folders:
            prepare(folder)
        cosmic_ray(folders[0], "baseline", "mutation.toml")  # unchanged code passes, or every change seems noticed
        chosen = draw(folders[0], sample, seed)
        for number, folder in enumerate(folders):
            keep_only(folder, set(chosen[number::jobs]))
        run_all(folders)
        tried = [result for folder in folders for result in results(folder)]
    survivors = [entry for entry in tried if entry[1].test_outcome == TestOutcome.SURVIVED]
    for item, result in survivors:
        (mutation,) = item.mutations
        click.echo(f"\nsurvives: {mutation.module_path}:{mutation.start_pos[0]} {mutation.operator_name}")
        click.echo(result.diff or "")
    noticed = len(tried) - len(survivors)
    click.echo(f"\nseed {seed}: {noticed} of {len(tried)} changes noticed ({noticed / max(1, len(tried)):.0%})")


if __name__ == "__main__":
    main()
