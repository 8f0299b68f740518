"""An implementation out of plain code: a file with a function `attend`, or with a module's class, and no more.

What an `Implementation` would declare, such a file declares by constants: a field's name in capitals, as in
``FULLY_MASKED_ROW = "uniform"``.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import fields
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from torch import nn

from harness.errors import UserError
from harness.records import describe
from implementations.spec import Implementation

_GIVEN_BY_CODE = ("attend", "build", "pack", "unpack")
CONSTANTS = {field.name.upper(): field.name for field in fields(Implementation) if field.name not in _GIVEN_BY_CODE}
"""What a file may declare: the constant's name, and the field of `Implementation`."""

_WRITE = "IMPLEMENTATION = Implementation(name=..., summary=..., source=..., {choice})"
_FORMS = (
    "IMPLEMENTATION = Implementation(...), a function attend(q, k, v, mask, *, is_causal), or one class of nn.Module "
    "that takes (d_model, num_heads)"
)


def adopt(module: ModuleType, name: str, origin: str) -> Implementation:
    """The implementation that a module without an ``IMPLEMENTATION`` holds.

    Args:
        module: the user's own, already imported.
        name: what to call the implementation, unless the module has a constant NAME.
        origin: where the module comes from, for messages.

    Raises:
        UserError: there is no such code, or more than one that could be meant; a signature does not fit; or a
            constant has a value that the field does not take.
    """
    _refuse_misspelt_constants(module, origin)
    attend, classes = getattr(module, "attend", None), _module_classes(module)
    fitting = [each for each in classes if _takes(each, None, None)]
    candidates = [*(["attend=attend"] if callable(attend) else []), *(f"build={each.__name__}" for each in fitting)]
    if len(candidates) > 1:
        raise UserError(
            f"{origin}: {' and '.join(each.partition('=')[2] for each in candidates)} could be meant; say which by "
            f"{_WRITE.format(choice=candidates[0])}, or begin the names of the others with an underscore"
        )
    if callable(attend):
        return _describe(module, name, origin, attend, attend=_checked_function(attend, origin))
    if not fitting:
        raise UserError(f"{origin}: expected {_FORMS}; found {_found(classes)}")
    (build,) = fitting
    forward = inspect.signature(build.forward).parameters
    flag = "is_causal" in forward or any(each.kind is each.VAR_KEYWORD for each in forward.values())
    return _describe(module, name, origin, build, build=_checked_class(build, origin), has_causal_flag=flag)


def _refuse_misspelt_constants(module: ModuleType, origin: str) -> None:
    for name in vars(module):
        close = difflib.get_close_matches(name, CONSTANTS, n=1, cutoff=0.85) if name.isupper() else []
        if close and name not in CONSTANTS:
            raise UserError(f"{origin}: {name} declares nothing; did you mean {close[0]}? Else begin it with _")


def _module_classes(module: ModuleType) -> list[type[nn.Module]]:
    """Modules that are written in this file and whose names are public."""
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, nn.Module)
        and each.__module__ == module.__name__
        and not each.__name__.startswith("_")
    ]


def _found(classes: list[type[nn.Module]]) -> str:
    if not classes:
        return "none of them"
    return f"{classes[0].__name__}{inspect.signature(classes[0])}; give build=lambda d_model, num_heads: ..."


def _takes(function: Callable[..., Any], *args: object, **kwargs: object) -> bool:
    """Whether a function can be called like this; one that does not tell (built in) is believed to."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _checked_function(attend: Callable[..., Any], origin: str) -> Callable[..., Any]:
    if not _takes(attend, None, None, None, None, is_causal=False):
        raise UserError(
            f"{origin}: attend{inspect.signature(attend)} cannot be called as attend(q, k, v, mask, is_causal=False); "
            "expected attend(q, k, v, mask, *, is_causal)"
        )
    return attend


def _checked_class(build: type[nn.Module], origin: str) -> type[nn.Module]:
    if not _takes(build.forward, None, None, None):
        raise UserError(
            f"{origin}: {build.__name__}.forward{inspect.signature(build.forward)} cannot be called as "
            "forward(x, mask); expected forward(self, x, mask=None)"
        )
    return build


def _describe(module: ModuleType, name: str, origin: str, code: object, **given: Any) -> Implementation:  # noqa: ANN401 - fields of any type
    """Defaults, then what the code itself tells, then the module's constants."""
    words = (inspect.getdoc(code) or "").partition("\n")[0]
    defaults = {"name": name, "summary": words or f"{getattr(code, '__name__', 'attend')} of {origin}"}
    constants = {
        field: _declared(field, getattr(module, constant), f"{origin}: {constant}")
        for constant, field in CONSTANTS.items()
        if hasattr(module, constant)
    }
    try:
        return Implementation(**{"source": str(module.__file__), **defaults, **given, **constants})
    except ValueError as error:
        raise UserError(f"{origin}: {error}") from None


def _declared(field: str, value: object, where: str) -> object:
    try:
        return TypeAdapter(get_type_hints(Implementation)[field]).validate_python(value, strict=field == "gradients")
    except ValidationError as error:
        raise UserError(
            f"{where} does not fit (it declares what Implementation's {field} does): {describe(error)}"
        ) from None
