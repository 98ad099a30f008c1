"""A run of more rows than a page holds, in a browser: its pictures are made of all steps."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.views.server.server import PageServer
from tests.live.long_run import PHASES, long_run, took_ms
from tests.views import stub_host as host
from tests.views.panel_page import behind, shown, up_to_date
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect

STEPS, RANKS = 1500, 4


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return long_run(tmp_path_factory.mktemp("long") / "run", STEPS, RANKS)


@contextlib.contextmanager
def opening(browser: Any, directory: Path, slower: int = 1) -> Iterator[Any]:
    """The page of `probe open` once first answers have come, with a core that is so many times slower."""
    context = browser.new_context(viewport={"width": 1040, "height": 1000}, color_scheme="light", bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(180_000)
    context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": slower})
    with PageServer(directory) as server:
        server.start()
        server.follow()
        page.goto(server.url)
        page.locator(".pp-mark-stack .main-svg").first.wait_for()
        until(lambda: page.evaluate("[...__probe_panels.values()][0].pasts.known.size"), lambda many: many > 3)
        yield page
    context.close()


@pytest.fixture(scope="module")
def opened(browser: Any, directory: Path) -> Iterator[Any]:
    """The page of `probe open` once it has all that it asked for."""
    with opening(browser, directory) as page:
        until(lambda: page.evaluate("[...[...__probe_panels.values()][0].pasts.awaited]"), lambda keys: not keys)
        expect(page.locator(".probe-panel")).not_to_have_attribute("data-loading", "")
        up_to_date(page)
        yield page


def test_g_bars_of_several_steps_are_medians_and_ranges_of_all_of_them(opened: Any) -> None:
    held = "[...__probe_panels.values()][0].table('spans').byStep.size"
    assert opened.evaluate(held) < STEPS  # rows of many steps are gone, …
    seen = until(lambda: Bars(opened), lambda bars: not bars.older)  # what is gone comes in several answers
    assert seen.told == seen.expected


def test_g_a_picture_that_is_older_than_its_answers_says_so_on_a_slow_machine(browser: Any, directory: Path) -> None:
    with opening(browser, directory, slower=3) as page:
        settled = 0

        def settling() -> int:
            """How many looks in a row found a picture that isn't older: each is right, or says that it is older."""
            nonlocal settled
            seen = Bars(page)
            assert seen.older or seen.told == seen.expected
            settled = 0 if seen.older else settled + 1
            page.wait_for_timeout(100)
            return settled

        until(settling, lambda looks: looks == 10)
        expect(page.locator(".pp-mark-stack").first).to_have_attribute("aria-busy", "false")
        expect(page.locator(".pp-mark-stack .pp-behind").first).not_to_be_visible()


class Bars:
    """The stacked bars as a page shows them at one moment, and whether it says that they are older than its data."""

    def __init__(self, page: Any) -> None:
        self.older, traces = page.evaluate(
            """() => {
                const card = document.querySelector(".pp-mark-stack");
                const panel = card.closest(".probe-panel");
                const { data } = card.querySelector(".pp-plotly");
                const older = card.hasAttribute("data-behind") || panel.hasAttribute("data-loading");
                return [older, data.map(({ name, x, y, base }) => ({ name, x, y, base }))];
            }"""
        )
        self.parts = [one for one in traces if one["name"] in PHASES]
        self.spread = [one for one in traces if one["name"] == "range of its steps"]

    @property
    def told(self) -> list[tuple[float, ...]]:
        """Of each bar the smallest sum of its steps, the largest, and that of the step that stands for them."""
        (spread,) = self.spread
        sums = [sum(one["y"][at] for one in self.parts) for at in range(len(spread["y"]))]
        bars = zip(spread["base"], spread["y"], sums, strict=True)
        return [(round(low, 6), round(low + high, 6), round(middle, 6)) for low, high, middle in bars]

    @property
    def expected(self) -> list[tuple[float, ...]]:
        """The same, of all steps, where each counts."""
        x = self.parts[0]["x"]
        width = round(x[1] - x[0])
        bins = [[total(step) for step in range(at, min(at + width, STEPS))] for at in range(0, STEPS, width)]
        return [(round(min(one), 6), round(max(one), 6), round(statistics.median_low(one), 6)) for one in bins]


def total(step: int) -> float:
    """Seconds of a step, the mean of the ranks."""
    return sum(took_ms(step, phase, rank) / 1000 / RANKS for phase in range(len(PHASES)) for rank in range(RANKS))


def test_g_each_step_of_an_opened_run_can_be_chosen_and_is_shown(opened: Any) -> None:
    slider = opened.get_by_role("slider", name="Step")
    expect(slider).to_have_attribute("max", str(STEPS - 1))
    gone = opened.evaluate(
        """() => {
            const store = [...__probe_panels.values()][0];
            return store.clock.steps.findIndex((step) => step > 100 && !store.table("spans").byStep.has(step));
        }"""
    )
    assert gone > 100
    slider.fill(str(gone))
    expect(opened.locator(".pp-step")).to_have_text(f"step {gone}")
    one = opened.locator(".pp-mark-timeline").first
    held = f"[...__probe_panels.values()][0].table('spans').byStep.get({gone})?.length"
    until(lambda: opened.evaluate(held), lambda many: many == 4 * RANKS)
    expect(one.locator(".pp-place")).to_have_text(f"step {gone}")
    expect(one).to_have_attribute("data-state", "drawn")
    expect(opened.locator(".pp-tile", has_text="Step time").locator(".pp-value")).to_contain_text("ms")


#: What a page has asked for of all steps.
WANTED = "__host.sent.filter((one) => one.ask === 'history').flatMap((one) => one.wanted)"


def nothing_of(asked: list[dict[str, Any]], made: host.Encoder) -> dict[str, Any]:
    """The answer that there is nothing of what was asked for."""
    none = [{"key": one["key"], "until": -1, "series": [], "more": 0, "n": 0, "buffer": 0} for one in asked]
    head = {"v": 1, "t": "h", "seq": made.seq, "words": made.words, "words_from": 0, "histories": none, "tables": []}
    return {"head": head, "buffers": [""]}


def test_g_what_is_shown_stays_and_turns_faint_while_other_data_is_on_its_way(page: Any) -> None:
    made, _ = shown(page, steps=6)
    root, grid = page.locator(".probe-panel"), page.locator(".pp-grid")
    expect(page.locator(".pp-tile .pp-note").first).to_have_text("This is step 6.")
    before = page.locator(".pp-tile").first.inner_text()
    assert root.get_attribute("data-loading") is None
    host.send(page, made.state(thinned=7))  # rows had to go, so that the page asks for the steps
    expect(root).to_have_attribute("data-loading", "")
    assert grid.evaluate("(one) => getComputedStyle(one).transitionDelay") == "0.3s"
    expect(grid).to_have_css("opacity", "0.6")
    assert page.locator(".pp-tile").first.inner_text() == before
    kinds = f"[...new Set({WANTED}.map((one) => one.spec ? String(one.spec.y) : 'the clock'))]"
    until(lambda: page.evaluate(kinds), lambda found: len(found) > 3 and {"duration", "peak", "the clock"} <= {*found})
    asked: list[dict[str, Any]] = []

    def waiting() -> list[str]:
        """Cards that wait still, once it is answered to what was asked by now that there is nothing."""
        asked.extend(new := page.evaluate(WANTED)[len(asked) :])
        if new:
            host.send(page, nothing_of(new, made))
        return behind(page)

    until(waiting, lambda titles: not titles)
    specs = [one["spec"] for one in asked if one["spec"]]
    assert {spec["y"] for spec in specs if isinstance(spec["y"], str)} >= {"duration", "peak"}
    assert len(specs) == len(asked) - 1  # and when each step began and ended
    expect(root).not_to_have_attribute("data-loading", "")
    expect(grid).to_have_css("opacity", "1")
    assert page.locator(".pp-tile").first.inner_text() == before


def test_g_the_old_attempt_stays_until_the_other_one_is_there(page: Any) -> None:
    shown(page, steps=6)
    attempts = [[1, 1, 20], [2, 1, 6]]
    made, older = host.Encoder(), host.Run(ranks=2)
    made.seq = 6
    host.send(page, made.state(attempts=attempts, attempt=None))
    page.get_by_role("button", name="One step back").click()
    expect(page.locator(".pp-step")).to_have_text("step 5")
    page.get_by_label("Attempt", exact=True).select_option("1")
    expect(page.locator(".probe-panel")).to_have_attribute("data-loading", "")
    expect(page.locator(".pp-step")).to_have_text("step 5")  # nothing jumps
    for tables in older.steps(1, 20):
        made.delta(tables)
    made.seq = 7
    whole = made.keyframe(attempts=attempts, attempt=1)
    whole["head"]["anew"] = True
    host.send(page, whole)
    expect(page.locator(".probe-panel")).not_to_have_attribute("data-loading", "")
    expect(page.locator(".pp-step")).to_have_text("step 20")
