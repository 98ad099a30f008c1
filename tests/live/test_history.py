"""What is said of a long run's steps is made of all of them, however few rows the live tables keep."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.dashboards import compile as sql
from probe.dashboards import views
from probe.dashboards.quantities import quantity
from probe.live import history, opening, series
from probe.live.arrow import filled
from probe.live.feed import Feed
from probe.live.history import Wish, wish_of
from probe.live.pump import Pump
from probe.runs import database
from probe.runs.reader import Run
from tests.live.long_run import PHASES, long_run, took_ms

STEPS = 400


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return long_run(tmp_path_factory.mktemp("long") / "run", STEPS)


@pytest.fixture
def feed(directory: Path) -> Feed:
    made = Feed(directory, rows=600)
    made.open()
    return made


def asked(spec: dict[str, Any], who: str = "") -> Wish:
    found = wish_of({"key": "k", "spec": spec, "who": who})
    assert found is not None
    return found


def test_g_a_run_that_was_opened_says_of_each_step_what_all_its_rows_say(feed: Feed, directory: Path) -> None:
    spec = dict(quantity("step_time"))
    thinned, _ = series.by_step(feed.tables, feed.words, spec)
    assert len(thinned) < STEPS  # of the live tables alone
    (found,) = feed.histories([asked(spec)])
    with Run(directory) as run:
        frame = run.sql(sql.by_step(spec))
    assert found.values[0].tolist() == frame["step"].tolist() == list(range(STEPS))
    assert found.values[1].tolist() == pytest.approx(frame["value"].tolist(), rel=1e-12)
    assert (found.until, found.more) == (STEPS - 1, 0)


def test_g_each_series_of_a_chart_is_there_by_the_codes_of_the_live_tables(feed: Feed) -> None:
    live = next(panel.live for view in views() for panel in view.panels if panel.id == "phase_durations")
    (found,) = feed.histories([asked(dict(live))])
    names = [feed.words.texts[int(code)] for _, code in found.series]
    assert sorted(names) == sorted(PHASES)
    for name, values in zip(names, found.values[2:], strict=True):
        phase = PHASES.index(name)
        mean = [(took_ms(step, phase, 0) + took_ms(step, phase, 1)) / 2000 for step in range(STEPS)]
        assert values.tolist() == pytest.approx(mean)
    (of_one,) = feed.histories([asked(dict(live), "rank 1")])
    assert of_one.values[1].tolist() == pytest.approx([took_ms(step, 2, 1) / 1000 for step in range(STEPS)])


def test_g_begin_and_end_of_each_step_are_told(feed: Feed) -> None:
    (found,) = feed.histories([Wish("clock", None)])
    steps, begins, ends = found.values
    assert steps.tolist() == list(range(STEPS))
    assert np.diff(begins).tolist() == pytest.approx([2.0] * (STEPS - 1))
    assert ends[5] - begins[5] == pytest.approx(sum(took_ms(5, phase, 1) for phase in range(3)) / 1000 + 0.005)


def test_g_the_rows_of_a_step_that_had_to_go_are_read_again(feed: Feed) -> None:
    gone = next(step for step in range(STEPS) if step not in feed.tables["spans"].columns()["step"])
    held = {name: table.next for name, table in feed.tables.items()}
    found = feed.rows_of(gone)
    assert set(found["spans"]["step"].tolist()) == {gone}
    assert len(found["spans"]["step"]) == 2 * 4
    assert {name: table.next for name, table in feed.tables.items()} == held  # the tables have taken nothing
    assert feed.rows_of(STEPS + 5) == {}


@pytest.mark.parametrize(
    "given",
    [
        None,
        {"spec": {"table": "spans", "y": "peak"}},
        {"key": "k", "spec": {"table": "spans", "y": 'peak" from x; --'}},
        {"key": "k", "spec": {"table": "spans; drop", "y": "peak"}},
        {"key": "k", "spec": {"table": "nobody_knows", "y": 'a"b'}},
        {"key": "k", "spec": {"table": "spans", "y": "peak", "by": ['a"b']}},
        {"key": "k", "spec": {"table": "spans", "y": "peak", "reduce": ["max"]}},
        {"key": "k", "spec": {"table": "spans", "y": "peak", "scale": "1; --"}},
        {"key": "k", "spec": {"table": "spans", "y": "peak", "where": {'a"b': 1}}},
        {"key": "k", "spec": {"table": "spans", "y": "peak", "divide": {"table": "spans", "y": 'a"b'}}},
        {"key": "k", "spec": 3},
        {"key": "k", "spec": {"table": "spans", "y": "peak"}, "who": 3},
    ],
)
def test_g_a_page_can_ask_for_nothing_but_series_of_known_columns(given: Any) -> None:
    assert wish_of(given) is None


def test_14_1_a_page_that_asks_for_the_whole_run_and_for_a_step_loads_no_pandas(directory: Path) -> None:
    code = """
import sys
from probe.live.feed import Feed
from probe.live.history import Wish
feed = Feed(sys.argv[1], rows=600)
feed.open()
found = feed.histories([Wish("k", {"table": "spans", "y": "duration", "by": ["phase", "who"]}), Wish("c", None)])
feed.rows_of(3)
print(found[0].values.shape[1], found[1].values.shape[1], "pandas" in sys.modules)
"""
    told = subprocess.run([sys.executable, "-c", code, directory], capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(STEPS), str(STEPS), "False"]


def limited() -> list[database.Parquet]:
    """Readers that may take so much memory only."""
    return [one for one in gc.get_objects() if type(one) is database.Parquet and one._limit_mb]


def test_14_1_a_question_that_needs_more_memory_than_it_may_have_gets_little_more(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_SQL_MEMORY", "1MB")
    others = limited()  # of tests before this one, where nobody has collected them yet
    with Run(directory) as run:
        ranked = run.sql(
            "select * from (select *, row_number() over (order by wall_ns) as nth from memory) order by nth"
        )
        (reader,) = (one for one in limited() if one not in others)
        assert ranked["nth"].tolist() == list(range(1, len(ranked) + 1))
        assert 1 < reader._limit_mb < 200


def test_14_1_what_was_opened_to_read_a_run_is_let_go(feed: Feed) -> None:
    gc.collect()
    assert feed.tables["spans"].next
    assert not [one for one in gc.get_objects() if type(one) is opening._Loader]


def test_numbers_of_an_answer_are_told_apart_from_missing_ones_however_large() -> None:
    import pyarrow as pa

    column = pa.chunked_array([[2**60 + 1, None], [3, 4]])
    assert filled(column, math.nan, float)[[0, 2]].tolist() == [2.0**60, 3.0]
    assert math.isnan(filled(column, math.nan, float)[1])
    assert filled(column[1:], -1, np.int64).tolist() == [-1, 3, 4]
    assert filled(pa.chunked_array([pa.array([True, None])]), -1.0, float).tolist() == [1.0, -1.0]


def test_g_texts_of_a_wish_are_quoted(feed: Feed) -> None:
    spec = {"table": "spans", "y": "peak", "where": {"phase": "it's"}}
    (found,) = feed.histories([asked(spec, "rank 1' or true --")])
    assert found.values.shape[1] == 0


def test_g_a_run_of_too_many_steps_keeps_what_the_live_tables_have(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_STEPS", 100)
    told = feed.histories([asked(dict(quantity("step_time"))), Wish("clock", None)])
    assert [one.values.shape[1] for one in told] == [0, 0]


def test_g_of_more_series_than_a_chart_shows_the_rest_is_counted(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_SERIES", 2)
    (found,) = feed.histories([asked({"table": "spans", "y": "duration", "by": ["phase"], "where": {"kind": "phase"}})])
    assert (len(found.series), found.more) == (2, 1)
    assert found.values[1, 6] == pytest.approx(took_ms(6, 2, 1) / 1000)  # the largest of all three


@pytest.mark.usefixtures("lenient")
def test_g_what_is_asked_for_comes_as_a_message_of_its_own_and_failures_are_answered(directory: Path) -> None:
    sent: list[tuple[dict[str, Any], list[bytes]]] = []
    pump = Pump(Feed(directory, rows=600), lambda head, buffers: sent.append((head, buffers)), 0.25)
    pump.open()
    pump.round()
    pump.ask_for_past([asked(dict(quantity("step_time")))])
    pump.ask_for_step(3)
    pump.round()
    past, step = (one for one in sent if one[0]["t"] == "h")
    (told,) = past[0]["histories"]
    assert (told["n"], told["key"]) == (STEPS, "k")
    assert len(past[1][told["buffer"]]) == STEPS * 8 * (2 + len(told["series"]))
    assert {one["name"] for one in step[0]["tables"]} == {"spans", "memory", "scalars"}
    pump.feed.histories = lambda wishes: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    pump.ask_for_past([asked(dict(quantity("step_time")))])
    pump.round()
    assert sent[-1][0]["histories"][0]["n"] == 0
    assert pump.failures[-1]["where"] == "history"
    pump.stop()
