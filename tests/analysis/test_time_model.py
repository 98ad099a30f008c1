"""Seconds from the work: intervals hold what they promise, silence begins where it says, balance removes waiting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from probe.analysis.time_model import FEWEST, TimeModel, _of_phase, fitted
from probe.analysis.what_if import what_if
from probe.analysis.what_if.numbers import RankWork
from tests.analysis.planted_batches import Planted, planted

DRAWS = 600
MANY = 2000

#: Seconds of a micro-batch, of a token and of a pair of tokens.
TRUE = np.array([0.05, 2e-5, 1e-9])
#: The rounds of a step, and of the same step in fewer micro-batches.
BEFORE = [RankWork(6, 24_000, 28_000_000), RankWork(5, 21_000, 24_000_000)]
AFTER = [RankWork(4, 24_500, 29_000_000), RankWork(4, 21_000, 24_000_000)]

#: What is measured of expected seconds. Outliers are stragglers that take two to six times as long.
NOISES: dict[str, Callable[[np.random.Generator, Any], Any]] = {
    "additive": lambda random, true: true + random.normal(0, 0.005, len(true)),
    "proportional": lambda random, true: true * (1 + random.normal(0, 0.05, len(true))),
    "additive, outliers": lambda random, true: straggling(random, true, true + random.normal(0, 0.005, len(true))),
    "proportional, outliers": lambda random, true: straggling(
        random, true, true * (1 + random.normal(0, 0.05, len(true)))
    ),
    "heavy tails": lambda random, true: true * (1 + 0.03 * random.standard_t(4, len(true))),
}


def straggling(random: np.random.Generator, true: Any, measured: Any) -> Any:
    return np.where(random.random(len(true)) < 0.05, true * random.uniform(2, 6, len(true)), measured)


def drawn(random: np.random.Generator, count: int) -> pd.DataFrame:
    """Micro-batches of one to eight rows, with the seconds that they are expected to take."""
    rows = random.integers(1, 9, count)
    lengths = np.clip(random.lognormal(6.3, 0.7, (count, 8)), 20, 4000) * (np.arange(8) < rows[:, None])
    frame = pd.DataFrame({"tokens": lengths.sum(1), "squares": (lengths**2).sum(1)})
    return frame.assign(seconds=np.c_[np.ones(count), frame] @ TRUE)


def model_of(frame: pd.DataFrame) -> TimeModel | None:
    return _of_phase("actor", "update_actor", frame)


def true_seconds(rounds: list[RankWork]) -> float:
    return float(sum(TRUE @ [one.count, one.computed, one.squares] for one in rounds))


@pytest.mark.parametrize(
    ("noise", "count", "draws"),
    [
        *((noise, 60, DRAWS) for noise in ("additive", "proportional", "proportional, outliers")),
        *(pytest.param(noise, 200, MANY, marks=pytest.mark.slow) for noise in NOISES),
    ],
)
def test_6_error_bars_of_predicted_and_saved_seconds_hold_93_to_97_percent(noise: str, count: int, draws: int) -> None:
    random, inside = np.random.default_rng(16), np.zeros(2)
    took, saved = true_seconds(BEFORE), true_seconds(BEFORE) - true_seconds(AFTER)
    for _ in range(draws):
        frame = drawn(random, count)
        found = model_of(frame.assign(seconds=NOISES[noise](random, frame["seconds"].to_numpy())))
        assert found is not None
        for at, ((value, reach), true) in enumerate(
            zip((found.seconds(BEFORE), found.saved(BEFORE, AFTER)), (took, saved), strict=True)
        ):
            inside[at] += abs(value - true) <= reach
    assert np.all((inside >= 0.93 * draws) & (inside <= 0.97 * draws)), inside / draws


@pytest.mark.parametrize("hidden", [0, 1, 2])
def test_6_a_cost_that_noise_hides_is_in_the_error_bars(hidden: int) -> None:
    """It may be there: a model without it would be sure of what it can't know."""
    random, inside = np.random.default_rng(3), 0
    true = TRUE.copy()
    true[hidden] *= 0.1
    less = np.array([2, 500, 1_000_000])
    for _ in range(DRAWS // 2):
        frame = drawn(random, 60)
        expected = np.c_[np.ones(60), frame[["tokens", "squares"]]] @ true
        found = model_of(frame.assign(seconds=expected * (1 + random.normal(0, 0.05, 60))))
        assert found is not None
        assert (found.fit.coefficients >= 0).all()
        value, reach = found.saved([RankWork(*less)], [RankWork()])
        inside += abs(value - true @ less) <= reach
    assert inside >= 0.93 * DRAWS / 2


# ----------------------------------------------------------------------------------------------------------- silence


def with_noise(share: float) -> pd.DataFrame:
    """Noise of a standard deviation of ``share`` of the middle micro-batch's seconds, exactly."""
    frame = drawn(np.random.default_rng(1), 2000)
    columns = np.c_[np.ones(2000), frame[["tokens", "squares"]]]
    noise = np.random.default_rng(2).uniform(-1, 1, 2000)
    scaled = columns / columns.max(0)
    noise -= scaled @ np.linalg.lstsq(scaled, noise, rcond=None)[0]  # none of it looks like a cost
    sigma = np.sqrt((noise**2).sum() / (2000 - 3))
    middle, wanted = float(frame["seconds"].median()), 0.0
    for _ in range(50):  # noise moves the middle
        wanted = share * middle / sigma
        middle = float((frame["seconds"] + wanted * noise).median())
    return frame.assign(seconds=frame["seconds"] + wanted * noise)


def test_6_seconds_are_predicted_up_to_noise_of_half_the_middle_micro_batch() -> None:
    assert fitted(with_noise(0.49)) is not None
    assert fitted(with_noise(0.51)) is None


def with_outliers(count: int) -> pd.DataFrame:
    random = np.random.default_rng(4)
    frame = drawn(random, 500)
    seconds = frame["seconds"].to_numpy() + random.uniform(-0.005, 0.005, 500)
    seconds[:count] += 3.0
    return frame.assign(seconds=seconds)


def test_6_seconds_are_predicted_up_to_a_fifth_of_outliers() -> None:
    found = fitted(with_outliers(100))
    assert found is not None
    assert found.outliers == 100
    assert found["tokens"] == pytest.approx(2e-5, rel=0.1)
    assert fitted(with_outliers(101)) is None


def test_6_seconds_are_predicted_from_20_micro_batches() -> None:
    frame = drawn(np.random.default_rng(5), FEWEST)
    assert fitted(frame) is not None
    assert fitted(frame[1:]) is None


def varied(worth: float) -> pd.DataFrame:
    """Sizes whose tokens cost ``worth`` of their own standard errors, and nothing else."""
    count = 100
    tokens = np.tile([990.0, 1000.0, 1010.0, 1000.0], count // 4)
    squares = np.tile([400_000.0, 500_000.0, 400_000.0, 300_000.0], count // 4)
    columns = np.c_[np.ones(count), (tokens - 1000) / 10, (squares - 400_000) / 100_000]
    noise = np.random.default_rng(6).uniform(-0.01, 0.01, count)
    noise -= columns @ np.linalg.lstsq(columns, noise, rcond=None)[0]
    error = np.sqrt((noise**2).sum() / (count - 2) / ((tokens - 1000) ** 2).sum())
    return pd.DataFrame(
        {"tokens": tokens, "squares": squares, "seconds": 1.0 + noise + worth * error * (tokens - 1000)}
    )


def test_6_micro_batches_that_are_too_much_alike_for_their_noise_are_met_with_silence() -> None:
    found = fitted(varied(3.1))
    assert found is not None
    assert found.names == ("micro_batches", "tokens")
    model = model_of(varied(3.1))
    assert model is not None
    value, reach = model.saved([RankWork(1, 1000, 400_000)], [RankWork(1, 500, 400_000)])
    assert value > reach > value / 3  # half the tokens were never seen, and the error bar says it
    assert fitted(varied(2.9)) is None
    same = varied(3.1).assign(tokens=1000.0, squares=400_000.0)
    assert model_of(same) is None


def test_6_times_of_which_half_are_0_are_met_with_silence() -> None:
    frame = drawn(np.random.default_rng(7), 60)
    assert model_of(frame.assign(seconds=np.where(np.arange(60) % 2, 0.0, frame["seconds"]))) is None


def test_6_where_pairs_say_what_tokens_say_the_model_is_without_them() -> None:
    frame = drawn(np.random.default_rng(8), 60)
    alike = frame.assign(squares=500 * frame["tokens"], seconds=0.05 + 2e-5 * frame["tokens"])
    found = model_of(alike)
    assert found is not None
    assert found.fit.names == ("micro_batches", "tokens")


# ----------------------------------------------------------------------------------------------------------- waiting

_WAITED = """
with took as (
  select s.step, s.batch, s.process, sum(m.device_duration_ns) / 1e9 as seconds
  from spans s join memory m on m.process = s.process and m.scope_id = s.scope and m.edge = 'leave'
  where s.kind = 'micro_batch' group by all),
rounds as (select step, batch, max(seconds) as slowest, avg(seconds) as mean from took group by all)
select sum(slowest - mean) / count(distinct step) as waited, sum(slowest) / count(distinct step) as slowest
from rounds"""


def pairs(random: np.random.Generator, rows: int) -> list[int]:
    """Each length twice, first the short ones: two ranks are as uneven as can be, or can have the same rows each."""
    return [int(one) for one in sorted(np.repeat(random.integers(100, 3000, rows // 2), 2))]


@pytest.mark.parametrize("per_square", [1e-9, 3e-8])
def test_6_ranks_that_are_balanced_save_the_waiting_that_was_recorded(tmp_path: Path, per_square: float) -> None:
    made = Planted(
        ranks=2, rows=32, mini_batches=1, steps=20, cap=None, balanced=False, lengths=pairs, per_square_s=per_square
    )
    with planted(tmp_path, made) as run:
        (waited, slowest) = run.sql(_WAITED).iloc[0]
        answer = what_if(run, balance="mini_batch")
        again = what_if(run)
    value, reach = answer.saved_s["actor", "update_actor"]
    assert waited > 0.2 * slowest
    # The noise of a micro-batch is 1 % of its time; over 20 steps its mean is far below that.
    assert value == pytest.approx(waited, rel=0.01)
    assert reach < 0.02 * value
    before, after = answer.number("predicted_s")
    assert before == pytest.approx(slowest, rel=0.005)
    assert after == pytest.approx(slowest - waited, rel=0.005)
    assert answer.number("waiting_ratio")[1] == 0
    assert again.saved_s["actor", "update_actor"][0] == 0


def test_6_the_slowest_rank_is_the_one_that_takes_longest_not_the_one_with_most_tokens() -> None:
    found = model_of(drawn(np.random.default_rng(9), 60))
    assert found is not None
    many, long = RankWork(4, 4001, 2_000_000), RankWork(4, 4000, 16_000_000)
    assert found.slowest([[many, long], [long, many], [many]]) == [long, long, many]
