"""The feed: whatever way it reads a run, its tables say what the run says, bounded, and each row once."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe import dashboards
from probe.analysis import overview, padding_tax, steps
from probe.dashboards import views
from probe.dashboards.quantities import field_of
from probe.dashboards.spec import TABLES
from probe.live import series
from probe.live.feed import Feed
from probe.opened import Run
from probe.records import Memory
from tests.live.feed_rows import ROWS, again, by_sql, host, mixed_rows, padding, write_mixed
from tests.live.live_run import append, as_dicts, in_order, opened, roll, told
from tests.sample_run import MS, clock, sample_rows, write_run

#: Where the columns of padding begin that say how much it is.
AMOUNTS = list(TABLES["padding"]).index("tokens")


def cuts_of(feed: Feed) -> dict[Any, Any]:
    cuts = feed._intake.nesting.cuts
    return {(feed.words.texts[process], *slot): told for (process, *slot), told in cuts.items()}


def spans_of(feed: Feed) -> dict[Any, Any]:
    """What a feed remembers of scopes."""
    return {
        (feed.words.texts[process], scope): (
            span.step, repr(span.begin), span.parent, span.home, span.tokens, span.batch
        )
        for (process, scope), span in feed._intake.nesting.spans.items()
    }  # fmt: skip


def processes_of(feed: Feed, codes: Iterable[int]) -> set[str]:
    return {feed.words.texts[code] for code in codes}


@pytest.mark.parametrize("rolled", [False, True], ids=["jsonl", "parts"])
@pytest.mark.parametrize("write", [lambda folder: write_run(folder, ROWS), write_mixed], ids=["plain", "mixed"])
def test_both_ways_to_open_a_run_give_the_same(tmp_path, monkeypatch, write, rolled):
    directory = write(tmp_path / "run")
    one_by_one = opened(directory)
    if rolled:
        roll(directory)
    at_once = by_sql(monkeypatch, directory)
    for table in TABLES:
        assert sorted(told(one_by_one, table), key=repr) == sorted(told(at_once, table), key=repr), table
    same = ("step", "lost", "world_size", "started_s")
    assert [getattr(one_by_one, name) for name in same] == [getattr(at_once, name) for name in same]
    assert at_once.coalesced == at_once.left_out == 0
    left, right = one_by_one._intake, at_once._intake
    assert left.clocks.__dict__ == right.clocks.__dict__
    right.catch_up()
    assert cuts_of(one_by_one) == cuts_of(at_once)
    assert spans_of(one_by_one) == spans_of(at_once)
    assert processes_of(one_by_one, left.measured) == processes_of(at_once, right.measured)


@pytest.mark.parametrize("rows", [ROWS, mixed_rows()], ids=["plain", "mixed"])
def test_after_opening_at_once_each_later_row_comes_once(tmp_path, monkeypatch, rows):
    every = in_order(rows)
    directory = write_run(tmp_path / "run", {rank: [] for rank in rows})
    append(directory, every[: len(every) // 2])
    feed = by_sql(monkeypatch, directory)
    append(directory, every[len(every) // 2 :])
    feed.update()
    append(directory, again(rows), segment=1)
    feed.update()
    roll(directory)
    assert feed.update() == {}
    at_once = opened(directory)
    for table in TABLES:
        if table != "memory":  # a late beginning is left out of the line
            assert sorted(told(feed, table), key=repr) == sorted(told(at_once, table), key=repr), table
    assert set(told(feed, "memory")) <= set(told(at_once, "memory"))


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), cuts=st.integers(1, 12))
def test_however_the_rows_arrive_the_tables_end_alike(tmp_path_factory, seed, cuts):
    chance = random.Random(seed)
    rows = in_order(sample_rows(2, 2, seed=seed % 97))
    directory = write_run(tmp_path_factory.mktemp("run") / "run", {0: [], 1: []})
    feed, sent = opened(directory), dict.fromkeys(TABLES, 0)
    edges = [0, *sorted(chance.choices(range(len(rows)), k=cuts)), len(rows)]
    for begin, end in itertools.pairwise(edges):
        append(directory, rows[begin:end])
        for name, block in feed.update().items():
            sent[name] += len(next(iter(block.values())))
    whole = opened(directory)
    for table in TABLES:
        left, right = told(feed, table), told(whole, table)
        assert sent[table] == feed.tables[table].next
        if table == "memory":
            assert set(left) <= set(right)
            for rank in (0, 1):
                times = [row[0] for row in left if row[1] == rank]
                assert times == sorted(times)
        elif table == "padding":  # what stops being counted stays as zeros
            assert {row for row in left if any(row[AMOUNTS:])} == {row for row in right if any(row[AMOUNTS:])}
        else:
            assert sorted(left, key=repr) == sorted(right, key=repr), table
    assert feed.tables["scalars"].next == len(told(feed, "scalars"))


def test_tiles_say_what_the_report_says(tmp_path):
    write_run(tmp_path / "run", ROWS)
    feed = opened(tmp_path / "run")
    with Run(tmp_path / "run") as run:
        expected = overview.by_step(run).set_index("step")
    tiles = {tile["id"]: tile for tile in views()[0].panels[0].live["tiles"]}
    for name in ("step_time", "tokens_per_second", "peak_memory", "rank_imbalance", "padding_tax", "own_cost"):
        steps, values = series.by_step(feed.tables, feed.words, tiles[name])
        assert steps == list(range(6)), name
        assert values == pytest.approx(expected[field_of(tiles[name])].astype(float).to_list(), rel=1e-12), name
    assert series.total(feed.tables, feed.words, tiles["alerts"]) == 20  # 3 of a backend, 17 dropped rows


def test_padding_adds_up_to_what_the_report_counts(tmp_path):
    write_mixed(tmp_path / "run")
    found = as_dicts(opened(tmp_path / "run"), "padding")
    with Run(tmp_path / "run") as run:
        ledger, fields = padding_tax.by_step(run), padding_tax.by_field(run)
    for step, part in ledger.groupby("step"):
        mine = [row for row in found if row["step"] == step and row["counted"] == 2]
        assert sum(row["tokens"] for row in mine) == part["tokens"].sum()
        assert sum(row["rectangle"] for row in mine) == part["rectangle_tokens"].iloc[0]
        assert sum(row["valid"] for row in mine) == part["valid_tokens"].iloc[0]
        assert sum(row["rectangle"] - row["valid"] - row["tokens"] for row in mine) == 0
    for row in fields.to_dict("records"):
        mine = [one for one in found if one["counted"] and (one["field"], one["cause"]) == (row["field"], row["cause"])]
        assert sum(one["bytes"] for one in mine) == row["bytes"]


@pytest.mark.parametrize(
    ("panel", "frame_of", "column"),
    [
        ("padding_time", steps.on_padding, "padding_s"),
        ("phase_durations", steps.durations, "mean_s"),
    ],
)
def test_times_of_phases_are_those_of_the_report(tmp_path, panel, frame_of, column):
    write_run(tmp_path / "run", ROWS)
    feed, live = opened(tmp_path / "run"), dashboards.panel(panel).live
    assert live["by"] == "phase"
    with Run(tmp_path / "run") as run:
        frame = frame_of(run)
    assert frame["phase"].nunique() >= 2
    for phase, own in frame.groupby("phase"):
        spec = {**live, "where": {**live["where"], "phase": phase}}
        found = series.by_step(feed.tables, feed.words, spec)
        assert dict(zip(*found, strict=True)) == pytest.approx(dict(zip(own["step"], own[column], strict=True)))


def test_micro_batches_take_over_the_count_of_a_step(tmp_path):
    directory = write_run(tmp_path / "run", {0: []})
    feed = opened(directory)
    at: dict[str, Any] = {"rank": 0, "step": 1}
    append(directory, [padding("data_proto.from_dict", "input_ids", "longest_row", 30, clock(0), batch=1, **at)])
    feed.update()
    assert [(row["counted"], row["tokens"]) for row in as_dicts(feed, "padding")] == [(2, 30)]
    append(directory, [padding("seqlen_balancing.partition", "input_ids", "longest_row", 5, clock(0), batch=2, **at)])
    block = feed.update()["padding"]
    assert sorted(zip(block["counted"].tolist(), block["tokens"].tolist(), strict=True)) == [(0, 30), (2, 0), (2, 5)]
    # A late row of the first batch, and of one that comes later: neither counts any more.
    append(directory, [padding("data_proto.from_dict", "input_ids", "fixed_width", 9, clock(0), batch=1, **at)])
    append(directory, [padding("data_proto.concat", "input_ids", "longest_row", 7, clock(0), batch=3, **at)])
    feed.update()
    counted = {(row["source"], row["cause"]): row["tokens"] for row in as_dicts(feed, "padding") if row["counted"] == 2}
    assert counted == {("seqlen_balancing.partition", "longest_row"): 5, ("data_proto.from_dict", "longest_row"): 0}


def test_a_wider_field_of_a_batch_that_comes_later_is_the_one_that_counts(tmp_path):
    directory = write_run(tmp_path / "run", {0: []})
    feed = opened(directory)
    narrow = padding("data_proto.concat", "a", "longest_row", 5, clock(0), batch=1, rank=0, step=1)
    wide = padding("data_proto.concat", "b", "longest_row", 6, clock(0), batch=1, rank=0, step=1)
    wide.rectangle_tokens = 1000
    for row in (narrow, wide):
        append(directory, [row])
        feed.update()
    found = [(row["field"], row["counted"], row["tokens"]) for row in as_dicts(feed, "padding") if row["tokens"]]
    assert sorted(found) == [("a", 1, 5), ("b", 2, 6)]


def test_an_open_scope_is_shown_and_replaced_when_it_ends(tmp_path):
    directory = write_run(tmp_path / "run", {0: []})
    feed = opened(directory)
    at: dict[str, Any] = {"rank": 0, "step": 1, "phase": "rollout", "kind": "phase", "name": "rollout", "scope_id": 4}
    append(directory, [Memory(edge="enter", allocated_bytes=3, time_ns=clock(0) + 10 * MS, **at)])
    assert feed.update()["spans"]["end"].tolist() == pytest.approx([math.nan], nan_ok=True)
    left = Memory(
        edge="leave", allocated_bytes=5, peak_allocated_bytes=8, peak_kind="exact", time_ns=clock(0) + 50 * MS, **at
    )
    append(directory, [left | host(40 * MS)])
    feed.update()
    (row,) = as_dicts(feed, "spans")
    assert (row["begin"], row["end"], row["peak"], row["at_begin"], row["at_end"]) == (0.01, 0.05, 8.0, 3.0, 5.0)
    assert (row["peak_kind"], row["scope"], row["parent"], row["level"]) == ("exact", 4, 0, "phase")


def test_a_resumed_process_does_not_overwrite_the_scopes_of_the_one_before(tmp_path):
    write_mixed(tmp_path / "run")
    found = as_dicts(opened(tmp_path / "run"), "spans")
    assert len({(row["process"], row["scope"]) for row in found}) == len(found)
    assert [row["name"] for row in found if row["process"] == "rank-00000.1"] == ["again", "open"]
