"""Finds implementations: the modules of `implementations`, entry points, and files named on the command line.

A module registers what it has by ``IMPLEMENTATION`` or ``IMPLEMENTATIONS``; a user's own may also be plain code, see
`harness.plain_code`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, ModuleType

import torch

import harness
import implementations
from harness.errors import UserError
from harness.plain_code import adopt
from implementations.spec import Implementation

ENTRY_POINT_GROUP = "mha_harness.implementations"
_NOT_ENTRIES = {"spec", "projections"}


@dataclass(frozen=True)
class Version:
    """A plugin beside another version of itself: its names get a label, and it has the files beside it to itself."""

    path: Path
    label: str

    def __str__(self) -> str:
        """As a command line and ``run.json`` name it."""
        return f"{self.label}={self.path}"

    def resolve(self) -> Version:
        """The same with an absolute path."""
        return replace(self, path=self.path.resolve())

    def named(self, name: str) -> str:
        """What an implementation of the file is called."""
        return f"{name}({self.label})"


Plugin = Path | Version
"""A file with implementations of the user's own."""


def plugin_of(text: str) -> Plugin:
    """``FILE.py``, or ``LABEL=FILE.py`` for one version of several."""
    label, separator, path = text.partition("=")
    is_version = separator and re.fullmatch(r"\w+", label) and not Path(text).exists()
    return Version(Path(path), label) if is_version else Path(text)


def file_of(plugin: Plugin) -> Path:
    """Where a plugin's code is."""
    return plugin.path if isinstance(plugin, Version) else plugin


@dataclass(frozen=True)
class Registered:
    """An implementation and where it was found."""

    implementation: Implementation
    origin: str
    """File that it was loaded from."""
    plugin: Plugin | None = None
    """What was given on the command line, so that a child process can load it again."""

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """What a child process has to load to find it by its name."""
        return (self.plugin,) if self.plugin else ()

    @property
    def plugin_option(self) -> str:
        """How a command names the plugin again, with a space before it; empty without one."""
        return f" --plugin {shlex.quote(str(self.plugin))}" if self.plugin else ""


Registry = Mapping[str, Registered]


def load_registry(plugins: Sequence[Plugin] = ()) -> Registry:
    """All implementations by name, in the order found.

    Args:
        plugins: files with implementations of the user's own.

    Raises:
        UserError: two have the same name, or a plugin cannot be loaded.
    """
    found: dict[str, Registered] = {}
    for registered in _discover(plugins):
        name = registered.implementation.name
        if name in found:
            raise UserError(
                f"two implementations are named {name!r}: {found[name].origin} and {registered.origin}; rename one"
            )
        found[name] = registered
    return MappingProxyType(found)


def select(registry: Registry, names: Iterable[str]) -> list[Registered]:
    """The implementations of these names, or all if none is named.

    Raises:
        UserError: a name is not registered; lists those that are.
    """
    chosen = list(dict.fromkeys(names)) or list(registry)
    unknown = [name for name in chosen if name not in registry]
    if unknown:
        raise UserError(
            f"no implementation named {', '.join(map(repr, unknown))}; registered: {', '.join(registry)}"
            + _hint(unknown[0], registry)
        )
    return [registry[name] for name in chosen]


def _hint(name: str, registry: Registry) -> str:
    """What was meant, where that can be guessed."""
    file = next((path for path in (Path(name), Path(f"{name}.py")) if path.suffix == ".py" and path.is_file()), None)
    if file is not None:
        return f"; for your own file: {file.stem} --plugin {file}"
    close = difflib.get_close_matches(name, registry, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _discover(plugins: Sequence[Plugin]) -> Iterator[Registered]:
    for info in pkgutil.iter_modules(implementations.__path__):
        if info.name not in _NOT_ENTRIES:
            module = importlib.import_module(f"{implementations.__name__}.{info.name}")
            yield from _entries(module, info.name, str(module.__file__))
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        yield from _from_entry_point(entry_point)
    for plugin in plugins:
        path = file_of(plugin)
        if isinstance(plugin, Version):
            for each in _entries(load_version(plugin), path.stem, str(path), plugin.resolve()):
                name = plugin.named(each.implementation.name)
                yield replace(each, implementation=replace(each.implementation, name=name))
        else:
            yield from _entries(load_file(path), path.stem, str(path), path.resolve())


def _from_entry_point(entry_point: importlib.metadata.EntryPoint) -> Iterator[Registered]:
    try:
        loaded = entry_point.load()
    except Exception as error:  # the module is foreign: anything can come out of it
        raise UserError(
            f"entry point {entry_point.name} = {entry_point.value} cannot be loaded: {one_line(error)}"
        ) from error
    origin = f"entry point {entry_point.value}"
    if isinstance(loaded, ModuleType):
        yield from _entries(loaded, entry_point.name, origin)
    else:
        yield from _registered(loaded, origin)


def load_version(version: Version) -> ModuleType:
    """Import one version of a plugin so that the next one finds the files beside itself, not those beside this one.

    What it imports from its folder only when it is called cannot be found then, which raises: never the other's code.

    Raises:
        UserError: as `load_file`.
    """
    folder = version.path.resolve().parent
    modules, search = set(sys.modules), list(sys.path)
    try:
        return load_file(version.path, f"mha_plugin_{version.label}_{version.path.stem}")
    finally:
        sys.path[:] = search
        for name in sys.modules.keys() - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and folder in Path(file).resolve().parents and not name.startswith("mha_plugin_"):
                del sys.modules[name]


def load_file(path: Path, name: str = "") -> ModuleType:
    """Import a plugin; it may import files beside it.

    Args:
        path: the file.
        name: of the module; made from the file's by default.

    Raises:
        UserError: there is no such file, it is no Python file, or importing it raises.
    """
    if not path.is_file():
        raise UserError(f"plugin {path}: no such file")
    name = name or f"mha_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"plugin {path}: not a Python file (expected a name ending in .py)")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that it hides nothing
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # the file is foreign: even SystemExit can come out of it
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise UserError(f"plugin {path} fails to import: {one_line(error)}{_line_in(path, error)}") from error
    return module


def _line_in(path: Path, error: BaseException) -> str:
    """Where in the user's own file the error came up."""
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" (line {line})" if line else ""


def _entries(module: ModuleType, name: str, origin: str, plugin: Plugin | None = None) -> Iterator[Registered]:
    declared = [getattr(module, each) for each in ("IMPLEMENTATION", "IMPLEMENTATIONS") if hasattr(module, each)]
    if len(declared) > 1:
        raise UserError(f"{origin}: expected IMPLEMENTATION or IMPLEMENTATIONS, found both; delete one")
    yield from _registered(declared[0] if declared else adopt(module, name, origin), origin, plugin)


def _registered(declared: object, origin: str, plugin: Plugin | None = None) -> Iterator[Registered]:
    entries = declared if isinstance(declared, (tuple, list)) else (declared,)
    for entry in entries:
        if not isinstance(entry, Implementation):
            raise UserError(f"{origin}: expected implementations.spec.Implementation, got {type(entry).__name__}")
        if not re.fullmatch(r"\w[\w.+()=-]*", entry.name):
            raise UserError(
                f"{origin}: {entry.name!r} cannot be the name of an implementation; expected letters, digits and "
                "._+-()= only, as in 'my_attention'"
            )
        yield Registered(entry, origin, plugin)


def place_of(error: BaseException) -> str:
    """`` (in attend, mine.py line 3)``: where an error left foreign code; empty if no such frame is left."""
    ours = tuple(f"{Path(str(package.__file__)).parent}{os.sep}" for package in (harness, torch))
    foreign = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    return f" (in {foreign[-1].name}, {foreign[-1].filename} line {foreign[-1].lineno})" if foreign else ""


def one_line(error: BaseException) -> str:
    """An exception as a single line: its type and the first line of its message, with the next one behind a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    message = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {message}"
