"""Two runs held against each other: only ratios within a run, exact figures as they are, and refusals by name."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from harness.errors import UserError
from harness.records import Measurement, RunFolder
from reports import comparison_output as output
from reports.comparison import compare_runs

FAR = {"document": 1.0, "einsum": 0.7, "sdpa": 0.3, "torch_mha": 0.5, "torch_mha_weights": 0.6}
QUIET = {"noise": 0.002, "speed": FAR, "rounds": 160}


@pytest.fixture
def runs(make_run):
    """``runs(base={...}, head={...})`` builds two run folders."""

    def make(base=(), head=()) -> tuple[Path, Path]:
        return tuple(
            make_run(name, **{**QUIET, "seed": seed, **dict(changes)})
            for seed, (name, changes) in enumerate((("base", base), ("head", head)))
        )

    return make


def changed(folder: Path, field: str, value: object, which: Measurement | str = "einsum") -> None:
    """Write another value into a measurement: the given one, or the first of an implementation."""
    path = folder / "measurements.jsonl"
    records = RunFolder(folder).measurements()
    first = next(record for record in records if which in (record, record.implementation))
    lines = [
        (record.model_copy(update={field: value}) if record is first else record).model_dump_json(exclude_defaults=True)
        for record in records
    ]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def compared(runs):
    """``compared(base={...}, head={...})`` compares two such runs."""

    def make(base=(), head=(), **how):
        return compare_runs(*runs(base, head), 0.02, **how)

    return make


def test_equal_code_is_unchanged_and_no_regression(compared):
    found = compared()
    assert {each.change for each in found.times} == {"unchanged"}
    assert found.regressions() == found.regressions(strict=True) == ()
    assert output.verdict(found) == (
        "No regression beyond 2.0%; times: 12 unchanged; no check failed that did not before."
    )


def test_an_implementation_that_became_slower_beside_the_baseline_regressed(compared):
    found = compared(head={"speed": {**FAR, "einsum": 0.9}})
    changes = {(each.implementation, each.change) for each in found.times}
    assert ("einsum", "regressed") in changes
    assert all(change == "unchanged" for name, change in changes if name != "einsum")
    assert all("einsum regressed on S " in line for line in found.regressions())
    (each,) = (each for each in found.times if each.implementation == "einsum" and "S 2048" in each.workload)
    assert each.low < each.ratio < each.high
    assert each.low > 1.02


def test_where_no_time_could_be_compared_a_strict_gate_fails(compared):
    found = compared(base={"implementations": ("sdpa",)}, head={"implementations": ("sdpa",)})
    assert found.times == ()
    assert "no time could be compared" in output.verdict(found)
    assert found.regressions() == ()
    assert found.regressions(strict=True) == ("no time could be compared",)


def test_a_whole_machine_that_became_slower_changed_nothing(runs):
    base, head = runs()
    records = RunFolder(head).measurements()
    for record in records:
        if record.samples is not None:
            slower = tuple(1.7 * seconds for seconds in record.samples.wall_s)
            changed(head, "samples", record.samples.model_copy(update={"wall_s": slower}), record)
    assert {each.change for each in compare_runs(base, head, 0.02).times} == {"unchanged"}


def test_one_that_became_faster_improved(compared):
    found = compared(head={"speed": {**FAR, "einsum": 0.4}})
    assert any(each.change == "improved" for each in found.times if each.implementation == "einsum")
    assert found.regressions() == ()


def test_what_noise_hides_is_unresolved_and_fails_only_a_strict_gate(compared):
    found = compared(head={"noise": 0.5})
    assert "unresolved" in {each.change for each in found.times}
    assert found.regressions() == ()
    assert found.regressions(strict=True)


def test_without_an_interval_nothing_is_said(compared):
    found = compared(base={"rounds": 5}, head={"rounds": 5})
    assert {each.change for each in found.times} == {"unresolved"}
    assert "no interval" in "\n".join(output.lines(found, strict=True)) or found.times[0].low == 0


def test_exact_figures_are_compared_to_the_byte(runs):
    base, head = runs()
    changed(head, "peak_bytes", 10 * 2**20)
    changed(head, "kernels", ("aten::other",), "document")
    found = compare_runs(base, head, 0.02)
    whats = {(each.implementation, each.what, each.after) for each in found.figures}
    assert whats == {("einsum", "peak memory", "10.0 MiB"), ("document", "kernels", "aten::other")}


@pytest.mark.parametrize(("factor", "fails"), [(1.5, True), (1.01, False), (0.5, False)])
def test_a_peak_that_grew_beyond_the_threshold_fails_and_a_smaller_one_does_not(runs, factor, fails):
    base, head = runs()
    before = next(each for each in RunFolder(base).measurements() if each.implementation == "einsum")
    changed(head, "peak_bytes", round(factor * before.peak_bytes))
    found = compare_runs(base, head, 0.02)
    assert [each.what for each in found.figures] == ["peak memory"]
    assert bool(found.regressions()) is fails
    assert ("1 figure worse" in output.verdict(found)) is fails
    assert output.junit(found).getroot().get("failures") == str(int(fails))


def test_an_error_that_grew_is_told(runs):
    base, head = runs()
    changed(head, "budget_used", 0.9)
    (each,) = compare_runs(base, head, 0.02).errors
    assert (each.implementation, each.what, each.before, each.after) == (
        "einsum",
        "error over its budget",
        "0.31x",
        "0.90x",
    )


def test_a_check_that_fails_now_is_a_regression(runs):
    base, head = runs()
    path = head / "checks.jsonl"
    records = RunFolder(head).checks()
    first = next(record for record in records if record.implementation == "sdpa")
    broken = first.model_copy(update={"status": "failed", "reasons": ("it is wrong now",)})
    lines = [(broken if record is first else record).model_dump_json(exclude_defaults=True) for record in records]
    path.write_text("\n".join(lines) + "\n")
    found = compare_runs(base, head, 0.02)
    (line,) = found.regressions()
    assert line.startswith(f"sdpa, {first.check} on {first.case}: check passed before, failed now")
    assert "1 check failed that did not before" in output.verdict(found)


def test_a_check_that_fails_now_and_was_not_run_before_is_a_regression_and_one_that_is_missing_now_is_named(runs):
    base, head = runs()
    lines = (head / "checks.jsonl").read_text().splitlines()
    first = RunFolder(head).checks()[0]
    other = first.model_copy(update={"check": "a_later_check", "status": "failed", "reasons": ("it is wrong",)})
    (head / "checks.jsonl").write_text("\n".join([*lines[1:], other.model_dump_json(exclude_defaults=True)]) + "\n")
    found = compare_runs(base, head, 0.02)
    (line,) = found.regressions()
    assert line == f"{first.implementation}, a_later_check on {first.case}: check not run before, failed now"
    assert found.only_in == (
        f"1 check only in the base: {first.implementation}, {first.check} on {first.case}.",
        f"1 check only in the head: {first.implementation}, a_later_check on {first.case}.",
    )


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("machine_id", "ffffffff", "machine: 5b1c9e02"),
        ("packages", {"torch": "2.14.0"}, "torch: 2.13.0 and 2.14.0"),
        ("cores", 64, "cores: 2 and 64"),
    ],
)
def test_another_machine_or_torch_is_refused_by_name_unless_asked_for(runs, key, value, words):
    base, head = runs()
    folder = RunFolder(head)
    info = folder.info()
    folder.write_info(info.model_copy(update={"environment": info.environment.model_copy(update={key: value})}))
    with pytest.raises(UserError, match="--across-machines") as caught:
        compare_runs(base, head, 0.02)
    assert words in str(caught.value)
    found = compare_runs(base, head, 0.02, across_machines=True)
    assert any(words in note and note.endswith("only ratios are compared.") for note in found.notes)


def test_other_threads_and_another_baseline_are_refused(runs):
    with pytest.raises(UserError, match="threads: 2 and 1"):
        compare_runs(*runs(head={"threads": (1,)}), 0.02)
    with pytest.raises(UserError, match=r"base has the baseline sdpa and .*head has document"):
        compare_runs(*runs(head={"baseline": "document"}), 0.02)


def test_what_only_one_run_has_is_said(compared):
    found = compared(head={"lengths": (128, 512)})
    assert found.only_in == ("1 workload only in the base: b1-s2048-d512-h8-causal-float32-inference-cpu-t2.",)


def test_markdown_says_the_verdict_first_only_what_changed_and_folds_the_rest(compared):
    page = output.markdown(compared(head={"speed": {**FAR, "einsum": 0.9}}))
    assert page.startswith("**3 regressions beyond 2.0%; times: 3 regressed and 9 unchanged; no check failed")
    before, _, folded = page.partition("<details>")
    assert before.count("einsum regressed") == 3
    assert "unchanged on" not in before
    assert folded.count(" unchanged on ") == 9


def test_markdown_stays_below_what_a_comment_holds(compared):
    lengths = tuple(range(16, 16 + 8 * 120, 8))
    found = compared(base={"lengths": lengths, "rounds": 9}, head={"lengths": lengths, "rounds": 9})
    large = replace(found, only_in=found.only_in + ("<b>" * 400,) * 100)
    page = output.markdown(large)
    assert len(page.encode()) <= output.MAX_BYTES
    assert "further lines are in the JSON file." in page
    assert "<b>" not in page


def test_junit_has_a_case_for_each_time_and_a_failure_for_each_regression(compared):
    found = compared(head={"speed": {**FAR, "einsum": 0.9}})
    suite = output.junit(found).getroot()
    assert isinstance(suite, ET.Element)
    assert (suite.get("tests"), suite.get("failures")) == ("12", "3")
    assert len(suite.findall("testcase/failure")) == 3


def test_json_and_the_actions_json_hold_every_time(compared):
    found = compared()
    assert len(output.as_json(found)["times"]) == len(output.action_entries(found)) == 12
    assert all(0.9 < entry["value"] < 1.1 for entry in output.action_entries(found))
