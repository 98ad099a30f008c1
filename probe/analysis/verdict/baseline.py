"""Whether answers that failed, or that the loss leaves out, move the baseline of their group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe.analysis.change import Change
from probe.analysis.verdict.finding import SOON, Cost, Finding, Since, Where, withheld
from probe.sql import Sql, joined, sql
from probe.text import number, percent, rows, whole

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: The newest steps that are looked at: what was repaired long ago isn't told again.
STEPS: Final = 30

#: From this share of the answers of these steps on, whose advantages failed rollouts change, it is an alarm.
ALARM: Final = 0.01
#: From this share on, answers that the loss leaves out on purpose, as those that were cut off, are worth a look.
MASKED: Final = 0.05
#: From this share of moved groups on whose baseline lies elsewhere, groups aren't told whole, and none is judged.
ELSEWHERE: Final = 0.1

#: The batches of the newest steps that have such answers, and the answers of all batches of these steps.
_NEWEST: Final = sql(
    """
    with told as (select *, coalesce(step, 0) as in_step from group_baselines),
    newest as (select coalesce(max(coalesce(step, 0)), 0) as last_step from token_fates)
    select step, rank, wall_ns, failed_answers, moved_groups, moved_by_failed, moved_answers, elsewhere_groups,
           shift_mean, coalesce(answers_by_failed, moved_answers) as answers_by_failed,
           coalesce(shift_by_failed, shift_mean) as shift_by_failed, failed_reward_mean, first_group,
           (select sum(batch_samples) from token_fates
            where fate = 'carried' and coalesce(token_fates.step, 0) > last_step - {steps}) as all_answers
    from told, newest where in_step > last_step - {steps}
    order by in_step, rank nulls last, batch_id""",
    steps=STEPS,
)


_PARTS: Final = (
    "Whether failed rollouts move the baseline of their group isn't known: many advantages are relative to something "
    "other than the recorded answers of a group."
)
_WHOLE: Final = Change("Record whole groups: give all answers of a prompt to one call of probe.samples.")


def group_baseline(run: Run) -> list[Finding]:
    """What the newest steps say."""
    if not run.has("group_baselines") or not run.has("token_fates"):
        return []
    told = rows(run.sql(_NEWEST))
    if _sum(told, "elsewhere_groups") > ELSEWHERE * _sum(told, "moved_groups"):  # these groups aren't told whole
        return [withheld("group_baseline", _PARTS, "token_balance", _WHOLE)] if _sum(told, "failed_answers") else []
    failed = [one for one in told if one["moved_by_failed"]]
    masked = [one for one in told if one["moved_groups"] and not one["moved_by_failed"]]
    everything = float(told[0]["all_answers"]) if told and told[0]["all_answers"] else 0.0
    if failed:
        return [_failed(failed, everything)]
    if masked and everything and _sum(masked, "moved_answers") >= MASKED * everything:
        return [_masked(masked, everything)]
    return []


def _failed(told: list[dict[str, Any]], everything: float) -> Finding:
    groups, answers = _sum(told, "moved_by_failed"), _sum(told, "answers_by_failed")
    share = answers / everything if everything else None
    paid = [float(one["failed_reward_mean"]) for one in told if one["failed_reward_mean"] is not None]
    as_what = f" as reward {number(float(np.mean(paid)))}" if paid else ""
    since = Since(whole(told[0]["step"]), whole(told[0]["wall_ns"]))
    when = "" if since.step is None else f" since step {since.step}"
    said = f"Failed rollouts count{as_what} in the baseline of {_many(groups, 'group')}{when}: "
    got = "trained answer gets" if answers == 1 else "trained answers get"
    said += f"{answers:,} {got} a different advantage because of it."
    return Finding(
        "alarm" if share is None or share >= ALARM else "tuning",
        "failed_in_baseline",
        said,
        topic="token_balance",
        where=Where(rank=_rank(told)),
        since=since,
        cost=Cost(share=share, steps=len({one["step"] for one in told})),
        why=f"{_moved(told, 'moved_by_failed', 'shift_by_failed')} The trained answers' advantages show "
        "it: they are 0 at the mean of all answers of the group, failed ones included.",
        change=Change("Leave failed rollouts out of the mean of their group, or sample them again."),
        evidence_sql=_evidence("moved_by_failed", since.step, _rank(told)),
        alternatives=("The reward function gives these answers 0 on purpose, and they aren't failures.",),
        urgency=SOON,
        weight=72,
    )


def _masked(told: list[dict[str, Any]], everything: float) -> Finding:
    answers, share = _sum(told, "moved_answers"), _sum(told, "moved_answers") / everything
    since = Since(whole(told[0]["step"]), whole(told[0]["wall_ns"]))
    when = "" if since.step is None else f" since step {since.step}"
    return Finding(
        "tuning",
        "masked_in_baseline",
        f"Answers that the loss leaves out still move the baseline of their group{when}: {percent(share)} of "
        "the answers get a different advantage because of it.",
        topic="token_balance",
        where=Where(rank=_rank(told)),
        since=since,
        cost=Cost(share=share, steps=len({one["step"] for one in told})),
        why=f"{_moved(told, 'moved_groups', 'shift_mean')} It concerns {_many(answers, 'answer')}.",
        change=Change("Leave them out of their group's mean too, if they should not count."),
        evidence_sql=_evidence("moved_groups", since.step, _rank(told)),
        confidence="medium",
        alternatives=("This is intended: truncated answers are left out of the loss and still serve as a comparison.",),
        weight=25,
    )


def _sum(told: list[dict[str, Any]], name: str) -> int:
    return sum(int(one[name]) for one in told)


def _many(number_of: int, noun: str) -> str:
    return f"{number_of:,} {noun}{'s' if number_of != 1 else ''}"


def _rank(told: list[dict[str, Any]]) -> int | None:
    """Of who all of them are; None where they are of several."""
    ranks = {whole(one["rank"]) for one in told}
    return ranks.pop() if len(ranks) == 1 else None


def _moved(told: list[dict[str, Any]], groups: str, shift: str) -> str:
    by = float(np.average([float(one[shift]) for one in told], weights=[int(one[groups]) for one in told]))
    name = f"; the first group is {told[0]['first_group']}" if told[0]["first_group"] else ""
    return f"They move the baseline by {number(by)} on average{name}."


def _evidence(what: str, step: int | None, rank: int | None) -> Sql:
    """The query for the batches that have such groups."""
    where = [sql("{what} > 0", what=Sql(what))]
    where += [sql("step >= {step}", step=step)] if step is not None else []
    where += [sql("rank = {rank}", rank=rank)] if rank is not None else []
    return sql("select * from group_baselines where {where} order by step, rank", where=joined(where, " and "))
