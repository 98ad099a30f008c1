"""A rank that takes longer for the same work: its pace is told apart from what a token costs, and foretold with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from probe.analysis.advice import advise
from probe.analysis.advice.evening import saved_in_step
from probe.analysis.time_model import TimeModel, _of_phase, own_paces, time_models
from probe.analysis.what_if import Replayer, Settings, what_if
from probe.analysis.what_if.batches import Round
from probe.analysis.what_if.numbers import RankWork
from probe.analysis.what_if.processes import knowing, processes_of
from tests.analysis.planted_batches import Planted, planted
from tests.analysis.test_advice import config
from tests.analysis.test_time_model import NOISES, TRUE, drawn, true_seconds

SLOW = "rank-00001"
COSTS = {"micro_batches": 0.05, "tokens": 2e-5, "squares": 1e-9}


def of_ranks(random: np.random.Generator, ranks: int, each: int, pace: float) -> pd.DataFrame:
    """Micro-batches of some processes, of which the second is slow."""
    frame = drawn(random, ranks * each).assign(process=np.repeat([f"rank-{at:05d}" for at in range(ranks)], each))
    return frame.assign(seconds=frame["seconds"] * np.where(frame["process"] == SLOW, pace, 1.0))


def model_of(frame: pd.DataFrame) -> TimeModel | None:
    return _of_phase("actor", "update_actor", frame)


@pytest.mark.parametrize(("ranks", "pace"), [(2, 1.5), (4, 1.5), (4, 1.1), (8, 1.5), (4, 0.7)])
def test_6_a_slow_rank_leaves_a_model_with_the_costs_of_the_others_and_its_own_pace(
    tmp_path: Path, ranks: int, pace: float
) -> None:
    made = Planted(ranks=ranks, rows=32 * ranks, steps=20, slower={1: pace})
    with planted(tmp_path, made) as run:
        (found,) = time_models(run)
    fast = ranks == 2 and pace < 1
    for name, cost in COSTS.items():
        assert found.fit[name] == pytest.approx(cost * (pace if fast else 1), rel=0.1)
    assert found.paces == {SLOW: pytest.approx(pace, rel=0.01)}
    assert found.pace("rank-00000") == 1.0
    assert 0 < found.fit.error(f"pace of {SLOW}") < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_6_error_bars_of_95_percent_hold_where_a_slow_rank_decides(noise: str) -> None:
    draws, more = 400, 0
    random, inside = np.random.default_rng(16), np.zeros(2)
    noisy: Callable[[np.random.Generator, Any], Any] = NOISES[noise]
    before = [RankWork(6, 24_000, 28_000_000, SLOW), RankWork(5, 21_000, 24_000_000, "rank-00000")]
    after = [RankWork(4, 16_500, 18_000_000, SLOW), RankWork(4, 23_000, 29_000_000, "rank-00002")]
    took, then = (1.5 * true_seconds(one[:1]) + true_seconds(one[1:]) for one in (before, after))
    for _ in range(draws):
        frame = of_ranks(random, 4, 30, 1.5)
        found = model_of(frame.assign(seconds=noisy(random, frame["seconds"].to_numpy())))
        assert found is not None
        assert SLOW in found.paces
        more += len(found.paces) > 1
        told = (found.seconds(before), found.saved(before, after))
        for at, ((value, reach), true) in enumerate(zip(told, (took, took - then), strict=True)):
            inside[at] += abs(value - true) <= reach
    # Of so many draws 0.95 is off by less than 0.033 in all but 3 of 1,000 cases.
    assert np.all(np.abs(inside / draws - 0.95) <= 0.033), inside / draws
    assert more <= 0.01 * draws


@pytest.mark.parametrize("noise", NOISES)
def test_6_ranks_that_are_alike_get_no_paces(noise: str) -> None:
    random = np.random.default_rng(5)
    for _ in range(25):
        frame = of_ranks(random, 8, 20, 1.0)
        assert own_paces(frame.assign(seconds=NOISES[noise](random, frame["seconds"].to_numpy()))) == {}


def test_6_few_micro_batches_of_a_rank_give_it_no_pace() -> None:
    frame = of_ranks(np.random.default_rng(6), 4, 40, 1.5)
    some = frame[(frame["process"] != SLOW) | (frame.groupby("process").cumcount() < 11)]
    assert own_paces(some) == {}
    some = frame[(frame["process"] != SLOW) | (frame.groupby("process").cumcount() < 12)]
    assert own_paces(some) == {SLOW: pytest.approx(1.5, rel=0.01)}


def test_6_the_slowest_rank_is_the_slow_one_though_it_has_less_to_do() -> None:
    random = np.random.default_rng(7)
    frame = of_ranks(random, 4, 30, 1.5)
    found = model_of(frame.assign(seconds=frame["seconds"] * random.normal(1, 1e-4, len(frame))))
    assert found is not None
    slow, full = RankWork(4, 16_000, 20_000_000, SLOW), RankWork(4, 18_000, 22_000_000, "rank-00002")
    (chosen,) = found.slowest([[full, slow]])
    assert chosen is slow
    assert found.seconds([slow])[0] == pytest.approx(1.5 * TRUE @ [4, 16_000, 20_000_000], rel=1e-3)
    assert found.seconds([full])[0] == pytest.approx(TRUE @ [4, 18_000, 22_000_000], rel=1e-3)


def test_6_the_seconds_of_a_run_with_a_slow_rank_are_foretold_as_they_were_recorded(tmp_path: Path) -> None:
    made = Planted(steps=20, slower={1: 1.5}, balanced=False, config=config(balance=False), rows=64)
    with planted(tmp_path, made) as run:
        same, larger, dealt = what_if(run, [{}, {"cap_tokens": 12_000}, {"balance": "batch"}])
        advice = advise(run)
        own = Replayer(run)
        (model,) = own.time.values()
        evened = saved_in_step(own, model, Settings(cap_tokens=12_000))
    frame = same.frame.set_index("number").loc["predicted_s"]
    assert frame["modelled"] == pytest.approx(frame["before"], rel=0.01)
    assert same.saved_s["actor", "update_actor"] == (0.0, 0.0)
    # Each micro-batch less saves 0.05 s, 1.5 times as much where the slow rank is the last of its round.
    before, after = (one.number("micro_batches") for one in (same, larger))
    fewer = before[0] - after[1]
    value, reach = larger.saved_s["actor", "update_actor"]
    assert 0.05 * fewer <= value + reach
    assert value - reach <= 1.5 * 0.05 * fewer
    told = "update_actor: rank 1 takes 1.50× the time of the others for the same work; its seconds are predicted so."
    assert larger.notes == (told,)
    assert evened[0] > 0
    assert dealt.saved_s["actor", "update_actor"][1] > 0
    assert all(one.gain_s is not None for one in advice.suggestions)


def test_6_a_pace_belongs_to_the_ranks_that_share_sequences_and_to_no_unknown_rows(tmp_path: Path) -> None:
    with planted(tmp_path / "a", Planted(steps=20, sp_size=2, rows=64, slower={1: 1.5, 2: 1.5})) as run:
        own = Replayer(run)
        (model,) = own.time.values()
        batch = own.dealings[0].batch
    assert set(model.paces) == {SLOW, "rank-00002"}
    assert processes_of(batch.rounds[0], model) == [SLOW, "rank-00002"]
    assert processes_of(batch.rounds[0], None) == ["rank-00000", "rank-00002"]
    key = ("actor", "update_actor")
    assert knowing({key: model}, [batch]) == {key: model}
    one = Round(1, tuple(call for call in batch.rounds[0].calls if call.process != SLOW))
    driver = type(batch)(1, *key, (one,), None)
    assert knowing({key: model}, [driver]) == {}
