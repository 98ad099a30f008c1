"""15, part 3: what the recorded answers say of learning where no metric does: no advantage, and truncated answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import probe
from probe.analysis.by_step import ByStep
from probe.analysis.verdict import Findings, learning
from probe.opened import Run

#: Answers to a prompt.
EACH: Final = 4


def told(groups: int, equal: int, cut: int = 0, **more: Any) -> dict[str, Any]:
    """What is told of a batch of such groups: some have equal rewards, and so many answers are truncated."""
    answers = groups * EACH
    return {
        "response_tokens": [40] * answers,
        "groups": [str(at // EACH) for at in range(answers)],
        "rewards": [1.0] * (EACH * equal) + [1.0, 0.0, 1.0, 0.0] * (groups - equal),
        "advantages": [0.0] * (EACH * equal) + [1.0, -1.0, 1.0, -1.0] * (groups - equal),
        "truncated": [at < cut for at in range(answers)],
        "clipped": False,
    } | more


def findings(
    place: Path,
    batches: Callable[[int], dict[str, Any]],
    steps: int = 6,
    metrics: Callable[[int], dict[str, float]] | None = None,
) -> tuple[Findings, Run]:
    """What both looks find in a loop of one's own that tells of its samples."""
    with probe.start("learning", "one", run_dir=place, rank=0, world_size=1) as session:
        for step in range(steps):
            with session.step(step):
                probe.samples(**batches(step))
            if metrics is not None:
                session.log(metrics(step), step)
    run = Run(place)
    return Findings([*learning.equal_rewards(run), *learning.cut_off(run)]), run


def test_15_3_tokens_without_advantage_and_truncated_answers_are_found_where_no_metric_says_so(tmp_path: Path) -> None:
    found, run = findings(tmp_path / "run", lambda step: told(16, 10 if step >= 2 else 2, 32 if step >= 3 else 4), 8)
    equal, cut = found.named("equal_rewards"), found.named("cut_off")
    assert equal is not None
    assert equal.kind == "tuning"
    assert equal.sentence == (
        "62 % of the tokens that the loss counts have had no advantage since step 2, and carry no policy gradient."
    )
    assert "62 % of all sampled tokens had no advantage, 100 % of them in groups whose rewards" in equal.why
    assert equal.change is not None
    assert "more answers to each" in equal.change.advice
    assert run.sql(equal.evidence_sql)["step"].tolist() == list(range(2, 8))
    assert (equal.cost.share, equal.cost.steps) == (0.625, 6)
    assert cut is not None
    assert cut.sentence == "50 % of the answers have been cut off at the length limit since step 3."
    assert "at least 50 % in the last 5 steps" in cut.why
    assert run.sql(cut.evidence_sql)["step"].tolist() == list(range(3, 8))
    assert cut.kind == "tuning"
    names = [one.name for one in run.findings().everything]
    assert {"equal_rewards", "cut_off"} <= set(names)
    run.close()
    whole, _ = findings(tmp_path / "whole", lambda _: told(4, 1, 16))
    every = whole.named("cut_off")
    assert every is not None
    assert "recorded answers is 100 % in the last 6 steps" in every.why


def test_15_3_steps_in_which_no_token_has_an_advantage_are_an_alarm_whatever_the_loss_masks(tmp_path: Path) -> None:
    """Six of ten tokens are those of tools: the loss doesn't count them."""
    mask = [[1] * 16 + [0] * 24] * 32
    found, run = findings(tmp_path / "run", lambda step: told(8, 8, mask=mask))
    equal = found.named("equal_rewards")
    assert equal is not None
    assert equal.kind == "alarm"
    assert equal.sentence == (
        "Hardly any token has had an advantage since step 0: these steps carry no policy gradient."
    )
    assert "40 % of all sampled tokens had no advantage" in equal.why
    run.close()


def test_15_3_a_rise_that_stays_is_found_below_the_share_that_always_is(tmp_path: Path) -> None:
    found, run = findings(tmp_path / "run", lambda step: told(16, 5 if step >= 9 else 1 + step % 2), 18)
    equal = found.named("equal_rewards")
    assert equal is not None
    assert equal.sentence == (
        "31 % of the tokens that the loss counts have had no advantage since step 9, and carry no policy gradient; "
        "6.2 % had none in the steps before."
    )
    assert run.sql(equal.evidence_sql)["step"].tolist() == list(range(9, 18))
    run.close()


@pytest.mark.parametrize(
    ("batches", "metrics"),
    [
        pytest.param(lambda step: told(16, 4 + step % 3, 6 + step % 3), None, id="healthy"),
        pytest.param(lambda step: told(16, 12 * (step < 4), 30 * (step < 4)), None, id="over"),
        pytest.param(
            lambda _: told(16, 10, 32),
            lambda _: {"frac_reward_zero_std": 0.1, "completions/clipped_ratio": 0.05},
            id="metrics",
        ),
        pytest.param(lambda _: told(16, 10, 32, advantages=None, truncated=None), None, id="not_told"),
        pytest.param(lambda _: told(16, 10, 0, dropped=["filtered"] * 40 + [None] * 24), None, id="filtered"),
    ],
)
def test_15_3_nothing_is_said_of(batches: Any, metrics: Any, tmp_path: Path) -> None:
    """Usual shares, what is over, what a metric denies, what nobody told, and groups that are filtered before."""
    found, run = findings(tmp_path / "run", batches, 8, metrics)
    assert found.named("equal_rewards") is None
    assert found.named("cut_off") is None
    run.close()


def test_15_3_extremes_of_advantages_that_are_not_0_do_not_hide_groups_without_any(tmp_path: Path) -> None:
    """verl logs the largest and the smallest advantage, which say nothing of a group."""
    extremes = {"critic/advantages/max": 1.0, "critic/advantages/min": -1.0}
    found, run = findings(tmp_path / "run", lambda _: told(16, 10), metrics=lambda _: extremes)
    assert found.named("equal_rewards") is not None
    run.close()


@pytest.mark.parametrize(("cut", "share"), [(0.08, None), (0.3, 0.3)])
def test_15_3_of_a_large_batch_drawn_answers_stand_for_those_without_a_row(
    cut: float, share: float | None, tmp_path: Path
) -> None:
    """Truncated answers are the longest, and those have a row more often than others."""
    answers = 400
    many = round(cut * answers)
    lengths = [64] * many + [20 + at % 30 for at in range(answers - many)]
    found, run = findings(tmp_path / "run", lambda _: told(100, 0, many, response_tokens=lengths))
    assert run.sql("select avg(truncated::int) as share from samples")["share"][0] > 0.15
    one = found.named("cut_off")
    assert (None if one is None else one.cost.share) == (share if share is None else pytest.approx(share, abs=0.06))
    run.close()


def test_15_3_what_is_found_while_it_is_written_is_what_is_found_afterwards(tmp_path: Path) -> None:
    """Only steps with new rows are asked about again."""
    with probe.start("learning", "live", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        run = Run(tmp_path / "run")
        kept = ByStep(run)
        for step in range(8):
            with session.step(step):
                probe.samples(**told(16, 10 if step >= 3 else 2, 32 if step >= 4 else 4))
            session.flush()
            kept.refresh()
            live = [*learning.equal_rewards(run), *learning.cut_off(run)]
            with Run(tmp_path / "run") as anew:
                assert live == [*learning.equal_rewards(anew), *learning.cut_off(anew)]
        assert [(one.name, one.since.step) for one in live] == [("equal_rewards", 3), ("cut_off", 4)]
        run.close()
