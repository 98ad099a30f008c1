"""15, part 2: what isn't known of single answers, or isn't a number, takes nothing else with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import probe
from probe import hooks
from probe.errors import InputError
from probe.records import Sample, TokenFate
from tests.recorders.test_samples import of, recorded


def test_15_2_none_among_numbers_is_a_number_that_isnt_known_and_takes_no_row_with_it():
    rows = recorded(
        lambda: probe.samples(
            [3, 2],
            prompt_tokens=[None, 4],
            groups=[None, None],
            uids=[None, "b"],
            ended=[None, "length"],
            replicas=[None, "a"],
            turns=[None, 2],
            has_error=[None, False],
            rewards=[None, 1.0],
            advantages=[None, 1.0],
            log_probs=[[-1.0, None, -3.0], [-1.0, -1.0]],
            weight_versions=[None, 7],
            clipped=False,
        )
    )
    first, second = of(rows, Sample)
    assert [(one.uid, one.group, one.ended, one.replica) for one in (first, second)] == [
        ("", "", "", ""),
        ("b", "", "length", "a"),
    ]
    assert (first.prompt_tokens, first.turns, first.weight_version, first.has_error) == (None, None, None, None)
    assert (second.prompt_tokens, second.turns, second.weight_version, second.reward) == (4, 2, 7, 1.0)
    assert (first.nan_count, first.log_prob_mean) == (5, -2.0)  # the reward, three advantages and a log-probability
    assert {row.batch_prompt_tokens for row in of(rows, TokenFate)} == {None}
    assert {row.equal_tokens for row in of(rows, TokenFate)} == {None}  # no group is known


@pytest.mark.parametrize("rewards", [[[0.0, 1.0], [1.0]], [[0.0, 1.0], [0.5, 1.0]], ["good", "bad"]])
def test_15_2_what_is_no_number_of_each_answer_is_not_known(rewards):
    (first, second) = of(recorded(lambda: probe.samples([2, 2], rewards=rewards, advantages=[1.0, 0.0])), Sample)
    assert (first.reward, second.reward) == (None, None)
    assert (first.clip_unknown_tokens, second.no_advantage_tokens) == (2, 2)


def test_15_2_flags_in_the_place_of_rows_are_told_as_an_error():
    with hooks.subscribe(hooks.Listener(), "samples.*"):
        for flags in ([True, False], np.array([True, False]), torch.tensor([True, False])):
            with pytest.raises(InputError, match="rows: got yes and no, expected the places"):
                probe.trained(flags)


def test_15_3_a_failed_answer_that_the_mask_leaves_out_failed_and_one_that_is_trained_did_not():
    mask = [[1, 1], [0, 0], [1, 0], [0, 0]]
    told = {"mask": mask, "has_error": [False, True, True, False], "advantages": [1.0] * 4, "clipped": False}
    rows = recorded(lambda: probe.samples([2, 2, 2, 2], dropped=[None, None, None, "stale"], **told))
    assert {row.fate: row.tokens for row in of(rows, TokenFate)} == {"stale": 2, "failed": 2, "masked": 1, "carried": 3}
    assert [(row.dropped, row.trainable) for row in of(rows, Sample)] == [
        ("", True),
        ("", False),  # it is in the batch
        ("", True),
        ("stale", False),
    ]
