"""The bounds of a change are wrong as rarely as they promise, and say what they should where there is no noise."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from probe.analysis.noise import Change, _share, change
from tests.analysis.noisy_runs import WORLDS, autoregressive, remembering, wrong

DRAWS = 400


def allowed(share: float, draws: int = DRAWS) -> float:
    """So many wrong ones of a share that is promised aren't passed by chance but once in 10,000 draws."""
    return draws * share + NormalDist().inv_cdf(0.9999) * math.sqrt(draws * share * (1 - share))


@pytest.mark.parametrize("steps", [20, 60, 200])
@pytest.mark.parametrize("world", WORLDS)
def test_6_a_change_at_the_margin_is_called_within_or_beyond_no_more_often_than_promised(
    world: str, steps: int
) -> None:
    within, beyond, _ = wrong(WORLDS[world], steps, DRAWS, margin=0.05, confidence=0.95, paired=True)
    assert within <= allowed(0.05)
    assert beyond <= allowed(0.05)


@pytest.mark.parametrize("world", [name for name in WORLDS if "both runs" not in name])
def test_6_runs_without_a_step_in_common_keep_the_promise_too(world: str) -> None:
    within, beyond, _ = wrong(WORLDS[world], 60, DRAWS, margin=0.05, confidence=0.95, paired=False)
    assert max(within, beyond) <= allowed(0.05)


@pytest.mark.parametrize("confidence", [0.8, 0.99])
def test_6_other_confidences_keep_the_promise(confidence: float) -> None:
    for world in ("correlation 0.8", "independent, one step in 20 takes 2 to 6 times as long"):
        told = wrong(WORLDS[world], 60, DRAWS, margin=-0.1, confidence=confidence, paired=True)
        assert max(told[:2]) <= allowed(1 - confidence)


def test_6_a_method_that_takes_steps_for_independent_would_fail_here() -> None:
    """The promise is worth a test: Student's t alone, on the same draws, is wrong far more often."""
    random, said = np.random.default_rng(60), 0
    for _ in range(DRAWS):
        one, other = WORLDS["correlation 0.8"](random, 60)
        apart = other - one
        said += apart.mean() + 1.67 * apart.std(ddof=1) / math.sqrt(60) < 0
    assert said > 2 * allowed(0.05)


def test_6_what_is_true_is_shown_with_enough_steps() -> None:
    random = np.random.default_rng(0)
    shown = {"same": 0, "worse": 0}
    for _ in range(100):
        one, other = autoregressive(0.3)(random, 300)
        shown["same"] += change(np.exp(one), np.exp(other), 0.95, paired=True).verdict(0.05, "max") == "within"
        shown["worse"] += change(np.exp(one), 1.1 * np.exp(other), 0.95, paired=True).verdict(0.05, "max") == "beyond"
    assert min(shown.values()) >= 80


def test_6_the_steps_that_are_said_to_be_needed_are_about_enough() -> None:
    random, enough = np.random.default_rng(1), []
    while len(enough) < 60:
        one, other = autoregressive(0.3)(random, 30)
        found = change(np.exp(one), np.exp(other), 0.95, paired=True)
        needed = found.steps_needed(0.05)
        if found.verdict(0.05, "max") != "not_shown" or needed is None or needed > 3000:
            continue
        assert needed > 30
        # What stays as it is: the change that was seen, and noise of the same kind.
        one, other = autoregressive(0.3)(random, needed)
        more = change(np.exp(one), (1 + found.value) * np.exp(other), 0.95, paired=True)
        enough.append(more.verdict(0.05, "max") != "not_shown")
    assert 0.4 <= np.mean(enough) <= 0.98


def test_6_pairs_of_the_same_batches_need_far_fewer_steps() -> None:
    paired = wrong(
        WORLDS["the same batches in both runs, of very different sizes"],
        60,
        50,
        margin=0.05,
        confidence=0.95,
        paired=True,
    )
    alone = wrong(
        WORLDS["the same batches in both runs, of very different sizes"],
        60,
        50,
        margin=0.05,
        confidence=0.95,
        paired=False,
    )
    assert alone[2] > 5 * paired[2]


def test_6_what_does_not_vary_is_compared_exactly() -> None:
    same = change([5.0, 7.0, 6.0], [5.0, 7.0, 6.0], 0.95, paired=True)
    assert (same.value, same.interval, same.is_constant) == (0.0, (0.0, 0.0), True)
    assert same.verdict(0.0, "max") == same.verdict(0.0, "min") == "within"
    more = change([5.0, 7.0, 6.0], [5.15, 7.21, 6.18], 0.95, paired=True)
    assert more.is_constant
    assert more.verdict(0.03, "max") == "within"
    assert more.verdict(0.029, "max") == "beyond"
    assert more.verdict(0.031, "min") == "beyond"
    apart = change([5.0, 5.0], [6.0, 6.0, 6.0], 0.95, paired=False)
    assert apart.is_constant
    assert apart.value == pytest.approx(0.2)


def test_6_one_step_says_nothing_of_noise() -> None:
    for paired in (True, False):
        found = change([5.0], [9.0], 0.95, paired=paired)
        assert found.verdict(0.05, "max") == found.verdict(0.05, "min") == "not_shown"
        assert found.steps_needed(0.05) is None
        assert not found.is_constant


def test_6_numbers_at_or_below_zero_are_compared_by_their_difference() -> None:
    random = np.random.default_rng(2)
    base = -0.4 + 0.01 * random.standard_normal(100)
    other = base + 0.04 + 0.001 * random.standard_normal(100)
    found = change(base, other, 0.95, paired=True)
    assert found.value == pytest.approx(0.1, rel=0.05)  # of |-0.4|, upwards
    assert found.verdict(0.05, "max") == "beyond"
    assert found.verdict(-0.02, "min") == "within"
    nothing = change(np.zeros(20), np.full(20, 0.03), 0.95, paired=True)
    assert (nothing.value, nothing.verdict(0.05, "max")) == (0.03, "beyond")  # 5 % of nothing is nothing


def test_6_few_odd_steps_do_not_decide() -> None:
    random = np.random.default_rng(3)
    base, other = (np.exp(0.01 * random.standard_normal(50)) for _ in range(2))
    other[7] *= 40
    assert change(base, other, 0.95, paired=True).verdict(0.05, "max") == "within"


def test_6_a_drift_apart_is_not_taken_for_the_change_of_a_typical_step() -> None:
    drift = np.exp(np.linspace(0, 0.1, 60) + 0.001 * np.random.default_rng(4).standard_normal(60))
    found = change(np.ones(60), drift, 0.95, paired=True)
    assert found.verdict(0.06, "max") == "not_shown"


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8, 0.95])
def test_6_the_variance_of_an_autocorrelated_mean_is_its_sum(memory: float) -> None:
    for count in (2, 7, 40):
        lags = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
        assert _share(memory, count) == pytest.approx((memory**lags).mean())


def test_6_planted_noise_remembers_as_it_says() -> None:
    told = remembering(np.random.default_rng(5), 20_000, 0.8)
    assert np.corrcoef(told[1:], told[:-1])[0, 1] == pytest.approx(0.8, abs=0.02)
    assert told.std() == pytest.approx(1, abs=0.05)


def test_6_the_same_steps_give_the_same_bounds() -> None:
    one, other = autoregressive(0.5)(np.random.default_rng(6), 50)
    bounds = {change(np.exp(one), np.exp(other), 0.95, paired=True).interval for _ in range(3)}
    assert len(bounds) == 1
    wider = change(np.exp(one), np.exp(other), 0.99, paired=True)
    assert isinstance(wider, Change)
    ((low, high),) = bounds
    assert wider.interval[0] < low < wider.value < high < wider.interval[1]
