"""15.4: the mean difference by token, of answers aligned at the first token that differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.analysis.mismatch.onset import LEAST, NONE, POINTS, SOMEWHERE, curve, first_differing, key_of
from probe.analysis.mismatch.tokens import Answer, Tokens


def answer(difference: list[float], *, mask: list[int] | None = None, weight: float = 1.0, **known: Any) -> Answer:
    train = np.full(len(difference), -1.0)
    told = {"step": 0, "process": "p", "batch_id": 0, "row": 0} | known
    counted = np.ones(len(difference)) if mask is None else np.array(mask)
    return Answer(rollout=train - difference, train=train, mask=counted, known=told, weight=weight)


def tokens_of(*answers: Answer) -> Tokens:
    return Tokens([Answer(**{**vars(one), "known": {**one.known, "row": row}}) for row, one in enumerate(answers)])


def test_each_point_is_the_mean_of_the_answers_that_have_a_token_there_and_a_gap_where_too_few_have() -> None:
    tokens = tokens_of(answer([0, 0, 2, 4]), answer([0, -2, -4, 5]), answer([0, 0, 2]), answer([0.5, 0.5, 0.5]))
    told = curve(tokens, np.array([2, 1, 2, NONE]))
    assert told is not None
    assert (told.begin, told.width, told.answers, told.place) == (-2, 1, (3, 1), 2)
    # Offset −2 is of two answers, and offset 2 of one.
    np.testing.assert_allclose(told.concerned, [np.nan, 0, 2, np.nan, np.nan])
    assert np.isnan(told.others).all()  # one answer is no mean


def test_the_others_are_aligned_at_the_median_and_those_whose_place_isnt_known_are_left_out() -> None:
    cut = [answer([0, 0, 3, 3]) for _ in range(3)]
    quiet = [answer([0.1, -0.1, 0.3, -0.3]) for _ in range(3)]
    told = curve(tokens_of(*cut, *quiet, answer([9, 9, 9, 9])), np.array([2] * 3 + [NONE] * 3 + [SOMEWHERE]))
    assert told is not None
    np.testing.assert_allclose(told.concerned, [0, 0, 3, 3])
    np.testing.assert_allclose(told.others, [0.1, 0.1, 0.3, 0.3])
    assert told.answers == (3, 3)


def test_an_answer_counts_for_as_many_as_it_stands_for_and_tokens_outside_the_loss_for_none() -> None:
    tokens = tokens_of(
        answer([0, 1], weight=3.0), answer([0, 5]), answer([0, 5], mask=[1, 1]), answer([7, 7], mask=[0, 0])
    )
    told = curve(tokens, np.array([1, 1, 1, 1]))
    assert told is not None
    np.testing.assert_allclose(told.concerned, [0, (3 * 1 + 5 + 5) / 5])
    assert told.answers[0] == 3


def test_long_answers_share_points_and_one_begins_at_the_first_token_that_differs() -> None:
    many = [answer([0.0] * 500 + [2.0] * 777) for _ in range(LEAST)]
    told = curve(tokens_of(*many), np.full(LEAST, 500))
    assert told is not None
    assert len(told.concerned) <= POINTS
    assert told.begin % told.width == 0
    at = -told.begin // told.width
    assert told.concerned[at] == 2.0
    assert told.concerned[at - 1] == 0.0  # no point has tokens of both sides


def test_with_too_few_answers_nothing_is_told() -> None:
    few = [answer([0, 0, 2, 2]) for _ in range(LEAST - 1)]
    assert curve(tokens_of(*few, answer([0, 0])), np.array([2, 2, NONE])) is None
    apart = [answer([0.0] * 9 + [1.0]), answer([1.0]), answer([0.0] * 5 + [1.0])]
    shared = tokens_of(*apart, *few)
    assert curve(shared, np.array([9, 0, 5, NONE, NONE])) is not None  # the first token that differs is of all three


def test_where_ids_were_compared_they_say_the_first_token_else_the_log_probabilities() -> None:
    drawing = np.random.default_rng(1)
    train = -drawing.exponential(2.0, (3, 60)) - 0.02
    rollout = train.copy()
    rollout[:2, 30:] = -drawing.exponential(2.0, (2, 30)) - 0.02
    known = {"step": 4, "process": "p", "batch_id": 7}
    tokens = Tokens(
        [Answer(rollout[row], train[row], np.ones(60, bool), known=known | {"row": row}) for row in range(3)]
    )
    assert [key_of(tokens, at) for at in range(3)] == [(4, "p", 7, row) for row in range(3)]
    seen = first_differing(tokens, {})
    assert seen[2] == NONE
    assert seen[:2] == pytest.approx([30, 30], abs=2)
    exact = {(4, "p", 7, 0): 28, (4, "p", 7, 1): SOMEWHERE, (4, "p", 7, 2): SOMEWHERE, (5, "p", 7, 2): 3}
    assert first_differing(tokens, exact).tolist() == [28, seen[1], SOMEWHERE]
    assert first_differing(tokens, {(4, "p", 7, 0): 99})[0] == seen[0]  # beyond its end it is no token of it
