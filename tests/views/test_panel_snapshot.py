"""What a page that opens is given: packed, whole, and in its place before anything that comes later."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from probe.live.protocol import columns_of, unpacked
from probe.views.panel.panel import Panel
from probe.views.panel.widget import packed
from tests.sample_run import sample_rows, write_run
from tests.views import stub_host as host


def test_a_snapshot_travels_packed_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    with Panel(write_run(tmp_path / "run", sample_rows(2, 30))) as panel:
        state = panel.widget.get_state()
        tables = panel._pump.feed.tables
        head, body = state["snapshot_head"], gzip.decompress(state["snapshot"])
        assert len(state["snapshot"]) < len(body) / 2
        at = 0
        for entry in head["tables"]:
            size = sum(-(-entry["n"] * int(code[1]) // 8) * 8 for _, code in columns_of(entry))
            found = unpacked(entry, body[at : at + size])
            for name, values in tables[entry["name"]].columns().items():
                assert found[name].tobytes() == values.tobytes()
            at += size
        assert at == len(body)


def test_nothing_is_packed_where_there_is_nothing() -> None:
    assert packed({}, b"") == ({}, b"")


@pytest.mark.browser
def test_messages_that_come_before_the_snapshot_has_been_read_wait_for_it(page: Any) -> None:
    encoder, run = host.Encoder(), host.Run()
    for tables in run.steps(1, 5):
        encoder.delta(tables)
    snapshot, later = encoder.snapshot(), encoder.delta(run.step(6))
    page.evaluate(
        """() => {
            const read = Response.prototype.arrayBuffer;
            globalThis.__go = new Promise((done) => { globalThis.__let = done; });
            Response.prototype.arrayBuffer = async function () { await globalThis.__go; return read.call(this); };
        }"""
    )
    page.evaluate(
        """([opening, message]) => {
            const [code, css, traits, buffers] = opening;
            globalThis.__opened = __host.open(code, css, traits, buffers);
            const wait = setInterval(() => {
                if (!__host.listeners.length) return;
                clearInterval(wait);
                __host.send([message]);  // the first one after the page began to listen
                __let();
            }, 5);
        }""",
        [host.opening("panel", snapshot=snapshot), later],
    )
    page.evaluate("() => __opened")
    held = page.evaluate("() => [...__probe_panels.values()][0].table('micro').count")
    assert held == len(encoder.rows["micro"])
    assert page.evaluate("() => [...__probe_panels.values()][0].clock.newest") == 6


@pytest.mark.browser
def test_a_snapshot_that_cannot_be_read_is_told_and_later_messages_are_shown(page: Any) -> None:
    encoder, run = host.Encoder(), host.Run()
    opening = host.opening("panel", snapshot=({"v": 1, "t": "k", "seq": 3, "tables": []}, b"1234"))
    opening[3]["snapshot"] = "bm8gZ3ppcA=="
    page.evaluate("([code, css, traits, buffers]) => __host.open(code, css, traits, buffers)", opening)
    host.send(page, *(encoder.delta(tables) for tables in run.steps(1, 3)))
    page.wait_for_selector(".pp-strip:has-text('could not be read')")
    assert page.evaluate("() => [...__probe_panels.values()][0].clock.newest") == 3
    host.send(page, encoder.keyframe())
    page.wait_for_selector(".pp-strip:has-text('could not be read')", state="detached")
    assert page.evaluate("() => [...__probe_panels.values()][0].table('micro').count") == len(encoder.rows["micro"])
