"""`mha verify`: run the shared checks and say what holds, what does not, and how to see it again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.console import output_option, plugin_option, progress, require_device, write_json, written
from harness.cli.options import seed_option
from harness.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.records import CheckRecord
    from harness.registry import Plugin, Registered
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
def command(**options: Any) -> int:  # noqa: ANN401 - click hands over a value of its own kind for each option above
    """Run the shared checks: is it right?

    Without NAMEs, those of the plugins are verified, or all that are registered. Exit code 1 if a check fails,
    with --semantics if an answer differs from what is declared, with --fuzz if anything is found.
    """
    from harness.plugins import load_with_plugins
    from harness.registry import select

    asked = _Asked(**options)
    asked.refuse_what_does_not_go_together()
    require_device(asked.device)
    registry = load_with_plugins(asked.plugins)
    chosen = select(registry, asked.names or [name for name, each in registry.items() if each.plugin is not None])
    if asked.semantics:
        return _see_semantics(asked, chosen)
    return _run_checks(asked, chosen) if asked.fuzz_s is None else _search(asked, chosen)


@dataclass(frozen=True)
class _Asked:
    """The options as they were given."""

    names: tuple[str, ...]
    plugins: tuple[Plugin, ...]
    dtypes: tuple[str, ...]
    checks: tuple[str, ...]
    cases: tuple[str, ...]
    semantics: bool
    fuzz_s: float | None
    device: str
    seed: int
    weights: Path | None
    layer: int
    num_heads: int | None
    mapping: tuple[str, ...]
    timeout_s: float | None
    reproducers: Path | None
    json_file: Path | None
    junit_file: Path | None

    @property
    def tables(self) -> bool:
        """Whether people read standard output, and not a program that asked for JSON there."""
        return str(self.json_file) != "-"

    def refuse_what_does_not_go_together(self) -> None:
        """Options that would be ignored are a misunderstanding.

        Raises:
            UsageError: some were given.
        """
        if self.mapping and self.weights is None:
            raise click.UsageError("--map says how a file names its tensors; give the file by --weights")
        if self.weights is None and (self.layer or self.num_heads is not None):
            raise click.UsageError("--layer and --num-heads speak of a checkpoint; give the file by --weights")
        if self.semantics:
            self._refuse_beside("--semantics", "fuzz_s", "dtypes", "cases", "weights", "junit_file")
        elif self.fuzz_s is not None:
            self._refuse_beside("--fuzz", "checks", "cases", "weights", "timeout_s")

    def _refuse_beside(self, mode: str, *fields: str) -> None:
        given = [_FLAGS[field] for field in fields if getattr(self, field)]
        if given:
            raise click.UsageError(f"{mode} asks its own questions and takes no {', '.join(given)}; leave that out")


_FLAGS = {
    "fuzz_s": "--fuzz",
    "dtypes": "--dtype",
    "checks": "--check",
    "cases": "--case",
    "weights": "--weights",
    "timeout_s": "--timeout",
    "junit_file": "--junit",
}
"""How the user writes what a field of `_Asked` holds."""


def _see_semantics(asked: _Asked, chosen: Sequence[Registered]) -> int:
    """See by running what the contract leaves open."""
    from harness.cli.semantics_table import ask_and_print
    from harness.verification.semantics import PROBE_NAMES, Questions

    return ask_and_print(chosen, Questions(asked.checks or PROBE_NAMES, asked.device, asked.seed), asked.json_file)


def _search(asked: _Asked, chosen: Sequence[Registered]) -> int:
    """Generate cases for so many seconds."""
    from harness.cli.fuzz_output import print_reports, search
    from harness.verification.fuzz.results import DATABASE, Options

    assert asked.fuzz_s is not None
    with _folder_for_scripts(asked.reproducers) as folder:
        options = Options(asked.fuzz_s, asked.seed, asked.device, asked.dtypes or _DTYPES, reproducers=folder)
        reports = search(chosen, options)
    if asked.tables:
        print_reports(reports, DATABASE)
    return _written([record for report in reports for record in report.records], asked)


def _run_checks(asked: _Asked, chosen: Sequence[Registered]) -> int:
    """Run the suite."""
    from harness.cli.verification_output import print_results
    from harness.verification.suite import plan
    from harness.verification.verify import CHECK_TIMEOUT_S, verify

    selection = _selection(asked)
    if not any(plan(each.implementation, selection) for each in chosen):
        raise UserError("nothing to verify: no check of the suite has this case; a failure prints the whole command")
    _announce(selection)
    with _folder_for_scripts(asked.reproducers) as folder, progress("verifying") as advance:
        verified = verify(
            chosen,
            selection,
            on_progress=lambda done, total: advance(done, total, "", None),
            timeout_s=asked.timeout_s or CHECK_TIMEOUT_S,
            reproducers=folder,
        )
        records = list(verified)
    order = [each.implementation.name for each in chosen]
    records.sort(key=lambda record: (order.index(record.implementation), selection.dtypes.index(record.dtype)))
    if asked.tables:
        print_results(records)
    return _written(records, asked)


def _selection(asked: _Asked) -> Selection:
    from harness.verification.real_weights import RealWeights
    from harness.verification.suite import Selection, dtype_of_case

    real = None
    if asked.weights is not None:
        real = RealWeights(asked.weights.resolve(), asked.layer, asked.num_heads, asked.mapping)
    return Selection(
        checks=asked.checks,
        dtypes=asked.dtypes or tuple(dict.fromkeys(map(dtype_of_case, asked.cases))) or _DTYPES,
        cases=asked.cases,
        device=asked.device,
        seed=asked.seed,
        real=real,
    )


def _written(records: Sequence[CheckRecord], asked: _Asked) -> int:
    """Write what is asked for; the exit code that these records mean."""
    from harness.records import BAD_CHECK_STATUSES

    if asked.junit_file is not None:
        _write_junit(records, asked.junit_file)
    if asked.json_file is not None:
        write_json([record.model_dump(mode="json") for record in records], asked.json_file)
    return 1 if any(record.status in BAD_CHECK_STATUSES for record in records) else 0


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
