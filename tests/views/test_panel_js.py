"""The browser side of the live panel: its real code in a real Chromium, with a stub model and no network."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from probe.dashboards import spec as live
from tests.views import stub_host as host
from tests.views.panel_page import card, drawn, frames, resized, shown, still, store, tile, to_view
from tests.waiting import until

pytestmark = pytest.mark.browser

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect


# ---- contract


@pytest.mark.parametrize("id", host.LIVE)
def test_the_marks_tested_here_are_those_that_dashboards_may_ask_for(id: str) -> None:
    assert live.check(host.LIVE[id], id)


def test_every_mark_of_the_contract_is_drawn_here() -> None:
    assert {block["mark"] for block in host.LIVE.values()} == set(live.MARKS)


# ---- numbers


def test_tiles_show_what_the_rows_say(page: Any) -> None:
    made, _ = shown(page, steps=6)
    spans = [row for row in made.rows["spans"] if row["step"] == 6]
    time = max(row["end"] - row["begin"] for row in spans if row["kind"] == "step")
    expect(tile(page, "Step time").locator(".pp-value")).to_have_text(f"{time:.2f} s")
    micro = [row for row in made.rows["micro"] if row["step"] == 6]
    total = sum(row["tokens"] for row in micro)
    expect(tile(page, "Tokens per second").locator(".pp-value")).to_have_text(f"{total / time / 1000:.1f} k")
    peak = max(row["peak"] for row in made.rows["spans"]) / host.GIB  # of the run
    expect(tile(page, "Peak memory").locator(".pp-value")).to_have_text(re.compile(rf"^{peak:.3g} GiB$"))
    expect(tile(page, "Peak memory").locator(".pp-note")).to_contain_text(re.compile(r"%\sof\s16\sGiB are free"))
    ranks = [sum(row["tokens"] for row in micro if row["rank"] == rank) for rank in range(4)]
    expect(tile(page, "Rank imbalance").locator(".pp-value")).to_have_text(f"{max(ranks) / (total / 4):.2f}")
    padding = [row for row in made.rows["padding"] if row["step"] == 6 and row["counted"] == 2]
    tax = sum(row["tokens"] for row in padding) / sum(row["rectangle"] for row in padding)
    expect(tile(page, "Padding tax").locator(".pp-value")).to_have_text(f"{100 * tax:.1f} %")
    expect(tile(page, "Padding tax")).to_have_attribute("data-status", "alarm" if tax >= 0.4 else "warn")


def test_d_a_tile_judges_the_median_of_its_window_and_the_dot_is_the_last_step(
    page: Any, encoder: host.Encoder
) -> None:
    panels = host.config("panel")["panels"]
    live = panels["overview_tiles"]["live"]
    tiles = [one | {"window": 3, "warn": 5, "alarm": 8} for one in live["tiles"] if one["id"] == "step_time"]
    panels["overview_tiles"]["live"] = live | {"tiles": tiles}
    host.opened(page, "panel", panels=panels)
    times = [30.0, 30.0, 30.0, 1.0, 2.0, 30.0]
    rows = [
        {"step": step, "rank": 0, "kind": "step", "name": "step", "scope": step, "begin": 40.0 * step}
        | {"end": 40.0 * step + took}
        for step, took in enumerate(times)
    ]
    host.send(page, encoder.delta({"spans": rows[:5]}))
    one = tile(page, "Step time")
    expect(one.locator(".pp-value")).to_have_text("2 s")
    expect(one).to_have_attribute("data-status", "good")
    expect(one.locator(".pp-note")).to_have_text(re.compile(r"^1 to 30\ss in 3 steps\.$"))
    host.send(page, encoder.delta({"spans": rows[5:]}))
    expect(one.locator(".pp-spark-dot")).to_have_attribute("cx", "98.5%")
    expect(one.locator(".pp-spark-dot")).to_have_attribute("cy", re.compile("^9.3"))  # as high as 30 s
    expect(one.locator(".pp-value")).to_have_text("2 s")
    expect(one).to_have_attribute("data-status", "good")


def test_an_open_scope_is_replaced_when_it_has_ended(page: Any, encoder: host.Encoder) -> None:
    host.opened(page, "panel")
    row = {"step": 1, "rank": 0, "kind": "step", "name": "step", "scope": 7, "begin": 0.0, "peak": 1.0}
    host.send(page, encoder.delta({"spans": [row]}))
    expect(tile(page, "Step time").locator(".pp-value")).to_have_text("–")
    host.send(page, encoder.delta({"spans": [row | {"end": 2.5}]}))
    expect(tile(page, "Step time").locator(".pp-value")).to_have_text("2.5 s")
    assert store(page, "store.table('spans').count") == 1


def test_nan_is_missing_and_not_zero(page: Any, encoder: host.Encoder) -> None:
    host.opened(page, "panel")
    rows = [
        {"t": 1.0, "step": step, "rank": 0, "key": "loss", "value": value}
        for step, value in ((1, 0.5), (2, None), (3, 0.25))
    ]
    host.send(page, encoder.delta({"scalars": rows}))
    to_view(page, "metrics")
    page.get_by_role("button", name="Numbers of Metrics").click()
    expect(card(page, "metrics").locator(".pp-numbers tbody tr")).to_have_text([re.compile("loss.*0.25.*0.25.*0.5")])
    assert store(page, "[...[...store.views][0].caches.values()].find((one) => one.steps?.length).steps") == [1, 2, 3]


# ---- messages


def test_a_gap_is_seen_and_healed_by_the_next_keyframe(page: Any) -> None:
    made, run = shown(page, steps=3)
    lost = made.delta(run.step(4))
    host.send(page, made.delta(run.step(5)))
    notice = page.locator(".pp-strip li")
    expect(notice).to_contain_text("1 message lost on the way here")
    assert 4 not in store(page, "store.clock.steps")
    host.send(page, made.keyframe())
    expect(notice).to_have_count(0)
    assert store(page, "store.clock.steps") == [1, 2, 3, 4, 5]
    held = store(page, "store.table('spans').count")
    assert held == len(made.rows["spans"])
    host.send(page, lost)  # an old message that comes late
    assert store(page, "store.table('spans').count") == held
    host.send(page, made.delta(run.step(6)))
    assert store(page, "store.broken") is False
    assert store(page, "store.clock.newest") == 6


def test_a_keyframe_without_a_gap_changes_nothing(page: Any) -> None:
    made, run = shown(page, steps=3)
    whole = made.keyframe()
    whole["head"]["tables"], whole["buffers"] = [], []
    host.send(page, whole, made.delta(run.step(4)))
    assert store(page, "store.table('micro').count") == len(made.rows["micro"])
    assert store(page, "store.broken") is False


def test_words_lost_with_a_message_come_back_with_the_keyframe(page: Any, encoder: host.Encoder) -> None:
    host.opened(page, "panel")
    row = {"t": 0.0, "step": 1, "rank": 0, "kind": "backend", "where": "a", "message": "first", "count": 1}
    host.send(page, encoder.delta({"events": [row]}))
    encoder.delta({"events": [row | {"where": "lost", "message": "second"}]})
    host.send(page, encoder.delta({"events": [row | {"where": "lost", "message": "third"}]}))
    to_view(page, "events")
    expect(page.locator("tbody tr").first).to_contain_text("third")
    expect(page.locator("tbody tr").first).to_contain_text("…")
    host.send(page, encoder.keyframe())
    expect(page.locator("tbody tr:visible")).to_have_count(3)
    expect(page.locator("tbody tr").first).to_contain_text("lost")


def test_a_page_that_comes_back_starts_from_the_snapshot(page: Any, encoder: host.Encoder) -> None:
    run = host.Run()
    for tables in run.steps(1, 5):
        encoder.delta(tables)
    held = len(encoder.rows["micro"])
    snapshot = encoder.snapshot()
    assert snapshot[0]["seq"] == 5
    host.opened(page, "panel", snapshot=snapshot)
    expect(tile(page, "Step time").locator(".pp-note")).to_contain_text("step 5")
    host.send(page, encoder.delta(run.step(6)))
    assert store(page, "store.table('micro').count") == held + 48
    assert store(page, "store.broken") is False


def test_rows_that_are_there_already_are_skipped(page: Any, encoder: host.Encoder) -> None:
    host.opened(page, "panel")
    rows = [{"t": float(at), "rank": 0, "step": 1, "allocated": float(at)} for at in range(10)]
    host.send(page, encoder.delta({"memory": rows[:6]}))
    encoder.rows["memory"] = rows[:3]
    host.send(page, encoder.delta({"memory": rows[3:]}))
    assert store(page, "[...store.table('memory').columns.get('t').slice(0, store.table('memory').count)]") == list(
        range(10)
    )


def test_a_message_that_cannot_be_read_is_shown_and_the_next_ones_go_on(page: Any) -> None:
    made, run = shown(page, steps=2)
    broken = made.delta(run.step(3))
    first = broken["head"]["tables"][0]
    first["cols"] = first["cols"].replace("step:i4", "step:f2", 1)
    host.send(page, broken)
    expect(page.locator(".pp-strip")).to_contain_text("unknown column type f2")
    host.send(page, made.keyframe(), made.delta(run.step(4)))
    assert store(page, "store.clock.steps") == [1, 2, 3, 4]


# ---- bounded history


def test_history_is_bounded_and_its_peak_survives(page: Any, encoder: host.Encoder) -> None:
    host.opened(page, "panel", limits={"rows": 1000, "points": 400})
    to_view(page, "memory")
    number = 12_000
    rows = [
        {
            "t": at * 0.1,
            "rank": at % 2,
            "role": "actor",
            "step": at // 20,
            "allocated": (1 + at % 7 / 10) * host.GIB,
            "total": 90 * host.GIB,
        }
        for at in range(number)
    ]
    rows[1234]["allocated"] = 77 * host.GIB
    for begin in range(0, number, 500):
        host.send(page, encoder.delta({"memory": rows[begin : begin + 500]}))
    assert store(page, "store.table('memory').count") <= 1000
    assert store(page, "store.table('memory').capacity") <= 1000
    plot = card(page, "memory_timeline").locator(".pp-plot")
    expect(plot).to_have_attribute("aria-label", re.compile(r"largest 77 GiB at 123.4 s, step 61"))
    series = "[...[...store.views][0].caches.values()].flatMap((one) => [...(one.series?.values() ?? [])])"
    assert max(store(page, f"{series}.map((one) => one.points?.count ?? 0)")) <= 400
    assert (
        store(page, "Math.max(...store.table('memory').columns.get('allocated').slice(0, store.table('memory').count))")
        == 77 * host.GIB
    )


def test_steps_are_forgotten_whole_so_that_sums_stay_true(page: Any, encoder: host.Encoder) -> None:
    host.opened(page, "panel", limits={"rows": 400, "points": 4000})
    for begin in range(0, 300, 20):
        rows = [
            {
                "step": step,
                "rank": rank,
                "batch": step,
                "micro_batch": part,
                "tokens": 1000 if step == 30 else 100 + step % 3,
            }
            for step in range(begin, begin + 20)
            for rank in range(2)
            for part in range(2)
        ]
        host.send(page, encoder.delta({"micro": rows}))
    assert store(page, "store.table('micro').count") <= 400
    kept = store(page, "[...store.table('micro').byStep].map(([step, rows]) => [step, rows.length])")
    assert {length for _, length in kept} == {4}
    assert 30 in {step for step, _ in kept}
    assert store(page, "store.table('micro').partial.size") == 0


def test_a_sum_over_rows_of_which_some_are_gone_is_missing_and_not_too_low(page: Any, encoder: host.Encoder) -> None:
    block = {"mark": "line", "table": "calls", "x": "step", "y": "bytes_out", "reduce": "sum", "unit": "bytes"}
    panels = {"moved": {"title": "Moved", "about": None, "live": block}}
    views = [{"id": "data", "title": "Data", "panels": ["moved"]}]
    host.opened(page, "panel", limits={"rows": 100, "points": 4000}, panels=panels, views=views)
    rows = [
        {"t": at / 10, "step": at // 50, "rank": 0, "name": "union", "duration": 0.1, "bytes_out": 1024.0}
        for at in range(300)
    ]
    host.send(page, encoder.delta({"calls": rows}))
    page.get_by_role("button", name="Numbers of Moved").click()
    cells = "(all) => all.map((row) => [...row.cells].slice(0, 2).map((cell) => cell.innerText))"
    lines = page.locator(".pp-numbers tbody tr")
    told = dict(until(lambda: lines.evaluate_all(cells), lambda found: ["step 5", "50 KiB"] in found))
    assert all(value in ("–", "50 KiB") for value in told.values())
    assert "–" in told.values()


# ---- what the person does


def test_the_scrubber_moves_every_chart_to_one_step(page: Any) -> None:
    shown(page, steps=20)
    slider = page.get_by_role("slider", name="Step")
    expect(slider).to_have_attribute("aria-valuetext", "step 20 of 20, following")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    expect(page.locator(".pp-step")).to_have_text("step 17")
    expect(tile(page, "Step time").locator(".pp-note")).to_contain_text("step 17")
    expect(tile(page, "Peak memory").locator(".pp-value")).to_have_text("11.1 GiB")
    to_view(page, "tokens")
    expect(card(page, "balance_heat").locator(".pp-place")).to_have_text("step 17")
    expect(card(page, "balance_bars").locator(".pp-place")).to_have_text("step 17")
    to_view(page, "metrics")
    cells = card(page, "reductions").locator("tbody tr:visible td:last-child")
    expect(cells).to_have_text(["17", "17", "17"])
    slider.focus()
    page.keyboard.press("End")
    expect(page.get_by_role("button", name="Following")).to_have_attribute("aria-pressed", "true")
    expect(cells).to_have_text(["20", "20", "20"])


def test_while_following_new_steps_are_shown_and_otherwise_not(page: Any) -> None:
    made, run = shown(page, steps=4)
    page.get_by_role("button", name="One step back").click()
    host.send(page, made.delta(run.step(5)))
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", "step 3 of 5")
    expect(tile(page, "Step time").locator(".pp-note")).to_contain_text("step 3")
    page.get_by_role("button", name="Follow").click()
    expect(tile(page, "Step time").locator(".pp-note")).to_contain_text("step 5")


def test_a_peak_leads_to_its_phase_micro_batch_and_batch(page: Any) -> None:
    made, _ = shown(page, view="memory")
    plot = card(page, "memory_over_steps").locator(".pp-plot")
    plot.focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    pane = page.get_by_role("complementary", name="What made it")
    expect(pane.locator("h3")).to_have_text("actor · update_actor")
    expect(pane).to_contain_text("step 17 › rank 2 › batch 173")
    expect(pane).to_contain_text("Micro-batch 1 of actor · update_actor: its peak is the scope's.")
    row = next(
        one
        for one in made.rows["micro"]
        if (one["step"], one["rank"], one["phase"], one["micro_batch"]) == (17, 2, "update_actor", 1)
    )
    expect(pane).to_contain_text(str(row["tokens"]))
    expect(pane).to_contain_text("over it")
    expect(pane).to_contain_text("longest 1900")
    expect(pane.locator(".pp-bar-row")).to_have_count(4)
    expect(page.locator(".pp-step")).to_have_text("step 17")  # what is clicked is chosen
    page.keyboard.press("Escape")
    expect(pane).to_be_hidden()
    expect(plot).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".pp-step")).to_have_text("step 20")


def test_a_click_in_a_chart_over_time_finds_the_scope_of_that_moment(page: Any) -> None:
    shown(page, view="memory")
    box = still(card(page, "memory_timeline").locator(".u-over"))
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.45)
    page.mouse.down()
    page.mouse.up()
    pane = page.get_by_role("complementary", name="What made it")
    expect(pane).to_contain_text("Peak allocated")
    expect(pane).to_contain_text(re.compile(r"step (10|11) › rank \d"))


def test_filters_narrow_every_chart(page: Any) -> None:
    shown(page, view="memory")
    legend = card(page, "memory_timeline").locator(".pp-legend button")
    expect(legend).to_have_count(3)
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("Role", exact=True).select_option("critic")
    expect(legend).to_have_count(1)
    expect(legend).to_contain_text("critic")
    expect(card(page, "memory_over_steps").locator(".pp-legend button")).to_have_count(1)
    page.get_by_label("Role", exact=True).select_option("")
    page.get_by_label("Rank", exact=True).select_option("rank 2")
    page.get_by_label("Phase", exact=True).select_option("generate")
    to_view(page, "tokens")
    expect(card(page, "balance_heat").locator(".pp-empty")).to_have_text(
        "rank 2, generate has none of what this picture is made of."
    )
    to_view(page, "data")
    expect(page.locator("tbody tr:visible td:nth-child(3)")).to_have_text(["2"] * 20)


def test_the_event_table_sorts_and_filters(page: Any, encoder: host.Encoder) -> None:
    host.opened(page, "panel")
    events = [
        ("backend", "mlflow", 3),
        ("listener", "memory", 1),
        ("dropped_rows", "writer", 250),
        ("backend", "wandb", 2),
    ]
    rows = [
        {"t": float(at), "step": at, "rank": 0, "kind": kind, "where": where, "message": "said", "count": count}
        for at, (kind, where, count) in enumerate(events)
    ]
    host.send(page, encoder.delta({"events": rows}))
    to_view(page, "events")
    counts = page.locator("tbody tr:visible td:nth-child(7)")
    expect(counts).to_have_text(["2", "250", "1", "3"])  # newest first
    head = page.get_by_role("columnheader", name="count")
    head.get_by_role("button").click()
    expect(counts).to_have_text(["250", "3", "2", "1"])
    expect(head).to_have_attribute("aria-sort", "descending")
    head.get_by_role("button").click()
    expect(counts).to_have_text(["1", "2", "3", "250"])
    page.get_by_role("columnheader", name="kind").get_by_role("button").click()
    expect(page.locator("tbody tr:visible td:nth-child(4)")).to_have_text(
        ["backend", "backend", "dropped_rows", "listener"]
    )
    page.get_by_label("Filter Events").fill("backend wan")
    expect(counts).to_have_text(["2"])
    expect(page.locator(".pp-tools [role=status]")).to_have_text("1 row")
    page.locator("tbody tr:visible").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary")).to_contain_text("wandb")


def test_pause_holds_the_picture_and_loses_nothing(page: Any) -> None:
    made, run = shown(page, steps=4)
    page.locator(".probe-panel").focus()
    page.keyboard.press(" ")
    expect(page.locator(".pp-status").first).to_have_text("paused")
    host.send(page, made.delta(run.step(5)), made.delta(run.step(6)))
    expect(page.locator(".pp-strip")).to_contain_text("Paused; 2 updates waiting.")
    expect(page.locator(".pp-step")).to_have_text("step 4")
    to_view(page, "metrics")
    expect(card(page, "reductions").locator("tbody tr:visible td:last-child").first).to_have_text("4")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".pp-step")).to_have_text("step 6")
    assert store(page, "store.table('spans').count") == len(made.rows["spans"])
    assert store(page, "store.broken") is False


def test_tabs_are_moved_by_arrows_and_announced_as_tabs(page: Any) -> None:
    shown(page, steps=3)
    page.get_by_role("tab", name="Overview").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Memory")).to_be_focused()
    expect(page.get_by_role("tab", name="Memory")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tab", name="Events")).to_be_focused()
    page.keyboard.press("Home")
    expect(page.get_by_role("tabpanel")).to_have_attribute(
        "aria-labelledby", page.get_by_role("tab", name="Overview").get_attribute("id")
    )
    until(
        lambda: page.evaluate("getComputedStyle(document.activeElement).outlineStyle"), lambda style: style == "solid"
    )


def test_keys_do_not_reach_the_notebook_around_it(page: Any) -> None:
    shown(page, steps=3)
    page.evaluate("globalThis.__keys = []; document.addEventListener('keydown', (event) => __keys.push(event.key))")
    page.locator(".probe-panel").focus()
    for key in ("ArrowLeft", "a", " ", "Escape"):
        page.keyboard.press(key)
    assert page.evaluate("__keys") == []


def test_zoom_and_hover_are_linked_over_all_charts(page: Any) -> None:
    shown(page, view="memory")
    box = still(card(page, "memory_over_steps").locator(".u-over"))
    at = lambda share: (box["x"] + box["width"] * share, box["y"] + 60)  # noqa: E731  # a place in the chart
    page.mouse.move(*at(0.5))
    other = card(page, "memory_timeline").locator(".u-cursor-x")
    expect(other).to_have_attribute("style", re.compile(r"translate\(\d{2,}"))
    page.mouse.move(*at(4 / 19))
    page.mouse.down()
    page.mouse.move(*at(9 / 19), steps=4)
    page.mouse.up()
    until(lambda: store(page, "store.ui.zoom"), lambda zoom: zoom == {"kind": "step", "from": 5, "to": 10})
    label = card(page, "memory_timeline").locator(".pp-plot")
    expect(label).to_have_attribute("aria-label", re.compile(r"largest [\d.]+ GiB at [\d.]+ s, step ([5-9]|10)\b"))
    page.get_by_role("button", name="Reset zoom").click()
    until(lambda: store(page, "store.ui.zoom"), lambda zoom: zoom is None)


def test_the_window_keeps_the_newest_steps(page: Any) -> None:
    made, run = shown(page, view="memory")
    page.get_by_label("Window", exact=True).select_option("steps10")
    label = card(page, "memory_timeline").locator(".pp-plot")
    expect(label).to_have_attribute("aria-label", re.compile(r"step (1[1-9]|20)\b"))
    host.send(page, *(made.delta(tables) for tables in run.steps(21, 30)))
    expect(label).to_have_attribute("aria-label", re.compile(r"step (2[1-9]|30)\b"))


def test_a_series_is_hidden_by_its_legend_and_stays_so(page: Any) -> None:
    made, run = shown(page, view="memory")
    key = card(page, "memory_timeline").locator(".pp-legend button", has_text="critic")
    key.click()
    expect(key).to_have_attribute("aria-pressed", "false")
    host.send(page, made.delta(run.step(21)))
    to_view(page, "tokens")
    to_view(page, "memory")
    expect(key).to_have_attribute("aria-pressed", "false")


# ---- looks


@pytest.mark.slow
def test_all_views_draw_at_400_px_without_a_scroll_bar(page: Any) -> None:
    shown(page, plotly=True)
    resized(page, 400, 2600)
    rights = "[...document.querySelectorAll('.pp-card, .pp-tile')].map((one) => one.getBoundingClientRect().right)"
    for view in host.VIEWS:
        to_view(page, view["id"])
        drawn(page)
        until(lambda: page.evaluate("document.documentElement.scrollWidth"), lambda wide: wide <= 400)
        until(lambda: page.evaluate(rights), lambda found: max(found) <= 400)
        assert page.locator(".pp-empty[data-error]").count() == 0


def test_a_cell_of_the_heat_map_leads_to_its_batch(page: Any) -> None:
    shown(page, view="tokens", plotly=True)
    page.get_by_role("slider").fill("16")
    heat = card(page, "balance_heat")
    expect(heat.locator(".hm image, .hm path, .heatmaplayer image").first).to_be_attached()
    expect(heat.locator(".pp-plotly")).to_have_attribute(
        "aria-label",
        re.compile(
            r"4 × 4 cells; the fullest is rank 2, micro-batch 1 with 4002 tokens|with 400\d.*cap 3200; 1 over the cap"
        ),
    )
    expect(heat.locator(".scatterlayer .point")).to_have_count(1)
    box = still(heat.locator(".nsewdrag"))
    page.mouse.click(box["x"] + box["width"] * 0.375, box["y"] + box["height"] * 0.625)
    pane = page.get_by_role("complementary")
    expect(pane).to_contain_text("rank 2 › batch 173")
    expect(pane.locator("[aria-current=true]")).to_contain_text("1")


def traces(page: Any, id: str) -> list[dict[str, Any]]:
    """What plotly has drawn of a card."""
    script = "(one) => one.data.map(({type, name, x, y, text}) => ({type, name, x: [...x], y: [...y], text}))"
    found: list[dict[str, Any]] = card(page, id).locator(".pp-plotly").evaluate(script)
    return found


def label_of(page: Any, id: str) -> str:
    return str(card(page, id).locator(".pp-plotly").get_attribute("aria-label"))


def test_bars_of_a_field_are_stacked_by_cause(page: Any) -> None:
    made, _ = shown(page, steps=6, view="tokens", plotly=True)
    drawn(page)
    assert card(page, "padding_by_field").locator(".pp-plotly").evaluate("(one) => one.layout.barmode") == "stack"
    sums: dict[tuple[str, str], float] = {}
    for row in made.rows["padding"]:
        key = (row["cause"].replace("_", " "), row["field"])
        sums[key] = sums.get(key, 0) + row["bytes"]
    totals = {field: sum(sums[key] for key in sums if key[1] == field) for _, field in sums}
    order = sorted(totals, key=lambda field: -totals[field])
    found = traces(page, "padding_by_field")
    assert [one["name"] for one in found if one["type"] == "bar"] == ["longest row", "filler rows"]
    unit = 1024 ** int(math.log2(max(totals.values())) // 10)
    for one in found[:2]:
        mine = dict(zip(one["y"], one["x"], strict=True))
        assert mine == {field: pytest.approx(sums[one["name"], field] / unit) for field in totals}
    assert found[2]["type"] == "scatter"  # what a stack comes to, behind its end
    assert dict(zip(found[2]["y"], found[2]["x"], strict=True)) == pytest.approx(
        {field: totals[field] / unit for field in totals}
    )
    assert label_of(page, "padding_by_field").startswith(f"Padding by field: Largest: {order[0]} ")


def test_bars_show_the_cap_and_the_mean(page: Any) -> None:
    made, _ = shown(page, steps=4, view="tokens", plotly=True)
    drawn(page)
    here = [row for row in made.rows["micro"] if row["step"] == 4]
    mean = sum(row["tokens"] for row in here) / len(here)
    found = {one["name"]: one for one in traces(page, "balance_fullest")}
    assert found["cap 3200"]["y"] == [3200]
    assert found[f"mean micro-batch {mean:.0f}"]["y"] == pytest.approx([mean])
    for phase in {row["phase"] for row in here}:
        tops = [
            max(row["tokens"] for row in here if row["rank"] == rank and row["phase"] == phase) for rank in range(4)
        ]
        assert found[phase]["y"] == tops
    lines = card(page, "balance_fullest").locator(".pp-plotly").evaluate("(one) => one.layout.shapes.length")
    assert lines == 2


def test_unlike_caps_have_a_line_each(page: Any, encoder: host.Encoder) -> None:
    host.opened(page, "panel", plotly=True)
    row = {"step": 1, "micro_batch": 0, "sequences": 1}
    rows = [
        {**row, "rank": rank, "batch": batch, "phase": phase, "tokens": 90, "cap": cap}
        for rank in (0, 1)
        for batch, phase, cap in ((1, "update", 100), (2, "values", 200))
    ]
    host.send(page, encoder.delta({"micro": rows}))
    to_view(page, "tokens")
    drawn(page)
    assert {"cap of update 100", "cap of values 200"} <= {one["name"] for one in traces(page, "balance_fullest")}


def test_the_fullest_rank_is_named(page: Any) -> None:
    made, _ = shown(page, steps=10, view="time", plotly=True)
    drawn(page)
    rounds: dict[tuple[int, str, int], dict[int, int]] = {}
    for row in made.rows["micro"]:
        ranks = rounds.setdefault((row["step"], row["phase"], row["batch"]), {})
        ranks[row["rank"]] = ranks.get(row["rank"], 0) + row["tokens"]
    firsts = [max(ranks, key=lambda rank: ranks[rank]) for ranks in rounds.values()]
    worst = max(range(4), key=firsts.count)
    share = sum(ranks[worst] for ranks in rounds.values()) / sum(sum(ranks.values()) / 4 for ranks in rounds.values())
    said = f"ank {worst} stands out: fullest in {firsts.count(worst)} of {len(rounds)} batches"
    expect(card(page, "balance_stragglers").locator(".pp-sentence")).to_contain_text(
        f"{said}, with {share:.2f}× the mean tokens."
    )
    assert said in label_of(page, "balance_stragglers")
    page.get_by_label("Rank", exact=True).select_option("rank 1")  # one rank alone has nobody to be compared with
    expect(card(page, "balance_stragglers").locator(".pp-sentence")).to_contain_text(said)


def test_d_of_a_lone_rank_the_panel_says_why_it_is_compared_with_nobody(page: Any) -> None:
    """And not that no micro-batches were recorded, under the picture of them."""
    host.opened(page, "panel", plotly=True)
    made, run = host.Encoder(), host.Run(ranks=1)
    host.send(page, *(made.delta(tables) for tables in run.steps(1, 3)))
    to_view(page, "time")
    empty = card(page, "balance_stragglers").locator(".pp-empty")
    expect(empty).to_contain_text("so there is nothing to compare")
    to_view(page, "tokens")
    expect(card(page, "balance_heat")).to_have_attribute("data-state", "drawn")
    assert "No micro-batches were recorded" not in page.locator(".probe-panel").first.inner_text()


def test_d_choosing_one_rank_judges_no_imbalance(page: Any) -> None:
    shown(page, steps=4)
    one = tile(page, "Rank imbalance")
    expect(one).to_have_attribute("data-status", re.compile("good|warn|alarm"))
    page.get_by_label("Rank", exact=True).select_option("rank 1")
    expect(one).to_have_attribute("data-status", "none")
    expect(one.locator(".pp-value")).to_have_text("–")
    expect(one.locator(".pp-note")).to_have_text("needs two ranks or more")
    expect(one.locator(".pp-means")).to_have_text("")


def test_nobody_stands_out_by_chance(page: Any, encoder: host.Encoder) -> None:
    host.opened(page, "panel", plotly=True)
    rows = [
        {"step": step, "rank": rank, "phase": "update", "batch": step, "micro_batch": 0, "tokens": 1000 + rank}
        for step in range(8)
        for rank in range(2)
    ]
    host.send(page, encoder.delta({"micro": rows}))
    to_view(page, "time")
    expect(card(page, "balance_stragglers").locator(".pp-sentence")).to_contain_text(
        "No rank stands out; rank 1 is fullest in 8 of 8 batches, with 1.00× the mean tokens."
    )


def test_time_on_padding_follows_the_slots(page: Any, encoder: host.Encoder) -> None:
    host.opened(page, "panel", plotly=True)
    row = {"step": 1, "kind": "micro_batch", "level": "micro_batch", "phase": "update", "begin": 0.0}
    rows = [
        {**row, "rank": 0, "scope": 1, "end": 4.0, "tokens": 25, "slots": 100},
        {**row, "rank": 0, "scope": 2, "end": 1.0, "tokens": 50, "slots": 100},
        {**row, "rank": 1, "scope": 1, "end": 2.0, "tokens": 100, "slots": 100},
        {**row, "rank": 1, "scope": 2, "end": 9.0, "tokens": 100},  # its width isn't known
    ]
    host.send(page, encoder.delta({"spans": rows}))
    to_view(page, "time")
    drawn(page)
    assert traces(page, "padding_time")[0]["y"] == pytest.approx([(3.0 + 0.5 + 0.0) / 2])


def test_without_plotly_the_numbers_are_there(page: Any) -> None:
    shown(page, view="tokens")
    heat = card(page, "balance_heat")
    expect(heat).to_contain_text("Waiting for the kernel to send plotly")
    heat.get_by_role("button", name="Numbers of").click()
    expect(heat.locator(".pp-numbers tbody tr")).to_have_count(16)
    heat.locator(".pp-numbers tbody button").first.click()
    expect(page.get_by_role("complementary")).to_contain_text("Batch 203")


@pytest.mark.parametrize(
    ("attribute", "dark", "light"),
    [
        ("data-jp-theme-light", "false", "true"),
        ("class", "vscode-dark", "vscode-light"),
        ("data-vscode-theme-kind", "vscode-high-contrast", "vscode-high-contrast-light"),
        ("data-theme", "dark", "light"),
    ],
)
def test_the_theme_follows_the_host(page: Any, attribute: str, dark: str, light: str) -> None:
    page.emulate_media(color_scheme="light")
    shown(page, steps=3, view="memory")
    root = page.locator(".probe-panel")
    expect(root).to_have_attribute("data-theme", "light")
    bright = page.evaluate("getComputedStyle(document.querySelector('.probe-panel')).backgroundColor")
    page.evaluate("([name, value]) => document.body.setAttribute(name, value)", [attribute, dark])
    expect(root).to_have_attribute("data-theme", "dark")
    ground = "getComputedStyle(document.querySelector('.probe-panel')).backgroundColor"
    until(lambda: page.evaluate(ground), lambda colour: colour != bright)
    page.evaluate("([name, value]) => document.body.setAttribute(name, value)", [attribute, light])
    page.emulate_media(color_scheme="dark")
    expect(root).to_have_attribute("data-theme", "light")  # the host's word counts more than the system's
    page.evaluate("(name) => document.body.removeAttribute(name)", attribute)
    expect(root).to_have_attribute("data-theme", "dark")


def test_markup_in_names_stays_text(page: Any) -> None:
    nasty = host.NASTY
    names = dict.fromkeys(
        ["actor", "update_actor", "reward/mean", "input_ids", "old_log_probs", "memory.recorder"], nasty
    )
    run_of = {"project": nasty, "experiment": nasty, "path": nasty, "world_size": 4}
    made, run = shown(page, steps=4, names=names, plotly=True, run=run_of)
    run.tables = {name: [] for name in live.TABLES}
    run.event(4, nasty, "memory.recorder", nasty, off=1)
    host.send(page, made.delta({"events": run.tables["events"]}, errors=[{"where": nasty, "message": nasty}]))
    expect(page.locator(".pp-strip li")).to_have_count(2)
    for view in host.VIEWS:
        to_view(page, view["id"])
        drawn(page)
    page.locator("tbody tr:visible").first.click()
    expect(page.get_by_role("complementary")).to_contain_text("<img src=x")
    assert page.locator(".probe-panel img, .probe-panel script").count() == 0
    assert page.evaluate("globalThis.__hurt") is None


#: Everything that HTML, SVG or plotly's own small markup might read as more than text.
HOSTILE = "<img src=x onerror=globalThis.__hurt=1><a href='javascript:globalThis.__hurt=2'>\"&lt;script&gt;"

#: Word columns that the panel itself gives a meaning.
OWN_WORDS = {"kind", "level", "peak_kind"}


def hostile(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The rows with markup in every text that a user, or another library, may give."""
    for name, rows in tables.items():
        words = [column for column, kind in live.TABLES[name].items() if kind == "word" and column not in OWN_WORDS]
        for row in rows:
            for column in words if name != "events" else [*words, "kind"]:
                if row.get(column):
                    row[column] = f"{HOSTILE}{row[column]}"
    return tables


def unhurt(page: Any, where: str) -> None:
    """Nothing of a text has become more than text: no element of its own, no handler, no link."""
    assert page.evaluate("globalThis.__hurt") is None, where
    assert page.locator(".probe-panel :is(img, script, iframe, object, a)").count() == 0, where
    handlers = """[...document.querySelectorAll(".probe-panel *")]
      .filter((one) => [...one.attributes].some((a) => /^on/.test(a.name))).length"""
    assert page.evaluate(handlers) == 0, where


@pytest.mark.slow
def test_every_text_of_a_run_stays_text_in_every_place(page: Any) -> None:
    """Titles, legends, ticks, tooltips, cells, menus, notices, details and what a screen reader hears."""
    made, run = host.Encoder(), host.Run()
    nasty = {name: f"{HOSTILE}{name}" for name in ("project", "experiment", "path")}
    host.opened(page, "panel", plotly=True, run={**nasty, "world_size": 4}, hint=HOSTILE)
    for step in range(1, 5):
        tables = run.step(step)
        run.event(step, "listener", "memory", "boom", off=1)
        for row in run.tables["calls"]:
            row |= {"removed": "rewards", "error": "ValueError: bad"}
        host.send(page, made.delta(hostile(tables), errors=[{"where": HOSTILE, "message": HOSTILE}]))
    expect(page.locator("h2")).to_contain_text(HOSTILE)
    expect(page.locator(".pp-strip")).to_contain_text("<img src=x")
    page.get_by_text("Filter", exact=True).click()
    for name in ("Role", "Phase"):
        options = page.get_by_label(name, exact=True).locator("option", has_text="<img src=x")
        until(options.count, lambda many: many >= 3)
    page.keyboard.press("Escape")
    seen = set()
    for view in host.VIEWS:
        to_view(page, view["id"])
        drawn(page)
        for one in page.locator("button:visible", has_text="Numbers").all():
            one.click()
        seen |= sinks(page)
        unhurt(page, view["id"])
    assert seen >= {"tooltip", "tick", "legend of plotly", "legend", "cell", "heading", "aria-label", "title"}
    for view in ("data", "metrics", "events"):
        to_view(page, view)
        page.locator(".pp-mark-table tbody tr:visible").first.click()
        expect(page.get_by_role("complementary")).to_contain_text("<img src=x")
        unhurt(page, f"details of {view}")
        page.keyboard.press("Escape")


def sinks(page: Any) -> set[str]:
    """Where the markup can be read as text, after every chart was pointed at."""
    script = """async (parts) => {
      await pointAtAll(); // and look at once: what is pointed at goes when a chart is drawn again
      const has = (one) => one.textContent.includes("<img");
      const all = (path) => [...document.querySelectorAll(path)];
      const found = Object.entries(parts).filter(([, path]) => all(path).some(has)).map(([name]) => name);
      for (const name of ["aria-label", "title"])
        if (all(`.probe-panel [${name}]`).some((one) => one.getAttribute(name).includes("<img"))) found.push(name);
      return found;
    }"""
    parts = {
        "tooltip": ".hoverlayer text", "tick": ".xtick text, .ytick text", "legend of plotly": ".legend text",
        "legend": ".pp-legend button", "cell": ".pp-table td", "heading": ".pp-facet h4",
    }  # fmt: skip
    return set(page.evaluate(script.replace("pointAtAll", f"({_POINT_AT_ALL})"), parts))


_POINT_AT_ALL = """async () => {
  const plotly = await __probe_plotly;
  for (const one of document.querySelectorAll(".pp-plotly")) {
    if (!one.data) continue;
    const at = one.data.findIndex((trace) => trace.hovertext && trace.hoverinfo !== "skip");
    if (at >= 0) plotly.Fx.hover(one, [{ curveNumber: at, pointNumber: one.data[at].type === "heatmap" ? [0, 0] : 0 }]);
  }
}"""


def test_a_capacity_far_above_does_not_press_the_lines_flat(page: Any, encoder: host.Encoder) -> None:
    host.opened(page, "panel")
    to_view(page, "memory")
    row = {"rank": 0, "role": "actor", "step": 1, "total": 80 * host.GIB}
    host.send(page, encoder.delta({"memory": [row | {"t": float(at), "allocated": host.GIB} for at in range(5)]}))
    legend = card(page, "memory_timeline").locator(".pp-legend")
    expect(legend).to_contain_text("capacity80 GiB(far above)")
    host.send(page, encoder.delta({"memory": [row | {"t": 5.0, "allocated": 60 * host.GIB}]}))
    expect(legend).not_to_contain_text("far above")


def test_a_panel_may_have_a_title_of_its_own(page: Any) -> None:
    host.opened(page, "panel", title="<b>night run</b>")
    expect(page.locator("h2")).to_have_text("<b>night run</b>")


# ---- views and the life of a run


def test_g_two_outputs_of_one_run_can_show_different_views(page: Any) -> None:
    made, run = shown(page, steps=4)
    page.evaluate("__host.view()")
    first, second = page.locator(".probe-panel").nth(0), page.locator(".probe-panel").nth(1)
    second.get_by_role("tab", name="Memory").click()
    second.get_by_role("button", name="One step back").click()
    second.get_by_label("Rank", exact=True).select_option("rank 2")
    expect(second.locator(".pp-step")).to_have_text("step 3")
    expect(first.locator(".pp-step")).to_have_text("step 4")
    expect(first.get_by_role("tab", name="Overview")).to_have_attribute("aria-selected", "true")
    expect(first.get_by_label("Rank", exact=True)).to_have_value("")
    host.send(page, made.delta(run.step(5)))  # both go on with the same run
    expect(first.locator(".pp-step")).to_have_text("step 5")
    expect(second.locator(".pp-step")).to_have_text("step 3")
    second.get_by_role("button", name="Follow").click()
    expect(second.locator(".pp-step")).to_have_text("step 5")
    assert store(page, "store.table('spans').count") == len(made.rows["spans"])


def test_a_view_that_is_made_again_keeps_what_was_chosen(page: Any) -> None:
    made, run = shown(page, steps=6, view="events")
    page.get_by_label("Filter Events").fill("mlflow")
    page.get_by_label("Window", exact=True).select_option("steps50")
    page.get_by_role("button", name="One step back").click()
    page.get_by_role("button", name="Pause").click()
    page.evaluate("__host.close(0)")
    expect(page.locator(".probe-panel")).to_have_count(0)
    host.send(page, made.delta(run.step(7)))
    page.evaluate("__host.view()")
    expect(page.get_by_role("tab", name="Events")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_label("Filter Events")).to_have_value("mlflow")
    expect(page.get_by_label("Window", exact=True)).to_have_value("steps50")
    expect(page.locator(".pp-step")).to_have_text("step 5")
    expect(page.locator(".pp-status").first).to_have_text("paused")
    page.get_by_role("button", name="Resume").click()
    assert store(page, "store.clock.newest") == 7


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
    for view in host.VIEWS[1:]:
        to_view(page, view["id"])
        expect(page.locator(".pp-empty")).to_have_count(len(view["panels"]))
        expect(page.locator(".pp-empty:visible")).to_have_count(len(view["panels"]))
    expect(page.locator(".pp-empty")).to_have_text("Nothing went wrong with the observing.")


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
        "good": {"title": "Good", "live": host.LIVE["memory_timeline"]},
    }
    made, run = host.Encoder(), host.Run()
    host.opened(page, "panel", panels=panels, views=[{"id": "one", "title": "One", "panels": [*panels, "nowhere"]}])
    host.send(page, made.delta(run.step(1)))
    expect(page.locator(".pp-card", has_text="Good").locator("canvas")).to_be_visible()
    expect(page.locator(".pp-card", has_text="Bad").locator("[data-error]")).to_contain_text("This chart failed")
    expect(page.locator(".pp-card", has_text="Unknown")).to_contain_text("mark pie isn't known here")
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
