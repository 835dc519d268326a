"""Reports as a browser shows them: drawn, without errors, for everyone, on paper and on a phone."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.experiments import api
from fairbloom.experiments.results.presentation import write_report
from fairbloom.experiments.results.run import REPORT, load
from tests.experiments.made_up import make_comparison, make_run

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}

FOUR = ["Cleveland", "Hungary", "Long Beach", "</script><script>window.evil = 1</script>"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports of a comparison of few clients, of one of many clients and methods, and of a
    run."""
    folder = tmp_path_factory.mktemp("reports")
    make_comparison(
        folder / "few",
        ["fedavg", "qfedavg", "ditto"],
        range(3),
        FOUR,
        12,
        personal=["ditto"],
        dealt=False,
    )
    methods = ["fedavg", "qfedavg", "fedmgdaplus", "fedfv", "term", "afl", "propfair"]
    make_comparison(folder / "many", methods, range(2), [f"client-{i:03}" for i in range(60)], 20)
    make_run(folder / "run", "fedfv", 0, FOUR, 12, np.random.default_rng(0))
    results = {name: api.load(folder / name) for name in ("few", "many")} | {
        "run": load(folder / "run")
    }
    for name, result in results.items():
        write_report(result, folder / name / REPORT)
    return {name: folder / name / REPORT for name in results}


class Opened:
    """A page in a browser, and what it complained of."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.page = browser.new_context(**options).new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url, file))
        self.page.goto(file.as_uri())
        self.page.evaluate("window.drawn")

    def _asked(self, address: str, file: Path) -> None:
        if address != file.as_uri() and not address.startswith(("data:", "blob:")):
            self.complaints.append(f"it asked for {address}")

    def evaluate(self, code: str) -> Any:
        return self.page.evaluate(code)


SHOWN = {
    "desktop": {"viewport": DESKTOP},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "has_touch": True},
    "dark phone": {"viewport": PHONE, "color_scheme": "dark"},
}


@pytest.mark.parametrize("name", ["few", "many", "run"])
@pytest.mark.parametrize("shown", SHOWN)
def test_a_page_is_drawn_without_complaint_and_fits(
    browser: Any, reports: dict[str, Path], name: str, shown: str
) -> None:
    opened = Opened(browser, reports[name], **SHOWN[shown])
    assert opened.complaints == []
    assert opened.evaluate("window.evil") is None
    empty = (
        "[...document.querySelectorAll('.plot')].filter(p => p.querySelectorAll('svg path').length"
        " < 5).map(p => p.id)"
    )
    assert opened.evaluate("document.querySelectorAll('.plot').length") > 1
    assert opened.evaluate(empty) == []
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    beyond = (
        "[...document.querySelectorAll('.plot svg')].filter(s => s.getBoundingClientRect().right >"
        " innerWidth).length"
    )
    assert opened.evaluate(beyond) == 0
    opened.page.close()


@pytest.mark.parametrize("name", ["few", "many", "run"])
@pytest.mark.parametrize("shown", ["desktop", "dark", "phone"])
def test_axe_finds_nothing(browser: Any, reports: dict[str, Path], name: str, shown: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    opened = Opened(browser, reports[name], bypass_csp=True, **SHOWN[shown])
    opened.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    found = Axe().run(opened.page)
    assert found.violations_count == 0, found.generate_report()
    opened.page.close()


def test_dark_and_light_differ_and_contrast_is_kept_on_paper(
    browser: Any, reports: dict[str, Path]
) -> None:
    text = "document.querySelector('.plot svg text')"
    colours = f"[getComputedStyle(document.body).backgroundColor, getComputedStyle({text}).fill]"
    light = Opened(browser, reports["few"], **SHOWN["desktop"])
    dark = Opened(browser, reports["few"], **SHOWN["dark"])
    assert light.evaluate(colours) != dark.evaluate(colours)
    dark.page.emulate_media(media="print")
    assert dark.evaluate(colours)[0] == light.evaluate(colours)[0]
    assert dark.evaluate(colours)[1] == light.evaluate(colours)[1], "what is printed is light"


def test_everything_is_open_on_paper(
    browser: Any, reports: dict[str, Path], tmp_path: Path
) -> None:
    opened = Opened(browser, reports["many"], **SHOWN["desktop"])
    closed = "document.querySelectorAll('main details:not([open])').length"
    before = opened.evaluate(closed)
    assert before > 0
    opened.evaluate(
        "window.seen = null; addEventListener('beforeprint', () => { window.seen = "
        + closed
        + " })"
    )
    opened.page.pdf(path=tmp_path / "report.pdf")
    assert opened.evaluate("window.seen") == 0
    assert opened.evaluate(closed) == before, "it is as it was afterwards"
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def test_the_legend_emphasises_a_method_by_keyboard(browser: Any, reports: dict[str, Path]) -> None:
    opened = Opened(browser, reports["few"], **SHOWN["desktop"])
    faint = "document.querySelectorAll('#chart-clients [opacity=\"0.12\"]').length"
    assert opened.evaluate(faint) == 0
    opened.page.locator(".legend button", has_text="QFedAvg").first.focus()
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_function(f"{faint} > 0")
    pressed = (
        "[...document.querySelectorAll('.legend button[aria-pressed=true]')].map(b =>"
        " b.dataset.label)"
    )
    assert set(opened.evaluate(pressed)) == {"QFedAvg"}
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_function(f"{faint} == 0")


def test_a_chart_is_saved_as_svg_with_its_colours(
    browser: Any, reports: dict[str, Path], tmp_path: Path
) -> None:
    opened = Opened(browser, reports["few"], **SHOWN["desktop"])
    with opened.page.expect_download() as waiting:
        opened.page.locator(".save[data-chart=clients]").click()
    waiting.value.save_as(tmp_path / "clients.svg")
    svg = (tmp_path / "clients.svg").read_text(encoding="utf-8")
    assert waiting.value.suggested_filename == "clients.svg"
    assert "QFedAvg" in svg
    assert "var(" not in svg


def test_the_first_tab_leads_past_the_contents(browser: Any, reports: dict[str, Path]) -> None:
    opened = Opened(browser, reports["few"], **SHOWN["desktop"])
    opened.page.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.className") == "skip"
    opened.page.keyboard.press("Enter")
    assert opened.evaluate("document.activeElement.id") == "content"


def test_without_javascript_all_tables_are_there(browser: Any, reports: dict[str, Path]) -> None:
    page = browser.new_context(java_script_enabled=False, viewport=DESKTOP).new_page()
    page.goto(reports["few"].as_uri())
    assert page.locator("#table-clients").is_visible()
    assert page.locator(".fallback").first.is_visible()
    assert not page.locator(".save").first.is_visible()


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of six methods at five clients."""
    folder = tmp_path_factory.mktemp("six")
    methods = ["fedavg", "feddyn", "qfedavg", "fedfv", "ditto", "local"]
    clients = [f"hospital {name}" for name in "ABCDE"]
    make_comparison(
        folder, methods, range(5), clients, 12, personal=["ditto", "local"], dealt=False
    )
    write_report(api.load(folder), folder / REPORT)
    return folder / REPORT


def test_no_column_is_cut_on_a_desktop(browser: Any, six: Path) -> None:
    opened = Opened(browser, six, **SHOWN["desktop"])
    opened.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
    assert opened.evaluate(f"{cut}.map(e => e.getAttribute('aria-label'))") == []
    opened.page.close()


def test_a_report_for_a_head_has_at_most_eight_pages(browser: Any, six: Path) -> None:
    opened = Opened(browser, six, **SHOWN["desktop"])
    content = opened.page.pdf(format="A4", prefer_css_page_size=True)
    assert 2 < len(re.findall(rb"/Type /Page\b", content)) <= 8
    opened.page.close()
