"""The difference of two runs: parts sum to it exactly, and one planted cause gets at least 95 % of it."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probe.analysis.difference import CAUSES, Part, Waterfall, difference
from probe.analysis.difference.shapley import shares
from probe.analysis.difference.step_time import _interval
from probe.records import GIB, TokenFate
from tests.analysis.planted_batches import Planted, planted
from tests.sample_run import open_run, sample_rows

#: Rows of a rank in a round; both halves have the same tokens.
PATTERN = [100, 1100, 500, 300, 300, 500, 1100, 100]


class Lengths:
    """The pattern again and again, longer from step to step, so that nothing differs but what is planted."""

    def __init__(self, times: int = 1, *, rising: bool = False) -> None:
        self.times, self.rising, self.calls = times, rising, 0

    def __call__(self, _: Any, rows: int) -> list[int]:
        self.calls += 1
        told = [int(one * self.times * (0.6 + 0.1 * self.calls)) for one in np.resize(PATTERN, rows)]
        return sorted(told) if self.rising else told


BASE = {
    "cap": None, "rows_each": 4, "rows": 32, "ranks": 2, "steps": 6, "balanced": False, "noise": 2.0**20,
    "per_longest": 4.0 * 2**20, "per_micro_batch_s": 0.1, "per_square_s": 3e-8, "lengths": Lengths(),
}  # fmt: skip
WIDE = BASE | {"rows_each": 8, "rows": 64}

#: By name: the cause in step time and the cause in the peak; without it, and with it.
PLANTED = {
    "more tokens": ("tokens", None, BASE, BASE | {"rows": 64}),
    "more tokens a micro-batch": (None, "tokens", BASE, WIDE),
    "longer sequences": ("lengths", "lengths", WIDE, WIDE | {"rows": 32, "rows_each": 4, "lengths": Lengths(2)}),
    "uneven ranks": ("balance", "balance", BASE, BASE | {"lengths": Lengths(rising=True)}),
    "padding": ("padding", "padding", BASE | {"width": 1500}, BASE | {"width": 3000}),
    "smaller micro-batches": ("micro_batches", "micro_batches", BASE, BASE | {"rows_each": 2}),
    "a slow rank": ("waiting", None, BASE, BASE | {"slower": {1: 1.5}}),
    "slower and larger": ("rest", "rest", BASE, BASE | {"slower": {0: 1.5, 1: 1.5}, "floor": 24 * GIB}),
}


def compared(path: Path, one: dict[str, Any], other: dict[str, Any]) -> Any:
    one, other = copy.deepcopy(one), copy.deepcopy(other)
    with planted(path / "a", Planted(**one)) as a, planted(path / "b", Planted(**other)) as b:
        return difference(a, b)


def holds(of: Any) -> None:
    """The identities of a waterfall."""
    assert math.fsum(one.value for one in of.parts) == of.change  # exactly
    assert of.change == of.after - of.before
    assert {one.cause for one in of.parts} <= set(CAUSES)
    assert math.fsum(of.by_cause.values()) == pytest.approx(of.change, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", PLANTED)
def test_5_one_planted_cause_gets_at_least_95_percent(tmp_path: Path, name: str) -> None:
    of_time, of_peak, one, other = PLANTED[name]
    found = compared(tmp_path, one, other)
    for measure, cause in (("step_time", of_time), ("peak_memory", of_peak)):
        of = found[measure]
        holds(of)
        if cause is None:
            continue
        assert abs(of.change) > 0.03 * of.before
        assert 0.95 <= of.of(cause) / of.change <= 1.05, of
        assert sum(abs(value) for other, value in of.by_cause.items() if other != cause) < 0.1 * abs(of.change), of
        assert CAUSES[cause].lower() in of.sentence()


def fates(samples: int, length: int, lost: dict[str, int]) -> dict[int, list[TokenFate]]:
    whole = samples * length
    told = {**lost, "carried": whole - sum(lost.values())}
    return {
        0: [
            TokenFate(
                rank=0, time_ns=10**12 + step, step=step, batch_id=step, source="planted", fate=fate, tokens=tokens,
                samples=samples, batch_tokens=whole, batch_samples=samples, kept_samples=0,
            )
            for step in range(4)
            for fate, tokens in told.items()
        ]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "after"),
    [
        ("tokens", (16, 100, {"clipped": 160})),
        ("lengths", (8, 300, {"clipped": 240})),
        ("fates", (8, 100, {"clipped": 80, "no_advantage": 400})),
    ],
)
def test_5_one_planted_cause_gets_the_tokens_that_carried_gradient(tmp_path: Path, cause: str, after: Any) -> None:
    with open_run(tmp_path / "a", fates(8, 100, {"clipped": 80})) as a, open_run(tmp_path / "b", fates(*after)) as b:
        found = difference(a, b)
    of = found["carried_tokens"]
    holds(of)
    assert (of.before, of.after) == (720.0, float(after[0] * after[1] - sum(after[2].values())))
    assert of.of(cause) == pytest.approx(of.change, rel=1e-6)
    if cause == "fates":
        assert "without advantage: 0 % → 50 %" in repr(of)
    assert len(found.missing) == 2  # neither step times nor memory: silence


def test_5_a_run_beside_itself_has_no_difference_and_other_runs_keep_the_identities(tmp_path: Path) -> None:
    with (
        open_run(tmp_path / "a", sample_rows(2, 5)) as a,
        open_run(tmp_path / "b", sample_rows(2, 4, seed=1)) as b,
        open_run(tmp_path / "c", sample_rows(1, 3, accelerator=False)) as c,
    ):
        alike, other, host = difference(a, a), difference(a, b), difference(a, c)
    for of in alike.waterfalls:
        assert all(one.value == 0 for one in of.parts)
    assert {of.measure for of in other.waterfalls} == {"step_time", "peak_memory", "carried_tokens"}
    for of in (*other.waterfalls, *host.waterfalls):
        holds(of)
    frame = other.frame
    for of in other.waterfalls:
        own = frame[frame["measure"] == of.measure]
        assert math.fsum(own["value"]) == of.change
        assert own["share"].sum() == pytest.approx(1)
    # Of a device and of a process: no number is made of the two.
    assert any("in the other that of a process" in one for one in host.missing)


def test_5_phases_that_only_one_run_has_are_told_as_such(tmp_path: Path) -> None:
    one, other = (BASE | {"phase": name, "steps": 3} for name in ("update_actor", "update_policy"))
    found = compared(tmp_path, one, other)["step_time"]
    holds(found)
    told = {part.phase: part.about for part in found.parts if part.phase}
    assert told == {"update_actor": "only the first run has it", "update_policy": "only the second run has it"}


def test_5_shares_sum_and_what_is_the_same_has_none() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        before, after = ({name: float(random.lognormal()) for name in "abcd"} for _ in range(2))
        after["c"] = before["c"]

        def number(of: Any) -> float:
            return float(of["a"] * of["b"] ** 2 + of["c"] * of["d"])

        found = shares(number, before, after)
        assert math.fsum(found.values()) == pytest.approx(number(after) - number(before), rel=1e-9)
        assert found["c"] == 0.0


def test_micro_batches_that_take_no_time_are_compared_without_a_model(tmp_path: Path) -> None:
    """As in a recording whose clock stands still within them: there is no pace to divide by."""
    still = Planted(**BASE | {"per_micro_batch_s": 0.0, "per_token_s": 0.0, "per_square_s": 0.0})
    longer = Planted(**BASE | {"per_micro_batch_s": 0.0, "per_token_s": 0.0, "per_square_s": 0.0, "rows": 64})
    with planted(tmp_path / "a", still) as a, planted(tmp_path / "b", longer) as b:
        for of in difference(a, b).waterfalls:
            holds(of)


def interval_of(*times: Any) -> Any:
    return _interval(tuple(SimpleNamespace(times=list(one)) for one in times))


def test_5_the_interval_of_a_step_times_difference_is_the_published_one_and_holds_93_to_97_percent() -> None:
    # Worked by hand: means 2 and 6, variances 1 and 4 of 3 and 5 steps, so 1/3 + 4/5, and 5.9 degrees of freedom.
    low, high = interval_of([1, 2, 3], [6 - math.sqrt(8), 6, 6, 6, 6 + math.sqrt(8)])
    assert (low + high) / 2 == pytest.approx(4)
    assert (high - low) / 2 == pytest.approx(2.571 * math.sqrt(1 / 3 + 4 / 5), rel=0.01)  # Student's, 5 degrees
    random, inside = np.random.default_rng(5), 0
    for _ in range(2000):
        low, high = interval_of(random.normal(10, 1, 12), random.normal(12, 3, 30))
        inside += low <= 2 <= high
    assert 0.93 <= inside / 2000 <= 0.97


def test_5_without_a_third_step_or_any_noise_there_is_no_interval() -> None:
    assert interval_of([1.0, 2.0], [1.0, 2.0, 3.0]) is None
    assert interval_of([1.0] * 5, [2.0] * 5) is None
    assert interval_of([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) is not None


@pytest.mark.parametrize(
    ("interval", "noise"),
    [
        ((-0.1, 1.0), True),
        ((-1.0, 0.1), True),
        ((0.0, 1.0), True),
        ((0.1, 1.0), False),
        ((-1.0, -0.1), False),
        (None, False),
    ],
)
def test_5_a_difference_whose_interval_holds_0_is_noise_and_names_no_cause(interval: Any, noise: bool) -> None:
    of = Waterfall("step_time", "Mean time of a step", "s", 2.0, 2.5, (Part("waiting", "update", 0.5),), interval)
    assert of.is_noise is noise
    told = "Mean time of a step: 2.00 s → 2.50 s (+25 %)."
    assert of.sentence() == told + (
        " Steps differ as much among each other." if noise else " Most of it: waiting, +500 ms."
    )
    assert of.to_dict()["interval"] == (None if interval is None else list(interval))


def test_5_runs_that_differ_by_chance_are_told_as_noise_and_a_slower_one_is_not(tmp_path: Path) -> None:
    drawn = BASE | {"steps": 12, "lengths": None}
    alike = compared(tmp_path / "alike", drawn, drawn | {"seed": 1})["step_time"]
    assert alike.change != 0
    assert alike.is_noise
    assert alike.sentence().endswith(". Steps differ as much among each other.")
    slower = compared(tmp_path / "slower", drawn, drawn | {"seed": 1, "slower": {0: 3.0, 1: 3.0}})
    assert not slower["step_time"].is_noise
    assert slower["step_time"].interval[0] < slower["step_time"].change < slower["step_time"].interval[1]
    assert slower["peak_memory"].interval is None
    assert not slower["peak_memory"].is_noise
