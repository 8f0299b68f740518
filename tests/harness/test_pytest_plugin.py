"""`pytest --mha-plugin FILE.py`: each check of a user's file is an item, beside the user's own tests."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

FEW = ("--mha-dtype", "float32", "-k", "matches_the_oracle or sum_to_one or later_tokens or own_test")


@pytest.fixture
def project(tmp_path: Path):
    """``project(source, *options)`` runs pytest in a project with mine.py and a test of its own."""

    def run(source: str, *options: str, own: str = "def test_own_test():\n    pass\n") -> tuple[int, str]:
        (tmp_path / "mine.py").write_text(source)
        (tmp_path / "test_own.py").write_text(own)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
        # A worker of pytest-xdist says so in the environment, and this is a session of its own.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=250, cwd=tmp_path, env=environment, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_each_check_is_an_item_named_by_its_claim_and_the_projects_own_tests_run_too(project, right_source):
    code, out = project(right_source, "--mha-plugin", "mine.py", "-v", *FEW)
    assert code == 0, out
    assert "mine.py::mine::matches_the_oracle PASSED" in out
    assert "test_own.py::test_own_test PASSED" in out


def test_a_wrong_implementation_fails_with_the_claim_the_reason_and_the_command(project, tmp_path, right_source):
    code, out = project(
        right_source.replace("is_causal=is_causal)", "is_causal=False)"),
        "--mha-plugin",
        "mine.py",
        "--junit-xml",
        "junit.xml",
        *FEW,
    )
    assert code == 1, out
    assert "claim: " in out
    assert "again: mha verify mine --check matches_the_oracle --case" in out
    assert "FAILED mine.py::mine::matches_the_oracle" in out
    cases = ET.parse(tmp_path / "junit.xml").iter("testcase")  # noqa: S314 - pytest wrote it
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    assert "matches_the_oracle" in failed
    assert "test_own_test" not in failed


def test_workers_of_xdist_share_the_items(project, right_source):
    code, out = project(right_source, "--mha-plugin", "mine.py", "-n", "2", *FEW)
    assert code == 0, out
    assert "failed" not in out


def test_what_no_case_supports_is_skipped_with_the_reason(project, right_source):
    declared = right_source.replace("def attend", "def _attend") + (
        "\nfrom implementations.spec import Implementation\n"
        "IMPLEMENTATION = Implementation(name='mine', summary='s', source='t', attend=_attend, dtypes=('float64',))\n"
    )
    code, out = project(declared, "--mha-plugin", "mine.py", "-rs", *FEW)
    assert code == 0, out
    assert "SKIPPED" in out
    assert "float32" in out


def test_one_check_is_selected_by_its_id(project, right_source):
    code, out = project(right_source, "--mha-plugin", "mine.py", "mine.py::mine::softmax_rows_sum_to_one", "-v")
    assert code == 0, out
    assert "1 passed" in out


def test_a_file_that_is_not_there_is_said_before_anything_runs(project, right_source):
    code, out = project(right_source, "--mha-plugin", "other.py")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "other.py: no such file" in out


@pytest.mark.parametrize(("source", "words"), [("import nowhere_at_all\n", "fails to import"), ("x = 1\n", "mine.py")])
def test_a_file_that_cannot_be_used_is_an_error_of_one_line(project, source, words):
    code, out = project(source, "--mha-plugin", "mine.py")
    assert code == pytest.ExitCode.USAGE_ERROR, out
    (line,) = (line for line in out.splitlines() if line.startswith("ERROR: "))
    assert words in line
    assert "Traceback" not in out


def test_without_the_option_nothing_is_collected_and_torch_is_not_imported(project, right_source):
    code, out = project(
        right_source, own="def test_own_test():\n    import sys\n    assert 'torch' not in sys.modules\n"
    )
    assert code == 0, out
    assert "1 passed" in out
