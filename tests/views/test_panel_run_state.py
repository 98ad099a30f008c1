"""What the panel in a browser says of the state of a run: finished, silent, incomplete, empty, broken."""

from __future__ import annotations

import re
from typing import Any

import pytest

from probe.dashboards import spec as live
from tests.views import stub_boards as boards
from tests.views import stub_host as host
from tests.views.panel_page import card, frames, shown, store, tile, to_view
from tests.waiting import until

pytestmark = pytest.mark.browser

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect


def test_a_model_that_ends_leaves_no_store_behind(page: Any) -> None:
    shown(page, steps=2)
    page.evaluate("async () => { await __host.close(0); await __host.stop(); }")
    assert page.evaluate("__probe_panels.size") == 0
    assert page.evaluate("__host.listeners.length") == 0


def test_a_finished_run_says_so_and_stays_usable(page: Any) -> None:
    made, _ = shown(page, steps=5)
    host.send(page, made.state(finished=True, live=False))
    expect(page.locator(".pp-status").first).to_have_text("finished")
    page.get_by_role("button", name="One step back").click()
    expect(tile(page, "Step time").locator(".pp-note")).to_contain_text("step 4")


def test_a_run_without_new_rows_says_since_when(page: Any) -> None:
    made, run = shown(page, steps=3)
    status = page.locator(".pp-status").first
    at = page.evaluate("new Date(2026, 8, 21, 12, 3).getTime() / 1000")
    host.send(page, made.state(newest_at=at, updated_at=at + 310, writers="running"))
    expect(status).to_have_text("silent for 5 min")
    expect(status).to_have_attribute("title", "The last row came at 12:03.")
    expect(status).to_have_attribute("data-tone", "quiet")
    host.send(page, made.state(newest_at=at, updated_at=at + 320, writers="gone"))
    expect(status).to_have_text("its process is gone, last row at 12:03 (5 min)")
    expect(status).to_have_attribute("data-tone", "gone")
    host.send(page, made.delta(run.step(4), newest_at=None, writers=""))
    expect(status).to_have_text("live")
    host.send(page, made.state(newest_at=at, updated_at=at + 200_000, finished=True))
    expect(status).to_have_text("finished")


#: Long after a page whose clock is the test's has been opened.
HOUR_S = 3600


def test_the_words_about_silence_go_on_without_a_message(own_page: Any) -> None:
    page = own_page
    page.clock.install(time=0)
    made, _ = shown(page, steps=2)
    page.clock.pause_at(HOUR_S)  # so that no second passes here that is none of the page's
    host.send(page, made.state(newest_at=1_790_000_000, updated_at=1_790_000_020))
    page.clock.run_for(500)
    status = page.locator(".pp-status").first
    expect(status).to_have_text("silent for 20 s")
    page.clock.run_for(100_000)
    expect(status).to_have_text("silent for 2 min")


def test_c_a_kernel_of_which_nothing_is_heard_is_missed_within_ten_seconds(own_page: Any) -> None:
    page = own_page
    page.clock.install(time=0)
    made, _ = shown(page, steps=2)
    page.clock.pause_at(HOUR_S)
    status = page.locator(".pp-status").first
    host.send(page, made.state(silence_s=6))
    page.clock.run_for(5_000)
    expect(status).to_have_text("live")
    page.clock.run_for(4_500)
    expect(status).to_contain_text(re.compile(r"^no sign of the kernel since \d\d:\d\d \(\d s\)$"))
    expect(status).to_have_attribute("data-tone", "gone")
    host.send(page, made.state(silence_s=6))
    page.clock.run_for(500)
    expect(status).to_have_text("live")


def test_c_the_last_complete_step_is_followed_and_who_is_not_waited_for_is_named(page: Any) -> None:
    made, _ = shown(page, steps=5)
    newest = store(page, "store.clock.newest")
    host.send(page, made.state(complete_step=newest - 1))
    expect(page.locator(".pp-step").first).to_have_text(f"step {newest - 1}")
    expect(tile(page, "Step time").locator(".pp-note")).to_contain_text(f"step {newest - 1}")
    expect(page.get_by_role("button", name="One step on")).to_be_disabled()
    expect(page.get_by_role("button", name="Following")).to_have_attribute("aria-pressed", "true")
    since = page.evaluate("Date.now() / 1000") - 60
    host.send(page, made.state(missing=[{"name": "rank 3", "since": since, "why": "silent"}]))
    expect(page.locator(".pp-strip")).to_contain_text(
        re.compile(r"rank 3 is silent since .*: its steps aren't waited for")
    )
    host.send(page, made.state(complete_step=newest, missing=[]))
    expect(page.locator(".pp-step").first).to_have_text(f"step {newest}")
    expect(page.locator(".pp-strip")).to_be_hidden()


def test_c_steps_that_are_not_complete_are_lighter(page: Any) -> None:
    made, _ = shown(page, steps=6, view="memory")
    newest = store(page, "store.clock.newest")
    chart = card(page, "memory_over_steps")
    chart.scroll_into_view_if_needed()
    expect(chart.locator(".u-over")).to_be_visible()
    ink = """() => {
        const canvas = document.querySelector("canvas[data-asked]");
        const width = Math.floor(canvas.width / 6);
        const { data } = canvas.getContext("2d").getImageData(canvas.width - width, 0, width, canvas.height);
        let sum = 0;
        for (let at = 0; at < data.length; at += 4)
            if (data[at + 3]) sum += 765 - data[at] - data[at + 1] - data[at + 2];
        return sum;
    }"""
    chart.locator("canvas").evaluate("canvas => { canvas.dataset.asked = 'yes'; }")
    frames(page)
    before = until(lambda: page.evaluate(ink))
    host.send(page, made.state(complete_step=newest - 2))
    until(lambda: page.evaluate(ink), lambda now: now < 0.8 * before)


def test_an_empty_run_says_what_is_missing(page: Any, encoder: host.Encoder) -> None:
    host.opened(page, "panel", plotly=True)
    host.send(page, encoder.state())
    expect(page.locator(".pp-status").first).to_have_text("starting")
    expect(tile(page, "Step time").locator(".pp-note")).to_have_text("Not measured.")
    for view in boards.VIEWS[1:]:
        to_view(page, view["id"])
        expect(page.locator(".pp-empty")).to_have_count(len(view["panels"]))
        expect(page.locator(".pp-empty:visible")).to_have_count(len(view["panels"]))
    expect(page.locator(".pp-empty")).to_have_text("probe itself had no errors.")


def test_errors_dropped_rows_and_switched_off_listeners_reach_the_eye(page: Any) -> None:
    made, run = shown(page, steps=2)
    run.tables = {name: [] for name in live.TABLES}
    run.event(2, "listener", "memory.recorder", "ValueError: bad", off=1)
    host.send(
        page,
        made.delta(
            {"events": run.tables["events"]}, dropped=12, errors=[{"where": "feed", "message": "run.json is broken"}]
        ),
    )
    strip = page.locator(".pp-strip")
    expect(strip).to_contain_text("feed: run.json is broken")
    expect(strip).to_contain_text("Listener switched off: memory.recorder (ValueError: bad)")
    expect(strip).to_contain_text("12 rows dropped")
    expect(page.locator("[aria-live=polite].pp-unseen")).to_have_text("feed: run.json is broken")
    host.send(page, made.state(errors=[]))
    expect(strip).not_to_contain_text("run.json")


def test_a_busy_kernel_is_named_only_where_it_is_needed(page: Any) -> None:
    page.evaluate("__host.busy = true")
    made, run = shown(page, steps=2)
    expect(page.get_by_text("kernel is busy")).to_be_visible()
    assert page.evaluate("__host.sent.length") == 1
    page.get_by_role("tab", name="Memory").click()  # all else goes on
    expect(card(page, "memory_timeline").locator("canvas")).to_be_visible()
    page.evaluate("__host.busy = false; __host.emit('msg:custom', { v: 1, t: 'a', id: 0 }, [])")
    expect(page.get_by_text("kernel is busy")).to_be_hidden()
    made.seq += 1
    host.send(page, made.delta(run.step(3)))
    page.get_by_role("button", name="Ask the kernel now").click()
    assert page.evaluate("__host.sent.at(-1).ask") == "keyframe"


def test_one_chart_that_fails_does_not_stop_the_others(page: Any) -> None:
    panels = {
        "bad": {
            "title": "Bad",
            "live": {"mark": "line", "table": "memory", "x": "time", "y": "allocated", "unit": "bytes", "lines": 5},
        },
        "unknown": {"title": "Unknown", "live": {"mark": "pie", "table": "memory"}},
        "still": {"title": "Static", "live": None},
        "good": {"title": "Good", "live": boards.LIVE["memory_timeline"]},
    }
    made, run = host.Encoder(), host.Run()
    host.opened(page, "panel", panels=panels, views=[{"id": "one", "title": "One", "panels": [*panels, "nowhere"]}])
    host.send(page, made.delta(run.step(1)))
    expect(page.locator(".pp-card", has_text="Good").locator("canvas")).to_be_visible()
    expect(page.locator(".pp-card", has_text="Bad").locator("[data-error]")).to_contain_text("This chart failed")
    expect(page.locator(".pp-card", has_text="Unknown")).to_contain_text("can't draw the mark pie")
    expect(page.locator(".pp-card", has_text="Static")).to_contain_text("probe report")


def test_redraws_for_new_data_are_at_most_four_a_second(page: Any) -> None:
    made, run = shown(page, steps=3, view="memory")
    lines = page.locator(".pp-plot").count()
    page.evaluate(_COUNT_DRAWS)
    seconds, draws = page.evaluate(_SEND_SLOWLY, [made.delta(tables) for tables in run.steps(4, 43)])
    assert draws <= lines * (4 * seconds + 3)  # of 40 messages, which take a second or, on a slow machine, more
    until(lambda: page.evaluate("__draws"))


_COUNT_DRAWS = """(() => {
  const draw = CanvasRenderingContext2D.prototype.clearRect;
  globalThis.__draws = 0;
  CanvasRenderingContext2D.prototype.clearRect = function (...all) { __draws += 1; return draw.apply(this, all); };
})()"""

_SEND_SLOWLY = """async (messages) => {
  const begin = performance.now();
  for (const one of messages) {
    __host.send([one]);
    await new Promise((go) => setTimeout(go, 25));
  }
  return [(performance.now() - begin) / 1000, __draws];
}"""
