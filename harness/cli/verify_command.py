"""`mha verify`: run the shared checks and say what holds, what does not, and how to see it again."""

from __future__ import annotations

import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.console import console, output_option, plugin_option, progress, require_device, write_json, written
from harness.cli.options import seed_option
from harness.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from harness.records import CheckRecord
    from harness.verification.suite import Selection

_DTYPES = ("float64", "float32", "bfloat16", "float16")


@click.command("verify")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@plugin_option
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(_DTYPES), help="Only this dtype; may be repeated.")
@click.option("--check", "checks", multiple=True, help="Only this check or probe; may be repeated.")
@click.option("--case", "cases", multiple=True, help="Only this case, as a failure names it; may be repeated.")
@click.option(
    "--semantics",
    is_flag=True,
    help="Instead of the checks, see what the contract leaves open (NaN, empty rows, compile, ...) and what is "
    "declared.",
)
@click.option(
    "--fuzz",
    "fuzz_s",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Instead of the checks, generate cases for so long and shrink what fails; failures of before come first.",
)
@click.option("--device", default="cpu", show_default=True, type=click.Choice(["cpu", "cuda"]))
@seed_option("weights, inputs and masks")
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    metavar="FILE.safetensors",
    help="Verify on a checkpoint's own projections, with real text as input where its embeddings are known (naming of "
    "BERT, GPT-2, LLaMA, nn.MultiheadAttention).",
)
@click.option("--layer", default=0, show_default=True, help="Layer of --weights.")
@click.option("--num-heads", type=int, help="Heads of --weights, where no config.json beside it says so.")
@click.option(
    "--map",
    "mapping",
    multiple=True,
    metavar="OURS=THEIRS",
    help="Name of a parameter in --weights, as W_q.weight=encoder.{layer}.attn.q.weight; biases left out are zero; "
    "repeatable.",
)
@click.option("--timeout", "timeout_s", type=click.FloatRange(0, min_open=True), help="Seconds for each case (60).")
@click.option(
    "--reproducers",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write the scripts that show a failure without mha here; a new folder for temporary files if not given.",
)
@output_option("--json", "json_file", "Write all records to this file, - for stdout.", dash=True)
@output_option("--junit", "junit_file", "Write the checks as JUnit XML to this file.")
def command(
    names: tuple[str, ...],
    plugins: tuple[Path, ...],
    dtypes: tuple[str, ...],
    checks: tuple[str, ...],
    cases: tuple[str, ...],
    semantics: bool,
    fuzz_s: float | None,
    device: str,
    seed: int,
    weights: Path | None,
    layer: int,
    num_heads: int | None,
    mapping: tuple[str, ...],
    timeout_s: float | None,
    reproducers: Path | None,
    json_file: Path | None,
    junit_file: Path | None,
) -> int:
    """Run the shared checks: is it right?

    Without NAMEs, those of the plugins are verified, or all that are registered. Exit code 1 if a check fails,
    with --semantics if an answer differs from what is declared, with --fuzz if anything is found.
    """
    from harness.cli.fuzz_output import print_reports, search
    from harness.cli.semantics_table import ask_and_print
    from harness.plugins import load_with_plugins
    from harness.registry import select
    from harness.verification.fuzz.results import DATABASE, Options
    from harness.verification.real_weights import RealWeights
    from harness.verification.semantics import PROBE_NAMES, Questions
    from harness.verification.suite import Selection, dtype_of_case, plan
    from harness.verification.verify import CHECK_TIMEOUT_S, verify

    if mapping and weights is None:
        raise click.UsageError("--map says how a file names its tensors; give the file by --weights")
    if weights is None and (layer or num_heads is not None):
        raise click.UsageError("--layer and --num-heads speak of a checkpoint; give the file by --weights")
    require_device(device)
    registry = load_with_plugins(plugins)
    chosen = select(registry, names or [name for name, each in registry.items() if each.plugin is not None])
    if semantics:
        _refuse_beside(
            "--semantics",
            {"--fuzz": fuzz_s, "--dtype": dtypes, "--case": cases, "--weights": weights, "--junit": junit_file},
        )
        questions = Questions(checks or PROBE_NAMES, device, seed)
        return ask_and_print(chosen, questions, json_file)
    if fuzz_s is not None:
        _refuse_beside("--fuzz", {"--check": checks, "--case": cases, "--weights": weights, "--timeout": timeout_s})
        with _folder_for_scripts(reproducers) as folder:
            reports = search(chosen, Options(fuzz_s, seed, device, dtypes or _DTYPES, reproducers=folder))
        if not _is_stdout(json_file):
            print_reports(reports, DATABASE)
        return _written([record for report in reports for record in report.records], junit_file, json_file)
    selection = Selection(
        checks=checks,
        dtypes=dtypes or tuple(dict.fromkeys(map(dtype_of_case, cases))) or _DTYPES,
        cases=cases,
        device=device,
        seed=seed,
        real=RealWeights(weights.resolve(), layer, num_heads, mapping) if weights else None,
    )
    if not any(plan(each.implementation, selection) for each in chosen):
        raise UserError("nothing to verify: no check of the suite has this case; a failure prints the whole command")
    _announce(selection)
    with _folder_for_scripts(reproducers) as folder, progress("verifying") as advance:
        verified = verify(
            chosen,
            selection,
            on_progress=lambda done, total: advance(done, total, "", None),
            timeout_s=timeout_s or CHECK_TIMEOUT_S,
            reproducers=folder,
        )
        records = list(verified)
    order = [each.implementation.name for each in chosen]
    records.sort(key=lambda record: (order.index(record.implementation), selection.dtypes.index(record.dtype)))
    if not _is_stdout(json_file):
        print_results(records)
    return _written(records, junit_file, json_file)


def _is_stdout(file: Path | None) -> bool:
    return str(file) == "-"


def _written(records: Sequence[CheckRecord], junit_file: Path | None, json_file: Path | None) -> int:
    """Write what is asked for; the exit code that these records mean."""
    from harness.records import BAD_CHECK_STATUSES

    if junit_file is not None:
        _write_junit(records, junit_file)
    if json_file is not None:
        write_json([record.model_dump(mode="json") for record in records], json_file)
    return 1 if any(record.status in BAD_CHECK_STATUSES for record in records) else 0


def _refuse_beside(mode: str, options: Mapping[str, object]) -> None:
    given = [flag for flag, value in options.items() if value]
    if given:
        raise click.UsageError(f"{mode} asks its own questions and takes no {', '.join(given)}; leave that out")


@contextmanager
def _folder_for_scripts(named: Path | None) -> Iterator[Path]:
    """The folder that the user names, or a temporary one that stays if there is a script in it."""
    if named is not None:
        yield named.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="mha-reproducers-"))
    try:
        yield folder
    finally:
        if folder.is_dir() and not any(folder.iterdir()):  # long runs outlive a cleaning of temporary files
            folder.rmdir()


def _announce(selection: Selection) -> None:
    """Say what the real weights are; a file that does not fit is refused here, before any child starts."""
    if selection.real is not None:
        layer, text = selection.real.load()
        batch_size, seq_len, d_model = text.x.shape
        click.echo(f"{layer.source}: d_model {d_model}, {layer.num_heads} heads", err=True)
        click.echo(f"{batch_size} items of up to {seq_len} tokens: {text.source}", err=True)


def _write_junit(records: Sequence[CheckRecord], file: Path) -> None:
    from datetime import UTC, datetime

    from reports.exports import junit_xml
    from reports.frames import checks_frame

    with written(file):
        junit_xml(checks_frame(records), datetime.now(UTC).isoformat(timespec="seconds"), file)


def print_results(records: Sequence[CheckRecord]) -> None:
    """A table of what came out by implementation and dtype, then everything that needs a reader."""
    if not records:
        click.echo("nothing to verify: no check of the suite fits this selection")
        return
    screen = console()
    screen.print(_table(records))
    for alike in _failures(records):
        _print_failure(alike[0], alike[1:])
    _print_scripts(records)
    _print_known(records)
    statuses = Counter(record.status for record in records)
    summary = ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in statuses.most_common())
    screen.print(f"{len(records)} check{'s' * (len(records) > 1)}: {summary}", markup=False)


_COLUMNS = {
    "passed": ("passed",),
    "failed": ("failed", "unexpected_pass"),
    "crashed": ("crashed",),
    "timed out": ("timeout",),
    "known failure": ("known_failure",),
    "no evidence": ("no_evidence",),
    "unsupported": ("unsupported", "unavailable"),
}


_BAD_COLUMNS = ("failed", "crashed", "timed out")


def _table(records: Sequence[CheckRecord]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from harness.records import BAD_CHECK_STATUSES

    table = Table(title="Verification", title_justify="left")
    columns = {
        heading: statuses
        for heading, statuses in _COLUMNS.items()
        if heading in ("passed", "failed") or any(record.status in statuses for record in records)
    }
    table.add_column("implementation", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    for heading in (*columns, "largest error / budget"):
        table.add_column(heading, justify="right")
    for name, dtype in dict.fromkeys((r.implementation, r.dtype) for r in records):
        mine = [r for r in records if (r.implementation, r.dtype) == (name, dtype)]
        counts = {heading: sum(r.status in statuses for r in mine) for heading, statuses in columns.items()}
        used = [r.budget_used for r in mine if r.status == "passed" and r.budget_used is not None]
        bad = any(r.status in BAD_CHECK_STATUSES for r in mine)
        cells = [
            Text(str(n) if n else "·", "bold red" if n and heading in _BAD_COLUMNS else "")
            for heading, n in counts.items()
        ]
        table.add_row(Text(name, "bold red" if bad else "bold"), dtype, *cells, f"{max(used):.2f}" if used else "·")
    return table


def _failures(records: Sequence[CheckRecord]) -> list[list[CheckRecord]]:
    """Bad records; those of an implementation that have one likely cause are told once, together.

    Without one, wrong answers are told once for each check, and deaths once for each reason. Implementation by
    implementation, and of each what there is most of first.
    """
    from harness.records import BAD_CHECK_STATUSES
    from harness.verification.suite import RAISED
    from harness.verification.verify import NOT_TRIED

    groups: dict[tuple[str, object], list[CheckRecord]] = {}
    for record in records:
        if record.status in BAD_CHECK_STATUSES:
            by_itself = record.status != "failed" or record.reasons[0].startswith(RAISED)
            alike = record.reasons if by_itself else record.check
            what = record.likely_cause or (record.status, alike)
            groups.setdefault((record.implementation, what), []).append(record)
    names = list(dict.fromkeys(name for name, _ in groups))

    def place(alike: Sequence[CheckRecord]) -> tuple[int, bool, int]:
        first = alike[0]
        return names.index(first.implementation), first.reasons[0].startswith(NOT_TRIED), -len(alike)

    return sorted(groups.values(), key=place)


def _print_failure(record: CheckRecord, others: Sequence[CheckRecord]) -> None:
    from rich.text import Text

    screen = console()
    headline = f"\n{record.implementation}: {record.check} {record.status} on {record.case}"
    screen.print(Text(headline, "bold red"))
    screen.print(Text(f"  claim: {record.claim}"))
    for reason in record.reasons:
        screen.print(Text(f"  {reason}"))
    if record.likely_cause:
        screen.print(Text(f"  likely cause: {record.likely_cause}", "bold"))
    if others:
        by_check = Counter(other.check for other in others)
        listed = ": " + ", ".join(f"{check} ({number})" for check, number in by_check.items())
        alike = "of the same cause" if record.likely_cause else "alike"
        screen.print(Text(f"  and {len(others)} more {alike}{'' if set(by_check) == {record.check} else listed}"))
    if record.budget_set_by:
        screen.print(Text(f"  the budget comes from {record.budget_set_by}", "dim"))
    # Commands are to be copied: the terminal may wrap them, but no line break is printed into them.
    screen.print(Text(f"  again: {record.reproduce}", "dim"), soft_wrap=True)
    if record.reproducer:
        screen.print(Text(f"  without mha: python {shlex.quote(record.reproducer)}", "dim"), soft_wrap=True)


def _print_scripts(records: Sequence[CheckRecord]) -> None:
    """Where the scripts of those failures are that were told with others."""
    from rich.text import Text

    scripts = [Path(record.reproducer) for record in records if record.reproducer]
    if len(scripts) > 1:
        line = f"\nscripts for {len(scripts)} failures, named by check and case: {scripts[0].parent}"
        console().print(Text(line, "dim"), soft_wrap=True)


def _print_known(records: Sequence[CheckRecord]) -> None:
    """What is declared: known failures, and every reason why cases are not supported."""
    from rich.text import Text

    screen = console()
    lines: Counter[str] = Counter()
    for record in records:
        if record.status == "known_failure":
            lines[f"{record.implementation}: known failure of {record.check}: {record.reasons[0]}"] += 1
        elif record.status in ("unsupported", "unavailable"):
            for reason in record.reasons:
                lines[f"{record.implementation}: {record.status}: {reason}"] += 1
    for line, number in lines.items():
        screen.print(Text(f"{line} ({number} cases)" if number > 1 else line, "dim"))
