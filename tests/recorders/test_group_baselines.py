"""Issues 13 (supplement, c) and 15: failed and masked answers that move the baseline of their group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from probe import hooks, testing
from probe.analysis.found_samples import became_of, wish_of
from probe.analysis.step_samples import StepSamples
from probe.opened import Run
from probe.recorders.group_baselines import Baseline, Known, baseline, baselines
from probe.recorders.samples import SamplesRecorder
from probe.records import GroupBaseline, Sample

REWARDS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, -2.0]), min_size=2, max_size=8)


def advantages(rewards, counted, kind):
    """As trainers compute them, over the counted answers of one group."""
    mean, deviation = rewards[counted].mean(), rewards[counted].std()
    if kind == "grpo":
        return (rewards - mean) / (deviation + 1e-6)
    if kind == "leave one out":  # of the counted others
        many = counted.sum()
        return (rewards - mean) * many / max(many - 1, 1)
    return rewards - mean


@settings(max_examples=300, deadline=None)
@given(REWARDS, st.data(), st.sampled_from(["mean", "grpo", "leave one out"]), st.booleans())
def test_whose_mean_the_baseline_is_follows_from_rewards_and_advantages(rewards, data, kind, all_count):
    rewards = np.array(rewards)
    trained = np.array(data.draw(st.lists(st.booleans(), min_size=len(rewards), max_size=len(rewards))))
    if not trained.any() or trained.all():
        return
    made = advantages(rewards, np.ones_like(trained) if all_count else trained, kind).astype(np.float32)
    found = baseline(rewards, made.astype(np.float64), trained)
    if abs(rewards.mean() - rewards[trained].mean()) <= 1e-6 * max(np.abs(rewards).max(), 1e-12):
        assert found is Baseline.UNKNOWN
    elif not all_count:
        assert found is Baseline.TRAINED
    else:
        assert found is (Baseline.ALL if np.ptp(rewards[trained]) else Baseline.MOVED)


@settings(max_examples=200, deadline=None)
@given(REWARDS, st.data())
def test_what_is_no_straight_line_of_the_rewards_is_not_judged(rewards, data):
    """Advantages by chance: a group is judged only where they happen to be such a line."""
    rewards = np.array(rewards)
    drawn = np.array(data.draw(st.lists(st.floats(-3, 3), min_size=len(rewards), max_size=len(rewards))))
    trained = np.arange(len(rewards)) > 0
    found = baseline(rewards, drawn, trained)
    if found is not Baseline.UNKNOWN and np.ptp(rewards[trained]) > 0:
        slope, at_0 = np.polyfit(rewards[trained], drawn[trained], 1)
        assert slope > 0
        assert np.abs(drawn[trained] - slope * rewards[trained] - at_0).max() <= 0.05 * np.abs(drawn).max()


def test_nothing_is_said_of_rewards_or_advantages_that_are_not_known():
    trained = np.array([True, True, False])
    assert baseline(np.array([1.0, 0.0, np.nan]), np.array([0.5, -0.5, 0.0]), trained) is Baseline.UNKNOWN
    assert baseline(np.array([1.0, 0.0, 0.0]), np.array([np.nan, -0.5, 0.0]), trained) is Baseline.UNKNOWN
    worse_gets_more = np.array([-0.5, 0.5, 0.0])
    assert baseline(np.array([1.0, 0.0, 0.0]), worse_gets_more, trained) is Baseline.UNKNOWN


@pytest.mark.parametrize("half", [2, 4])
@pytest.mark.parametrize("all_count", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_groups_of_which_each_rank_tells_a_part_are_not_judged(seed, all_count, half):
    """As TRL's are, where a group has more answers than a rank generates; some parts fit by chance."""
    drawing, many = np.random.default_rng(seed), 200
    rewards = (drawing.random((many, 2 * half)) < 0.5).astype(float)
    failed = drawing.random(rewards.shape) < 0.1
    rewards[failed] = 0
    failed[:, 0] = False
    left_out = np.zeros_like(failed) if all_count else failed
    made = np.array([advantages(*one, "grpo") for one in zip(rewards, ~left_out, strict=True)])
    mine = np.s_[:, :half]
    names = [str(at // half) for at in range(many * half)]
    part = Known(names, *(of_all[mine].ravel() for of_all in (rewards, made, failed, ~failed)))
    row = baselines(part, 0, "here")
    assert row is not None
    assert row.failed_answers > 10
    assert (row.moved_groups, row.first_group) == (0, "")


def told(**named):
    collect = testing.Collect(SamplesRecorder())
    with hooks.subscribe(collect, *SamplesRecorder.points), hooks.scope("step", "step", step=3):
        probe.samples([2] * 6, groups=list("aaabbb"), **named)
    rows = collect.rows()
    return next((row for row in rows if isinstance(row, GroupBaseline)), None), rows


MASK = [[1, 1], [1, 1], [0, 0], [1, 1], [1, 1], [1, 1]]
REWARD = [1.0, 0.5, 0.0, 1.0, 0.5, 0.0]
OF_ALL = [0.5, 0.0, -0.5, 0.5, 0.0, -0.5]
OF_TRAINED = [0.25, -0.25, 0.0, 0.5, 0.0, -0.5]


def test_a_row_says_how_many_groups_are_moved_by_failed_answers():
    failed = [False, False, True, False, False, False]
    row, rows = told(mask=MASK, rewards=REWARD, advantages=OF_ALL, has_error=failed, tools=[3, 2, 1, 0, 0, 0])
    assert (row.answers, row.failed_answers, row.masked_answers) == (6, 1, 0)
    assert (row.groups, row.moved_groups, row.moved_by_failed, row.answers_by_failed) == (1, 1, 1, 2)
    assert (row.elsewhere_groups, row.unknown_groups) == (0, 0)
    assert (row.moved_answers, row.shift_mean, row.failed_reward_mean, row.first_group) == (2, 0.25, 0.0, "a")
    samples = [one for one in rows if isinstance(one, Sample)]
    assert [(one.has_error, one.masked, one.trainable, one.tools) for one in samples] == [
        (False, False, True, 3),
        (False, False, True, 2),
        (True, True, False, 1),
        *[(False, False, True, 0)] * 3,
    ]


def test_masked_answers_are_told_apart_from_failed_ones_and_right_baselines_from_moved_ones():
    row, _ = told(mask=MASK, rewards=REWARD, advantages=OF_ALL)
    assert (row.masked_answers, row.moved_groups, row.moved_by_failed, row.failed_reward_mean) == (1, 1, 0, None)
    row, _ = told(mask=MASK, rewards=REWARD, advantages=OF_TRAINED)
    assert (row.groups, row.moved_groups, row.elsewhere_groups, row.unknown_groups) == (1, 0, 0, 0)
    row, _ = told(mask=MASK, rewards=REWARD, advantages=[0.9, 0.4, -0.1, 0.5, 0.0, -0.5])
    assert (row.groups, row.moved_groups, row.elsewhere_groups, row.unknown_groups) == (1, 0, 1, 0)
    assert told(rewards=REWARD, advantages=OF_ALL)[0] is None  # every one is trained
    assert told(rewards=REWARD, advantages=OF_ALL, dropped="stale")[0].unknown_groups == 2  # none is
    assert told(mask=MASK, rewards=REWARD)[0] is None
    assert told(mask=MASK, advantages=OF_ALL)[0] is None
    by_token = [[0.5, 0.1], *([one] * 2 for one in OF_ALL[1:])]
    row, _ = told(mask=MASK, rewards=REWARD, advantages=np.array(by_token))
    assert (row.moved_groups, row.unknown_groups) == (0, 1)


def test_of_groups_moved_by_failed_answers_and_by_masked_ones_each_is_counted_apart():
    mask = [[1, 1], [1, 1], [0, 0], [1, 1], [0, 0], [1, 1], [1, 1], [1, 1]]
    rewards = [1.0, 0.5, 0.0, 1.0, 0.8, 0.3, 0.6, 0.4]
    failed = [False] * 4 + [True] + [False] * 3
    collect = testing.Collect(SamplesRecorder())
    moved = [one - 0.5 for one in rewards[:3]] + [one - 0.62 for one in rewards[3:]]
    with hooks.subscribe(collect, *SamplesRecorder.points), hooks.scope("step", "step", step=3):
        probe.samples([2] * 8, groups=list("aaabbbbb"), mask=mask, rewards=rewards, advantages=moved, has_error=failed)
    (row,) = [one for one in collect.rows() if isinstance(one, GroupBaseline)]
    assert (row.moved_groups, row.moved_answers) == (2, 6)
    assert (row.moved_by_failed, row.answers_by_failed, row.first_group) == (1, 4, "b")
    assert row.shift_mean == pytest.approx((0.25 + 0.045) / 2)
    assert (row.shift_largest, row.shift_by_failed, row.failed_reward_mean) == pytest.approx((0.25, 0.045, 0.8))


@pytest.mark.parametrize(("why", "failed"), [("truncated", 0), ("failed", 1)])
def test_answers_that_are_dropped_count_as_well(why, failed):
    row, _ = told(dropped=[None, None, why, None, None, None], rewards=REWARD, advantages=OF_ALL)
    assert (row.failed_answers, row.masked_answers) == (failed, 1 - failed)
    assert (row.moved_groups, row.moved_by_failed) == (1, failed)


def test_answers_with_equal_rewards_count_where_others_prove_it():
    """[1, 1 | failed]: all of them get the same advantage, which says no more than that something moves it."""
    mask = [[1, 1], [1, 1], [0, 0], [1, 1], [1, 1], [0, 0]]
    equal, moved = [1.0, 1.0, 0.0], [0.7, 0.7, -1.4]
    row, _ = told(mask=mask, rewards=[*equal, *equal], advantages=[*moved, *moved])
    assert (row.groups, row.moved_groups, row.unknown_groups) == (2, 0, 2)
    row, _ = told(mask=mask, rewards=[*equal, *REWARD[:3]], advantages=[*moved, *OF_ALL[:3]])
    assert (row.groups, row.moved_groups, row.moved_answers, row.unknown_groups) == (2, 2, 4, 0)


def ran(place, counts_failed, steps=4):
    """Steps of ten groups of three: of the first three one answer fails, of the fourth one is left out of the loss.

    Where failed ones count, that one does.
    """
    failed = np.arange(30) % 3 == 2
    failed[9:] = False
    out = failed.copy()
    out[11] = counts_failed
    with probe.start("p", run_dir=place, rank=0, world_size=1) as session:
        for step in range(steps):
            with session.step(step):
                probe.samples(
                    [2] * 30,
                    mask=[[not one] * 2 for one in out],
                    groups=[str(at // 3) for at in range(30)],
                    rewards=REWARD[:3] * 10,
                    advantages=(OF_ALL[:3] if counts_failed else OF_TRAINED[:3]) * 3 + OF_ALL[:3] * 7,
                    has_error=failed,
                )


def test_the_finding_says_what_failed_rollouts_count_as_and_whom_they_move(tmp_path):
    ran(tmp_path / "run", counts_failed=True)
    with Run(tmp_path / "run") as run:
        found = run.findings()[0]
        rows = run.sql(found.evidence_sql)
        wish, answers = wish_of(found), StepSamples.read(run, 2)
        assert wish is not None
        lines = answers.arranged(wish).lines
    assert (found.name, found.kind, found.where.rank, found.since.step) == ("failed_in_baseline", "alarm", 0, 0)
    assert found.sentence == (
        "Failed rollouts count as reward 0 in the baseline of 12 groups since step 0: 24 trained answers get "
        "a different advantage because of it."
    )
    assert found.cost.share == pytest.approx(24 / 120)
    assert "They move the baseline by 0.25 on average; the first group is 0." in found.why
    assert rows["moved_by_failed"].tolist() == [3] * 4
    failed = [answers.answers[at] for kind, at in lines if kind == "answer"]
    assert sorted(one["row"] for one in failed) == [2, 5, 8]
    assert {became_of(one) for one in failed} == {"failed · not in the loss"}


def test_where_they_are_left_out_nothing_is_said(tmp_path):
    ran(tmp_path / "run", counts_failed=False)
    with Run(tmp_path / "run") as run:
        assert run.group_baselines["groups"].tolist() == [3] * 4
        assert not {"failed_in_baseline", "masked_in_baseline"} & {one.name for one in run.findings()}
