import json
import subprocess
import sys
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
from pytest_benchmark.stats import Stats

import reports
from harness.records import CheckRecord, RunFolder
from reports.exports import benchmark_stats


@pytest.fixture
def exported(make_run):
    """``exported(...)`` builds a run, renders it, and returns its folder."""

    def make(**changes):
        run = make_run(**changes)
        reports.render(run)
        return run

    return make


def test_results_have_a_row_for_each_measurement_with_its_ratio_and_verdict(exported):
    run = exported(noise=0.005)
    results = pd.read_csv(run / "results.csv")
    records = RunFolder(run).measurements()
    assert list(results["implementation"]) == [record.implementation for record in records]
    slow = results[results["implementation"] == "document"]
    assert (slow["verdict"] == "slower").all()
    assert (slow["low"] < slow["ratio"]).all()
    assert (slow["ratio"] < slow["high"]).all()
    assert (slow["reference"] == "sdpa").all()
    assert {"median_s", "q1_s", "q3_s", "peak_bytes", "status", "reasons", "seq_len", "threads"} <= set(results)


def test_checks_have_a_row_for_each_record(exported):
    run = exported(lengths=(128,))
    table = pd.read_csv(run / "checks.csv")
    assert len(table) == len(RunFolder(run).checks())
    assert list(table.columns) == list(CheckRecord.model_fields)


def test_junit_counts_failures_and_carries_their_reasons(exported):
    root = ET.parse(exported(lengths=(128,)) / "junit.xml").getroot()  # noqa: S314 - our own file
    suites = {suite.get("name"): suite for suite in root}
    assert [suites["xformers"].get(key) for key in ("tests", "failures", "errors", "skipped")] == [
        "144",
        "9",
        "0",
        "72",
    ]
    failures = suites["xformers"].findall("testcase/failure")
    assert len(failures) == 9
    assert failures[0].get("message") == "failed: a bool bias is added as 0 and 1 | not as -inf"
    assert "budget 1e-06 (rounding of the logits)" in failures[0].text
    assert "repeat it with: mha verify --only xformers" in failures[0].text
    assert suites["torch_mha"].find("testcase/skipped").get("message").startswith("known_failure: ")


def test_junit_survives_control_characters(make_run):
    run = make_run(lengths=(128,))
    record = RunFolder(run).checks()[0]
    hostile = {"case": "\x1b[31mred", "status": "crashed", "reasons": ("signal\x00 ]]> <&",)}
    RunFolder(run).append(record.model_copy(update=hostile))
    reports.render(run)
    (error,) = ET.parse(run / "junit.xml").getroot().iter("error")  # noqa: S314 - our own file
    assert error.get("message") == "crashed: signal\ufffd ]]> <&"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 81])
def test_statistics_are_those_of_pytest_benchmark(count):
    # No three are equally spaced: a value exactly one deviation from the mean is an outlier or not by its last bit.
    data = tuple(0.001 * (1 + (number**2 * 7919 % 101) / 100) for number in range(count)) + (0.02,) * (count > 5)
    theirs = Stats()
    for value in data:
        theirs.update(value)
    ours = benchmark_stats(data)
    # Releases differ in the upper whisker; the newest takes the highest datum within the fence, as done here.
    assert {key: ours[key] for key in Stats.fields if key != "hd15iqr"} == pytest.approx(
        {key: value for key, value in theirs.as_dict().items() if key != "hd15iqr"}
    )
    assert ours["hd15iqr"] == max(value for value in data if value <= ours["q3"] + 1.5 * ours["iqr"])
    assert ours["data"] == list(data)


def test_pytest_benchmark_compares_the_file(exported, tmp_path):
    run = exported(rounds=20)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest_benchmark",
            "compare",
            run / "pytest-benchmark.json",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Failed to load" not in done.stdout + done.stderr
    group = "benchmark 'b1-s128-d512-h8-causal-float32-inference-cpu-t2': 5 tests"
    assert group in done.stdout
    assert "torch_mha_weights[b1-s2048-d512-h8-causal-float32-inference-cpu-t2]" in done.stdout


def test_pytest_benchmark_json_has_what_its_own_writer_has(exported):
    content = json.loads((exported() / "pytest-benchmark.json").read_text())
    assert set(content) == {"machine_info", "commit_info", "benchmarks", "datetime", "version"}
    for benchmark in content["benchmarks"]:
        assert {"group", "name", "fullname", "params", "param", "extra_info", "options", "stats"} == set(benchmark)
        assert {*Stats.fields, "data", "iterations"} == set(benchmark["stats"])
    assert content["commit_info"]["id"] == "0123abc"
    assert content["commit_info"]["dirty"] is True


def test_benchmark_actions_get_medians_and_peaks_with_stable_names(exported):
    entries = json.loads((exported(lengths=(128,)) / "benchmark-action.json").read_text())
    assert {key for entry in entries for key in entry} == {"name", "unit", "value", "range", "extra"}
    assert [entry["unit"] for entry in entries] == ["ms", "bytes"] * 5
    assert entries[0]["name"] == "document / b1-s128-d512-h8-causal-float32-inference-cpu-t2 / latency"
    assert entries[0]["range"].startswith("± ")


def test_files_for_machines_are_strict_json_even_without_an_interval(exported):
    run = exported(rounds=3)

    def refuse(constant):
        raise AssertionError(constant)

    for name in ("pytest-benchmark.json", "benchmark-action.json"):
        json.loads((run / name).read_text(), parse_constant=refuse)
