"""What may import what, and what the command line may not load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("harness", "implementations", "reports")
OF_HARNESS_FOR_REPORTS = {"harness.records", "harness.statistics", "harness.errors"}


def imports_of(path: Path) -> set[str]:
    """Absolute names of all modules that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(path: Path, package: str) -> list[str]:
    """Imports of a file that its package may not make."""
    names = imports_of(path)
    own = [name for name in names if name.split(".")[0] in PACKAGES]
    if package == "implementations":
        entries = {p.stem for p in (ROOT / "implementations").glob("*.py")} - {"__init__", "spec", "projections"}
        return [
            name
            for name in own
            if name.split(".")[0] != "implementations" or [*name.split("."), ""][1] in entries - {path.stem}
        ]
    if package == "harness":
        return [name for name in own if name.split(".")[0] == "reports" and path.parent.name != "cli"]
    allowed = OF_HARNESS_FOR_REPORTS
    return [
        name
        for name in names
        if name.split(".")[0] in {"torch", "implementations"}
        or (name.split(".")[0] == "harness" and name != "harness" and ".".join(name.split(".")[:2]) not in allowed)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_in_one_direction(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): bad
        for path in (ROOT / package).rglob("*.py")
        if (bad := violations(path, package))
    }
    assert not found


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("implementations", "from harness.records import Workload"),
        ("implementations", "from implementations.sdpa import attend"),
        ("harness", "def f():\n    import reports.html"),
        ("reports", "import torch"),
        ("reports", "from harness.subject import prepare"),
    ],
)
def test_an_import_in_the_wrong_direction_is_seen(package: str, source: str, tmp_path: Path) -> None:
    path = tmp_path / "probe.py"
    path.write_text(source)
    assert violations(path, package)


HEAVY = ("torch", "pandas", "matplotlib", "scipy", "rich", "pydantic")


def loaded_by(code: str) -> set[str]:
    """Heavy modules that a fresh interpreter has loaded after running some code."""
    probe = f"import sys\n{code}\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split()) if result.stdout.splitlines() else set()


def test_help_loads_nothing_heavy() -> None:
    assert loaded_by("from harness.cli import run\nrun(['--help'])") == set()


def test_what_is_heavy_would_be_seen() -> None:
    assert "pydantic" in loaded_by("import harness.records")


def test_reports_can_be_made_without_torch() -> None:
    assert "torch" not in loaded_by("import reports, reports.rendering, harness.statistics")
