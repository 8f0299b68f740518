"""Run folders: what is written comes back, a kill loses nothing that was finished, nonsense is named."""

import json
import math
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.records import (
    FORMAT_VERSION,
    CheckRecord,
    Environment,
    Measurement,
    RunFolder,
    RunInfo,
    SemanticsRecord,
    Workload,
)

WORKLOAD = Workload(
    label="x", batch_size=1, seq_len=8, d_model=16, num_heads=2, dtype="float32", mask="none", mode="inference"
)


def check(case: str = "b1", **changes: object) -> CheckRecord:
    fields = {
        "implementation": "sdpa",
        "check": "c",
        "claim": "It holds.",
        "case": case,
        "dtype": "float32",
        "mask": "none",
        "mode": "inference",
        "device": "cpu",
        "status": "passed",
    }
    return CheckRecord.model_validate({**fields, **changes})


def info() -> RunInfo:
    environment = Environment(
        machine_id="m",
        processor="p",
        cores=2,
        memory_bytes=1,
        system="Linux",
        python="3.11",
        packages={},
        torch_config={},
    )
    return RunInfo(
        format_version=FORMAT_VERSION,
        run_id="r",
        created="2026-01-01T00:00:00+00:00",
        command="mha bench",
        preset="quick",
        baseline="sdpa",
        resolution=0.02,
        seed=0,
        environment=environment,
        implementations=(),
        workloads=(WORKLOAD,),
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.create(info())
    return made


def test_what_is_written_is_read_back(folder: RunFolder) -> None:
    measurement = Measurement(implementation="sdpa", workload=WORKLOAD, status="skipped", reasons=("too large",))
    folder.append(check())
    folder.append(measurement)
    assert folder.info() == info()
    assert folder.checks() == [check()]
    assert folder.measurements() == [measurement]


def test_an_error_that_is_not_a_number_survives_the_file(folder: RunFolder) -> None:
    folder.append(check(max_error=math.nan, budget_used=math.inf, status="failed"))
    (record,) = folder.checks()
    assert math.isnan(record.max_error)
    assert record.budget_used == math.inf


def test_a_record_cut_short_by_a_kill_is_left_out_and_appending_goes_on(folder: RunFolder) -> None:
    folder.append(check("first"))
    with (folder.path / "checks.jsonl").open("a") as file:
        file.write('{"implementation": "sdpa", "che')
    with (folder.path / "checks.jsonl").open("ab") as file:
        file.write("ü".encode()[:1])  # cut within a character
    assert [record.case for record in folder.checks()] == ["first"]
    folder.repair()
    folder.append(check("second"))
    assert [record.case for record in folder.checks()] == ["first", "second"]


def test_answers_of_probes_come_back_and_survive_a_kill(folder: RunFolder) -> None:
    answer = SemanticsRecord(
        implementation="sdpa", probe="nan_query", question="What?", answer="0", device="cpu", status="undeclared"
    )
    folder.append(answer)
    with (folder.path / "semantics.jsonl").open("a") as file:
        file.write('{"implementation": "sdpa", "pro')
    assert folder.semantics() == [answer]
    folder.repair()
    folder.append(answer)
    assert folder.semantics() == [answer, answer]
    assert folder.checks() == []


def test_another_format_version_is_refused_by_its_number(folder: RunFolder) -> None:
    path = folder.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))
    with pytest.raises(UserError, match="format version 99, and this mha reads 1"):
        folder.info()


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "not readable as JSON"), ("[]", "format version None"), ('{"format_version": 1}', "run_id: Field required")],
)
def test_a_run_file_that_is_no_run_is_refused_in_one_line(folder: RunFolder, content: str, words: str) -> None:
    (folder.path / "run.json").write_text(content)
    with pytest.raises(UserError) as caught:
        folder.info()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_record_is_named_by_file_and_line(folder: RunFolder) -> None:
    folder.append(check())
    with (folder.path / "checks.jsonl").open("a") as file:
        file.write('{"implementation": 3}\n')
    with pytest.raises(UserError, match=r"checks\.jsonl:2: implementation: .* got 3 \(and \d+ more\)"):
        folder.checks()


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a run folder: it has no run\.json"):
        RunFolder(tmp_path).info()


def test_the_key_tells_workloads_apart_by_everything_but_their_label() -> None:
    assert WORKLOAD.key == WORKLOAD.model_copy(update={"label": "other"}).key
    changes = {"batch_size": 2, "seq_len": 9, "d_model": 32, "num_heads": 4, "dtype": "float64", "mask": "causal"}
    changes |= {"mode": "training", "device": "cuda", "threads": 2}
    keys = {WORKLOAD.model_copy(update={field: value}).key for field, value in changes.items()}
    assert len(keys | {WORKLOAD.key}) == len(changes) + 1
