"""Bounds of a feed: large runs, many rows at once, many words, numbers that don't fit, and what nobody wrote."""

from __future__ import annotations

import math

import fsspec
import numpy as np
import pytest

from probe.errors import RunNotFoundError
from probe.live.feed import Feed
from probe.live.tables import TOO_MANY, WORD_CHARACTERS, WORDS, Words
from probe.records import GIB, Memory, MicroBatch, Row, Scalar
from tests.live.feed_rows import ROWS, by_sql
from tests.live.live_run import append, as_dicts, opened, roll, told
from tests.sample_run import MS, clock, write_run


def test_tables_are_bounded_and_peaks_survive(tmp_path):
    limit = 150
    write_run(tmp_path / "run", ROWS)
    feed, whole = opened(tmp_path / "run", rows=limit), opened(tmp_path / "run")
    assert all(table.count <= limit for table in feed.tables.values())
    assert feed.tables["spans"].thinned > 0
    for table, column in (("spans", "peak"), ("memory", "allocated"), ("micro", "tokens")):
        values = {name: one.tables[table].columns()[column] for name, one in (("few", feed), ("all", whole))}
        assert np.nanmax(values["few"]) == np.nanmax(values["all"]), table


@pytest.mark.slow
def test_a_large_run_is_opened_bounded_and_its_peaks_are_there(tmp_path, monkeypatch):
    write_run(tmp_path / "run", ROWS)
    roll(tmp_path / "run")
    feed, whole = by_sql(monkeypatch, tmp_path / "run", rows=300), by_sql(monkeypatch, tmp_path / "run")
    assert feed.left_out > 0
    assert all(table.count <= 300 for table in feed.tables.values())
    for table, column in (("spans", "peak"), ("memory", "allocated"), ("micro", "tokens"), ("scalars", "value")):
        assert np.nanmax(feed.tables[table].columns()[column]) == np.nanmax(whole.tables[table].columns()[column]), (
            table
        )
    newest = max(row["step"] for row in as_dicts(whole, "micro"))
    assert [row for row in told(whole, "micro") if row[0] == newest] == [
        row for row in told(feed, "micro") if row[0] == newest
    ]


def test_of_a_large_run_only_the_steps_that_stay_are_read(tmp_path, monkeypatch):
    """Else their scopes would be worked out, and be thinned only then."""
    write_run(tmp_path / "run", ROWS)
    feed = by_sql(monkeypatch, tmp_path / "run", rows=300)
    assert feed.left_out > 0
    assert {name: table.thinned for name, table in feed.tables.items() if table.thinned} == {}
    steps = {row["step"] for row in as_dicts(feed, "spans")}
    assert 0 < len(steps) < len({row.step for row in ROWS[0]})


def test_rows_without_a_step_stay_when_a_large_run_is_opened(tmp_path, monkeypatch):
    given: list[Row] = [
        MicroBatch(
            rank=0,
            step=None if index % 20 == 7 else index // 4,
            batch_id=index,
            micro_batches=1,
            sequences=1,
            lengths=[index],
            tokens=index,
            time_ns=clock(0) + index * MS,
        )
        for index in range(200)
    ]
    feed = by_sql(monkeypatch, write_run(tmp_path / "run", {0: given}), rows=100)
    left = as_dicts(feed, "micro")
    assert feed.left_out > 0
    assert [row["batch"] for row in left if row["step"] == -1] == list(range(7, 200, 20))
    assert {row["step"] for row in left} >= {-1, 49}  # the newest step too
    assert all(row["longest"] == row["batch"] for row in left)


def test_too_many_rows_at_once_are_thinned_to_their_extremes_and_counted(tmp_path):
    directory = write_run(tmp_path / "run", {0: []})
    feed = opened(directory, update_rows=100)
    values = [math.sin(index) for index in range(5000)]
    values[1234], values[4321], values[77] = 50.0, -50.0, math.nan
    append(directory, [Scalar(key="k", value=one, time_ns=clock(0) + n, rank=0) for n, one in enumerate(values)])
    block = feed.update()["scalars"]
    assert len(block["value"]) <= 100
    assert feed.coalesced == 5000 - len(block["value"])
    assert {50.0, -50.0} <= set(block["value"].tolist())
    assert np.isnan(block["value"]).sum() == 1
    assert feed.tables["scalars"].next == len(block["value"])


@pytest.mark.slow
def test_a_run_behind_a_url(tmp_path):
    write_run(tmp_path / "run", ROWS)
    roll(tmp_path / "run")
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "run"), "/panel-run", recursive=True)
    try:
        feed, local = opened("memory://panel-run"), opened(tmp_path / "run")
        assert not feed.local
        assert feed.finished()
        assert feed.update() == {}
        assert told(feed, "spans") == told(local, "spans")
    finally:
        memory.rm("/panel-run", recursive=True)


def test_no_run_and_an_empty_run(tmp_path):
    with pytest.raises(RunNotFoundError):
        Feed(tmp_path / "nothing")
    feed = opened(write_run(tmp_path / "run", {}))
    assert (feed.step, feed.world_size, feed.started_s, feed.update(), feed.finished()) == (None, 0, None, {}, False)


def test_unreadable_lines_are_counted(tmp_path):
    directory = write_run(tmp_path / "run", {0: []})
    with (directory / "rank-00000.jsonl").open("ab") as file:
        file.write(b'{"table":"scalars","value":"much"}\n')
    assert opened(directory).bad_lines == 1


def test_words_are_bounded_and_can_be_sent():
    words = Words()
    assert words.code("\ud800") == words.code("?")
    assert len(words.texts[words.code("x" * 9999)]) == WORD_CHARACTERS
    for index in range(WORDS):
        words.code(f"word {index}")
    assert words.texts[words.code("one more")] == TOO_MANY
    assert words.code("and another") == words.code("one more")
    assert len(words.texts) == WORDS + 1
    assert words.code("word 3") != words.code("one more")


def test_numbers_that_do_not_fit_are_the_nearest_that_do(tmp_path):
    huge = MicroBatch(rank=0, batch_id=2**40, micro_batches=1, sequences=1, lengths=[3], tokens=3, time_ns=clock(0))
    directory = write_run(tmp_path / "run", {0: [huge]})
    assert as_dicts(opened(directory), "micro")[0]["batch"] == 2**31 - 1


def test_what_nobody_wrote_is_missing(tmp_path):
    row = Memory(rank=0, edge="sample", time_ns=clock(0))
    write_run(tmp_path / "run", {0: [row, Memory(rank=0, edge="sample", allocated_bytes=GIB, time_ns=clock(0) + MS)]})
    found = as_dicts(opened(tmp_path / "run"), "memory")
    assert [one["allocated"] for one in found] == [None, GIB]
    assert found[0]["role"] is None
    assert found[0]["step"] == -1
