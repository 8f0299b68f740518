import re

import pytest

import reports
from harness.records import RunFolder, SemanticsRecord

HOSTILE = "<script>alert(1)</script> | `x`"


def answer(implementation, probe="nan_query", **changes):
    fields = {
        "implementation": implementation,
        "probe": probe,
        "question": f"What about {probe}?",
        "answer": "NaN",
        "declared": "NaN",
        "device": "cpu",
        "status": "as_declared",
        "reproduce": f"mha verify {implementation} --semantics --check {probe}",
    }
    return SemanticsRecord.model_validate({**fields, **changes})


@pytest.fixture
def pages_of(make_run):
    """``pages_of(records)`` adds answers to a run, renders it, and returns its HTML and its Markdown."""

    def make(*records):
        run = make_run(lengths=(128,))
        for record in records:
            RunFolder(run).append(record)
        rendered = reports.render(run)
        return rendered.html.read_text(), (run / "report.md").read_text()

    return make


def row_of(page, question):
    section = page[page.index('<section id="semantics">') :]
    section = section[: section.index("</section>")]
    row = next(part for part in section.split("<tr>") if question in part)
    return re.findall(r"<t[dh][^>]*>.*?</t[dh]>", row, flags=re.DOTALL)


def test_an_answer_that_differs_is_among_what_is_wrong_with_both_answers_and_the_command(pages_of):
    page, summary = pages_of(answer("sdpa", answer="0", status="differs"))
    sentence = "sdpa: What about nan_query? Seen: 0. Declared: NaN. Repeat it with mha verify sdpa --semantics"
    assert f"- {sentence}" in summary[summary.index("## What is wrong") : summary.index("## Verdict")]
    assert sentence in page[: page.index("<nav")]


def test_declared_and_seen_stand_side_by_side_a_column_for_each_implementation(pages_of):
    page, summary = pages_of(
        answer("document"),
        answer("sdpa", answer="0", status="differs"),
        answer("einsum", declared="", status="undeclared"),
        answer("document", "compile", answer="no compiler", status="no_answer", evidence="nothing to compile with"),
    )
    _, document, sdpa, einsum = row_of(page, "What about nan_query?")
    assert "as declared" in document
    assert 'class=" w bad"' in sdpa
    assert "declared: NaN" in sdpa
    assert "nothing declared" in einsum
    _, compiled, unasked, _ = row_of(page, "What about compile?")
    assert "nothing to compile with" in compiled
    assert "not asked" in unasked
    assert "Semantics: declared and seen (2 rows)" in summary


def test_answers_as_declared_raise_no_alarm(pages_of):
    page, summary = pages_of(*(answer(name) for name in ("document", "sdpa")))
    assert "Repeat it with mha verify" not in page
    assert "Repeat it with mha verify" not in summary


def test_a_later_answer_supersedes_the_earlier_one(pages_of):
    page, _ = pages_of(answer("sdpa", answer="0", status="differs"), answer("sdpa"))
    assert "Declared: NaN" not in page


def test_hostile_answers_stay_text(pages_of):
    page, summary = pages_of(answer("sdpa", answer=HOSTILE, question=HOSTILE, declared=HOSTILE, status="differs"))
    assert page.count("<script>") == 1
    assert "<script>alert" not in summary


def test_a_run_without_answers_has_no_such_section(pages_of):
    page, summary = pages_of()
    assert 'id="semantics"' not in page
    assert "Semantics" not in summary
