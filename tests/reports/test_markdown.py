import re

import pytest

import reports
from reports import markdown
from reports.tables import Cell, Column, Table


@pytest.fixture
def summary_of(make_run):
    """``summary_of(...)`` builds a run, renders it, and returns the Markdown."""

    def make(**changes):
        run = make_run(**changes)
        reports.render(run)
        return (run / "report.md").read_text()

    return make


@pytest.fixture(scope="session")
def default_summary(rendered_run):
    """The Markdown of the default run."""
    return (rendered_run / "report.md").read_text()


def test_verdict_then_failures_then_workloads_and_the_rest_folded(default_summary):
    source = default_summary
    places = [
        source.index(part)
        for part in (
            "# Multi-head attention: verdict",
            "## What is wrong",
            "## Verdict for each workload",
            "<details>",
        )
    ]
    assert places == sorted(places)
    assert "**xformers**, masked_keys_have_no_influence, 9 cases" in source
    assert source.count("<details>") == source.count("</details>")


def test_nothing_wrong_means_no_such_heading(summary_of):
    assert "## What is wrong" not in summary_of(implementations=("sdpa", "document"))


def test_a_wrong_output_is_among_what_is_wrong(summary_of):
    source = summary_of(untimed={("einsum", "float32"): ("wrong", "error 0.2")})
    assert "- einsum: wrong on 3 workloads: error 0.2." in source


HOSTILE = "a|b`c`\n# d <script>alert(1)</script> **e** [f](http://g) \\"


def test_hostile_text_breaks_out_of_no_cell(summary_of):
    source = summary_of(implementations=(HOSTILE, "sdpa"), speed={HOSTILE: 0.9, "sdpa": 0.3})
    assert "<script" not in source
    assert "\n# d" not in source
    assert "**e**" not in source
    assert "](" not in source
    table = source[source.index("## Verdict for each workload") :].split("\n\n")[1].splitlines()
    assert len({line.count("|") for line in table}) == 1


@pytest.mark.parametrize("name", ["torch_mha_weights", "scaled-dot.product", "x86 / 2"])
def test_ordinary_names_stay_readable(name):
    assert markdown.escape(name) == name


def test_a_table_that_is_too_long_says_how_many_rows_are_left_out_and_where_they_are():
    rows = [(Cell("x" * 300), Cell(str(number))) for number in range(1000)]
    source = "\n".join(
        markdown.table(Table("t", "Title", (Column("a"), Column("b", number=True)), rows, full="results.csv"))
    )
    kept = source.count("x" * 300)
    assert len(source.encode()) < markdown.SHARE + 1000
    assert f"{1000 - kept} rows left out here; all of them are in `results.csv`." in source


def test_even_a_run_of_nothing_but_long_failures_fits_into_a_summary(summary_of):
    text = "🐢|" * 5000
    source = summary_of(
        lengths=tuple(range(1, 200)),
        masks=("none", "causal"),
        rounds=8,
        implementations=(text[:300], "sdpa"),
        speed={text[:300]: 0.9, "sdpa": 0.3},
        untimed={(text[:300], "float32"): ("crashed", text)},
    )
    assert len(source.encode()) < markdown.MAX_BYTES


def test_every_table_row_has_as_many_cells_as_its_heading(default_summary):
    blocks = re.findall(r"(?:^\|.*\n)+", default_summary, flags=re.MULTILINE)
    assert len(blocks) > 8
    for block in blocks:
        assert len({line.count("|") for line in block.splitlines()}) == 1
