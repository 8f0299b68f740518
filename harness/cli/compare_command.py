"""`mha compare`: what changed between two runs, and is it a regression?"""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.console import output_option, write_json, written
from harness.cli.options import Percent


@click.command("compare")
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("head", type=click.Path(path_type=Path))
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
    base: Path,
    head: Path,
    threshold: float,
    strict: bool,
    across_machines: bool,
    markdown_file: Path | None,
    json_file: Path | None,
    junit_file: Path | None,
    action_file: Path | None,
) -> int:
    """What changed between the runs BASE and HEAD: checks, exact figures, errors, and times.

    Times are compared as ratios to the baseline within each run, never across runs. Exit code 1 on a regression beyond
    --threshold, or if a check fails that did not before; what is unresolved does not fail without --strict.
    """
    from reports import comparison_output as output
    from reports.comparison import compare_runs

    found = compare_runs(base, head, threshold, across_machines=across_machines)
    if markdown_file is not None:
        with written(markdown_file):
            markdown_file.write_text(output.markdown(found, strict=strict), encoding="utf-8")
    if json_file is not None:
        write_json(output.as_json(found, strict=strict), json_file)
    if junit_file is not None:
        with written(junit_file):
            output.junit(found, strict=strict).write(junit_file, encoding="utf-8", xml_declaration=True)
    if action_file is not None:
        write_json(output.action_entries(found), action_file)
    if str(json_file) != "-":
        for line in output.lines(found, strict=strict):
            click.echo(line)
    return 1 if found.regressions(strict=strict) else 0
