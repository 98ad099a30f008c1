"""What the panel in a browser holds of the messages that it gets: gaps, keyframes and a bounded history."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.views import stub_host as host
from tests.views.panel_page import card, shown, store, tile, to_view
from tests.waiting import until

pytestmark = pytest.mark.browser

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect


# ---- messages


def test_a_gap_is_seen_and_healed_by_the_next_keyframe(page: Any) -> None:
    made, run = shown(page, steps=3)
    lost = made.delta(run.step(4))
    host.send(page, made.delta(run.step(5)))
    notice = page.locator(".pp-strip li")
    expect(notice).to_contain_text("1 message lost on the way to this page")
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
