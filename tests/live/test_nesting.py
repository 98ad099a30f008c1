"""Phases, makers of peaks, and which batch a micro-batch was of: row by row, by SQL, and in the analyses."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.analysis import memory, steps
from probe.live import opening, series
from probe.live.feed import Feed
from probe.live.nesting import REMEMBERED, Cut, Nesting, Span
from probe.live.tables import Words
from probe.records import Process, Row
from probe.runs.reader import Run
from tests.live.live_run import append, as_dicts, opened, told
from tests.live.nested_run import Teller, disordered, random_rows
from tests.sample_run import MS, WALL_NS, clock, write_run


def at_once(path: Path) -> Feed:
    """Opened by SQL, however small it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "LARGE_BYTES", -1)
        return opened(path)


def runs_of(feed: Feed) -> list[tuple[Any, ...]]:
    """(rank, step, micro-batch, batch, tokens) of each micro-batch that ran, in their order; −1: can't be told."""
    rows = [row for row in as_dicts(feed, "spans") if row["kind"] == "micro_batch"]
    rows.sort(key=lambda row: (row["rank"], row["begin"]))
    return [(row["rank"], row["step"], row["micro_batch"], row["batch"], row["tokens"]) for row in rows]


def tokens_of(teller: Teller, tmp_path: Path) -> list[int]:
    """Tokens of each micro-batch that ran, in which the three ways agree; −1: can't be told."""
    directory = write_run(tmp_path / "run", {teller.rank: teller.rows})
    found = runs_of(opened(directory))
    assert runs_of(at_once(directory)) == found
    with Run(directory) as run:
        frame = memory.by_tokens(run)
    expected = sorted((row[2], row[4]) for row in found if row[4] > 0)
    assert sorted(zip(frame["micro_batch"], frame["tokens"], strict=True)) == expected
    return [row[4] for row in found]


# ------------------------------------------------------------------------------------------------ which batch it was


def test_several_batches_cut_one_after_the_other_in_a_phase(tmp_path):
    teller = Teller(0)
    with teller.enter("step", "step", step=0):
        for name in ("old_log_prob", "update"):
            with teller.enter("phase", name, phase=name):
                teller.cut_and_run(10, 20)
                teller.cut_and_run(30, 40, 50)
    assert tokens_of(teller, tmp_path) == [10, 20, 30, 40, 50] * 2


def test_each_mini_batch_cut_in_a_watch_of_its_own(tmp_path):
    teller = Teller(0)
    with teller.enter("step", "step", step=0), teller.enter("phase", "update", phase="update"):
        for tokens in (10, 30):
            with teller.enter("watch", "update", role="actor"):
                teller.cut_and_run(tokens, tokens + 1)
    assert tokens_of(teller, tmp_path) == [10, 11, 30, 31]


def test_cut_outside_of_the_scope_that_runs_it(tmp_path):
    teller = Teller(0)
    with teller.enter("step", "step", step=0), teller.enter("phase", "update", phase="update"):
        teller.cut(10, 20)
        with teller.enter("watch", "epoch"), teller.enter("watch", "inner"):
            teller.run(0)
            teller.run(1)
            teller.cut_and_run(7)  # cut within: that is the nearer one
            teller.run(1)  # but it has no such micro-batch
    assert tokens_of(teller, tmp_path) == [10, 20, 7, 20]


def test_a_batch_that_is_run_twice(tmp_path):
    teller = Teller(0)
    with teller.enter("phase", "update", phase="update", step=0):
        teller.cut(10, 20)
        for index in (0, 1, 0, 1):
            teller.run(index)
    assert tokens_of(teller, tmp_path) == [10, 20, 10, 20]


def test_two_batches_that_wait_cannot_be_told_apart(tmp_path):
    teller = Teller(0)
    with teller.enter("phase", "update", phase="update", step=0):
        teller.cut(10, 20, 5)
        teller.cut(30, 20)
        for index in (0, 1, 2):
            teller.run(index)
    # Of the second both have 20 tokens; the third is in one of them alone.
    assert tokens_of(teller, tmp_path) == [-1, 20, 5]
    found = runs_of(opened(tmp_path / "run"))
    assert [row[3] for row in found] == [-1, -1, 1]


def test_a_batch_cut_ahead_while_another_one_runs(tmp_path):
    teller = Teller(0)
    with teller.enter("phase", "update", phase="update", step=0):
        teller.cut(10, 20)
        teller.run(0)
        teller.cut(30, 40)
        teller.run(1)  # of which of the two?
        teller.run(0)
    assert tokens_of(teller, tmp_path) == [10, -1, 30]


def test_outside_of_any_scope(tmp_path):
    teller = Teller(0)
    for tokens in (10, 30):
        teller.cut_and_run(tokens)
    assert tokens_of(teller, tmp_path) == [10, 30]


def test_nothing_was_cut(tmp_path):
    teller = Teller(0)
    with teller.enter("phase", "update", phase="update", step=0):
        teller.run(0)
        teller.cut(10)  # too late
    assert tokens_of(teller, tmp_path) == [-1]


def test_a_resumed_process_has_batches_of_its_own(tmp_path):
    directory = write_run(tmp_path / "run", {0: []})
    first, second = Teller(0), Teller(0)
    for teller, tokens in ((first, 10), (second, 30)):
        with teller.enter("phase", "update", phase="update", step=0):
            teller.cut_and_run(tokens)
    append(directory, first.rows)
    again = Process(rank=0, time_ns=clock(0), wall_ns=WALL_NS + 10_000 * MS, pid=7, world_size=1)
    append(directory, [again, *second.rows], segment=1)
    assert [row[4] for row in runs_of(opened(directory))] == [10, 30]
    assert [row[4] for row in runs_of(at_once(directory))] == [10, 30]
    with Run(directory) as run:
        assert sorted(memory.by_tokens(run)["tokens"]) == [10, 30]


@pytest.mark.slow
@pytest.mark.parametrize("told_by", ["memory", "calls"])
@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 2**32 - 1))
def test_three_ways_to_tell_of_any_run_agree(tmp_path_factory, told_by, seed):
    rows: dict[int, list[Row]] = {rank: random_rows(rank, seed, told_by=told_by) for rank in (0, 1)}
    directory = write_run(tmp_path_factory.mktemp("run") / "run", {0: [], 1: []})
    feed = opened(directory)
    for rank, told_of in rows.items():
        own = disordered(told_of, seed + rank)
        edges = sorted(random.Random(seed).choices(range(len(own) + 1), k=4))
        for begin, end in itertools.pairwise([0, *edges, len(own)]):
            append(directory, own[begin:end])
            feed.update()
    expected = sorted(told(at_once(directory), "spans"), key=repr)
    assert sorted(told(feed, "spans"), key=repr) == expected
    assert sorted(told(opened(directory), "spans"), key=repr) == expected
    with Run(directory) as run:
        paired = memory.by_tokens(run)
        durations = steps.durations(run)
        peaks = memory.by_phase(run)
    if told_by == "memory":
        mine = sorted((row[0], row[1], row[2], row[4]) for row in runs_of(feed) if row[4] > 0)
        columns = (paired[name] for name in ("rank", "step", "micro_batch", "tokens"))
        assert sorted(zip(*columns, strict=True)) == mine
    assert_same_times(feed, durations)
    assert_same_peaks(feed, peaks)


def assert_same_times(feed: Feed, durations: Any) -> None:
    spec = {"table": "spans", "where": {"level": "phase"}, "y": "duration", "each": "rank", "reduce": "mean"}
    for phase in durations["phase"].unique():
        own = durations[durations["phase"] == phase]
        found = series.by_step(feed.tables, feed.words, {**spec, "where": {"level": "phase", "phase": phase}})
        assert dict(zip(*found, strict=True)) == pytest.approx(dict(zip(own["step"], own["mean_s"], strict=True)))
    told_of = {row["phase"] for row in as_dicts(feed, "spans") if row["level"] == "phase" and row["step"] >= 0}
    assert told_of == set(durations["phase"])


def assert_same_peaks(feed: Feed, peaks: Any) -> None:
    mine: dict[Any, float] = {}
    for row in as_dicts(feed, "spans"):
        if row["maker"]:
            place = (row["role"], row["phase"])
            mine[place] = max(mine.get(place, 0), row["peak"])
    told_of = zip(peaks["role"], peaks["phase"], peaks["peak_allocated_bytes"], strict=True)
    assert mine == {(role or None, phase or None): peak for role, phase, peak in told_of}


@pytest.mark.slow
def test_opening_in_the_middle_of_anything_goes_on_alike(tmp_path):
    for seed in range(6):
        told_by = ("memory", "calls")[seed % 2]
        rows = disordered(random_rows(0, seed, told_by=told_by), seed)
        directory = write_run(tmp_path / str(seed), {0: rows[: len(rows) // 2]})
        feed = at_once(directory)
        append(directory, rows[len(rows) // 2 :])
        feed.update()
        assert sorted(told(feed, "spans"), key=repr) == sorted(told(at_once(directory), "spans"), key=repr), seed


# ------------------------------------------------------------------------------------------------------- phases


def levels(feed: Feed) -> list[tuple[str, str]]:
    return [(row["name"], row["level"]) for row in as_dicts(feed, "spans")]


@pytest.mark.parametrize("told_by", ["memory", "calls"])
def test_the_outermost_scope_with_a_phase_is_the_phase(tmp_path, told_by):
    teller = Teller(0, told_by=told_by)
    with teller.enter("phase", "train", phase="train"), teller.enter("step", "step", step=0):
        with teller.enter("watch", "update_actor", phase="update", role="actor"):
            with teller.enter("watch", "forward"):
                pass
            with teller.enter("phase", "backward", phase="backward"):
                teller.run(0)
        with teller.enter("phase", "reward", phase="reward"), teller.enter("watch", "reward"):
            pass
    directory = write_run(tmp_path / "run", {0: teller.rows})
    expected = {
        "train": "phase", "step": "step", "update_actor": "phase", "forward": "inner", "backward": "inner",
        "0": "micro_batch",
    }  # fmt: skip
    for feed in (opened(directory), at_once(directory)):
        found = levels(feed)
        assert dict(one for one in found if one[0] != "reward") == expected
        assert sorted(one for one in found if one[0] == "reward") == [("reward", "inner"), ("reward", "phase")]
    with Run(directory) as run:
        frame = steps.durations(run)
        timeline = steps.timeline(run)
    assert sorted(frame["phase"]) == ["reward", "update"]
    whole = {row["name"]: row for row in as_dicts(opened(directory), "spans")}
    update = frame.set_index("phase")["mean_s"]["update"]
    assert update == pytest.approx(whole["update_actor"]["end"] - whole["update_actor"]["begin"])
    assert sorted(timeline[timeline["depth"] == 0]["phase"]) == ["reward", "update"]


def test_a_watch_alone_in_a_step_is_seen_when_what_is_around_it_is_known(tmp_path):
    teller = Teller(0)
    directory = write_run(tmp_path / "run", {0: []})
    feed = opened(directory)
    step = teller.enter("step", "step", step=0)
    step.__enter__()
    with teller.enter("watch", "generate", phase="generate", role="rollout"):
        pass
    append(directory, teller.rows)
    feed.update()
    assert levels(feed) == [("generate", "inner")]
    teller.rows.clear()
    step.sampled()
    append(directory, teller.rows)
    feed.update()
    assert sorted(levels(feed)) == [("generate", "phase"), ("step", "step")]


def test_of_a_large_run_that_is_opened_within_a_step_the_newest_scopes_find_it_when_it_ends(tmp_path):
    teller = Teller(0, told_by="calls")
    step = teller.enter("step", "step", step=0)
    step.__enter__()
    for _ in range(200):
        with teller.enter("watch", "generate", phase="generate", role="rollout"):
            pass
    directory = write_run(tmp_path / "run", {0: teller.rows})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "LARGE_BYTES", -1)
        patch.setattr(opening, "REMEMBERED", 50)
        feed = opened(directory, rows=50)
    assert 0 < len(levels(feed)) <= 50
    assert set(levels(feed)) == {("generate", "inner")}
    teller.rows.clear()
    step.__exit__()
    append(directory, teller.rows)
    feed.update()
    newest = max((row for row in as_dicts(feed, "spans") if row["name"] == "generate"), key=lambda row: row["begin"])
    assert newest["level"] == "phase"


def test_a_later_scope_of_the_same_path_takes_in_nothing_that_began_before_it():
    """The one around it never ended: Ctrl-C, and its block was left behind."""
    words = Words()
    nesting, update, parts = Nesting(words), words.code("update"), dict.fromkeys(("role", "peak_kind"), -1)

    def ended(scope: int, name: str, begin: float, parent: int) -> Span:
        where: dict[str, Any] = {"step": 0, "rank": 0, "process": 0, "micro_batch": -1, "phase": update}
        return Span(
            **where, **parts, kind=update, name=words.code(name), scope=scope, parent=parent, begin=begin, end=9.0
        )

    nesting.add_call(ended(2, "part", 1.0, -1), "update/part", "update")  # in an "update" that began before it
    nesting.add_call(ended(3, "update", 2.0, 0), "update", "")
    nesting.add_call(ended(5, "part", 4.0, -1), "update/part", "update")
    nesting.add_call(ended(4, "update", 3.0, 0), "update", "")
    assert {one.scope: one.parent for one in nesting.changed()} == {2: -1, 3: 0, 5: 4, 4: 0}


# ------------------------------------------------------------------------------------------------------ bounded


def test_what_is_remembered_is_bounded():
    words = Words()
    nesting = Nesting(words)
    numbers = dict.fromkeys(("peak", "reserved_peak", "at_begin", "at_end"), 1.0)
    place: dict[str, Any] = dict.fromkeys(("step", "rank", "process", "parent"), 0)
    place |= dict.fromkeys(("role", "phase", "name", "peak_kind"), -1)
    for index in range(3 * REMEMBERED):
        kind, at = words.code("micro_batch"), float(index)
        nesting.add_cut((0, 0, index), Cut(at, index, 7, 9))
        span = Span(kind=kind, micro_batch=index, scope=index + 1, begin=at, end=at + 0.5, **place, **numbers)
        nesting.add(span)
        (found,) = nesting.changed()
        assert (found.tokens, found.slots) == (7, 9)
    sizes = [len(one) for one in vars(nesting).values() if isinstance(one, dict)]
    assert max(sizes) <= REMEMBERED
