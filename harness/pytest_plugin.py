"""The shared suite inside a user's own pytest: ``pytest --mha-plugin FILE.py``.

Every check of every implementation in the file is a test item, ``mine.py::mine::matches_the_oracle``, so that a
project's CI shows it among its own tests, with ``-k``, JUnit XML and pytest-xdist. pytest loads this module in every
session wherever the package is installed, so it imports nothing heavy until such a file is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.records import CheckRecord
    from harness.registry import Registered
    from harness.verification.suite import Selection

_DTYPES = ("float64", "float32", "bfloat16", "float16")
_SHOWN = 5
"""Failing cases told in full; a check that is wrong everywhere fails on all of its cases."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """What is verified, and on what."""
    group = parser.getgroup("multi-head attention")
    group.addoption(
        "--mha-plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="Verify the attention implementations of this file, a test item for each check; may be repeated.",
    )
    group.addoption("--mha-dtype", action="append", choices=_DTYPES, help="Verify in this dtype only; may be repeated.")
    group.addoption("--mha-device", choices=("cpu", "cuda"), default="cpu", help="Device to verify on (cpu).")
    group.addoption("--mha-seed", type=int, default=0, help="Seed of inputs and weights (0).")


def pytest_configure(config: pytest.Config) -> None:
    """A file that is not there is said before anything is collected."""
    for file in _files(config):
        if not file.is_file():
            raise pytest.UsageError(f"--mha-plugin {file}: no such file")


def _files(config: pytest.Config) -> list[Path]:
    return [(config.invocation_params.dir / given).resolve() for given in config.getoption("mha_plugin")]


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Where such a file is an argument, too: it holds implementations, not tests."""
    if module_path in _files(parent.config):
        return ImplementationFile.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the checks behind the project's own tests, before ``-k`` and the like select from all of them.

    They are no arguments of pytest's: it drops one that lies within another, such as a file of the folder it runs in.
    """
    if config.getoption("benchmark_only", default=False):
        return  # nothing but benchmarks is to run
    selected = {item.path for item in items if isinstance(item, CheckItem)}
    for file in _files(config):
        if file not in selected:
            node: ImplementationFile = ImplementationFile.from_parent(session, path=file)
            items.extend(node.checks())


class ImplementationFile(pytest.File):
    """A file with implementations."""

    def checks(self) -> Iterator[pytest.Item]:
        """The items of all nodes."""
        for node in self.collect():
            yield from node.collect()

    def collect(self) -> Iterator[ImplementationNode]:
        """A node for each of them.

        Raises:
            UsageError: the file cannot be imported, or does not fit.
        """
        from harness.errors import UserError
        from harness.plugins import load_with_plugins

        try:
            registry = load_with_plugins([self.path])
        except UserError as error:
            raise pytest.UsageError(str(error)) from None
        for name, registered in registry.items():
            if registered.plugin is not None:
                yield ImplementationNode.from_parent(self, name=name, registered=registered)


class ImplementationNode(pytest.Collector):
    """One implementation."""

    def __init__(self, *, registered: Registered, **others: Any) -> None:  # noqa: ANN401 - pytest's own arguments
        super().__init__(**others)
        self.registered = registered

    def collect(self) -> Iterator[pytest.Item]:
        """An item for each check of the suite that has cases for it."""
        from harness.verification.suite import plan

        selection = _selection(self.config)
        claims = {item.check.name: item.check.claim for item in plan(self.registered.implementation, selection)}
        for check, claim in claims.items():
            yield CheckItem.from_parent(self, name=check, registered=self.registered, claim=claim)


def _selection(config: pytest.Config, *checks: str) -> Selection:
    from harness.verification.suite import Selection

    dtypes = config.getoption("mha_dtype") or _DTYPES
    return Selection(
        checks=checks,
        dtypes=tuple(dict.fromkeys(dtypes)),
        device=config.getoption("mha_device"),
        seed=config.getoption("mha_seed"),
    )


class CheckFailed(Exception):  # noqa: N818 - it is pytest's failure of an item, and no error of ours
    """Some case of a check failed."""

    def __init__(self, failed: Sequence[CheckRecord]) -> None:
        super().__init__(f"{len(failed)} cases failed")
        self.failed = failed


class CheckItem(pytest.Item):
    """One check of one implementation on all of its cases, in a child process as ever."""

    def __init__(self, *, registered: Registered, claim: str, **others: Any) -> None:  # noqa: ANN401 - pytest's own
        super().__init__(**others)
        self.registered = registered
        self.claim = claim

    def runtest(self) -> None:
        """Fail as the command line does; skip what is not supported, and expect what is declared to fail."""
        from harness.records import BAD_CHECK_STATUSES
        from harness.verification.verify import verify

        records = list(verify([self.registered], _selection(self.config, self.name)))
        failed = [record for record in records if record.status in BAD_CHECK_STATUSES]
        if failed:
            raise CheckFailed(failed)
        known = [record for record in records if record.status == "known_failure"]
        if known:
            pytest.xfail(f"declared: {_reasons(known)}")
        if not any(record.status == "passed" for record in records):
            pytest.skip(_reasons(records))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:  # noqa: ANN401 - pytest's signature
        """The claim, and of each case what was found, why as far as it is known, and how to repeat it."""
        if not isinstance(excinfo.value, CheckFailed):
            return super().repr_failure(excinfo, style)
        failed = excinfo.value.failed
        lines = [f"claim: {self.claim}"]
        for record in failed[:_SHOWN]:
            lines += [f"{record.case}: {record.status}", *(f"  {reason}" for reason in record.reasons)]
            lines += [f"  likely: {record.likely_cause}"] if record.likely_cause else []
            lines += [f"  again: {record.reproduce}"]
        more = len(failed) - _SHOWN
        return "\n".join([*lines, *([f"and {more} more cases"] if more > 0 else [])])

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it comes from, and its name in a report."""
        return self.path, None, f"{self.registered.implementation.name}: {self.name}"


def _reasons(records: Sequence[CheckRecord]) -> str:
    reasons = dict.fromkeys(reason for record in records for reason in record.reasons)
    return "; ".join(reasons) or ", ".join(dict.fromkeys(record.status for record in records))
