"""Reductions: which reducer was found by accident, and where a value lies among what went in."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from probe.analysis import reduction
from probe.records import Reduction
from tests.sample_run import clock, open_run


def reduced(
    key: str,
    values: list[float],
    reducer: str,
    value: float | None,
    *,
    by: str = "name",
    step: int = 0,
    rank: int = 0,
):
    known = [one for one in values if not math.isnan(one)]
    return Reduction(
        rank=rank,
        time_ns=clock(rank) + step,
        step=step,
        key=key,
        reducer=reducer,
        chosen_by=by,
        count=len(values),
        smallest=min(known, default=None),
        largest=max(known, default=None),
        nan_count=len(values) - len(known),
        value=value,
    )


@pytest.mark.parametrize(
    ("key", "reducer", "expected"),
    [
        ("timing/update", "min", True),
        ("actor/minibatch_loss", "min", True),
        ("critic/terminal_reward", "min", True),
        ("global_seqlen/minmax_diff", "max", True),
        ("softmax_temp", "max", True),
        ("loss/max", "max", False),
        ("max_length_mean", "max", False),
        ("lossMax", "max", False),
        ("loss.min", "min", False),
        ("reward-min", "min", False),
        ("timing/update", "mean", False),
    ],
)
def test_a_reducer_inside_a_word_is_an_accident(key: str, reducer: str, expected: bool) -> None:
    assert reduction.accidental(key, reducer) is expected


def test_audit_puts_doubtful_keys_first(tmp_path: Path) -> None:
    rows = [
        reduced("loss", [1, 3], "mean", 2.0),
        reduced("loss", [1, 5], "mean", 3.0, step=1),
        reduced("timing/a", [1, 3], "min", 1.0),
        reduced("timing/typed", [1, 3], "min", 1.0, by="type"),
        reduced("grad", [1, math.nan], "mean", math.nan),
    ]
    with open_run(tmp_path, {0: rows}) as run:
        frame = reduction.audit(run)
    assert frame["key"].tolist() == ["timing/a", "grad", "loss", "timing/typed"]
    assert frame["accidental"].tolist() == [True, False, False, False]
    assert frame["inside"][0] == "timing"
    loss = frame[frame["key"] == "loss"].iloc[0]
    assert (loss["calls"], loss["values"], loss["smallest"], loss["largest"], loss["last"]) == (
        2,
        4,
        1,
        5,
        3.0,
    )
    grad = frame[frame["key"] == "grad"].iloc[0]
    assert grad["nan_count"] == 1
    assert math.isnan(grad["last"])


def test_spread_says_where_the_last_value_lies(tmp_path: Path) -> None:
    rows = [
        reduced("loss", [0, 4], "mean", 1.0),
        reduced("loss", [2, 6], "mean", 3.0, step=1),
        reduced("one", [5], "mean", 5.0),
        reduced("tokens", [5, 6], "sum", 11.0),  # a sum lies outside what went in
    ]
    with open_run(tmp_path, {0: rows}) as run:
        frame = reduction.spread(run)
    assert frame["key"].tolist() == ["loss"]  # a single value has no spread
    assert (frame["step"][0], frame["position"][0]) == (1, 0.25)


def test_nothing_reduced_gives_empty_frames(tmp_path: Path) -> None:
    with open_run(tmp_path, {0: []}) as run:
        assert reduction.audit(run).empty
        assert reduction.spread(run).empty
