"""15, part 4: numbers that aren't log-probabilities of the same kind are neither noise nor agreement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.analysis.mismatch import mismatch
from probe.analysis.mismatch.answer import Mismatch
from probe.analysis.mismatch.judging import judge
from probe.analysis.mismatch.tails import times
from probe.analysis.mismatch.tokens import Answer, Tokens
from probe.cli import main
from tests.analysis.test_mismatch import noisy

Array = np.ndarray[Any, np.dtype[np.float64]]


def log_softmax(logits: Array) -> Array:
    return np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))


def sampled(drawing: np.random.Generator, share: float) -> tuple[Array, Array]:
    """What an engine tells of 40 tokens that it samples from the likeliest ones of this share, and training's number.

    Training's logits are the engine's, but for the rounding of bfloat16.
    """
    logits = drawing.normal(0, 2.5, (40, 64))
    train = log_softmax(logits + 0.004 * drawing.normal(size=logits.shape))
    whole = log_softmax(logits)
    order = np.argsort(-whole, axis=-1)
    ahead = np.cumsum(np.exp(np.take_along_axis(whole, order, -1)), -1) - np.exp(np.take_along_axis(whole, order, -1))
    kept = np.zeros(whole.shape, bool)
    np.put_along_axis(kept, order, ahead < share, -1)
    rollout = log_softmax(np.where(kept, logits, -1e9))
    picked = (rollout + drawing.gumbel(size=rollout.shape)).argmax(-1)[:, None]
    return np.take_along_axis(rollout, picked, -1)[:, 0], np.take_along_axis(train, picked, -1)[:, 0]


def answers(change: Any = lambda rollout, train: (rollout, train), share: float = 2.0) -> Tokens:
    """Forty answers of that, each changed."""
    drawing = np.random.default_rng(5)
    told = [change(*sampled(drawing, share)) for _ in range(40)]
    return Tokens(
        [Answer(rollout, train, np.ones(40), known={"step": at // 4}) for at, (rollout, train) in enumerate(told)]
    )


def test_4_log_probabilities_of_a_cut_vocabulary_are_no_noise() -> None:
    found = Mismatch(answers(share=0.9))
    assert (found.judgement.cause, found.judgement.confidence, found.judgement.alternatives) == (
        "one_sided",
        "high",
        (),
    )
    assert found.sentence.startswith("Rollout gives nearly all tokens a higher log-probability than training does.")
    assert "of the differences have the same sign" in found.judgement.why
    assert found.causes[0].cause == "one_sided"
    assert judge(answers()).cause == "agree"


@pytest.mark.parametrize(
    ("change", "side", "said"),
    [
        (
            lambda r, t: (r / np.log(2), t),
            "training",
            "Rollout gives 1.44 times the other side's numbers: logarithms to",
        ),
        (
            lambda r, t: (r, t / np.log(2)),
            "rollout",
            "Training gives 1.44 times the other side's numbers: logarithms to",
        ),
        (lambda r, t: (r / np.log(10), t), "rollout", "Rollout gives 0.434 times the other side's numbers: logarithms"),
        (lambda r, t: (-r, t), "rollout", "tokens a number above 0, which no logarithm of a probability is."),
        (lambda r, t: (np.exp(r), t), "rollout", "tokens a number above 0, which no logarithm of a probability is."),
    ],
    ids=["base 2", "training in base 2", "base 10", "other sign", "probabilities"],
)
def test_4_what_isnt_a_natural_logarithm_is_named(change: Any, side: str, said: str) -> None:
    judged = judge(answers(change))
    assert (judged.cause, judged.confidence, judged.higher) == ("one_sided", "high", side)
    assert said in judged.why


def test_4_small_differences_of_one_sign_agree_but_are_not_called_noise_of_both() -> None:
    judged = judge(answers(lambda r, t: (r + 0.008, t)))
    assert (judged.cause, judged.confidence) == ("agree", "medium")
    assert "of both signs" not in judged.why
    assert "of the differences have the same sign: rollout gives the higher number." in judged.why
    same = judge(answers(lambda r, t: (t, t)))
    assert same.cause == "agree"
    assert same.why.startswith("Both sides' numbers are the same.")


def test_4_numbers_that_are_all_0_are_no_tokens_that_were_never_sampled() -> None:
    found = Mismatch(answers(lambda r, t: (0 * r, t)))
    assert found.judgement.cause == "unknown"
    assert "the rollout gives every token a log-probability of exactly 0." in found.sentence
    (lacks,) = found.withheld
    assert lacks.change is not None
    assert "temperature above 0" in lacks.change.advice


@pytest.mark.parametrize("side", [0, 1])
def test_4_tokens_that_one_side_finds_impossible_arent_left_out_in_silence(side: int) -> None:
    def change(*told: Array) -> tuple[Array, ...]:
        changed = [one.copy() for one in told]
        changed[side][7] = -np.inf
        return tuple(changed)

    found = Mismatch(answers(change))
    assert found.judgement.cause == "unknown"
    assert "40 tokens can't be compared: one side gives them a probability of 0." in found.sentence
    hot = judge(answers(lambda r, t: change(1.4 * r, t)))
    assert hot.cause not in ("agree", "unknown")
    assert hot.why.endswith("40 tokens can't be compared: one side gives them a probability of 0.")


def test_4_a_last_token_that_differs_is_no_text_that_goes_on_otherwise_and_no_temperature() -> None:
    def change(rollout: Array, train: Array) -> tuple[Array, Array]:
        train = train.copy()
        train[-1] = -12.0
        return rollout, train

    judged = judge(answers(change))
    assert judged.cause not in ("retokenised", "shift", "temperature", "agree")
    assert judged.confidence == "low"


def test_4_many_times_as_much_is_told_without_an_exponent() -> None:
    drawing = np.random.default_rng(8)
    fresh = [noisy(drawing, 30, 0.001, step=at % 4, weight_version=at % 4) for at in range(32)]
    old = [noisy(drawing, 30, 0.7, step=4 + at % 4, weight_version=2 + at % 4) for at in range(32)]
    judged = judge(Tokens([*fresh, *old]))
    assert judged.cause == "stale"
    assert "e+" not in judged.why
    assert times(123.4) == "123"


def test_4_answers_too_long_for_their_tokens_to_be_kept_are_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = probe.start("t", "long", run_dir=tmp_path / "run", rank=0, world_size=1)
    drawing, tokens = np.random.default_rng(1), 60_000
    with session.step(0):
        numbers = -drawing.exponential(1, (2, tokens))
        probe.samples(
            [tokens] * 2, rollout_log_probs=numbers, log_probs=numbers + 0.01 * drawing.normal(size=(2, tokens))
        )
    session.close()
    with session.run as run:
        found = mismatch(run)
        assert found is not None
        assert "the tokens of no answer are kept; those of a batch may take 128 KiB." in found.sentence
        assert any(found.sentence == one.sentence for one in run.findings().withheld)
    assert main(["mismatch", str(tmp_path / "run")]) == 1
    assert "128 KiB" in capsys.readouterr().out.replace("\n  ", " ")
