"""15, audit: means of the mismatch are those of all answers, though bad ones are kept on purpose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import probe
from probe.analysis.mismatch.answer import Mismatch
from probe.analysis.mismatch.gathering import gathered
from probe.analysis.mismatch.lag import lags
from probe.analysis.mismatch.measures import measured
from probe.analysis.mismatch.split import split
from probe.analysis.mismatch.tokens import Answer, Tokens
from probe.opened import Run
from probe.recorders.samples import SamplesRecorder
from tests.analysis.test_mismatch_split import answers_of

MEANS = ("k1", "k2", "k3", "below_ratio", "above_ratio", "ratio_mean", "difference_mean")


def simulated(place: Path, steps: int, answers: int, blocks: int, *, alike: bool) -> list[np.ndarray]:
    """Record batches of which few answers are kept; long ones differ more, and so do those without advantage.

    Args:
        place: Of the run.
        steps: One batch each.
        answers: Of a batch.
        blocks: Answers that are kept.
        alike: Whether all answers of a batch have one length.

    Returns:
        The log ratios of all tokens, an array a batch.
    """
    drawing, found = np.random.default_rng([answers, blocks, alike]), []
    with probe.start(
        "mismatch", run_dir=place, rank=0, world_size=1, recorders=[SamplesRecorder(blocks=blocks)]
    ) as session:
        for step in range(steps):
            lengths = np.full(answers, 20) if alike else drawing.integers(5, 40, answers)
            advantage = (drawing.random(answers) < 0.7).astype(float)
            size = np.exp(0.8 * drawing.normal(size=answers)) * 0.2 * lengths / 20 * (2 - advantage)
            train = [-drawing.exponential(1.5, int(many)) for many in lengths]
            rollout = [one - off * drawing.normal(size=len(one)) for one, off in zip(train, size, strict=True)]
            with session.step(step):
                probe.samples(
                    lengths.tolist(),
                    rollout_log_probs=rollout,
                    log_probs=train,
                    advantages=advantage,
                    weight_versions=[step - at % 2 for at in range(answers)],
                    trainer_version=step,
                    clipped=False,
                )
            found.append(np.concatenate(train) - np.concatenate(rollout))
    return found


@pytest.mark.parametrize(("answers", "blocks"), [(6, 4), (12, 4), (40, 16)])
def test_the_mean_of_many_estimates_is_that_of_all_tokens(answers: int, blocks: int, tmp_path: Path) -> None:
    truth = [measured(one) for one in simulated(tmp_path / "run", 200, answers, blocks, alike=True)]
    with Run(tmp_path / "run") as run:
        tokens = gathered(run, most=10_000)
    assert tokens is not None
    assert len(tokens.answers) == 200 * blocks
    assert tokens.weights.sum() == pytest.approx(200 * answers)
    by_step = Mismatch(tokens).by("step")
    for name in MEANS:
        off = by_step[name].to_numpy() - np.array([getattr(one, name) for one in truth])
        error = off.std(ddof=1) / np.sqrt(len(off))
        assert error > 0, name
        assert abs(off.mean()) <= 3.5 * error, name


def test_unlike_lengths_and_the_split_add_no_more_than_the_errors_of_the_draw(tmp_path: Path) -> None:
    log_ratio = np.concatenate(simulated(tmp_path / "run", 240, 16, 4, alike=False))
    truth = measured(log_ratio)
    with Run(tmp_path / "run") as run:
        found = run.mismatch()
    assert found is not None
    assert found.split is not None
    for name, within in (("k2", 0.15), ("k3", 0.15), ("effective_ratio", 0.15), ("below_ratio", 0.1)):
        assert getattr(found.measures, name) == pytest.approx(getattr(truth, name), rel=within), name
    assert found.split.total == pytest.approx(found.measures.k2, rel=1e-9)
    assert found.split.engine + found.split.stale + found.split.unknown == found.split.total
    by_lag = found.by("lag")
    assert by_lag["lag"].tolist() == ["0", "1"]


def test_an_answer_of_weight_3_counts_as_three_of_them() -> None:
    rows = [replace(one, weight=1.0 + at % 3) for at, one in enumerate(answers_of(4, 24, stale=0.01))]
    thrice = [one for one in rows for _ in range(int(one.weight))]
    weighted, counted = Mismatch(Tokens(rows)), Mismatch(Tokens([replace(one, weight=1.0) for one in thrice]))
    for name in (*MEANS, "effective_ratio"):
        assert getattr(weighted.measures, name) == pytest.approx(getattr(counted.measures, name), rel=1e-9), name
    one, other = weighted.split, counted.split
    assert one is not None
    assert other is not None
    assert (one.engine, one.stale, one.total) == pytest.approx((other.engine, other.stale, other.total), rel=1e-9)
    assert one.engine + one.stale + one.unknown == one.total
    assert one.fresh_answers + one.stale_answers == 24
    assert one.error > other.error  # twenty-four answers are known, not three times as many
    tokens = Tokens([replace(each, weight=2.5) for each in rows])
    alike = split(tokens, lags(tokens))
    bare = Tokens([replace(each, weight=1.0) for each in rows])
    plain = split(bare, lags(bare))
    assert alike is not None
    assert plain is not None
    assert (alike.total, alike.error) == pytest.approx((plain.total, plain.error), rel=1e-9)


def test_where_nobody_stands_for_the_others_all_that_is_kept_counts() -> None:
    rows = [Answer(np.zeros(2), np.full(2, off), np.ones(2), weight=0.0) for off in (0.1, 0.3)]
    found = Mismatch(Tokens(rows))
    assert found.measures.tokens == 4
    assert found.measures.k1 == pytest.approx(-0.2)


def test_15_1_stale_weights_are_named_in_batches_of_which_few_answers_have_a_row(tmp_path: Path) -> None:
    drawing, answers = np.random.default_rng(31), 256
    with probe.start("mismatch", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        for step in range(10):
            stale = (np.arange(answers) % 2 == 1) & (step >= 4)
            train = -drawing.exponential(1.5, (answers, 30))
            off = np.where(stale, 0.2, 0.002)[:, None] * drawing.normal(size=train.shape)
            with session.step(step):
                probe.samples(
                    [30] * answers,
                    rollout_log_probs=train + off,
                    log_probs=train,
                    advantages=drawing.normal(size=answers),
                    weight_versions=np.where(stale, step - 3, step),
                    trainer_version=step,
                    replicas=["one", "two"] * (answers // 2),
                    clipped=False,
                )
    with Run(tmp_path / "run") as run:
        tokens, found = gathered(run), run.mismatch()
    assert tokens is not None
    assert found is not None
    assert {one.known["replica"] for one in tokens.answers} == {"one", "two"}
    assert all(one.known["weight_version"] is not None for one in tokens.answers)
    assert (found.judgement.cause, found.judgement.version, found.judgement.since) == ("stale", 1, 4)
