"""The command line: `mha list | explain | verify | bench | choose | compare | history | report | noise | selftest`.

Commands are loaded when they are called: `mha --help` imports neither torch nor pandas nor matplotlib. Exit codes:
0 good, 1 a verification failure, 2 a usage or environment error, said in one line on standard error.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from harness import __version__, require_own_implementations
from harness.errors import UserError

COMMANDS = {
    "list": "What is registered, what it supports, and whether it can run here.",
    "explain": "The shape of every step of multi-head attention, from a forward pass that really runs.",
    "verify": "Run the shared checks: is it right?",
    "bench": "Verify, time and measure memory, and write the report: which one to use here?",
    "choose": "Which implementation for exactly this workload, and why not the others.",
    "compare": "What changed between two runs, BASE and HEAD, or two versions of a file: checks, figures, times.",
    "history": "How times developed over all runs in FOLDER: where they made a step.",
    "report": "Render the report of a run again.",
    "noise": "How fine a difference this machine can see right now.",
    "selftest": "Run the shared checks on wrong implementations: does the verifier catch them?",
}
"""Each command and its line in the help; `harness.cli.<name>_command` holds it."""


class LazyCommands(click.Group):
    """A group that knows its commands' names and help lines, and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """In the order in which people need them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import the module of a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"harness.cli.{cmd_name}_command").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_versions(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    """What is installed here, for a report of a fault: read from the packages' metadata, nothing is imported."""
    if not wanted:
        return
    installed = {d.name.lower(): d.version for d in importlib.metadata.distributions() if d.name}
    known = ("torch", "xformers", "triton", "numpy", "scipy", "pandas", "matplotlib", "pytest", "pytest-benchmark")
    versions = ", ".join(f"{name} {installed[name]}" for name in known if name in installed)
    click.echo(f"mha {__version__} on Python {platform.python_version()} with {len(installed)} packages: {versions}")
    ctx.exit()


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_versions, help="Show versions."
)
def commands() -> None:
    """Which multi-head attention implementation should I use here, and is it right?"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code."""
    try:
        require_own_implementations()
        code = commands.main(args=arguments, prog_name="mha", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except (click.ClickException, UserError) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo(f"mha: {' '.join(message.split())}", err=True)
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("mha: interrupted", err=True)
        return 130
    return code if isinstance(code, int) else 0
