"""What is installed and what is published holds all that the packages read at run time."""

import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]


def files_below(folder: str) -> set[str]:
    """Tracked kinds of files of a package, relative to the checkout."""
    kinds = (".py", ".typed", ".toml", ".j2", ".css", ".js")
    found = (path for path in (ROOT / folder).rglob("*") if path.suffix in kinds and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in found}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    return set(zipfile.ZipFile(path).namelist())


@pytest.mark.parametrize("package", ["harness", "implementations", "reports"])
def test_the_wheel_holds_every_file_of_a_package_and_that_it_is_typed(wheel: set[str], package: str) -> None:
    assert files_below(package) - wheel == set()
    assert f"{package}/py.typed" in wheel


def test_the_wheel_holds_presets_templates_and_the_wrong_implementations(wheel: set[str]) -> None:
    assert {"harness/presets/default.toml", "reports/templates/report.html.j2"} <= wheel
    mutants = {name.replace("tests/mutants", "harness/mutants") for name in files_below("tests/mutants")}
    assert len(mutants) > 10
    assert mutants - wheel == set()


def test_the_source_distribution_holds_what_its_own_tests_read(tmp_path: Path) -> None:
    (path,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"docs/authors.md", "docs/faults.md", "README.md", "tox.ini", "constraints.txt", "tests/conftest.py"}
    assert needed - names == set()
