"""The likely cause stands beside a failure, and no empty words where it is not known."""

from pathlib import Path

from harness.records import CheckRecord
from reports.exports import junit_xml
from reports.frames import checks_frame
from reports.tables import Names
from reports.verification_tables import failures

CAUSE = "the factor 1/sqrt(d_k) is missing"


def record(check: str, likely_cause: str) -> CheckRecord:
    return CheckRecord(
        implementation="mine",
        check=check,
        claim="The output equals the formula's.",
        case="b3-s7-d48-h4-none-float32-inference-cpu",
        dtype="float32",
        mask="none",
        mode="inference",
        device="cpu",
        status="failed",
        reasons=("off by 7 times the budget",),
        likely_cause=likely_cause,
    )


def test_the_likely_cause_stands_beside_the_failure() -> None:
    known, unknown = failures(checks_frame([record("one", CAUSE), record("two", "")]), Names(()))
    assert known.reasons == f"off by 7 times the budget; likely cause: {CAUSE}"
    assert unknown.reasons == "off by 7 times the budget"
    titles = [column.heading for column in known.table.columns]
    cells = [cell.text for cell in known.table.rows[0]]
    assert dict(zip(titles, cells, strict=True))["likely cause"] == CAUSE


def test_junit_carries_the_likely_cause(tmp_path: Path) -> None:
    junit_xml(checks_frame([record("one", CAUSE), record("two", "")]), "2026-01-01T00:00:00", tmp_path / "junit.xml")
    assert (tmp_path / "junit.xml").read_text().count("likely cause:") == 1
