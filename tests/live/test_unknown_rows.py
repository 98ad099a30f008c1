"""Rows that this process doesn't know, and processes without a rank: nothing fails, and what can be shown is."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

import probe
from probe.dashboards.spec import check
from probe.errors import UnknownNameError
from probe.live import opening, series
from probe.live.feed import Feed
from probe.live.intake import Intake
from probe.live.protocol import Sender, unpacked
from probe.live.pump import Pump
from probe.live.tables import LiveTable, Words
from probe.recorders.recorder import Recorder
from probe.records import Memory, MicroBatch, Process, Row, Scalar
from probe.runs.lines import encode
from probe.views.panel.panel import Panel
from probe.views.server.panel import ServedPanel
from probe.views.terminal.following import Following
from tests.live.live_run import append, as_dicts, opened
from tests.sample_run import MS, WALL_NS, clock, sample_rows, write_run, written_by

STRANGE = {
    "table": "collector_pauses", "time_ns": clock(0) + 9 * MS, "attempt": 1, "process": "rank-00000", "rank": 0,
    "step": 1, "role": None, "phase": None, "micro_batch": None,
    "scope_id": 0, "scope": "", "pause_ns": 5, "reason": "full",
}  # fmt: skip


class Pause(Row, kw_only=True, tag="pauses"):
    """What a recorder of a user's tells."""

    pause_ns: int | None = None
    share_ratio: float = 0.0
    reason: str = ""
    generations: list[int] = []
    where: list[str] = []
    forced: bool = False


def pause(index: int, **more: Any) -> Row:
    made = Pause(pause_ns=index, share_ratio=index / 4, time_ns=clock(0) + index * MS, step=index // 2, **more)
    return by_rank_0(made)


def by_rank_0(row: Row) -> Row:
    return written_by(row, "rank-00000", 0)


def read(rows: list[Row]) -> tuple[Intake, Words, dict[str, Any]]:
    words = Words()
    tables = {name: LiveTable(name) for name in ("micro", "padding")}
    intake = Intake(words, tables, WALL_NS)
    begin = Process(rank=0, process="rank-00000", time_ns=clock(0), wall_ns=WALL_NS)
    return intake, words, intake.read([begin, *rows])


# --------------------------------------------------------------------------------------------------- unknown types


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A run to which a process with a recorder of its own has written."""
    directory = write_run(tmp_path / "run", sample_rows(2, 3))
    with (directory / "rank-00000.jsonl").open("ab") as file:
        file.write(json.dumps(STRANGE).encode() + b"\n")
    return directory


@pytest.mark.parametrize("at_once", [False, True])
def test_rows_of_a_type_that_nobody_here_knows_end_nothing(strange, monkeypatch, at_once):
    if at_once:
        monkeypatch.setattr(opening, "LARGE_BYTES", -1)
    feed = opened(strange)
    assert feed.bad_lines == 0
    assert feed.step == 7
    append(strange, [by_rank_0(Scalar(key="later", value=1.0, step=11, time_ns=clock(0) + 10**9))])
    with (strange / "rank-00000.jsonl").open("ab") as file:
        file.write(json.dumps(STRANGE).encode() + b"\n")
    assert "scalars" in feed.update()
    assert (feed.step, feed.bad_lines) == (11, 0)


def test_the_panel_the_page_and_the_terminal_open_on_it(strange):
    with Panel(str(strange)) as shown:
        assert "up to step 2" in repr(shown)  # of step 7 there are rows, and nobody has ended it
        assert shown.errors == []
    served = ServedPanel(str(strange))
    served.follow()
    try:
        assert served.errors == []
        assert served.state["step"] == 7
    finally:
        served.close()
    following = Following(str(strange))
    assert following.look().steps + following.look().steps == [0, 1, 2]


def test_a_row_type_that_a_recorder_brought_is_a_live_table():
    rows = [pause(index, reason="full" if index else "", where=["a", "b"] * index) for index in range(4)]
    intake, words, found = read(rows)
    block = found["pauses"]
    assert block["pause_ns"].tolist() == [0, 1, 2, 3]
    assert block["t"].tolist() == pytest.approx([0, 0.001, 0.002, 0.003])
    assert [words.texts[code] for code in block["reason"]] == ["", "full", "full", "full"]
    assert [words.texts[code] if code >= 0 else None for code in block["where"]] == [
        None,
        "a, b",
        *["a, b, a, b", "a, b, a, b, a, b"],
    ]
    assert "generations" not in block
    table = intake.table("pauses")
    live = {"pauses": LiveTable("pauses", declared=table)}
    live["pauses"].append(block)
    spec = {"table": "pauses", "y": "pause_ns", "reduce": "sum", "where": {"reason": "full"}}
    assert series.by_step(live, words, spec) == ([0, 1], [1.0, 5.0])


def test_what_such_a_row_lacks_is_missing():
    _, _, found = read([pause(0), by_rank_0(Pause(time_ns=clock(0)))])
    assert str(found["pauses"]["pause_ns"].tolist()) == "[0.0, nan]"
    assert found["pauses"]["step"].tolist() == [0, -1]


def test_a_field_that_is_called_like_a_live_column_of_another_table_keeps_its_values():
    class Negotiation(Row, kw_only=True, tag="negotiations"):
        round: int
        duration: float

    _, _, found = read([by_rank_0(Negotiation(round=n, duration=n / 2, time_ns=clock(0))) for n in (4, 7)])
    assert found["negotiations"]["round"].tolist() == [4, 7]
    assert found["negotiations"]["duration"].tolist() == [2, 3.5]


def test_a_table_that_is_called_like_a_live_one_gets_another_name():
    class Happening(Row, kw_only=True, tag="events"):
        size_bytes: int

    _, _, found = read([by_rank_0(Happening(size_bytes=2**40, time_ns=clock(0)))])
    assert found["events_rows"]["size_bytes"].tolist() == [2**40]


def test_many_of_them_are_thinned_like_any_others():
    intake, _, found = read([pause(index) for index in range(1000)])
    table = LiveTable("pauses", 100, intake.table("pauses"))
    table.append(found["pauses"])
    assert table.count <= 100
    assert table.columns()["pause_ns"].max() == 999


def test_the_browser_is_told_what_it_is_when_the_first_row_comes(strange):
    feed = opened(strange)
    sender = Sender(feed.words)
    sender.delta({}, feed.tables, {})
    blocks = feed._intake.read([pause(1)])
    feed._store(blocks)
    head, buffers = sender.delta(blocks, feed.tables, {})
    schema = head["schema"]["pauses"]
    assert list(head["schema"]) == ["pauses"]
    assert schema["columns"]["pause_ns"] == ["f8", "ns"]
    assert schema["columns"]["reason"] == ["i4", "word"]
    assert unpacked(head["tables"][0], buffers[0])["pause_ns"].tolist() == [1.0]
    assert list(unpacked(head["tables"][0], buffers[0])) == list(schema["columns"])
    blocks = feed._intake.read([pause(2)])
    feed._store(blocks)
    assert "schema" not in sender.delta(blocks, feed.tables, {})[0]
    assert list(sender.keyframe(feed.tables, {})[0]["schema"]) == ["pauses"]
    assert list(sender.snapshot(feed.tables, {})[0]["schema"]) == ["pauses"]


def test_the_configuration_says_what_the_declared_tables_are(strange):
    with Panel(str(strange)) as shown:
        schema = json.loads(json.dumps(shown.config()))["schema"]
    assert schema["spans"]["key"] == ["process", "scope"]
    assert schema["spans"]["derived"]["on_padding"] == ["s", ["*", "duration", ["-", 1, ["/", "tokens", "slots"]]]]
    assert schema["spans"]["time"] == ["begin", "end"]
    assert schema["memory"]["columns"]["allocated"] == ["f8", "bytes"]
    assert schema["scalars"]["thin"] == {"scores": ["value"], "group": ["key"], "whole": True}


# ------------------------------------------------------------------------------------------------ without a rank


def rankless(directory: Path) -> list[Row]:
    """What a driver writes beside two ranks: it has no rank, and numbers scopes and batches as rank 0 does."""
    where: dict[str, Any] = {"process": "driver", "rank": None, "step": 0, "phase": "rollout"}
    rows: list[Row] = [
        Process(process="driver", rank=None, time_ns=5, wall_ns=WALL_NS, pid=77, host="node-1"),
        Memory(edge="enter", kind="phase", name="rollout", scope_id=1, time_ns=10 * MS, **where),
        Memory(
            edge="leave", kind="phase", name="rollout", scope_id=1, peak_allocated_bytes=7, time_ns=20 * MS, **where
        ),
        MicroBatch(
            batch_id=1, micro_batches=1, micro_batch=0, sequences=1, lengths=[9], tokens=9, time_ns=12 * MS, **where
        ),
    ]
    (directory / "rank-00002.jsonl").write_bytes(b"".join(map(encode, rows)))
    return rows


def of_ranks() -> dict[int, list[Row]]:
    where: dict[str, Any] = {"step": 0, "phase": "rollout"}
    return {
        rank: [
            Memory(edge="enter", kind="phase", name="rollout", scope_id=1, time_ns=clock(rank) + MS, **where),
            MicroBatch(batch_id=1, micro_batches=1, micro_batch=0, sequences=1, lengths=[tokens], tokens=tokens,
                       time_ns=clock(rank) + 2 * MS, **where),
        ]
        for rank, tokens in ((0, 30), (1, 10))
    }  # fmt: skip


@pytest.mark.parametrize("at_once", [False, True])
def test_a_process_without_a_rank_is_no_rank_and_is_known_by_its_name(tmp_path, monkeypatch, at_once):
    directory = write_run(tmp_path / "run", of_ranks())
    rankless(directory)
    if at_once:
        monkeypatch.setattr(opening, "LARGE_BYTES", -1)
    feed = opened(directory)
    found = {(row["process"], row["rank"], row["scope"], row["end"]) for row in as_dicts(feed, "spans")}
    assert {(process, rank) for process, rank, _, _ in found} == {("rank-00000", 0), ("rank-00001", 1), ("driver", -1)}
    assert {scope for _, _, scope, _ in found} == {1}
    spec: dict[str, Any] = {"table": "micro", "y": "tokens", "per": "round", "each": "rank", "reduce": "imbalance"}
    assert series.by_step(feed.tables, feed.words, spec) == ([0], [1.5])
    assert series.by_step(feed.tables, feed.words, {**spec, "reduce": "sum"}) == ([0], [40.0])
    assert series.by_step(feed.tables, feed.words, {"table": "micro", "y": "tokens", "reduce": "sum"}) == ([0], [49.0])
    assert set(feed._intake.writers) == {0, 1, "driver"}


def test_scopes_and_batches_of_processes_do_not_mix(tmp_path):
    """All of them count from 1, and nothing of one is taken for another's."""
    directory = write_run(tmp_path / "run", of_ranks())
    rankless(directory)
    feed = opened(directory)
    for table, number in (("spans", "scope"), ("micro", "batch")):
        rows = as_dicts(feed, table)
        assert len(rows) == len({(row["process"], row[number]) for row in rows}) == 3


def test_messages_of_such_a_run_reach_the_browser(tmp_path):
    directory = write_run(tmp_path / "run", of_ranks())
    feed = Feed(directory)
    heads: list[dict[str, Any]] = []
    pump = Pump(feed, lambda head, _: heads.append(head), 0.25)
    pump.open()
    rankless(directory)
    pump.round()
    assert not pump.failures
    assert {entry["name"] for entry in heads[-1]["tables"]} == {"spans", "memory", "micro"}
    assert "driver" in itertools.chain.from_iterable(head["words"] for head in heads)


# --------------------------------------------------------------------------------------------- a recorder's own rows


class PauseRecorder(Recorder):
    """Pauses that the test tells of."""

    points: ClassVar[tuple[str, ...]] = ("session.log",)
    rows: ClassVar[tuple[type[Row], ...]] = (Pause,)

    def fire(self, event: Any) -> Row:
        return Pause(pause_ns=int(event.values["metrics"]["pause"]), reason="gc")


@pytest.mark.parametrize("at_once", [False, True])
def test_rows_of_a_recorder_stand_in_a_panel(tmp_path, monkeypatch, at_once):
    session = probe.start("p", "e", root=tmp_path, recorders=[PauseRecorder()], world_size=1, rank=0)
    for step in range(3):
        with session.step(step):
            session.log({"pause": 10.0 * step}, step)
    session.close()
    if at_once:
        monkeypatch.setattr(opening, "LARGE_BYTES", -1)
    feed = opened(session.directory)
    block = {"mark": "line", "table": "pauses", "x": "step", "y": "pause_ns", "by": "reason", "reduce": "max"}
    spec = check(block, "a panel")
    assert series.by_step(feed.tables, feed.words, spec) == ([0, 1, 2], [0.0, 10.0, 20.0])
    assert feed.finished()
    with Panel(str(session.directory)) as shown:
        shown._pump.open()
        assert shown.config()["schema"]["pauses"]["columns"]["pause_ns"] == ["f8", "ns"]
        assert shown.errors == []
    with pytest.raises(UnknownNameError, match="paus_ns"):
        check({**block, "y": "paus_ns"}, "a panel")


def test_a_panel_of_rows_that_never_came_is_empty(strange):
    feed = opened(strange)
    spec = check({"mark": "line", "table": "collector_pauses", "x": "step", "y": "pause_ns"}, "a panel")
    assert series.by_step(feed.tables, feed.words, spec) == ([], [])
    assert series.cells(feed.tables, feed.words, spec) == {}
    with pytest.raises(UnknownNameError, match="memori"):
        check({**spec, "table": "memori"}, "a panel")
