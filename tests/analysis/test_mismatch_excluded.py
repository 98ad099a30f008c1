"""15, part 4: each cause of a mismatch that it isn't is told with the reason why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probe.analysis.mismatch.excluded import Considered, considered
from probe.analysis.mismatch.judging import judge
from probe.analysis.mismatch.tokens import Answer, Tokens
from tests.analysis.test_mismatch import cut, noisy

ALL = {"retokenised", "shift", "untrained", "temperature", "stale", "unsynced", "rank", "rows", "one_sided", "kernels"}


def looked(answers: list[Answer]) -> dict[str, Considered]:
    """What is told of each cause, that which was found first."""
    tokens = Tokens(answers)
    found = considered(tokens, judge(tokens))
    assert {one.cause for one in found} == ALL
    assert len(found) == len(ALL)
    return {one.cause: one for one in found}


def clean(drawing: np.random.Generator, many: int = 40, size: float = 0.005, **known: Any) -> list[Answer]:
    """Answers of plain noise, of two ranks and ten steps, by the trainer's own weights."""
    told: dict[str, Any] = {"weight_version": None, "trainer_version": None} | known
    return [
        noisy(
            drawing,
            60,
            size,
            step=at // 4,
            rank=at % 2,
            **{name: at // 4 if value is None else value for name, value in told.items()},
        )
        for at in range(many)
    ]


def test_4_where_they_agree_each_cause_is_excluded_with_its_number() -> None:
    found = looked(clean(np.random.default_rng(1)))
    assert next(iter(found)) == "kernels"
    assert found["kernels"].state == "noise"
    assert {one.state for name, one in found.items() if name != "kernels"} == {"no"}
    assert found["stale"].seen == "All answers were sampled by the trainer's own version."
    assert found["temperature"].seen.startswith("The best fit, 1.00 times training's, explains 0 % ")
    assert found["rows"].seen == "None of 40 answers differs more than the noise of its few tokens."
    assert "times those of plain noise; other weights make 2 or more." in found["unsynced"].seen


def test_4_what_wasnt_recorded_excludes_nothing() -> None:
    drawing = np.random.default_rng(2)
    found = looked([noisy(drawing, 60) for _ in range(40)])
    assert found["stale"] == ("stale", "unknown", "Which weights sampled the answers wasn't recorded.")
    assert found["rank"] == ("rank", "unknown", "No two ranks are known of these answers.")
    assert found["temperature"].seen.endswith("Entropies weren't recorded, so the fit is a guess.")


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (-1, "All answers are of weights 2 versions old: none is of newer ones to compare with."),
        (9, "How old the weights are that sampled the answers isn't known."),  # newer than the trainer's
    ],
)
def test_4_weights_of_one_age_or_of_none_dont_exclude_that_they_are_stale(version: int, said: str) -> None:
    found = looked(clean(np.random.default_rng(3), weight_version=version, trainer_version=1))
    assert found["stale"][1:] == ("unknown", said)


def test_4_older_weights_that_differ_no_more_are_excluded() -> None:
    answers = clean(np.random.default_rng(4))
    old = [
        replace(one, known={**one.known, "weight_version": one.known["step"] - at % 2})
        for at, one in enumerate(answers)
    ]
    found = looked(old)
    assert found["stale"].state == "no"
    assert found["stale"].seen.startswith("The answers of older weights differ ")


def test_4_beside_other_tokens_in_some_answers_causes_are_looked_for_in_the_others() -> None:
    drawing = np.random.default_rng(5)
    found = looked([*clean(drawing), *[replace(cut(drawing, 60, 20), known={"step": 9, "rank": 0}) for _ in range(8)]])
    assert next(iter(found)) == "retokenised"
    assert found["retokenised"].state == "yes"
    assert found["kernels"].state == "noise"
    assert found["kernels"].seen.startswith("k3 of the other answers is ")
    assert (found["rows"].state, found["rank"].state, found["temperature"].state) == ("no", "no", "no")
    assert found["shift"].state == "perhaps"  # one looks like the other
    assert found["shift"].seen.endswith("But it can look like what was found.")


def test_4_where_all_answers_show_it_nothing_else_can_be_told() -> None:
    drawing = np.random.default_rng(6)
    found = looked([replace(cut(drawing, 60, 20), known={"step": at, "rank": 0}) for at in range(12)])
    assert found["retokenised"].state == "yes"
    assert found["rank"] == ("rank", "unknown", "Too few other answers are left to tell.")
    assert found["untrained"].state == "no"


def test_4_what_explains_some_answers_alone_is_a_part_of_it() -> None:
    drawing = np.random.default_rng(7)
    answers = clean(drawing, size=0.6)
    for at in range(3):
        one = answers[at]
        rollout = one.rollout.copy()
        rollout[10:26] = 0.0
        train = one.train.copy()
        train[10:26] = -5.0
        answers[at] = replace(one, rollout=rollout, train=train)
    tokens = Tokens(answers)
    judged = judge(tokens)
    assert judged.cause not in ("untrained", "agree")
    found = {one.cause: one for one in considered(tokens, judged)}
    assert found["untrained"].state == "part"
    assert found["untrained"].seen.startswith(
        "3 of 40 answers have tokens in the loss whose rollout log-probability is exactly 0: "
    )


def test_4_a_loud_rank_is_found_and_the_other_rank_is_noise() -> None:
    drawing = np.random.default_rng(8)
    quiet, loud = clean(drawing), clean(drawing, size=0.3)
    found = looked([one if one.known["rank"] == 0 else other for one, other in zip(quiet, loud, strict=True)])
    assert next(iter(found)) == "rank"
    assert found["rank"].state == "yes"
    assert found["kernels"].state == "noise"
    assert found["stale"].state == "no"


def test_4_too_few_tokens_tell_nothing() -> None:
    tokens = Tokens([noisy(np.random.default_rng(9), 5)])
    assert considered(tokens, judge(tokens)) == []
