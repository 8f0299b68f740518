"""`mha compare`: what changed between two runs, or between two versions of a file, and is it a regression?"""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.console import output_option, progress, write_json, written
from harness.cli.options import Percent, seed_option
from harness.cli.workload_options import is_given, preset_from, workload_options

if TYPE_CHECKING:
    from harness.measurement.presets import Preset
    from reports.comparison import RunComparison

SECONDS = 3.2
MAX_ROUNDS = 1280
PROCESSES = 3


@click.command("compare")
@click.argument("base", type=click.Path(path_type=Path), required=False)
@click.argument("head", type=click.Path(path_type=Path), required=False)
@click.option("--old", type=click.Path(path_type=Path), metavar="FILE.py", help="In place of runs: a file before ...")
@click.option("--new", type=click.Path(path_type=Path), metavar="FILE.py", help="... and after a change, measured now.")
@click.option("--name", "names", multiple=True, help="With files: an implementation; all that both have by default.")
@click.option(
    "--preset", "preset_name", metavar="NAME|FILE.toml", help="With files: what to measure; quick by default."
)
@workload_options
@click.option("--seconds", type=click.FloatRange(0.1), help=f"With files: of timed rounds of a workload ({SECONDS}).")
@click.option("--max-rounds", type=click.IntRange(9, MAX_ROUNDS), help=f"With files: most rounds ({MAX_ROUNDS}).")
@click.option("--processes", type=click.IntRange(PROCESSES), help=f"With files: that have to agree ({PROCESSES}).")
@seed_option("inputs, weights and the order within rounds")
@click.option("--output", type=click.Path(path_type=Path), help="With files: folder of the runs; under results/.")
@click.option(
    "--threshold", type=Percent(), default="2%", show_default=True, help="A ratio that grew by more is a regression."
)
@click.option("--strict", is_flag=True, help="What cannot be told fails too.")
@click.option(
    "--across-machines", is_flag=True, help="Compare runs of different machines, torch builds or threads: only ratios."
)
@output_option("--markdown", "markdown_file", "Write the comparison as Markdown, for a pull request's comment.")
@output_option("--json", "json_file", "Write every change to this file, - for stdout.", dash=True)
@output_option("--junit", "junit_file", "Write the comparison as JUnit XML.")
@output_option("--action", "action_file", "Write the changes for continuous-benchmark actions.")
def command(
    base: Path | None,
    head: Path | None,
    old: Path | None,
    new: Path | None,
    threshold: float,
    strict: bool,
    across_machines: bool,
    markdown_file: Path | None,
    json_file: Path | None,
    junit_file: Path | None,
    action_file: Path | None,
    **measuring: Any,  # noqa: ANN401 - the options that only a comparison of files takes
) -> int:
    """What changed between two runs, BASE and HEAD, or two versions of a file, --old and --new.

    Times of runs are compared as ratios to the baseline within each run, never across runs. Two files are verified, and
    then measured side by side in several fresh processes, all of which must agree: that is what a pull request should
    use. Exit code 1 on a time or a peak memory beyond --threshold, on a measurement that is lost, and if a check fails
    that did not before; what is unresolved does not fail without --strict.
    """
    if old is None and new is None:
        found = _of_runs(base, head, threshold, across_machines, measuring)
    else:
        if base is not None or across_machines:
            raise click.UsageError("give two runs, or --old and --new: not both, and --across-machines only with runs")
        found = _of_files(old, new, threshold, measuring)
    _write(found, strict, _Files(markdown_file, json_file, junit_file, action_file))
    return 1 if found.regressions(strict=strict) else 0


def _of_runs(
    base: Path | None, head: Path | None, threshold: float, across_machines: bool, measuring: dict[str, Any]
) -> RunComparison:
    from reports.comparison import compare_runs

    if base is None or head is None:
        raise click.UsageError("give two runs, BASE and HEAD, or two files by --old and --new")
    needless = [name for name, value in measuring.items() if value not in (None, (), 0)]
    if needless:
        option = {"mode": "pass", "names": "name", "preset_name": "preset"}.get(needless[0], needless[0])
        raise click.UsageError(f"--{option.replace('_', '-')} says what to measure, and runs are measured already")
    return compare_runs(base, head, threshold, across_machines=across_machines)


def _of_files(old: Path | None, new: Path | None, threshold: float, measuring: dict[str, Any]) -> RunComparison:
    from harness import versions
    from harness.runs import locked, new_run_folder
    from reports.versions import Names, compare_versions

    if old is None or new is None:
        raise click.UsageError("--old and --new go together: a file before a change, and the same after it")
    preset_name, preset = _preset(measuring)
    request = versions.VersionsRequest(
        old=old,
        new=new,
        names=measuring["names"],
        preset_name=preset_name,
        preset=preset,
        threshold=threshold,
        processes=measuring["processes"] or PROCESSES,
        seed=measuring["seed"],
        command=shlex.join(["mha", *sys.argv[1:]]),
    )
    now = datetime.now().astimezone()
    started = versions.begin(request, measuring["output"] or new_run_folder("compare", now), now)
    click.echo(f"run folders: {', '.join(str(run.folder.path) for run in started.runs)}", err=True)
    with ExitStack() as locks:
        for run in started.runs:
            locks.enter_context(locked(run.folder.path))
        with progress("verifying") as advance:
            started.verify(advance)
        for number, run in enumerate(started.runs, start=1):
            with progress(f"measuring, process {number} of {len(started.runs)}") as advance:
                run.measure(advance)
    for record in started.failures():
        click.echo(f"{record.implementation}: {record.check} {record.status}: {record.reproduce}", err=True)
    names = [Names(pair.name, pair.old, pair.new) for pair in started.pairs]
    return compare_versions([run.folder.path for run in started.runs], names, threshold)


def _preset(measuring: dict[str, Any]) -> tuple[str, Preset]:
    """What to measure: one workload, or a preset with the time and rounds that a gate takes."""
    from harness.measurement.presets import load_preset

    workload = {name: measuring[name] for name in measuring.keys() - _NOT_OF_A_WORKLOAD}
    name, seconds = measuring["preset_name"], measuring["seconds"] or SECONDS
    if name and is_given(workload):
        raise click.UsageError("give a workload or a --preset, not both")
    preset = preset_from(workload, seconds) if is_given(workload) else load_preset(name or "quick")
    more = {"cell_seconds": seconds, "max_rounds": measuring["max_rounds"] or MAX_ROUNDS}
    return name or "compare", preset.model_copy(update=more)


_NOT_OF_A_WORKLOAD = {"names", "preset_name", "seconds", "max_rounds", "processes", "seed", "output"}


@dataclass(frozen=True)
class _Files:
    markdown: Path | None
    json: Path | None
    junit: Path | None
    action: Path | None


def _write(found: RunComparison, strict: bool, files: _Files) -> None:
    from reports import comparison_output as output

    if files.markdown is not None:
        with written(files.markdown):
            files.markdown.write_text(output.markdown(found, strict=strict), encoding="utf-8")
    if files.json is not None:
        write_json(output.as_json(found, strict=strict), files.json)
    if files.junit is not None:
        with written(files.junit):
            output.junit(found, strict=strict).write(files.junit, encoding="utf-8", xml_declaration=True)
    if files.action is not None:
        write_json(output.action_entries(found), files.action)
    if str(files.json) != "-":
        for line in output.lines(found, strict=strict):
            click.echo(line)
