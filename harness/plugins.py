"""The registry with files of the user's own, whose import may do anything, in this process only after it is tried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.children import Children, Died, Task, deadline
from harness.errors import UserError
from harness.registry import Registered, Registry, load_file, load_registry

IMPORT_TIMEOUT_S = 60.0
"""For importing one plugin."""


def load_with_plugins(plugins: Sequence[Path]) -> Registry:
    """All implementations by name; a plugin whose import crashes, hangs or takes all memory does so in a child.

    Raises:
        UserError: a plugin cannot be imported or does not fit, or it declares that a check fails that there is not.
    """
    if plugins:
        with Children() as children:
            for path in plugins:
                _try(path, children)
    registry = load_registry(plugins)
    for registered in registry.values():
        if registered.plugin is not None:
            _refuse_unknown_checks(registered)
    return registry


def _try(path: Path, children: Children) -> None:
    outcome = children.run(Task(_import_in_child, (path, IMPORT_TIMEOUT_S), 2 * IMPORT_TIMEOUT_S))
    if isinstance(outcome, Died):
        raise UserError(f"plugin {path} cannot be imported: {outcome.reason}")
    if outcome:
        raise UserError(outcome)


def _import_in_child(path: Path, timeout_s: float) -> str:
    """Why a file cannot be imported; empty if it can."""
    try:
        with deadline(timeout_s):
            load_file(path)
    except UserError as error:
        return str(error)
    return ""


def _refuse_unknown_checks(registered: Registered) -> None:
    from harness.verification.suite import CHECK_NAMES

    for failure in registered.implementation.known_failures:
        if failure.check not in CHECK_NAMES:
            raise UserError(
                f"{registered.origin}: a known failure of {failure.check!r} is declared, and there is no such check; "
                f"there are: {', '.join(CHECK_NAMES)}"
            )
