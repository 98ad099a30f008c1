"""Numbers across ranks: of steps that all have ended, worked out from all rows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from probe import recorders, session
from probe.analysis import overview
from probe.publishing import across_ranks, pictures
from probe.tracking.names import NameMap, mlflow_name
from tests.publishing.publishing_rows import cut, ended, run_of, took
from tests.sample_run import open_run, sample_rows

#: What each rank says of itself.
TOKENS = "token_balance/rank_tokens"


def declared() -> set[str]:
    return {*session.KEYS, *(key for name in recorders.RECORDERS for key in recorders.load(name).keys)}


def test_the_smallest_the_mean_and_the_largest(tmp_path: Path) -> None:
    rows = {
        rank: [
            took(rank, 3, 1.0 + rank),
            took(rank, 3, 0.25, "update"),
            took(rank, 3, 0.25, "update"),
            *ended(rank, 3, 5, **{TOKENS: 10.0 * (rank + 1), "memory/actor/peak_rss_gib_max": 2.0}),
        ]
        for rank in range(3)
    }
    with run_of(tmp_path, rows) as run:
        found = across_ranks.numbers(run, [3], pictures.margins())[3]
    assert [found[f"probe/across_ranks/{TOKENS}_{word}"] for word in ("smallest", "mean", "largest")] == [
        10.0,
        20.0,
        30.0,
    ]
    assert [found[f"probe/across_ranks/step_time_s_{word}"] for word in ("smallest", "mean", "largest")] == [1, 2, 3]
    assert found["probe/across_ranks/phase/update/time_s_largest"] == 0.5  # a phase that comes twice is added up
    assert found["probe/across_ranks/memory/actor/peak_rss_gib_mean"] == 2.0


def test_a_step_is_told_when_every_rank_has_ended_it(tmp_path: Path) -> None:
    rows = {
        0: [*ended(0, 0, 1), *ended(0, 1, 2), *ended(0, 2, 3)],
        1: [*ended(1, 0, 1), *ended(1, 1, 2)],
    }
    with run_of(tmp_path / "both", rows) as run:
        assert across_ranks.ended(run) == [0, 1]
        assert across_ranks.ended(run, final=True) == [0, 1, 2]
    with run_of(tmp_path / "one", {0: rows[0]}, world_size=2) as run:  # rank 1 hasn't written anything yet
        assert across_ranks.ended(run) == []
        assert across_ranks.ended(run, final=True) == [0, 1, 2]
    with run_of(tmp_path / "none", {0: []}) as run:
        assert across_ranks.ended(run) == across_ranks.ended(run, final=True) == []
        assert across_ranks.numbers(run, [], []) == {}


def test_a_rank_that_left_out_a_step_s_metrics_holds_nothing_up(tmp_path: Path) -> None:
    rows = {0: [*ended(0, 0, 1), *ended(0, 1, 2)], 1: ended(1, 1, 2)}
    with run_of(tmp_path, rows) as run:
        assert across_ranks.ended(run) == [0, 1]


def test_nan_is_nan_and_what_a_rank_lacks_is_left_to_the_others(tmp_path: Path) -> None:
    rows = {
        0: ended(0, 0, 1, **{"padding_tax/rank_ratio": math.nan, "token_balance/rank_tokens": 5.0}),
        1: ended(1, 0, 1, **{"padding_tax/rank_ratio": 0.5}),
    }
    with run_of(tmp_path, rows) as run:
        found = across_ranks.numbers(run, [0], pictures.margins())[0]
    assert math.isnan(found["probe/across_ranks/padding_tax/rank_ratio_mean"])
    assert math.isnan(found["probe/across_ranks/padding_tax/rank_ratio_largest"])
    assert found["probe/across_ranks/padding_tax/rank_ratio_smallest"] == 0.5
    assert found["probe/across_ranks/token_balance/rank_tokens_mean"] == 5.0
    assert "probe/across_ranks/tokens" not in found  # nobody cut a batch: that's not a zero


def test_a_step_that_was_done_again_counts_once(tmp_path: Path) -> None:
    rows = {
        0: [
            *ended(0, 4, 1, **{TOKENS: 1.0}),
            *ended(0, 4, 9, **{TOKENS: 7.0}),
        ]
    }
    with run_of(tmp_path, rows) as run:
        found = across_ranks.numbers(run, [4], pictures.margins())[4]
    assert found["probe/across_ranks/token_balance/rank_tokens_smallest"] == 7.0
    assert found["probe/across_ranks/token_balance/rank_tokens_largest"] == 7.0


def test_what_is_told_of_all_ranks_is_what_the_overview_says(tmp_path: Path) -> None:
    with open_run(tmp_path, sample_rows(3, 4)) as run:
        frame = overview.by_step(run).set_index("step")
        found = across_ranks.numbers(run, [1, 2], pictures.margins())
    assert set(found) == {1, 2}
    for step, values in found.items():
        for key, column in across_ranks.whole().items():
            known = frame.loc[step, column]
            assert (key not in values) if math.isnan(known) else (values[key] == pytest.approx(known)), key


def test_uneven_ranks_show(tmp_path: Path) -> None:
    rows = {rank: [cut(rank, 0, [10] * (1 + 2 * rank)), *ended(rank, 0, 5)] for rank in range(2)}
    with run_of(tmp_path, rows) as run:
        found = across_ranks.numbers(run, [0], [])[0]
    assert found["probe/across_ranks/tokens"] == 40
    assert found["probe/across_ranks/rank_imbalance_ratio"] == 30 / 20


def test_names_are_those_of_the_quantities() -> None:
    keys = across_ranks.keys_of(declared())
    for key in keys:
        parts = key.replace("{", "/").replace("}", "/").replace("_", "/").split("/")
        assert not any(word in part for word in ("min", "max") for part in parts), key  # no reducer by accident
    assert len({across_ranks.base(key) for key in declared()}) == len(declared())  # no two metrics under one name
    collided: list[str] = []
    names = NameMap(mlflow_name, lambda *what: collided.append(what[0]))
    for key in sorted({*keys, *declared()}):
        names(key.replace("{", "").replace("}", ""))
    assert collided == []


@pytest.mark.parametrize(("text", "made"), [("a/b", "a_b"), ("größe", "gr__e"), ("..", ".._"), ("", "_")])
def test_a_phase_is_one_segment(text: str, made: str) -> None:
    assert across_ranks.segment(text) == made
