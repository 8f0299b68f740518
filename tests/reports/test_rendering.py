import json
import subprocess
import sys

import pytest

import reports
from harness.errors import UserError
from harness.records import CHECKS_FILE, MEASUREMENTS_FILE, RUN_FILE


def test_importing_reports_loads_neither_pandas_nor_matplotlib_nor_torch():
    script = "import reports, sys; print(sorted({'pandas', 'matplotlib', 'torch', 'jinja2'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_rendering_never_imports_torch_nor_any_implementation(make_run):
    run = make_run(lengths=(128,))
    script = (
        "import reports, sys; from pathlib import Path; reports.render(Path(sys.argv[1]));"
        "print([n for n in sys.modules if n.split('.')[0] in ('torch', 'implementations')])"
    )
    done = subprocess.run([sys.executable, "-c", script, run], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_file_named_was_written_into_the_run_folder_by_default(make_run):
    run = make_run()

    rendered = reports.render(run)

    assert rendered.html == run / "report.html"
    assert all(path.stat().st_size > 0 for path in rendered.files)
    assert {path.name for path in rendered.files if path.parent == run} == {
        "report.html",
        "report.md",
        "results.csv",
        "checks.csv",
        "junit.xml",
        "pytest-benchmark.json",
        "benchmark-action.json",
    }
    assert {path.suffix for path in rendered.files if path.parent.name == "plots"} == {".png", ".svg"}


def test_another_folder_can_be_named_and_the_run_stays_untouched(make_run, tmp_path):
    run = make_run(lengths=(128,))
    before = sorted(run.iterdir())

    rendered = reports.render(run, tmp_path / "new" / "folder")

    assert rendered.html.is_relative_to(tmp_path / "new" / "folder")
    assert sorted(run.iterdir()) == before


def test_rendering_twice_gives_equal_pages(make_run):
    run = make_run()
    first = reports.render(run).html.read_bytes()
    assert reports.render(run).html.read_bytes() == first


def test_a_run_that_only_verified_says_so_and_sums_its_checks_up(make_run):
    rendered = reports.render(make_run(planned=False))

    assert rendered.verdicts == ()
    assert "sdpa: 144 checks: 144 passed" in rendered.verdict_lines
    assert "Nothing was timed: this run only verified." in rendered.html.read_text()
    assert not any(path.suffix == ".svg" for path in rendered.files)


def test_a_run_without_checks_says_so(make_run):
    page = reports.render(make_run(checked=False)).html.read_text()
    assert "Nothing was checked in this run" in page
    assert "Verification matrix" not in page


def test_a_run_killed_before_its_first_record_still_renders(make_run):
    rendered = reports.render(make_run(checked=False, unmeasured=lambda _workload, _name: True))
    assert all(line.endswith("not measured (interrupted)") for line in rendered.verdict_lines)
    assert "3 planned workloads without a measurement" in rendered.html.read_text()


def test_a_record_of_a_resumed_run_supersedes_the_earlier_one(make_run):
    run = make_run(lengths=(128,), checked=False)
    lines = (run / MEASUREMENTS_FILE).read_text().splitlines(keepends=True)
    changed = json.loads(lines[2]) | {"status": "wrong", "reasons": ["a later look"], "samples": None}
    with (run / MEASUREMENTS_FILE).open("a") as file:
        file.write(json.dumps(changed) + "\n")

    (verdict,) = reports.render(run).verdicts

    assert "sdpa" not in [standing.name for standing in verdict.standings]
    assert verdict.baseline_missing


def break_version(run):
    content = json.loads((run / RUN_FILE).read_text()) | {"format_version": 99}
    (run / RUN_FILE).write_text(json.dumps(content))


def break_line(run):
    with (run / CHECKS_FILE).open("a") as file:
        file.write('{"implementation": \n')


def break_samples(run):
    lines = [json.loads(line) for line in (run / MEASUREMENTS_FILE).read_text().splitlines()]
    lines[0]["samples"]["wall_s"].pop()
    (run / MEASUREMENTS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))


def lose_samples(run):
    lines = [json.loads(line) for line in (run / MEASUREMENTS_FILE).read_text().splitlines()]
    lines[0]["samples"] = None
    (run / MEASUREMENTS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))


def shift_rounds(run):
    lines = [json.loads(line) for line in (run / MEASUREMENTS_FILE).read_text().splitlines()]
    lines[0]["samples"]["round"] = [number + 1000 for number in lines[0]["samples"]["round"]]
    (run / MEASUREMENTS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: (run / RUN_FILE).unlink(), "is not a run folder: it has no run.json"),
        (break_version, "format version 99, and this mha reads 1"),
        (break_line, "checks.jsonl:865: "),
        (break_samples, "columns of samples must be equally long, not [79, 80]"),
        (
            lose_samples,
            "document on b1-s128-d512-h8-causal-float32-inference-cpu-t2 is `measured` without samples",
        ),
        (shift_rounds, "cannot be judged: the two sets of samples share no round"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(make_run, damage, said):
    run = make_run()
    damage(run)

    with pytest.raises(UserError) as refusal:
        reports.render(run)

    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(make_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written there"):
        reports.render(make_run(lengths=(128,)), tmp_path / "file" / "out")
