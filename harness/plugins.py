"""The registry with files of the user's own, whose import may do anything, in this process only after it is tried."""

from __future__ import annotations

from collections.abc import Sequence

from harness.children import Children, Died, Task, deadline
from harness.errors import UserError
from harness.registry import Plugin, Registered, Registry, file_of, load_registry

IMPORT_TIMEOUT_S = 60.0
"""For importing one plugin."""


def load_with_plugins(plugins: Sequence[Plugin]) -> Registry:
    """All implementations by name; a plugin whose import crashes, hangs or takes all memory does so in a child.

    Raises:
        UserError: a plugin cannot be imported or does not fit, or it declares that a check fails that there is not.
    """
    if plugins:
        with Children() as children:
            for plugin in plugins:
                _try(plugin, children)
    registry = load_registry(plugins)
    for registered in registry.values():
        if registered.plugin is not None:
            _refuse_unknown_checks(registered)
    return registry


def _try(plugin: Plugin, children: Children) -> None:
    outcome = children.run(Task(_import_in_child, (plugin, IMPORT_TIMEOUT_S), 2 * IMPORT_TIMEOUT_S))
    if isinstance(outcome, Died):
        raise UserError(f"plugin {file_of(plugin)} cannot be imported: {outcome.reason}")
    if outcome:
        raise UserError(outcome)


def _import_in_child(plugin: Plugin, timeout_s: float) -> str:
    """Why a file cannot be imported; empty if it can."""
    try:
        with deadline(timeout_s):
            for registered in load_registry([plugin]).values():
                if registered.plugin is not None:
                    _try_weights(registered)
    except UserError as error:
        return str(error)
    return ""


def _try_weights(registered: Registered) -> None:
    """Refuse a module that the eight parameters do not load into: no check could say anything else of it.

    Whatever else building it raises is for the checks to tell, on cases that it does not decline.
    """
    from harness.subject import WeightsError, prepare
    from harness.verification.inputs import make_inputs
    from implementations.spec import Case

    inputs = make_inputs(Case(batch_size=1, seq_len=2, d_model=16, num_heads=2))
    try:
        prepare(registered.implementation, inputs.case, inputs.weights)
    except WeightsError as error:
        raise UserError(f"{registered.origin}: {error}") from None
    except Exception:  # noqa: BLE001 - the checks tell it, with their cases
        return


def _refuse_unknown_checks(registered: Registered) -> None:
    from harness.verification.suite import CHECK_NAMES

    for failure in registered.implementation.known_failures:
        if failure.check not in CHECK_NAMES:
            raise UserError(
                f"{registered.origin}: a known failure of {failure.check!r} is declared, and there is no such check; "
                f"there are: {', '.join(CHECK_NAMES)}"
            )
