"""G: what a click or a key does to the panel: the detail of a step, the focus, the attempt that is shown."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import pytest

from tests.views import stub_boards as boards
from tests.views import stub_host as host
from tests.views.panel_looks import nothing_overflows
from tests.views.panel_page import box, card, drawn, frames, resized, shown, still, tile, to_view, up_to_date
from tests.waiting import until

pytestmark = pytest.mark.browser

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect


def at_bar(page: Any, id: str, step: int, first: int = 1, last: int = 20) -> tuple[float, float]:
    """Where the bar of a step is on the screen."""
    card(page, id).scroll_into_view_if_needed()
    ready = "(one) => Boolean(one.querySelector('.pp-plotly')?._fullLayout?.xaxis?._length)"
    until(lambda: card(page, id).evaluate(ready))  # plotly draws it once it is in sight
    up_to_date(page)
    still(card(page, id))
    inside = """([one, step]) => {
        const { xaxis, yaxis } = one._fullLayout;
        const { left, top } = one.getBoundingClientRect();
        return [left + xaxis._offset + xaxis.d2p(step), top + yaxis._offset + yaxis._length - 12];
    }"""
    x, y = page.evaluate(inside, [card(page, id).locator(".pp-plotly").element_handle(), step])
    return float(x), float(y)


# ---- what a click opens


def test_g_a_click_on_the_bar_of_a_step_chooses_it_and_opens_its_detail_under_the_figure(page: Any) -> None:
    shown(page, plotly=True)
    drawn(page)
    x, y = at_bar(page, "phase_durations", 7)
    page.mouse.click(x, y)
    expect(page.locator(".pp-step")).to_have_text("step 7")
    pane = page.get_by_role("complementary", name="What made it")
    expect(pane).to_contain_text("step 7")
    above = pane.evaluate("(one) => one.previousElementSibling.querySelector('h3').textContent")
    assert above == boards.TITLES["phase_durations"]
    notch = lambda: box(pane.locator(".pp-notch"))  # noqa: E731
    until(notch, lambda found: found["x"] + found["width"] / 2 == pytest.approx(x, abs=3))
    x, y = at_bar(page, "phase_durations", 7)
    page.mouse.click(x, y)  # a second click closes it, and the step stays
    expect(pane).to_be_hidden()
    expect(page.locator(".pp-step")).to_have_text("step 7")


def test_g_one_detail_is_open_at_a_time_and_escape_closes_it(page: Any) -> None:
    shown(page)
    pane = page.get_by_role("complementary", name="What made it")
    expect(tile(page, "Peak memory").locator(".pp-value")).to_have_text("11.1 GiB")
    tile(page, "Peak memory").click()
    expect(pane).to_have_count(1)
    expect(page.locator(".pp-step")).to_have_text("step 17")  # where the largest peak is
    until(lambda: (box(tile(page, "Peak memory"))["y"], box(pane)["y"]), lambda tops: tops[0] < tops[1])
    tile(page, "Step time").click()
    expect(pane).to_have_count(1)
    page.keyboard.press("Escape")
    expect(pane).to_have_count(0)
    tile(page, "Step time").click()
    to_view(page, "memory")  # where its figure isn't
    expect(pane).to_have_count(0)


# ---- the keyboard


def test_g_the_footer_says_exactly_the_keys_that_work(page: Any) -> None:
    shown(page, plotly=True)
    drawn(page)
    keys = page.locator(".pp-foot kbd").all_inner_texts()
    assert keys == ["←", "→", "[", "]", "Space", "Tab", "↑", "↓", "Enter", "Esc"]
    page.locator(".probe-panel").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".pp-step")).to_have_text("step 19")
    page.keyboard.press(" ")
    expect(page.locator(".pp-status").first).to_have_text("paused")
    page.keyboard.press(" ")
    expect(page.locator(".pp-status").first).to_have_text("live")
    chart = card(page, "phase_durations").locator(".pp-body")
    for _ in range(40):
        page.keyboard.press("Tab")
        if chart.evaluate("(one) => one === document.activeElement"):
            break
    expect(chart).to_be_focused()
    page.keyboard.press("ArrowDown")
    place = card(page, "phase_durations").locator(".pp-place")
    expect(place).to_have_text(re.compile("^19, "))
    largest = place.inner_text()
    expect(page.locator(".hoverlayer .hovertext").first).to_be_attached()  # it is pointed at, too
    page.keyboard.press("ArrowDown")
    expect(place).not_to_have_text(largest)
    page.keyboard.press("ArrowUp")
    expect(place).to_have_text(largest)
    page.keyboard.press("ArrowLeft")  # the step, in a chart too
    expect(page.locator(".pp-step")).to_have_text("step 18")
    page.keyboard.press("Enter")
    pane = page.get_by_role("complementary", name="What made it")
    expect(pane).to_contain_text("step 18")
    page.keyboard.press("Escape")
    expect(pane).to_be_hidden()
    expect(chart).to_be_focused()


def test_g_left_and_right_move_the_step_of_all_figures_in_a_chart_of_lines_too(page: Any) -> None:
    shown(page, view="memory")
    plot = card(page, "memory_over_steps").locator(".pp-plot")
    plot.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".pp-step")).to_have_text("step 18")
    expect(plot).to_be_focused()
    place = card(page, "memory_over_steps").locator(".pp-place")
    page.keyboard.press("ArrowDown")
    expect(place).to_have_text(re.compile("^step 18, "))
    largest = place.inner_text()
    page.keyboard.press("ArrowDown")
    expect(place).not_to_have_text(largest)
    page.keyboard.press("ArrowUp")
    expect(place).to_have_text(largest)
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary", name="What made it")).to_contain_text("step 18")
    over_time = card(page, "memory_timeline").locator(".pp-plot")
    over_time.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".pp-step")).to_have_text("step 19")
    page.keyboard.press("ArrowDown")
    expect(card(page, "memory_timeline").locator(".pp-place")).to_have_text(re.compile("step 19, "))


def test_g_lines_are_named_at_their_last_values_and_by_a_legend_where_the_panel_is_narrow(page: Any) -> None:
    resized(page, 1040)
    shown(page, view="memory")
    for id in ("memory_over_steps", "memory_timeline"):
        places = until(functools.partial(places_of_lines, card(page, id)), named_beside)
        expect(card(page, id).locator(".pp-leaders path")).to_have_count(len(places) - 1)
    resized(page, 600)
    one = card(page, "memory_over_steps")
    expect(one.locator(".pp-leaders")).to_be_hidden()
    until(lambda: places_of_lines(one), named_above)
    nothing_overflows(page)


def places_of_lines(one: Any) -> list[dict[str, float]]:
    """Where the plot of a card of lines is, and then where each of its names is."""
    return [box(part) for part in (one.locator(".pp-plot"), *one.locator(".pp-key").all())]


def named_beside(places: list[dict[str, float]]) -> bool:
    """Whether the names stand beside the lines, none on another."""
    plot, *names = places
    tops = sorted(name["y"] for name in names)
    return (
        len(names) > 2
        and all(name["x"] >= plot["x"] + plot["width"] for name in names)
        and all(after - before >= 16 for before, after in itertools.pairwise(tops))
        and plot["y"] <= tops[0]
        and tops[-1] <= plot["y"] + plot["height"]
    )


def named_above(places: list[dict[str, float]]) -> bool:
    plot, *names = places
    return all(name["y"] + name["height"] <= plot["y"] + 1 for name in names)


def test_g_enter_on_the_panel_opens_the_step_that_is_shown(page: Any) -> None:
    shown(page, steps=5)
    page.locator(".probe-panel").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary", name="What made it")).to_contain_text("step 5")
    expect(page.get_by_role("button", name="Following")).to_be_visible()


def test_g_a_button_that_has_come_to_its_end_keeps_the_focus(page: Any) -> None:
    shown(page, steps=3)
    page.evaluate("""() => {
        globalThis.__keys = [];
        document.addEventListener("keydown", (event) => __keys.push(event.key));
    }""")
    back = page.get_by_role("button", name="One step back")
    back.focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
        frames(page)  # a browser takes the focus from a disabled button in the next one
    expect(back).to_have_attribute("aria-disabled", "true")
    expect(back).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("d")
    assert page.evaluate("__keys") == []


def test_g_no_key_leaks_into_the_notebook_from_any_part_of_the_panel(page: Any) -> None:
    shown(page, steps=3, plotly=True)
    drawn(page)
    page.evaluate("""() => {
        globalThis.__keys = [];
        for (const kind of ["keydown", "keypress", "keyup"])
            document.addEventListener(kind, (event) => __keys.push([kind, event.key]));
    }""")
    for part in (
        ".probe-panel",
        ".pp-tile",
        ".pp-body[tabindex='0']",
        ".pp-controls button",
        "[role=tab]",
        "input[type=range]",
    ):
        page.locator(part).first.focus()
        for key in ("ArrowLeft", "a", "b", "d", "x", "Enter", "Escape", "ArrowDown"):
            page.keyboard.press(key)
    assert page.evaluate("__keys") == []


# ---- attempts


def test_a_an_attempt_is_chosen_and_takes_the_place_of_what_was_shown(page: Any) -> None:
    _, _ = shown(page, steps=6)
    attempts = [[1, 1, 20], [2, 1, 6]]
    made, older = host.Encoder(), host.Run(ranks=2)
    made.seq = 6
    host.send(page, made.state(attempts=attempts, attempt=None, repeated="Steps 1 to 20 were recorded twice."))
    expect(page.locator(".pp-facts-line")).to_contain_text("attempt 2 (from step 1)")
    expect(page.locator(".pp-strip")).to_contain_text("recorded twice")
    page.get_by_role("button", name="One step back").click()
    choice = page.get_by_label("Attempt", exact=True)
    expect(choice.locator("option")).to_have_text(["attempt 2 (newest)", "attempt 1: steps 1 to 20"])
    choice.select_option("1")
    last = lambda: page.evaluate("__host.sent.at(-1)")  # noqa: E731
    until(last, lambda said: (said["ask"], said.get("attempt")) == ("attempt", 1))
    for tables in older.steps(1, 20):
        made.delta(tables)
    made.seq = 7
    whole = made.keyframe(attempts=attempts, attempt=1, repeated="")
    whole["head"]["anew"] = True
    host.send(page, whole)
    expect(page.locator(".pp-step")).to_have_text("step 20")
    expect(choice).to_have_value("1")
    expect(page.locator(".pp-facts-line")).to_contain_text("attempt 1: steps 1 to 20")
    expect(page.get_by_label("Rank", exact=True).locator("option")).to_have_text(["all", "rank 0", "rank 1"])
    count = "[...__probe_panels.values()][0].table('spans').count"
    assert page.evaluate(count) == len(made.rows["spans"])  # nothing of the other attempt is left
    host.send(page, made.state(attempts=attempts, live=False))
    expect(choice).to_be_hidden()  # without a kernel nobody could show another one
