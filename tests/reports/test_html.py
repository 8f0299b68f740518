import re
from html.parser import HTMLParser

import pytest

import reports
from harness.records import Noise, NoiseTrial
from reports.tables import HAZARD_MARK

HOSTILE = "<script>alert(1)</script>"


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, and the text of some of them."""

    VOID = frozenset({"meta", "link", "br", "path", "use", "rect", "image"})

    def __init__(self, source):
        super().__init__()
        self.elements = []
        self.text = {}
        self._open = []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data):
        for tag in set(self._open):
            self.text.setdefault(tag, []).append(data)


@pytest.fixture
def page_of(make_run):
    """``page_of(...)`` builds a run, renders it, and returns the page's source."""
    return lambda **changes: reports.render(make_run(**changes)).html.read_text()


@pytest.fixture(scope="session")
def default_page(rendered_run):
    """The source of the default run's page."""
    return (rendered_run / "report.html").read_text()


def test_the_verdict_comes_first_then_evidence_then_the_environment(default_page):
    source = default_page
    anchors = [attrs["id"] for tag, attrs in Page(source).elements if tag == "section"]
    assert source.index("<h1>Use ") < source.index("Why the others lost") < source.index('id="verdicts"')
    assert anchors == [
        "verdicts",
        "winners",
        "figures",
        "measurements",
        "memory",
        "work",
        "untimed",
        "errors",
        "matrix",
        "failures",
        "unsupported",
        "growth",
        "hazards",
        "environment",
    ]


def test_the_page_loads_nothing(default_page):
    source = default_page
    page = Page(source)
    assert not {tag for tag, _ in page.elements} & {"img", "iframe", "object", "embed", "base"}
    for tag, attrs in page.elements:
        assert not (tag == "script" and "src" in attrs)
        for key in ("href", "xlink:href", "src"):
            assert attrs.get(key, "#").startswith(("#", "data:,"))
    assert "@import" not in source
    assert re.findall(r"url\((?!#)", source) == []


@pytest.mark.parametrize("name", [HOSTILE, '"><img src=x onerror=alert(1)>', "&lt;b&gt;", "{{ 7 * 7 }}"])
def test_a_hostile_name_stays_text_in_page_and_figures(page_of, name):
    source = page_of(implementations=(name, "sdpa"), speed={name: 0.9, "sdpa": 0.3})
    page = Page(source)
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert "alert" not in "".join(page.text["script"])
    assert not any(tag == "img" or "onerror" in attrs for tag, attrs in page.elements)
    assert name in "".join(page.text["th"])
    assert name in "".join(page.text["svg"])


@pytest.mark.parametrize("name", [r"$\frac{1}{2$", "_hidden", "注意力", "a\x08b", "line\nbreak"])
def test_names_that_plots_could_stumble_over_are_drawn(page_of, name):
    source = page_of(implementations=(name, "sdpa"), speed={name: 0.9, "sdpa": 0.3})
    drawn = "".join(Page(source).text["svg"])
    assert name.replace("\x08", "\ufffd").replace("\n", " ") in drawn


def test_a_hostile_mask_or_device_leads_no_file_elsewhere(make_run):
    run = make_run(masks=("../../escaped",))
    names = [path for path in reports.render(run).files if path.suffix == ".svg"]
    assert {path.parent for path in names} == {run / "plots"}


def test_an_implementation_with_nan_rows_is_flagged_wherever_a_table_names_it(default_page):
    source = default_page
    body = re.sub(r"<svg.*?</svg>", "", source, flags=re.DOTALL)
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", body, flags=re.DOTALL)
    naming = [cell for cell in cells if "torch_mha_weights" in re.split(r"<small|<code", cell)[0]]
    assert len(naming) > 5
    assert [cell for cell in naming if 'class="hazard"' not in cell] == []
    assert f"{HAZARD_MARK}</abbr>: this implementation gives NaN in a row whose keys are all masked" in source


def test_failures_are_shown_with_their_reason_budget_index_and_the_command_to_repeat_them(default_page):
    source = default_page
    failures = source[source.index('id="failures"') : source.index('id="unsupported"')]
    assert "a bool bias is added as 0 and 1 | not as -inf" in failures
    assert "0.87, budget 1e-06" in failures
    assert "at (1, 5, 7); rounding of the logits" in failures
    assert "mha verify --only xformers --check masked_keys_have_no_influence --case" in failures
    assert failures.index("xformers") < failures.index("torch_mha"), "known failures come last"


def test_statuses_without_a_time_say_why(page_of):
    untimed = {("einsum", "float32"): ("wrong", "error 0.2 is 3.1 times the budget")}
    source = page_of(untimed=untimed)
    assert "einsum: wrong on 3 workloads: error 0.2 is 3.1 times the budget." in source
    assert "verify-only: its kernel is interpreted on this machine" in source


def test_figures_have_names_for_screen_readers_and_share_no_ids(page_of):
    page = Page(page_of(masks=("none", "causal")))
    figures = [attrs for tag, attrs in page.elements if tag == "svg"]
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(figures) == 4, "two series, accuracy and roofline"
    assert len(ids) == len(set(ids))
    for figure in figures:
        assert figure["role"] == "img"
        assert set(figure["aria-labelledby"].split()) <= set(ids)
    assert any("Median latencies at S 2048" in text for text in page.text["desc"])


def test_references_within_a_figure_lead_to_ids_that_exist(default_page):
    page = Page(default_page)
    ids = {attrs["id"] for _, attrs in page.elements if "id" in attrs}
    links = [attrs["xlink:href"][1:] for _, attrs in page.elements if "xlink:href" in attrs]
    clips = re.findall(r"url\(#([^)]+)\)", str([attrs for _, attrs in page.elements]))
    assert links
    assert clips
    assert set(links) | set(clips) <= ids


def test_the_whole_environment_and_the_command_are_shown(default_page):
    source = default_page
    section = source[source.index('id="environment"') :]
    facts = ("mha bench --preset quick", "5b1c9e02", "Synthetic CPU", "0123abc+changes", "AVX512", "2.13.0")
    assert [fact for fact in facts if fact not in section] == []
    assert "time for verification" in section


def test_what_the_machine_resolves_heads_the_report(page_of):
    trials = [NoiseTrial(verdict="tied", low=1 / x, high=x, rounds=80, timed_s=1.0) for x in (1.01, 1.014, 1.03)]
    source = page_of(machine_noise=Noise(threads=2, seconds=1.0, resolution=0.02, trials=tuple(trials)))
    header = source[: source.index("<nav")]
    assert "This machine resolves 1.4% in 1 s (at worst 3.0%)." in header
    assert "told equal calls apart" not in header
    panel = source[source.index('id="noise"') :]
    assert panel.index("0.990 to 1.010") < panel.index("1.4%") < panel.index("0.971 to 1.030")


def test_a_machine_that_tells_equal_calls_apart_is_warned_of(page_of):
    trial = NoiseTrial(verdict="faster", low=0.9, high=0.95, rounds=80, timed_s=1.0)
    source = page_of(machine_noise=Noise(threads=2, seconds=1.0, resolution=0.02, trials=(trial,)))
    assert "1 trial of 1 told equal calls apart: verdicts near the band may be false" in source


def test_a_busy_machine_and_an_interrupted_run_are_warned_of(page_of):
    source = page_of(busy_cores=1.6, unmeasured=lambda workload, _name: workload.seq_len == 2048)
    assert "Other processes kept 1.6 of 2 cores busy when the run began" in source
    assert "The run was interrupted: 1 planned workload not measured." in source


def test_sixty_workloads_of_six_implementations_stay_below_two_megabytes(page_of):
    source = page_of(
        lengths=(128, 256, 512, 1024, 2048),
        masks=("none", "causal", "padding"),
        dtypes=("float32", "bfloat16"),
        modes=("inference", "training"),
        rounds=20,
    )
    assert source.count('<div class="plot"') == 14, "twelve series, accuracy and roofline"
    assert len(source.encode()) < 2e6


def test_long_tables_and_many_figures_say_what_was_left_out(page_of):
    source = page_of(
        lengths=(128, 256, 512),
        masks=tuple(f"mask{number}" for number in range(32)),
        implementations=IMPLEMENTATIONS,
        rounds=8,
        checked=False,
    )
    assert "76 rows left out here; all of them are in <code>results.csv</code>" in source
    assert "28 figures left out" in source


IMPLEMENTATIONS = ("document", "einsum", "sdpa", "torch_mha", "torch_mha_weights", "xformers")
