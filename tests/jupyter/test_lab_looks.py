"""What a person reaches and sees: by launcher, palette and keyboard, from right to left, narrow, enlarged."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Error, expect

from tests.browser.jupyter import another
from tests.jupyter import plugin
from tests.jupyter.driving import PANEL, await_that, change_theme, command, show, step_shown
from tests.jupyter.held import NASTY, held
from tests.sample_run import sample_rows, write_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HERE = Path(__file__).parent
AXE = HERE.parents[1] / "node_modules" / "axe-core" / "axe.min.js"

LONG = "a-run-with-a-name-that-says-its-learning-rate-1e-6-and-its-batch-size-1024-and-its-seed-17"

#: WCAG 2.1 on levels A and AA.
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
_AXE = """async ([place, tags]) => {
    const { violations } = await axe.run(place, { runOnly: tags, resultTypes: ["violations"] });
    return violations.flatMap((rule) => rule.nodes.map((one) => `${rule.id}: ${one.target} ${one.failureSummary}`));
}"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A JupyterLab with three runs."""
    root = tmp_path_factory.mktemp("home")
    write_run(root / "runs" / "first", sample_rows(2, 6), project="shop", experiment="first")
    write_run(root / "runs" / "second", sample_rows(2, 8), project="shop", experiment="second")
    write_run(root / "runs" / LONG, sample_rows(1, 3), project="shop", experiment=LONG)
    with plugin.server(root, tmp_path_factory.mktemp("jupyter")) as made:
        yield made


@pytest.fixture
def page(url: str, chrome: Any) -> Iterator[Any]:
    with another(chrome) as made:
        show(made, f"{url}/lab?reset")
        yield made
        assert made.troubles == []


def listed(page: Any) -> None:
    """The list stands, and each run was looked at."""
    command(page, "probe:runs")
    await_that(page, lambda: page.locator(".probe-runs li").count() == 3)
    # Something was found in each; of a run that is heard no more, perhaps not with the first look.
    await_that(page, lambda: page.locator(".probe-runs .probe-link:visible").count() == 3)


def test_2_the_launcher_s_card_and_the_commands_of_the_palette_do_what_they_say(page: Any):
    choose(page, "Show Runs", ".probe-runs li")
    command(page, "launcher:create")
    page.locator(".jp-LauncherCard:visible", has_text="Open the Newest Run").first.click()
    await_that(page, lambda: page.locator(PANEL).count() and step_shown(page) >= 0)
    page.evaluate("() => window.jupyterapp.shell.currentWidget.dispose()")
    choose(page, "Open the Newest Run", PANEL)
    choose(page, "Notebook with the Rows", ".jp-NotebookPanel .jp-CodeCell")


def choose(page: Any, words: str, opens: str) -> None:
    """Choose a command in the palette, which shows something that wasn't there."""
    await_that(page, lambda: not shown(page, opens))

    def chosen() -> bool:
        # The palette closes when something else takes the focus, as a launcher that is still opening does; and it draws
        # its items anew while it is searched, so that the one it has made active is run by the keyboard.
        command(page, "apputils:activate-command-palette")
        active = page.locator(".lm-CommandPalette-item.lm-mod-active:visible", has_text=words)
        try:
            page.locator(".lm-CommandPalette-input").first.fill(words, timeout=3000)
            active.first.wait_for(timeout=3000)
            page.locator(".lm-CommandPalette-input").first.press("Enter", timeout=3000)
        except Error:
            return False
        return True

    await_that(page, chosen)
    await_that(page, lambda: shown(page, opens))


def shown(page: Any, what: str) -> bool:
    """Whether there is such a thing, and somebody can see it."""
    return page.locator(f"{what}:visible").count() > 0


def test_2_all_of_the_list_is_reached_and_used_by_keyboard(page: Any):
    listed(page)
    reached = []
    page.get_by_label("Filter runs").focus()
    for _ in range(40):
        told = page.evaluate(
            """() => {
                const one = document.activeElement;
                return one.closest(".probe-side") ? one.getAttribute("aria-label") || one.textContent : null;
            }"""
        )
        if told is None:
            break
        reached.append(told)
        page.keyboard.press("Tab")
    names = page.locator(".probe-run-name").all_inner_texts()
    assert reached[0] == "Filter runs"
    assert [one for one in reached if one in names] == names
    assert sum("to compare" in one for one in reached) == 3
    assert sum(one.startswith("Open notebook") for one in reached) == 3
    # Two are chosen with the space bar, compared, and one is opened, without a mouse.
    for at in (0, 1):
        page.locator(".probe-runs li").nth(at).get_by_role("checkbox").focus()
        page.keyboard.press("Space")
    compare = page.get_by_role("button", name="Compare", exact=True)
    expect(compare).to_be_enabled()
    compare.focus()
    page.keyboard.press("Enter")
    await_that(page, lambda: page.locator(".probe-compare table").count())
    focused = page.locator(":focus")
    page.locator(".probe-run-name").first.focus()
    page.keyboard.press("End")
    expect(focused).to_have_text(names[-1])
    page.keyboard.press("Home")
    expect(focused).to_have_text(names[0])
    # The list is drawn anew in another order, and what has the focus keeps it.
    page.evaluate(
        """() => {
            const order = document.querySelector(".probe-side select");
            order.value = "name";
            order.dispatchEvent(new Event("change"));
        }"""
    )
    await_that(page, lambda: page.locator(".probe-run-name").all_inner_texts() == sorted(names))
    expect(focused).to_have_text(names[0])
    page.keyboard.press("Enter")
    await_that(page, lambda: page.locator(PANEL).count() and step_shown(page) >= 0)


class Look(NamedTuple):
    """A window.

    Attributes:
        size: Points of the screen.
        direction: Of the page.
        zoom: How much the person has enlarged it.
        theme: JupyterLab's.
    """

    size: tuple[int, int]
    direction: str = "ltr"
    zoom: float = 1
    theme: str = "JupyterLab Light"

    @property
    def narrow(self) -> bool:
        """Whether the list and a tab don't fit beside each other."""
        return self.size[0] / self.zoom < 700


LOOKS = {
    "rtl": Look((1300, 1000), "rtl"),
    "narrow enlarged dark": Look((800, 1000), zoom=2, theme="JupyterLab Dark"),
    "narrow": Look((400, 800)),
    "narrow rtl dark": Look((400, 800), "rtl", theme="JupyterLab Dark"),
    "enlarged": Look((1300, 1000), zoom=2),
}

#: One of each direction, width and theme, and one that is enlarged; the others combine them.
ALWAYS = "rtl", "narrow enlarged dark"


@pytest.mark.parametrize(
    "name", [*ALWAYS, *(pytest.param(one, marks=pytest.mark.thorough) for one in LOOKS if one not in ALWAYS)]
)
def test_2_nothing_overlaps_or_is_cut_and_axe_finds_nothing(url: str, chrome: Any, name: str, shots: Path):
    look, looked = LOOKS[name], []
    size = round(look.size[0] / look.zoom), round(look.size[1] / look.zoom)
    with another(chrome, size, reduced=True) as page:
        page.route("**/probe/api/memory?*", lambda route: route.fulfill(json=held()))
        show(page, f"{url}/lab?reset")
        change_theme(page, look.theme)
        page.evaluate("(direction) => { document.documentElement.dir = direction; }", look.direction)
        listed(page)
        looked += wrong(page, ".probe-side")
        assert pales(page)
        picture = shots / f"lab_plugin_{name.replace(' ', '_')}.png"
        page.screenshot(path=picture.with_stem(f"{picture.stem}_list"))
        looked += devices(page, picture)
        assert page.locator(".probe-side").evaluate("(one) => getComputedStyle(one).direction") == look.direction
        command(page, "probe:compare", a="runs/first", b="runs/second")
        if look.narrow:
            page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        await_that(page, lambda: page.locator(".probe-compare table").count())
        looked += wrong(page, ".probe-compare")
        page.screenshot(path=picture.with_stem(f"{picture.stem}_compared"))
        command(page, "probe:open", run="runs/first")
        await_that(page, lambda: page.locator(PANEL).count() and step_shown(page) == 5)
        await_that(page, lambda: page.locator(f"{PANEL} .pp-verdict[data-kind]").count())
        await_that(page, lambda: page.locator(f"{PANEL} .pp-card").count() and not undrawn(page))
        looked += wrong(page, ".probe-tab")
        page.screenshot(path=picture)
    assert looked == []


def pales(page: Any) -> bool:
    """Whether *Compare* is paler, and isn't filled, until two runs are chosen."""
    compare = page.get_by_role("button", name="Compare", exact=True)
    boxes = page.locator(".probe-runs").get_by_role("checkbox")
    look = "(one) => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor]"
    expect(compare).to_be_disabled()
    before = compare.evaluate(look)
    for at in (0, 1):
        boxes.nth(at).check()
    expect(compare).to_be_enabled()
    after = compare.evaluate(look)
    for at in (0, 1):
        boxes.nth(at).uncheck()
    return all(one != other for one, other in zip(before, after, strict=True))


def devices(page: Any, picture: Path) -> list[str]:
    """What is wrong with the section of the memory, each of its devices in sight once."""
    found = []
    for at in range(page.locator(".probe-device").count()):
        page.locator(".probe-device").nth(at).scroll_into_view_if_needed()
        page.screenshot(path=picture.with_stem(f"{picture.stem}_memory_{at}"))
        found += wrong(page, ".probe-memory")
    return found


def test_2_memory_of_gpus_is_told_by_device_and_a_run_s_line_opens_its_tab(url: str, chrome: Any, shots: Path):
    with another(chrome) as page:
        page.route("**/probe/api/memory?*", lambda route: route.fulfill(json=held()))
        show(page, f"{url}/lab?reset")
        listed(page)
        status = page.locator(".probe-memory-status")
        expect(status).to_have_text(re.compile(r"GPU 0:.71.of.80.GiB"))
        assert "idle\u00a0for\u00a03\u00a0h" in (status.get_attribute("title") or "")
        sections = page.locator(".probe-device")
        expect(sections).to_have_count(5)
        expect(page.locator(".probe-memory-title")).to_have_text("GPU memory")
        for at, said in ((1, "31 GiB belong to no listed"), (3, "doesn't say how much"), (4, "GPU is lost")):
            expect(sections.nth(at)).to_contain_text(said)
        assert NASTY in sections.nth(0).inner_text()
        assert page.evaluate("globalThis.__hurt") is None
        # Another process opens nothing, and is no kernel that could be shut down.
        other = page.locator(".probe-holders li", has_text="vllm")
        expect(other.locator(".probe-holder-name")).to_be_disabled()
        expect(other.locator(".probe-link:visible")).to_have_count(0)
        page.screenshot(path=shots / "lab_memory_gpus.png")
        # A kernel that is a rank of a run leads to both; the line of a rank to its run.
        expect(page.locator(".probe-link", has_text="Open run shop / first, rank 4, actor")).to_be_visible()
        page.locator(".probe-holder-name", has_text="shop / first, rank 3, actor").click()
        await_that(page, lambda: page.locator(PANEL).count() and step_shown(page) == 5)
        assert page.troubles == []


def undrawn(page: Any) -> list[str]:
    """Titles of the cards in sight that aren't drawn, or are older than what has come."""
    found: list[str] = page.locator(f"{PANEL} .pp-card").evaluate_all(
        """(cards) => cards.filter((one) => {
            const { top, bottom } = one.getBoundingClientRect();
            const waits = one.querySelector(".pp-plotly") && !one.querySelector(".main-svg");
            return bottom > 0 && top < innerHeight && (!one.dataset.state || "behind" in one.dataset || waits);
        }).map((one) => one.querySelector("h3").textContent)"""
    )
    return found


def at_rest(page: Any, looks: Callable[[], list[str]]) -> list[str]:
    """What ``looks`` finds wrong and stays: a page that has changed its size or its direction is drawn anew."""
    end = time.monotonic() + 60
    while (found := looks()) and time.monotonic() < end:
        page.wait_for_timeout(100)
    return found


def wrong(page: Any, place: str) -> list[str]:
    """What overlaps, is cut or is refused by axe."""
    page.add_script_tag(path=str(HERE / "looks.js"))
    look = "(place) => [...globalThis.__looks.overlaps(place), ...globalThis.__looks.cuts(place)]"
    found = at_rest(page, lambda: page.evaluate(look, place))
    if not AXE.exists():
        if os.environ.get("PROBE_REQUIRE_NODE"):
            pytest.fail("axe-core isn't there: `make js` installs it")
        return list(found)
    page.evaluate(AXE.read_text())
    return [*found, *page.evaluate(_AXE, [place, TAGS])]
