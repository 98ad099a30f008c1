"""What the panel's tiles and charts show of a run's rows, in a real Chromium with a stub model and no network."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from probe.dashboards import spec as live
from tests.views import stub_boards as boards
from tests.views import stub_host as host
from tests.views.panel_page import card, drawn, resized, shown, still, store, tile, to_view
from tests.waiting import until

pytestmark = pytest.mark.browser

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect


# ---- contract


@pytest.mark.parametrize("id", boards.LIVE)
def test_the_marks_tested_here_are_those_that_dashboards_may_ask_for(id: str) -> None:
    assert live.check(boards.LIVE[id], id)


def test_every_mark_of_the_contract_is_drawn_here() -> None:
    assert {block["mark"] for block in boards.LIVE.values()} == set(live.MARKS)


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
    expect(tile(page, "Peak memory").locator(".pp-note")).to_contain_text(
        re.compile(rf"takes\s{100 * peak / 16:.3g}\s%\sof\s16\sGiB\.")
    )
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


# ---- looks


@pytest.mark.slow
def test_all_views_draw_at_400_px_without_a_scroll_bar(page: Any) -> None:
    shown(page, plotly=True)
    resized(page, 400, 2600)
    rights = "[...document.querySelectorAll('.pp-card, .pp-tile')].map((one) => one.getBoundingClientRect().right)"
    for view in boards.VIEWS:
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
