"""15, part 4: why rollout and training disagree. Measures and patterns against values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probe.analysis.mismatch import patterns
from probe.analysis.mismatch.answer import Mismatch
from probe.analysis.mismatch.judging import judge
from probe.analysis.mismatch.measures import measured, ratios
from probe.analysis.mismatch.tokens import Answer, Tokens
from probe.analysis.verdict import agreement
from probe.errors import UnknownNameError


def answer(rollout: list[float], train: list[float], mask: list[int] | None = None, **known: Any) -> Answer:
    """An answer of so many tokens."""
    counted = [1] * len(rollout) if mask is None else mask
    return Answer(np.array(rollout), np.array(train), np.array(counted), known=known)


def noisy(drawing: np.random.Generator, tokens: int, size: float = 0.005, **known: Any) -> Answer:
    """An answer whose numbers differ by plain noise on logits."""
    train = -drawing.exponential(2.0, tokens) - 0.02
    return Answer(train + size * drawing.normal(size=tokens) * -np.expm1(train), train, np.ones(tokens), known=known)


def test_4_k1_k2_k3_tails_and_effective_sample_size_are_those_of_their_definitions() -> None:
    # Ratios 1, 2 and 1/4: by hand, with log 2 = 0.6931.
    found = measured(np.log([1.0, 2.0, 0.25]))
    log2 = math.log(2)
    assert found.tokens == 3
    assert found.k1 == pytest.approx((0 - log2 + 2 * log2) / 3)
    assert found.k2 == pytest.approx((log2**2 + 4 * log2**2) / 2 / 3)
    assert found.k3 == pytest.approx(((2 - 1 - log2) + (0.25 - 1 + 2 * log2)) / 3)
    assert found.ratio_mean == pytest.approx(3.25 / 3)
    assert found.effective_ratio == pytest.approx(3.25**2 / (3 * (1 + 4 + 1 / 16)))
    assert found.below_ratio == pytest.approx(1 / 3)
    assert found.above_ratio == 0  # 2 isn't above 2
    assert found.difference_mean == pytest.approx(log2)
    assert found.difference_largest == pytest.approx(-2 * log2)
    assert found.ratio_quantiles is not None
    assert found.ratio_quantiles[0.5] == pytest.approx(1.0)


def test_4_k1_is_the_divergence_of_rollout_from_training_and_k3_has_its_mean_too() -> None:
    rollout, train = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.3, 0.2])
    sampled = np.repeat(np.arange(3), [7000, 2000, 1000])  # as often as the rollout draws them
    found = measured(np.log(train[sampled]) - np.log(rollout[sampled]))
    exact = float((rollout * np.log(rollout / train)).sum())
    assert found.k1 == pytest.approx(exact)
    assert found.k3 == pytest.approx(exact)
    assert found.ratio_mean == pytest.approx(1)


def test_4_without_tokens_nothing_is_measured_and_what_is_huge_stays_finite() -> None:
    assert measured(np.empty(0)).k3 is None
    assert ratios(np.array([1e6]))[0] == pytest.approx(math.exp(20))
    assert math.isfinite(measured(np.array([1e6, -1e6])).effective_ratio or math.nan)


def test_4_turns_and_positions_follow_from_the_mask() -> None:
    tokens = Tokens([answer([-1.0] * 5, [-1.0] * 5, [1, 1, 0, 1, 1]), answer([-1.0] * 2, [-1.0] * 2, [0, 1])])
    assert tokens.turn.tolist() == [0, 0, -1, 1, 1, -1, 0]
    assert tokens.position.tolist() == [0, 1, 2, 3, 4, 0, 1]


def test_4_views_measure_the_tokens_of_each_value() -> None:
    found = Mismatch(Tokens([answer([-1.0, -2.0], [-1.0, -2.0], rank=0), answer([-1.0], [-1.5], rank=1)]))
    by_rank = found.by("rank")
    assert by_rank["rank"].tolist() == ["0", "1"]
    assert by_rank["tokens"].tolist() == [2, 1]
    assert by_rank["k1"].tolist() == [0, 0.5]
    assert found.by("replica").empty
    assert [one.log_ratio for one in found.worst(1)] == [-0.5]
    with pytest.raises(UnknownNameError, match="what: got 'colour'"):
        found.by("colour")


def test_4_answers_kept_for_how_bad_they_are_count_among_the_worst_tokens_alone() -> None:
    usual, worst = answer([-1.0], [-1.0]), replace(answer([-1.0], [-9.0]), weight=0.0)
    found = Mismatch(Tokens([usual, worst]))
    assert found.measures.tokens == 1
    assert found.measures.k1 == 0
    assert found.worst(1)[0].log_ratio == -8


def test_4_tokens_that_were_never_sampled_are_told_from_an_edge_of_the_mask() -> None:
    whole = answer([-1, 0, 0, 0, -1], [-1, -5, -4, -6, -1], [1, 1, 1, 1, 1])
    edge = answer([-1, 0, 0, 0, -1], [-1, -5, -4, -6, -1], [1, 1, 0, 0, 1])
    found = patterns.filled(Tokens([whole, edge]))
    assert np.flatnonzero(found.inside).tolist() == [1, 2, 3]
    assert np.flatnonzero(found.edge).tolist() == [6]


def test_4_a_row_that_is_shifted_is_told_from_one_that_was_cut_otherwise() -> None:
    drawing = np.random.default_rng(3)
    train = (-drawing.exponential(2.0, 20)).tolist()
    late = answer([0.0, *train[:-1]], train)
    cut = answer([*train[:8], -1.0, *train[8:-1]], train)
    tokens = Tokens([late, cut, answer(train, train)])
    found = patterns.moved(tokens, tokens.compared)
    assert found.by.tolist() == [1, 1, 0]
    assert found.again.tolist() == [False, True, False]
    assert abs(int(found.since[1]) - 8) <= 1


def cut(drawing: np.random.Generator, tokens: int, at: int, noise: float = 0.0) -> Answer:
    """An answer whose text goes on with other tokens from a position on: they agree by chance alone."""
    train = -drawing.exponential(2.0, tokens) - 0.02
    rollout = train + noise * drawing.normal(size=tokens)
    rollout[at:] = -drawing.exponential(2.0, tokens - at) - 0.02
    rollout[at] = train[at] - 0.3  # the first one differs by less than tokens that are far off
    return Answer(rollout, train, np.ones(tokens))


@pytest.mark.parametrize(("at", "tokens"), [(12, 40), (28, 60), (120, 200), (700, 1200)])
def test_4_the_position_from_which_the_text_is_another_is_exact_without_noise(at: int, tokens: int) -> None:
    drawing = np.random.default_rng(at)
    rows = Tokens([cut(drawing, tokens, at) for _ in range(20)])
    found = patterns.moved(rows, rows.compared)
    assert found.since.tolist() == [at] * 20
    assert found.by.tolist() == [0] * 20
    assert found.again.all()


@pytest.mark.parametrize("at", [28, 120])
def test_4_noise_moves_the_position_by_a_few_tokens_at_most(at: int) -> None:
    drawing = np.random.default_rng(at)
    rows = Tokens([cut(drawing, 2 * at, at, noise=0.05) for _ in range(40)])
    found = patterns.moved(rows, rows.compared)
    assert np.abs(found.since - at).max() <= 4
    assert (found.since == at).mean() >= 0.9


@pytest.mark.parametrize("temperature", [0.8, 1.25])
def test_4_a_temperature_is_found_from_the_tokens_alone(temperature: float) -> None:
    drawing = np.random.default_rng(5)
    logits = drawing.normal(size=(3000, 12)) * 2
    at_one = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    hot = logits / temperature - np.log(np.exp(logits / temperature).sum(1, keepdims=True))
    drawn = (hot + drawing.gumbel(size=hot.shape)).argmax(1)[:, None]
    rollout, train = (np.take_along_axis(one, drawn, 1)[:, 0] for one in (hot, at_one))
    entropy = -(np.exp(at_one) * at_one).sum(1)
    rows = np.split(np.arange(3000), 100)
    tokens = Tokens([Answer(rollout[at], train[at], np.ones(30), entropy[at]) for at in rows])
    judged = judge(tokens)
    assert (judged.cause, judged.confidence) == ("temperature", "high")
    assert judged.temperature == pytest.approx(temperature, abs=0.05)


def test_4_it_says_that_it_cant_tell_where_data_are_few() -> None:
    judged = judge(Tokens([answer([-1.0] * 20, [-3.0] * 20)]))
    assert judged.cause == "unknown"
    assert "20 tokens of 1 answer have" in judged.why
    assert judge(Tokens([])).cause == "unknown"


def test_4_nan_and_infinity_are_not_compared() -> None:
    found = Mismatch(Tokens([answer([-1.0, math.nan, -math.inf], [-1.0, -1.0, -1.0])]))
    assert found.measures.tokens == 1


def test_4_plain_noise_agrees_and_much_of_it_is_called_kernels_not_weights() -> None:
    drawing = np.random.default_rng(7)
    known = [{"step": at % 8, "rank": at % 2, "weight_version": at % 8} for at in range(60)]
    small = judge(Tokens([noisy(drawing, 30, **one) for one in known]))
    assert (small.cause, small.confidence) == ("agree", "high")
    large = judge(
        Tokens([noisy(drawing, 30, 0.1, step=at % 8, rank=at % 2, weight_version=at % 8) for at in range(60)])
    )
    assert large.cause == "kernels"


def test_4_stale_weights_are_named_with_their_version_and_the_step_they_began_in() -> None:
    drawing = np.random.default_rng(8)
    fresh = [noisy(drawing, 30, step=at % 4, weight_version=at % 4, rank=at % 2) for at in range(32)]
    old = [noisy(drawing, 30, 0.2, step=4 + at % 4, weight_version=2 + at % 4, rank=at % 2) for at in range(32)]
    judged = judge(Tokens([*fresh, *old]))
    assert (judged.cause, judged.version, judged.lag, judged.since) == ("stale", 2, 2, 4)
    said = "Since step 4 the rollout samples with weights up to 2 versions old: the oldest is version 2."
    assert Mismatch(Tokens([*fresh, *old])).sentence.startswith(said)


def from_step_4(drawing: np.random.Generator, told: Callable[[int], dict[str, int]]) -> Tokens:
    """Answers that agree up to step 3 and differ from step 4 on; ``told`` gives the versions of a step."""
    steps = [at % 8 for at in range(64)]
    sizes = [0.2 if step >= 4 else 0.005 for step in steps]
    return Tokens(
        [noisy(drawing, 30, sizes[at], step=step, rank=at // 8 % 2, **told(step)) for at, step in enumerate(steps)]
    )


def test_13_other_weights_than_those_that_are_told_are_not_called_stale() -> None:
    """The complaint: after a sync the engine tells the newest version, and samples with weights it had before."""
    drawing = np.random.default_rng(10)
    found = Mismatch(from_step_4(drawing, lambda step: {"weight_version": step}))
    judged = found.judgement
    assert (judged.cause, judged.since, judged.version) == ("unsynced", 4, None)
    assert "no longer updated, though the engine reports that they are up to date." in judged.why
    assert found.sentence.startswith("Since step 4 the rollout samples with other weights than those of the version")
    finding = agreement._finding(found)
    assert (finding.kind, finding.since.step) == ("alarm", 4)
    assert "the trainer's version wasn't recorded, and all answers may lag behind it alike." in finding.missing[0]
    assert finding.change is not None
    assert "Compare the engine's parameters" in finding.change.advice
    # Always one version behind, as a rollout one step ahead is: the version tells nothing of what begins in step 4.
    ahead = from_step_4(drawing, lambda step: {"weight_version": step - 1, "trainer_version": step})
    assert judge(ahead).cause == "unsynced"
    # Nobody tells versions: it may be old weights.
    untold = judge(from_step_4(drawing, lambda step: {}))
    assert (untold.cause, untold.since) == ("stale", 4)
    assert "no weight version was recorded" in untold.why


def test_13_the_trainer_s_version_tells_how_old_weights_are() -> None:
    drawing = np.random.default_rng(11)
    judged = judge(
        from_step_4(drawing, lambda step: {"weight_version": step - (3 if step >= 4 else 1), "trainer_version": step})
    )
    assert (judged.cause, judged.version, judged.lag, judged.since) == ("stale", 1, 3, 4)


@pytest.mark.parametrize(("trainer", "cause"), [(0, "unsynced"), (1, "stale"), (None, "stale")])
def test_13_weights_that_never_were_the_trainer_s_are_told_where_both_versions_are(
    trainer: int | None, cause: str
) -> None:
    """Each answer is loud in some contexts and quiet in others, in all steps: other weights, not arithmetic."""
    drawing = np.random.default_rng(12)
    rows = []
    for at in range(60):
        one = noisy(drawing, 40, 0.005, step=at % 6, rank=at % 2, weight_version=at % 6)
        loud = drawing.random(40) < 0.15
        told = dict(one.known) | ({} if trainer is None else {"trainer_version": at % 6 + trainer})
        rows.append(Answer(one.rollout + loud * 0.4 * drawing.normal(size=40), one.train, one.mask, known=told))
    judged = judge(Tokens(rows))
    assert (judged.cause, judged.confidence) == (cause, "low")
    assert ("its weights are the trainer's" in judged.why) is (cause == "unsynced")


@pytest.mark.parametrize("told", [True, False])
def test_13_only_where_no_version_is_told_that_is_said_to_be_missing(told: bool) -> None:
    drawing = np.random.default_rng(9)
    version = [{"weight_version": at, "trainer_version": at} if told else {} for at in range(60)]
    sizes = [0.3 if at % 2 else 0.02 for at in range(60)]
    rows = [noisy(drawing, 30, sizes[at], step=at, rank=at % 2, **version[at]) for at in range(60)]
    found = Mismatch(Tokens(rows))
    assert found.judgement.cause == "rank"
    assert bool(agreement._finding(found).missing) is not told
