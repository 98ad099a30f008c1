"""The messages: whatever is lost on the way, a keyframe heals it; and a delta costs what is new."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.panel import Trainer
from probe.dashboards.columns import LIVE
from probe.live import protocol
from probe.live import pump as pump_module
from probe.live.blocks import limits_of
from probe.live.feed import Feed
from probe.live.protocol import Sender, packed, size_of, unpacked
from probe.live.pump import Pump
from probe.live.tables import SKETCH_ROWS
from tests.live.live_run import append, in_order, opened
from tests.sample_run import sample_rows, write_run


@pytest.fixture(autouse=True)
def _no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent depends on the rows alone, and not on how long a test takes between them."""
    monkeypatch.setattr(pump_module, "HEARTBEAT_S", math.inf)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[str, dict[str, np.ndarray]]:
    table, count = draw(st.sampled_from(sorted(LIVE))), draw(st.integers(0, 9))
    made = {}
    for name, column in LIVE[table].columns.items():
        kind = column.dtype
        one = st.floats(width=32 if kind == "f4" else 64) if kind[0] == "f" else st.integers(*limits_of(kind))
        made[name] = np.array(draw(st.lists(one, min_size=count, max_size=count)), kind)
    return table, made


@settings(deadline=None, max_examples=60)
@given(blocks())
def test_columns_survive_the_wire_bit_by_bit(given_: tuple[str, dict[str, np.ndarray]]) -> None:
    table, block = given_
    entry = {"n": len(next(iter(block.values()))), "cols": protocol.header(LIVE[table], list(block))}
    data = packed(LIVE[table], block, list(block))
    assert len(data) % 8 == 0
    for name, values in unpacked(entry, data).items():
        assert values.tobytes() == block[name].tobytes()
        assert values.dtype == block[name].dtype


def missing(dtype: str, count: int) -> np.ndarray:
    """A column that a message leaves out."""
    return np.full(count, {"i4": -1, "u1": 0}.get(dtype, np.nan), dtype)


@settings(deadline=None, max_examples=30)
@given(blocks())
def test_what_is_left_out_of_a_message_is_missing_in_every_row(given_: tuple[str, dict[str, np.ndarray]]) -> None:
    table, block = given_
    if not len(next(iter(block.values()))):
        return
    names = protocol.filled(LIVE[table], block)
    for name, column in LIVE[table].columns.items():
        empty = missing(column.dtype, len(block[name]))
        assert (name not in names) == np.array_equal(block[name], empty, equal_nan=column.dtype[0] == "f")


class Browser:
    """What the page does with messages, in a few lines: rows by table, words, and whether something is missing."""

    def __init__(self) -> None:
        self.seq, self.broken = 0, False
        self.words: list[str | None] = []
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        self.next: dict[str, int] = {}
        self.state: dict[str, Any] = {}

    def receive(self, head: dict[str, Any], buffers: list[bytes]) -> None:
        head = json.loads(json.dumps(head))
        assert head["v"] == 1
        self.broken |= head["seq"] != self.seq + 1
        self.seq = head["seq"]
        self.state |= head["state"]
        if head["t"] == "k":
            if not self.broken and self.rows:
                return
            self.words, self.rows, self.next, self.broken = [], {}, {}, False
        self.broken |= head["words_from"] > len(self.words)
        self.words += [None] * (head["words_from"] - len(self.words))
        self.words[head["words_from"] :] = head["words"]
        for entry in head["tables"]:
            self._rows(entry, buffers[entry["buffer"]], whole=head["t"] == "k")

    def _rows(self, entry: dict[str, Any], buffer: bytes, *, whole: bool) -> None:
        name = entry["name"]
        at = entry["from"] if whole else self.next.get(name, 0)
        self.broken |= entry["from"] > at
        columns = unpacked(entry, buffer)
        whole_ = [columns.get(one, missing(column.dtype, entry["n"])) for one, column in LIVE[name].columns.items()]
        rows = list(zip(*(values.tolist() for values in whole_), strict=True))
        self.rows.setdefault(name, []).extend(rows[max(at - entry["from"], 0) :])
        self.next[name] = entry.get("next", entry["from"] + entry["n"])


def trained(directory: Path, seed: int, parts: int) -> list[list[Any]]:
    rows, chance = in_order(sample_rows(2, 3, seed=seed)), random.Random(seed)
    write_run(directory, {0: [], 1: []})
    edges = [0, *sorted(chance.sample(range(1, len(rows)), parts - 1)), len(rows)]
    return [rows[begin:end] for begin, end in zip(edges[:-1], edges[1:], strict=True)]  # noqa: RUF007


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 999), lost=st.floats(0, 0.5))
def test_lost_messages_are_noticed_and_healed(tmp_path_factory, seed, lost):
    directory, chance = tmp_path_factory.mktemp("run") / "run", random.Random(seed)
    parts = trained(directory, seed, 40)
    feed, browser, dropped = opened(directory), Browser(), 0
    messages: list[Any] = []
    pump = Pump(feed, lambda head, buffers: messages.append((head, buffers)), 0.25)
    for part in parts:
        append(directory, part)
        pump.round()
        for head, buffers in messages:
            gone = chance.random() < lost and head["t"] != "k"
            dropped += gone
            if not gone:
                browser.receive(head, buffers)
        messages.clear()
    pump.ask_for_all()
    pump.round()
    for message in messages:
        browser.receive(*message)
    assert not browser.broken
    assert browser.words == feed.words.texts
    for name, table in feed.tables.items():
        assert browser.next.get(name, 0) == table.next
        if not dropped and not table.declared.key:  # in these, rows replace each other
            kept = list(zip(*(values.tolist() for values in table.columns().values()), strict=True))
            assert repr(browser.rows.get(name, [])) == repr(kept)
    assert browser.state["step"] == feed.step


def test_keyframes_come_at_8_and_every_64(tmp_path):
    directory = tmp_path / "run"
    parts = trained(directory, 1, 130)
    feed, heads = opened(directory), []
    pump = Pump(feed, lambda head, _: heads.append(head), 0.25)
    for part in parts:
        append(directory, part)
        pump.round()
    pump.round()
    pump.round()
    assert [head["seq"] for head in heads] == list(range(1, len(heads) + 1))
    assert [head["seq"] for head in heads if head["t"] == "k"] == [8, 64, 128]
    assert {head["t"] for head in heads} == {"d", "k"}
    for head in heads:
        if head["t"] == "k":
            assert head["words_from"] == 0
            assert all(entry["n"] <= SKETCH_ROWS for entry in head["tables"])


def test_nothing_is_sent_when_nothing_is_new(tmp_path):
    directory = write_run(tmp_path / "run", sample_rows(1, 1))
    feed, heads = opened(directory), []
    pump = Pump(feed, lambda head, _: heads.append(head), 0.25)
    for _ in range(5):
        pump.round()
    assert [head["t"] for head in heads] == ["s"]  # the first state
    pump.stop()
    assert [head["t"] for head in heads] == ["s", "s"]
    assert heads[-1]["state"]["live"] is False
    assert "step" not in heads[-1]["state"]


def test_a_snapshot_joins_onto_the_deltas_that_follow(tmp_path):
    directory = tmp_path / "run"
    parts = trained(directory, 3, 20)
    feed, browser = opened(directory), Browser()
    assert Sender(feed.words).snapshot(feed.tables, {}) == ({}, b"")
    messages: list[Any] = []
    pump = Pump(feed, lambda head, buffers: messages.append((head, buffers)), 0.25)
    for part in parts[:10]:
        append(directory, part)
        pump.round()
    messages.clear()
    head, data = pump.snapshot()
    buffers, at = [], 0
    for entry in head["tables"]:
        size = sum(-(-entry["n"] * np.dtype(code).itemsize // 8) * 8 for _, code in protocol.columns_of(entry))
        buffers.append(data[at : at + size])
        at += size
    assert at == len(data)
    browser.seq = head["seq"] - 1
    browser.receive(head, buffers)
    for part in parts[10:]:
        append(directory, part)
        pump.round()
    for message in messages:
        browser.receive(*message)
    assert not browser.broken
    assert browser.words == feed.words.texts
    assert {name: browser.next[name] for name in browser.next} == {
        name: table.next for name, table in feed.tables.items() if table.next
    }


@pytest.mark.parametrize("history", [100, 3_000])
def test_an_update_is_small_at_any_length_of_the_history(tmp_path, history):
    trainer = Trainer(tmp_path)
    trainer.write(history)
    messages: list[Any] = []
    pump = Pump(Feed(trainer.directory), lambda head, buffers: messages.append((head, buffers)), 0.25)
    pump.open()
    for _ in range(20):
        trainer.write(10)
        pump.round()
    trainer.close()
    deltas = [size_of(message) for message in messages if message[0]["t"] == "d"][1:]  # the first brings the state
    assert max(deltas) <= 2 * 4096  # that after a keyframe brings the rows of two looks
    assert sorted(deltas)[len(deltas) // 2] <= 4096
