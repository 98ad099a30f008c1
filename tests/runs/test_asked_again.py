"""3: what a watch asks of the newest rows at each look is worked out by DuckDB once, and says what any query says."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.analysis import growth, rank_times
from probe.analysis.verdict import metrics
from probe.runs import asked_again
from probe.runs.asked_again import AskedAgain
from probe.runs.layout import Segment
from probe.runs.lines import encode
from probe.runs.reader import Run
from tests.sample_run import open_run, sample_rows

QUERIES = {
    "times of ranks": rank_times.query,
    "levels": growth.query,
    "means": lambda first, last: f"{metrics._means(metrics._between(first, last))} order by step, key",
    "ended": lambda first, last: (
        f"select step, step_time_s from steps where step between {first} and {last} order by 1"
    ),
}


def asked(again: AskedAgain, run: Run, query, first: int, last: int):
    newest = run.newest(first)
    assert newest is not None
    return again.ask(newest, query, first, last)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with open_run(tmp_path_factory.mktemp("run"), sample_rows(2, 4)) as opened:
        yield opened


@pytest.mark.parametrize("name", QUERIES)
def test_3_a_query_of_the_newest_rows_says_what_the_whole_run_says_however_often_it_is_asked(run, name) -> None:
    again, query = AskedAgain(), QUERIES[name]
    for first, last in ((0, 3), (2, 3), (2, 2), (9, 9), (1, 3)):
        found = asked(again, run, query, first, last)
        assert found is not None
        expected = run._look().answer(query(first, last), None)
        assert found.schema == expected.schema
        assert found.to_pylist() == expected.to_pylist()
    assert again.prepared == 1


def test_3_rows_that_come_are_seen_and_nothing_is_worked_out_again(tmp_path: Path) -> None:
    rows = sample_rows(2, 4)
    with open_run(tmp_path, {rank: [one for one in told if one.step != 3] for rank, told in rows.items()}) as run:
        again, query = AskedAgain(), growth.query
        assert [asked(again, run, query, 2, 9).num_rows for _ in range(2)] == [1, 1]
        for rank, told in rows.items():
            with (tmp_path / Segment.of_rank(rank).name).open("ab") as file:
                file.writelines(encode(one) for one in told if one.step == 3)
        run.refresh()
        assert asked(again, run, query, 2, 9)["step"].to_pylist() == [2, 3]
        assert again.prepared == 1


def test_what_is_not_the_same_query_for_all_steps_or_has_many_rows_is_asked_as_it_is(run, monkeypatch) -> None:
    again = AskedAgain()
    assert asked(again, run, lambda first, last: f"select {first - 1} as step, {last} as n", 2, 3) is None
    assert asked(again, run, lambda first, last: "select step from nothing_there", 2, 3) is None
    assert asked(again, run, QUERIES["levels"], 2, 3) is not None  # a query that fails leaves the others
    monkeypatch.setattr(asked_again, "MOST_ROWS", 3)
    assert asked(again, run, QUERIES["levels"], 2, 3) is None


def test_the_database_is_made_anew_before_it_keeps_what_is_gone(run, monkeypatch) -> None:
    monkeypatch.setattr(asked_again, "MOMENTS", 2)
    again, query = AskedAgain(), QUERIES["levels"]
    told = []
    for _ in range(6):
        run.refresh()
        told.append(asked(again, run, query, 1, 3).to_pylist())
    assert told == [told[0]] * 6
