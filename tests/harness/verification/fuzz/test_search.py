"""The search: rare faults, crashes and hangs are found, shrunk and kept; what is right is left alone."""

import json
from pathlib import Path

import pytest

from harness.cli import run
from harness.records import CheckRecord
from harness.registry import load_registry, select
from harness.verification.fuzz.results import BY_CHANCE, Options, Report
from harness.verification.fuzz.search import fuzz

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def search(tmp_path: Path):
    """Search through one implementation, for one round; failures are kept from call to call."""

    def searched(registered, seconds: float = 60.0, rounds: int = 1, **options: object) -> Report:
        asked = Options(seconds, rounds=rounds, database=tmp_path / "database", **options)
        (report,) = fuzz([registered], asked)
        return report

    return searched


def only_finding(report: Report) -> CheckRecord:
    (record,) = report.records
    return record


SMALLEST = (
    "B 1, S 1, H 3, d_k 1; float32 on cpu, inference; without the causal flag; a mask of dimensions qxk that hides "
    "nothing, each row keeping a key, expanded; x contiguous, times 1, its last item times 1, logits times 1; numbers "
    "of seed 0"
)


def test_a_rare_fault_is_found_shrunk_to_the_smallest_case_and_replayed_first(search, wrong_ones, tmp_path) -> None:
    (rare,) = wrong_ones("rare")
    first = only_finding(search(rare, seconds=240.0, rounds=2, seed=2, reproducers=tmp_path / "scripts"))
    assert (first.status, first.check) == ("failed", "fuzz")
    assert first.reasons[0] == SMALLEST  # odd, three heads, expanded: that and no more
    assert first.budget_used is not None
    assert first.budget_used > 100
    assert "float32 rounding" in first.budget_set_by
    assert first.reproduce == f"mha verify rare --fuzz 240 --seed 2 --plugin {rare.plugin}"
    assert Path(first.reproducer).exists()
    again = search(rare, rounds=0, seed=99)
    assert only_finding(again).case == first.case
    assert again.counts["failed"] == 1


def test_a_crash_is_a_finding_and_shrunk(search, wrong_ones) -> None:
    record = only_finding(search(wrong_ones("crashes")[0], seed=1))
    assert record.status == "crashed"
    assert record.reasons[0].startswith("B 0, S 1, H 1, d_k 5; float32 on cpu, inference; without the causal flag;")
    assert "SIGSEGV" in record.reasons[1]


def test_a_hang_is_a_finding_and_shrunk(search, wrong_ones) -> None:
    record = only_finding(search(wrong_ones("hangs")[0], 30.0))
    assert record.status == "timeout"
    assert record.reasons[0].startswith("B 4, S 1, H 1, d_k 1;")
    assert "in hangs" in record.reasons[1]


def test_an_error_is_a_finding(search, wrong_ones) -> None:
    record = only_finding(search(wrong_ones("raises")[0]))
    assert record.reasons[1] == "raised IndexError: three dimensions are one too few"
    assert "a mask of dimensions hxqxk that hides nothing" in record.reasons[0]


def test_a_failure_that_does_not_repeat_says_so(search, wrong_ones) -> None:
    record = only_finding(search(wrong_ones("wrong_after_some_calls")[0]))
    assert record.status == "failed"
    assert record.reasons[-1] == BY_CHANCE


@pytest.mark.parametrize("name", ["sdpa", "einsum"])
def test_nothing_is_found_in_what_is_right(search, name) -> None:
    report = search(select(load_registry(), [name])[0])
    (record,) = report.records
    assert (record.status, report.findings) == ("passed", ())
    assert report.counts["passed"] > 10
    assert f"{report.counts['passed']} passed" in record.reasons[0]


def test_what_cannot_run_is_unavailable_and_takes_no_time(tmp_path) -> None:
    chosen = select(load_registry(), ["xformers"])
    (report,) = fuzz(chosen, Options(60.0, dtypes=("float64",), database=tmp_path))
    assert [record.status for record in report.records] == ["unavailable"]


def test_the_time_is_split_over_implementations(wrong_ones, tmp_path) -> None:
    reports = list(fuzz(wrong_ones("raises", "crashes"), Options(8.0, database=tmp_path / "database")))
    assert [report.implementation for report in reports] == ["raises", "crashes"]
    assert all(sum(report.counts.values()) > 5 for report in reports)


def test_the_command_prints_findings_and_exits_with_1(wrong_ones, tmp_path, monkeypatch, capsys) -> None:
    (raises,) = wrong_ones("raises")
    monkeypatch.chdir(tmp_path)
    assert run(["verify", "raises", "--plugin", str(raises.plugin), "--fuzz", "6", "--json", "found.json"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "raises: 1 found;" in printed
    assert "raised IndexError: three dimensions are one too few" in printed
    assert "failures are kept in .mha-fuzz" in printed
    (record,) = json.loads((tmp_path / "found.json").read_text())
    assert (record["check"], record["status"]) == ("fuzz", "failed")
    assert (tmp_path / ".mha-fuzz").is_dir()


def test_options_of_the_checks_are_refused_beside_fuzz(capsys) -> None:
    assert run(["verify", "sdpa", "--fuzz", "10", "--check", "matches_the_oracle"]) == 2
    assert "--fuzz asks its own questions and takes no --check" in capsys.readouterr().err
