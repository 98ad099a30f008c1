"""The feed: whatever way it reads a run, its tables say what the run says, bounded, and each row once."""

from __future__ import annotations

import itertools
import math
import os
import platform
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe import dashboards
from probe.analysis import overview, padding_tax, steps
from probe.dashboards import views
from probe.dashboards.quantities import field_of
from probe.dashboards.spec import TABLES
from probe.errors import RunNotFoundError
from probe.live import feed as feed_module
from probe.live import opening, series
from probe.live.feed import Feed
from probe.live.tables import TOO_MANY, WORD_CHARACTERS, WORDS, Words
from probe.opened import Run
from probe.records import GIB, Call, Incident, Memory, MicroBatch, Padding, Process, Row, Scalar
from probe.session import start
from tests.live.live_run import append, as_dicts, in_order, opened, roll, told
from tests.sample_run import MS, WALL_NS, clock, process, sample_rows, write_run

ROWS = sample_rows(3, 6)

#: Where the columns of padding begin that say how much it is.
AMOUNTS = list(TABLES["padding"]).index("tokens")


def mixed_rows() -> dict[int, list[Row]]:
    """What the sample run lacks: resumed and silent ranks, open scopes, NaN, calls, batches told of twice."""
    extra: dict[int, list[Row]] = {rank: list(own) for rank, own in sample_rows(2, 3).items()}
    base = max(row.time_ns for row in extra[0]) + MS
    at: dict[str, Any] = {"rank": 0, "step": 3, "phase": "update_actor"}
    extra[0] += [
        Call(point="data_proto.union", name="union", duration_ns=5 * MS, rows_in=4, bytes_out=9, time_ns=base, **at),
        Call(point="data_proto.pop", keys_removed=["a", "b"], error="KeyError: 'x'", time_ns=base + 1, **at),
        Scalar(key="loss", value=math.nan, time_ns=base + 2, **at),
        Scalar(key="loss", value=math.inf, time_ns=base + 3, **at),
        Incident(kind="listener", where="a.b", message="boom", count=3, switched_off=True, time_ns=base + 4, **at),
        padding("data_proto.from_dict", "input_ids", "longest_row", 4, base + 5, batch=900, **at),
        padding("codec.packed", "input_ids", "none", 0, base + 6, batch=901, **at),
        Memory(edge="enter", kind="step", name="step", scope_id=900, allocated_bytes=7, time_ns=base + 7, **at),
    ]
    extra[2] = [  # nobody records its memory
        Call(
            rank=2, point="scope.step", name="step", duration_ns=3 * MS, scope_id=1, step=0, time_ns=clock(2) + 9 * MS
        ),
        MicroBatch(rank=2, batch_id=1, micro_batches=1, sequences=0, lengths=[], tokens=0, time_ns=clock(2) + 9 * MS),
    ]
    return extra


def again(rows: dict[int, list[Row]]) -> list[Row]:
    """Rank 0 is resumed: another process, which counts its scopes from the start and has a file of its own."""
    base = max(row.time_ns for row in rows[0]) - clock(0) + MS
    at: dict[str, Any] = {"rank": 0, "step": 3, "phase": "update_actor"}
    return [
        Process(rank=0, time_ns=5, wall_ns=WALL_NS + base, pid=999, world_size=2),
        Memory(edge="enter", kind="phase", name="again", scope_id=1, allocated_bytes=8, time_ns=6, **at),
        Memory(edge="leave", kind="phase", name="again", scope_id=1, peak_allocated_bytes=9, time_ns=9 * MS, **at)
        | host(2 * MS),
        Memory(edge="enter", kind="phase", name="open", scope_id=2, parent_id=1, time_ns=10 * MS, **at),
    ]


def write_mixed(directory: Path) -> Path:
    rows = mixed_rows()
    write_run(directory, rows, processes={2: process(2, 3)})
    append(directory, again(rows), segment=1)
    return directory


class host:
    """``row | host(n)``: the row with that host duration."""

    def __init__(self, duration_ns: int) -> None:
        self.duration_ns = duration_ns

    def __ror__(self, row: Memory) -> Memory:
        row.host_duration_ns = self.duration_ns
        return row


def padding(source: str, field: str, cause: str, tokens: int, time_ns: int, *, batch: int, **stamp: Any) -> Padding:
    return Padding(
        batch_id=batch, source=source, field=field, cause=cause, tokens=tokens, bytes=8 * tokens,
        rectangle_tokens=100, valid_tokens=100 - tokens, time_ns=time_ns, **stamp,
    )  # fmt: skip


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


def by_sql(monkeypatch: pytest.MonkeyPatch, path: Path, **options: Any) -> Feed:
    with monkeypatch.context() as patch:
        patch.setattr(opening, "LARGE_BYTES", -1)
        return opened(path, **options)


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


# ---------------------------------------------------------------------------------------------------- who writes


@pytest.fixture
def written_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Process, float], Feed]:
    """Makes a run whose newest row is so old. The feed's clock stands from then on: the row gets no older meanwhile."""

    def write(directory: Path, process_: Process, past_s: float) -> Feed:
        now_s = time.time()
        monkeypatch.setattr(feed_module, "time", SimpleNamespace(time=lambda: now_s, monotonic=time.monotonic))
        process_.wall_ns = int((now_s - past_s) * 1e9)
        row = Scalar(key="loss", value=1.0, time_ns=process_.time_ns)
        return opened(write_run(directory, {0: [row]}, processes={0: process_}))

    return write


def here(pid: int) -> Process:
    return Process(rank=0, time_ns=clock(0), pid=pid, host=platform.node(), world_size=1)


def test_a_run_with_new_rows_is_recorded(written_by, tmp_path):
    feed = written_by(tmp_path / "run", here(os.getpid()), 1)
    assert feed.activity() == {"newest_at": None, "writers": ""}
    assert Feed(write_run(tmp_path / "empty", {})).activity() == {"newest_at": None, "writers": ""}


@pytest.mark.parametrize("sql", [False, True])
def test_a_quiet_run_says_since_when_and_whether_its_process_lives(written_by, tmp_path, monkeypatch, sql):
    if sql:
        monkeypatch.setattr(opening, "LARGE_BYTES", -1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        feed = written_by(tmp_path / "run", here(child.pid), 0)
        feed._intake.writers[0].wall_ns = time.time_ns()
        with monkeypatch.context() as patch:
            patch.setattr(feed_module, "QUIET_S", -1.0)
            assert feed.activity()["writers"] == "running"
        child.kill()
        child.wait()
    old = written_by(tmp_path / "old", here(child.pid), 310)
    activity = old.activity()
    assert activity["writers"] == "gone"
    assert activity["newest_at"] == pytest.approx(feed_module.time.time() - 310, abs=0.1)


def ended_child() -> int:
    """The pid of a process that is there no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


def test_c_a_killed_process_is_gone_as_soon_as_it_is_asked_for(written_by, tmp_path):
    """Not only once no row has come for a while."""
    feed = written_by(tmp_path / "run", here(ended_child()), feed_module.ASK_S + 0.1)
    activity = feed.activity()
    assert activity["writers"] == "gone"
    assert activity["newest_at"] == pytest.approx(feed_module.time.time() - feed_module.ASK_S - 0.1, abs=0.1)
    assert feed_module.ASK_S + feed_module.ASK_S < 10


def test_c_a_process_that_lives_makes_a_run_quiet_and_not_gone(written_by, tmp_path):
    feed = written_by(tmp_path / "run", here(ended_child()), 60)
    other = here(os.getpid())
    other.wall_ns = time.time_ns()
    feed._intake.writers[1] = other
    assert feed.activity()["writers"] == "running"


def test_c_a_copied_run_that_ended_is_not_gone(written_by, tmp_path):
    feed = written_by(tmp_path / "run", here(ended_child()), 1000)
    roll(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert opened(tmp_path / "copy").activity()["writers"] == "ended"
    feed._asked_at = -math.inf
    assert feed.activity()["writers"] == "ended"


def test_a_pid_of_another_host_or_of_a_later_process_tells_nothing_wrong(written_by, tmp_path):
    elsewhere = Process(rank=0, time_ns=clock(0), pid=os.getpid(), host="another-host", world_size=1)
    assert written_by(tmp_path / "there", elsewhere, 1000).activity()["writers"] == "unknown"
    began = psutil.Process().create_time()
    reused = written_by(tmp_path / "reused", here(os.getpid()), time.time() - began + 1000)
    assert reused.activity()["writers"] == "gone"


def test_a_process_of_somebody_else_that_may_not_be_looked_at_is_there(written_by, tmp_path, monkeypatch):
    def denied(pid: int) -> None:
        raise psutil.AccessDenied(pid)

    feed = written_by(tmp_path / "run", here(os.getpid()), 1000)
    monkeypatch.setattr(psutil, "Process", denied)
    assert feed.activity()["writers"] == "running"


def test_a_closed_run_is_finished_and_a_killed_one_is_not(tmp_path):
    directory = write_run(tmp_path / "run", ROWS)
    feed = opened(directory)
    assert not feed.finished()
    roll(directory)
    assert feed.finished()


def test_g_a_run_that_was_opened_says_what_memory_means(tmp_path):
    """Of a process on a machine without an accelerator, from its files as from its new rows."""
    with start("feed", run_dir=tmp_path / "run", device="cpu") as session, session.step(0):
        pass
    feed = Feed(tmp_path / "run")
    feed.open()
    assert feed.memory == "process memory (RSS)"
