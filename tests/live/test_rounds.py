"""Rounds: which batch of its step and phase a batch is, however late it is told of, and as SQL says."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.analysis.token_balance import rates
from probe.dashboards.quantities import quantity
from probe.live import opening
from probe.live.feed import Feed
from probe.records import MicroBatch
from probe.runs.reader import Run
from probe.views.panel import static_bundle
from tests.live.live_run import append, as_dicts, opened
from tests.sample_run import MS, clock, write_run


def batch(number: int, size: int, **where: Any) -> list[MicroBatch]:
    """The rows of one batch."""
    at = {"rank": 0, "step": 0, "phase": "update", **where}
    return [
        MicroBatch(
            batch_id=number, micro_batches=size, micro_batch=index, sequences=1, lengths=[index + 1], tokens=index + 1,
            time_ns=clock(at["rank"]) + number * MS, **at,
        )
        for index in range(size)
    ]  # fmt: skip


def rounds(feed: Feed, column: str = "round") -> dict[tuple[Any, ...], int]:
    """By process, batch and micro-batch."""
    names = ("process", "batch", "micro_batch")
    found = as_dicts(feed, "micro")
    assert len({tuple(row[name] for name in names) for row in found}) == len(found)
    return {tuple(row[name] for name in names): row[column] for row in found}


def by_sql(directory: Path, column: str = "round") -> dict[tuple[Any, ...], int]:
    with Run(directory) as run:
        frame = run.sql(f"select process, batch, micro_batch, {column} from micro_batches_counted")
    return {tuple(row[:3]): row[3] for row in frame.itertuples(index=False)}


def test_batches_count_by_process_step_and_phase(tmp_path):
    directory = write_run(tmp_path / "run", {0: [], 1: []})
    rows = [*batch(4, 2), *batch(7, 1), *batch(9, 1, phase="old_log_prob"), *batch(11, 1, step=1), *batch(2, 1, rank=1)]
    append(directory, rows)
    first, second = "rank-00000", "rank-00001"
    expected = {
        (first, 4, 0): 1,
        (first, 4, 1): 1,
        (first, 7, 0): 2,
        (first, 9, 0): 1,
        (first, 11, 0): 1,
        (second, 2, 0): 1,
    }
    assert rounds(opened(directory)) == expected
    assert by_sql(directory) == expected


def test_a_batch_that_is_told_of_late_moves_those_behind_it(tmp_path):
    directory = write_run(tmp_path / "run", {0: []})
    feed = opened(directory)
    append(directory, [*batch(5, 2), *batch(6, 1)])
    feed.update()
    append(directory, batch(3, 1))
    block = feed.update()["micro"]
    assert sorted(zip(block["batch"].tolist(), block["round"].tolist(), strict=True)) == [
        (3, 1),
        (5, 2),
        (5, 2),
        (6, 3),
    ]
    assert set(rounds(feed).items()) == {(("rank-00000", 3, 0), 1), *[(("rank-00000", 5, at), 2) for at in (0, 1)],
                                         (("rank-00000", 6, 0), 3)}  # fmt: skip


def test_what_was_forgotten_is_read_from_the_table_again(tmp_path, monkeypatch):
    monkeypatch.setattr("probe.live.rounds.REMEMBERED", 1)
    directory = write_run(tmp_path / "run", {0: []})
    feed = opened(directory)
    for step in (0, 1, 2):
        append(directory, batch(2 * step, 1, step=step))
        feed.update()
    append(directory, [*batch(1, 1, step=0), *batch(3, 1, step=0, phase="later")])
    feed.update()
    for column in ("round", "once"):
        assert rounds(feed, column) == by_sql(directory, column)
    assert rounds(feed)["rank-00000", 1, 0] == 2
    assert rounds(feed, "once")["rank-00000", 3, 0] == 0


def test_g_tokens_count_once_in_the_phase_that_cuts_first(tmp_path):
    directory = write_run(tmp_path / "run", {0: []})
    feed = opened(directory)
    update = [*batch(5, 3), *batch(6, 3)]  # two epochs
    append(directory, update)
    feed.update()
    assert set(rounds(feed, "once").values()) == {1}  # so far it is the first
    append(directory, [*batch(2, 2, phase="old_log_prob"), *batch(3, 1, phase="old_log_prob")])
    block = feed.update()["micro"]
    assert len(block["batch"]) == 9  # the others are no longer, and are told again
    assert {place[1]: once for place, once in rounds(feed, "once").items()} == {2: 1, 3: 1, 5: 0, 6: 0}
    assert rounds(feed, "once") == by_sql(directory, "once")
    with Run(directory) as run:
        frame = rates(run)
    assert frame["tokens"].tolist() == [1 + 2 + 1]
    live = static_bundle.course_of(feed.tables, feed.words, quantity("tokens"))
    assert live.values == [4]
    processed = static_bundle.course_of(feed.tables, feed.words, quantity("tokens_processed"))
    assert processed.values == [1 + 2 + 1 + 2 * 6]


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True])
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_rounds_are_those_of_sql_whatever_the_order(tmp_path_factory, at_once, seed):
    chance = random.Random(seed)
    directory = write_run(tmp_path_factory.mktemp("run") / "run", {0: [], 1: []})
    numbers = [(rank, number) for rank in (0, 1) for number in range(1, 9)]
    chance.shuffle(numbers)
    told = [
        batch(number, chance.randrange(1, 3), rank=rank, step=number // 4, phase=chance.choice(["a", None]))
        for rank, number in numbers
    ]
    feed = opened(directory)
    edges = [0, *sorted(chance.choices(range(len(told)), k=3)), len(told)]
    for begin, end in itertools.pairwise(edges):
        append(directory, itertools.chain.from_iterable(told[begin:end]))
        if at_once and begin == 0:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(opening, "LARGE_BYTES", -1)
                feed = opened(directory)
        feed.update()
    for column in ("round", "once"):
        assert rounds(feed, column) == by_sql(directory, column)
