"""3: what a look need not do again: what no new row can answer, and what was judged of steps without new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.analysis import growth, memory_apart, waiting
from probe.analysis.by_step import FIRST, LAST, by_step
from probe.analysis.verdict import metrics, needs
from probe.analysis.verdict.verdict import OFTEN
from probe.analysis.verdict.watch import Watch
from probe.records import Reduction, Row, Scalar
from probe.runs.asked_again import AskedAgain
from probe.runs.layout import Segment
from probe.runs.lines import encode
from probe.sql import Sql
from tests.analysis.test_watch import anew, plain
from tests.sample_run import open_run, sample_rows

STEPS = 40


def add(directory: Path, rank: int, *rows: Row) -> None:
    with (directory / Segment.of_rank(rank).name).open("ab") as file:
        file.writelines(map(encode, rows))


def test_3_within_a_long_step_nothing_is_judged_again_and_all_is_once_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []
    for module, name in ((waiting, "judge"), (growth, "judge"), (memory_apart, "most_reserved")):
        judge = getattr(module, name)

        def counted(*arguments: Any, judge: Any = judge, of: str = module.__name__, **named: Any) -> Any:
            judged.append(of)
            return judge(*arguments, **named)

        monkeypatch.setattr(module, name, counted)
    rows = sample_rows(2, STEPS)
    last = {rank: [one for one in told if one.step == STEPS - 1] for rank, told in rows.items()}
    with open_run(
        tmp_path, {rank: [one for one in told if one.step != STEPS - 1] for rank, told in rows.items()}
    ) as run:
        watch = Watch(run, looks=OFTEN, often=OFTEN)
        watch.look(whole=True)
        assert set(judged) == {one.__name__ for one in (waiting, growth, memory_apart)}
        for part in range(4):  # of the step that goes on, but not its end
            for rank, told in last.items():
                add(tmp_path, rank, *told[part * 3 : part * 3 + 3])
            judged.clear()
            found = watch.look(whole=True)
            assert (judged, watch.failed) == ([], [])
            assert plain(found) == plain(anew(tmp_path))
        for rank, told in last.items():
            add(tmp_path, rank, *told[12:])
        judged.clear()
        found = watch.look(whole=True)
        assert set(judged) == {one.__name__ for one in (waiting, growth, memory_apart)}
        assert plain(found) == plain(anew(tmp_path))


def reduction(step: int, **more: Any) -> Reduction:
    told: dict[str, Any] = {"key": "actor/loss", "reducer": "mean", "chosen_by": "type", "count": 4, "value": 0.5}
    told |= {"rank": 0, "process": "rank-00000.1", "time_ns": 10**9 * step}
    return Reduction(step=step, **{**told, "smallest": 0.1, "largest": 0.9, **more})


def scalar(step: int, value: float) -> Scalar:
    return Scalar(step=step, rank=0, process="rank-00000.1", time_ns=10**9 * step, key="a", value=value, source="user")


#: What each needs, rows without it and a row with it, and how its query is told from others.
NEEDED = {
    "nan": (needs.NAN, [reduction(50)], reduction(51, nan_count=1, nan_at=0), "nan_count > 0"),
    "names": (
        needs.NAMES,
        [reduction(50), reduction(50, key="b", chosen_by="name")],
        reduction(51, key="timing/update", reducer="min", chosen_by="name"),
        "bool_or(largest > smallest",
    ),
    "logged nan": (needs.LOGGED_NAN, [scalar(50, 1.0)], scalar(51, float("nan")), "isnan(value) and step"),
    "unlike counts": (needs.UNLIKE_COUNTS, [reduction(50), reduction(50, key="b", count=9)], reduction(51, count=5),
                      "min(n) <> max(n)"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDED)
def test_3_a_question_is_asked_where_a_new_row_may_answer_it_and_nowhere_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, without, with_it, text = NEEDED[name]
    asked: list[str] = []
    ask = AskedAgain.ask

    def told(self: AskedAgain, newest: Any, query: Any, first: int, last: int) -> Any:
        asked.append(query(first, last))
        return ask(self, newest, query, first, last)

    monkeypatch.setattr(AskedAgain, "ask", told)
    rows = sample_rows(1, 3)
    rows = {0: [one for one in rows[0] if not isinstance(one, Reduction) or name != "logged nan"]}
    with open_run(tmp_path, rows) as run:
        watch = Watch(run, looks=OFTEN, often=OFTEN)
        watch.look(whole=True)
        add(tmp_path, 0, *without)
        watch.look(whole=True)
        assert asked
        assert [one for one in asked if text in one] == []
        add(tmp_path, 0, with_it, *([reduction(51)] if name == "unlike counts" else []))
        found = watch.look(whole=True)
        assert [one for one in asked if text in one]
        assert watch.failed == []
        assert plain(found) == plain(anew(tmp_path))


@pytest.mark.parametrize("name", NEEDED)
def test_3_where_nothing_is_asked_the_query_has_no_answer(name: str, tmp_path: Path) -> None:
    """Among many chance rows: where they are said not to hold what is needed, the query about them gives nothing."""
    need, *_ = NEEDED[name]
    queries = {
        "nan": metrics._nan,
        "names": metrics._named,
        "logged nan": lambda where: f"select step from scalars where source = 'user' and isnan(value) and {where}",
        "unlike counts": metrics._means,
    }
    chance, seen = np.random.default_rng(7), set()
    for attempt in range(12):
        many = {
            "nan_count": int(chance.random() < 0.3),
            "chosen_by": "name" if chance.random() < 0.2 else "type",
            "reducer": str(chance.choice(["mean", "min"])),
        }
        rows: list[Row] = []
        for process in ("rank-00000.1", "rank-00001.1"):
            uneven = int(chance.random() < 0.5)
            told = reduction(1, **many | {"count": 4 + 3 * uneven, "value": float(chance.random()), "process": process})
            rows.append(told)
        rows.append(scalar(1, float("nan") if chance.random() < 0.3 else 0.5))
        logged = np.mean([one.value for one in rows if isinstance(one, Reduction)])
        rows.append(
            Scalar(step=1, rank=0, process="rank-00000.1", key="actor/loss", value=float(logged), source="user")
        )
        with open_run(tmp_path / str(attempt), {0: rows}) as run:
            newest = run.newest(0)
            assert newest is not None
            may = need.table in newest.rows and need.found(newest.rows[need.table])
            assert may or run.sql(queries[name](Sql("step between 0 and 9"))).empty
            seen.add(may)
    assert seen == {True, False}


def test_what_is_asked_by_itself_needs_nothing(tmp_path: Path) -> None:
    with open_run(tmp_path, sample_rows(1, 3)) as run:
        found = by_step(
            run, lambda first, last: metrics._nan(metrics._between(first, last)), FIRST, LAST, needs=needs.NAN
        )
        assert len(found) == len(run.sql(metrics._nan(Sql("step is not null"))))
