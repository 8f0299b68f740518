"""The report in a real browser: it opens from disk, loads nothing, and can be sorted, filtered, printed and narrow."""

import shutil

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH")
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-quic"])
        yield launched
        launched.close()


@pytest.fixture
def opened(browser, rendered_run):
    """``opened(...)`` opens the default run's page with such a context; whatever goes wrong in it fails the test."""
    faults, contexts = [], []

    def make(**how):
        contexts.append(browser.new_context(**how))
        page = contexts[-1].new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or faults.append(request.url))
        page.goto((rendered_run / "report.html").as_uri())
        return page

    yield make
    for context in contexts:
        context.close()
    assert faults == []


def column(page, section: str, number: int) -> list[str]:
    cells = page.locator(f"#{section} tbody tr:visible > :nth-child({number})")
    return [text.strip() for text in cells.all_inner_texts()]


def select(page, facet: str, value: str) -> None:
    page.locator(f".filters select[name={facet}]").select_option(value)


def test_it_opens_from_disk_with_the_verdict_first(opened):
    page = opened()
    assert page.locator("h1").inner_text().startswith("Use ")
    assert page.locator(".filters").is_visible()


def test_a_heading_sorts_by_mouse_and_by_keyboard(opened):
    page = opened()
    heading = page.locator("#measurements thead th", has_text="median").first
    number = heading.evaluate("cell => cell.cellIndex") + 1
    values = f"#measurements tbody tr > :nth-child({number})"
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    sorts = page.locator(values).evaluate_all("cells => cells.map(cell => Number(cell.dataset.sort ?? Infinity))")
    assert sorts == sorted(sorts)
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"


def test_tables_and_figures_follow_the_filter_and_come_back(opened):
    page = opened()
    before = page.locator("#measurements tbody tr:visible").count()
    select(page, "implementation", "einsum")
    names = page.locator("#measurements thead th[data-facet=implementation]").evaluate("cell => cell.cellIndex") + 1
    assert set(column(page, "measurements", names)) == {"einsum"}
    marks = page.evaluate("JSON.parse(document.querySelector('main').dataset.marks)")
    drawn = page.locator(".plot [class^=i]")
    assert drawn.count() > 0
    shown = drawn.evaluate_all("all => all.filter(e => e.style.display !== 'none').map(e => e.classList[0])")
    assert set(shown) == {marks["einsum"]}
    assert " of " in page.locator(".filters output").inner_text()
    page.locator(".filters button").click()
    assert page.locator("#measurements tbody tr:visible").count() == before
    assert drawn.evaluate_all("all => all.every(e => e.style.display !== 'none')")


def test_a_dark_page_is_dark_figures_included(opened):
    light, dark = (opened(color_scheme=scheme) for scheme in ("light", "dark"))
    grounds = [page.evaluate("getComputedStyle(document.body).backgroundColor") for page in (light, dark)]
    assert grounds == ["rgb(255, 255, 255)", "rgb(21, 24, 28)"]
    filters = [page.evaluate("getComputedStyle(document.querySelector('.plot svg')).filter") for page in (light, dark)]
    assert filters[0] == "none"
    assert "invert" in filters[1]


@pytest.mark.parametrize("how", [{"viewport": PHONE}, {"viewport": PHONE, "java_script_enabled": False}])
def test_on_a_phone_the_page_does_not_scroll_sideways(opened, how):
    page = opened(**how)
    width = page.locator("html").evaluate("page => page.scrollWidth") if "java_script_enabled" not in how else None
    if width is not None:
        assert width <= PHONE["width"]
    assert page.locator("#verdicts table").bounding_box()["x"] >= 0


def test_without_javascript_everything_can_be_read(opened):
    page = opened(java_script_enabled=False)
    assert page.locator(".filters").count() == 0
    assert page.locator("#verdicts tbody tr").count() > 0
    assert page.locator("#measurements thead th button").count() == 0


def test_on_paper_nothing_is_cut_off_and_no_control_is_printed(opened):
    page = opened()
    page.emulate_media(media="print")
    assert not page.locator(".filters").is_visible()
    assert not page.locator("nav").is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('#measurements .scroll')).overflow") == "visible"
