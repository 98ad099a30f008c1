"""What a person does with the panel in a browser: steps, filters, pause, tabs, zoom, and several views of one run."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.views import stub_host as host
from tests.views.panel_page import card, shown, still, store, tile, to_view
from tests.waiting import until

pytestmark = pytest.mark.browser

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect


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
        "rank 2, generate has no data for this figure."
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


# ---- views


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
