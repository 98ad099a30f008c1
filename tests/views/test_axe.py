"""What axe finds in the panel, the report and the page of `probe open`, on the example run: nothing."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.runs.reader import Run
from probe.views.panel import assets
from probe.views.panel.panel import Panel
from probe.views.panel.widget import packed
from probe.views.report.report import report_html
from probe.views.server.server import PageServer
from tests.once import once
from tests.views import stub_host as host
from tests.views.panel_page import frames
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect

ROOT = Path(__file__).parents[2]
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"

#: What is asked for: WCAG 2.1 on levels A and AA, and what axe holds to be good practice, such as nesting.
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")

_RUN = """async ([place, tags]) => {
    const { violations } = await axe.run(place, { runOnly: tags, resultTypes: ["violations"] });
    return violations.flatMap((rule) => rule.nodes.map((one) => `${rule.id}: ${one.target} ${one.failureSummary}`));
}"""


def thorough(look: tuple[str, int]) -> Any:
    return pytest.param(look, marks=pytest.mark.thorough)


#: Of a page, its theme and the width of its window. The panel in a cell and in the page of `probe open` is one bundle:
#: each theme and each width is looked at in one of them, and by `make thorough` in both.
LOOKS = [("light", 1040), thorough(("dark", 1040)), thorough(("light", 400)), ("dark", 400)]
IN_A_CELL = [thorough(("light", 1040)), ("dark", 400)]
IN_A_PAGE = [("light", 1040), thorough(("dark", 1040)), thorough(("light", 400))]


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe. It is no part of what probe needs, so that a machine without it is no failure; CI has it."""
    if not AXE.exists():
        reason = "axe-core isn't there (npm ci)"
        if os.environ.get("PROBE_REQUIRE_NODE"):
            pytest.fail(f"{reason}, and PROBE_REQUIRE_NODE is set")
        pytest.skip(reason)
    return AXE.read_text()


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(ROOT / "docs" / "example_run", tmp_path_factory.mktemp("runs") / "first"))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the example run's report."""
    return (once(tmp_path_factory, "report-of-example", _report) / "report.html").as_uri()


def _report(place: Path) -> None:
    with Run(shutil.copytree(ROOT / "docs" / "example_run", place / "first")) as run:
        (place / "report.html").write_text(report_html(run))


def named(look: tuple[str, int]) -> str:
    return f"{look[0]} {look[1]}"


@pytest.fixture(params=LOOKS, ids=named)
def window(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    theme, width = request.param
    context = browser.new_context(
        viewport={"width": width, "height": 1000}, color_scheme=theme, reduced_motion="reduce"
    )
    made = context.new_page()
    made.set_default_timeout(180_000)
    yield made
    context.close()


def found(page: Any, axe: str, place: str = "html") -> list[str]:
    """What axe finds in a part of the page."""
    page.evaluate(axe)
    return [str(one) for one in page.evaluate(_RUN, [place, list(TAGS)])]


_WAITING = """() => {
    const awaits = (one) => !["drawn", "empty"].includes(one.dataset.state) || one.hasAttribute("data-behind")
        || (one.dataset.state === "drawn" && one.querySelector(".pp-plotly") && !one.querySelector(".main-svg"));
    const waits = [...document.querySelectorAll(".pp-card")].filter(awaits);
    waits[0]?.scrollIntoView();
    return waits.map((one) => one.querySelector("h3").textContent);
}"""


def settled(page: Any, tab: Any) -> None:
    """The view of the tab is shown, and each of its figures has been in sight and is drawn."""
    expect(tab).to_have_attribute("aria-selected", "true")
    expect(page.locator("[data-loading]")).to_have_count(0)  # what is on its way is faint
    until(lambda: page.evaluate(_WAITING), lambda waiting: not waiting)


def views_of(page: Any, axe: str, place: str, unasked: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """What axe finds in each view but ``unasked`` ones, with its numbers unfolded and a detail opened."""
    told = {}
    tabs = page.locator("[role=tab]")
    for at in range(tabs.count()):
        if tabs.nth(at).inner_text() in unasked:
            continue
        tabs.nth(at).click()
        settled(page, tabs.nth(at))
        numbers = page.locator(".pp-card button:visible", has_text="Numbers")
        if numbers.count():
            numbers.first.click()
        details = page.locator(":is(.pp-tile, .pp-plot, .pp-body[tabindex='0'], tbody tr):visible")
        if details.count():  # the example run has no samples to open
            details.first.press("Enter")
        frames(page)  # what unfolds and what opens is there
        told[tabs.nth(at).inner_text()] = found(page, axe, place)
    return told


def rights(*ones: Any) -> list[float]:
    """The right edges of everything that the locators find, in order."""
    return [place["x"] + place["width"] for one in ones for place in (each.bounding_box() for each in one.all())]


@pytest.mark.parametrize("window", IN_A_CELL, ids=named, indirect=True)
def test_g_axe_finds_nothing_in_the_panel(window: Any, axe: str, example: Path) -> None:
    window.goto(host.PAGE.as_uri())
    with Panel(example) as panel:
        panel.send_to(lambda head, buffers: None)
        head, buffers = panel.pump.snapshot()
        kept = {"snapshot": packed(head, buffers)[1], "plotly_gz": assets.plotly_packed()}
        encoded = {name: base64.b64encode(one).decode() for name, one in kept.items()}
        traits = {"config": json.loads(json.dumps(panel.config())), "snapshot_head": head}
    window.evaluate(
        "([code, css, traits, buffers]) => __host.open(code, css, traits, buffers)",
        [assets.script(), assets.styles(), traits, encoded],
    )
    # No kernel answers here, for which the samples wait: they are looked at in the page, and in test_panel_tokens.
    told = views_of(window, axe, ".probe-panel", ("Samples",))
    assert len(told) >= 6
    assert {view: wrong for view, wrong in told.items() if wrong} == {}


@pytest.mark.parametrize("window", IN_A_PAGE, ids=named, indirect=True)
def test_g_axe_finds_nothing_in_the_page_of_probe_open(window: Any, axe: str, example: Path) -> None:
    with PageServer(example) as server:
        server.start()
        server.follow()
        window.goto(server.url)
        window.locator(".pp-tile").first.wait_for()
        told = views_of(window, axe, "html")
    assert {view: wrong for view, wrong in told.items() if wrong} == {}


def test_g_axe_finds_nothing_in_the_report_and_the_names_beside_its_lines_are_whole(
    window: Any, axe: str, report: str
) -> None:
    window.goto(report)
    window.locator("html[data-ready]").wait_for(state="attached")
    assert found(window, axe) == []
    wide = window.evaluate("document.documentElement.clientWidth") >= 640
    for id in ("balance_over_steps", "own_cost"):
        chart = window.locator(f"#{id}")
        names = chart.locator("g.annotation", has_text=re.compile("[×%]$"))
        expect(chart.locator(".legend")).to_have_count(0 if wide else 1)
        beside = names.filter(has_text=re.compile("ranks"))
        until(beside.count, lambda many: (many > 0) is wide)
        until(functools.partial(rights, chart, names), lambda found: max(found) <= found[0] + 1)
