"""Which answers a finding is of, which step is the worst, and an answer in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from probe.analysis.step_samples import Wish
from probe.text import missing, whole

if TYPE_CHECKING:
    from probe.analysis.verdict.finding import Finding
    from probe.runs.reader import Run

#: Findings whose place is among the samples, and which of those they are of, see :class:`Wish`; the panel has the same.
OF_SAMPLES: Final[Mapping[str, str]] = {
    "gradient_spike": "all",
    "nan": "all",
    "cut_off": "truncated",
    "equal_rewards": "no_advantage",
    "failed_in_baseline": "failed",
    "masked_in_baseline": "all",
    "mismatch": "blocks",
    "not_sampled": "changed",
}

#: A longer name that begins with its group's is told without that; the panel has the same.
LONG_NAME: Final = 24

_WORST: Final = """
select step, sum((nan_count > 0)::int)::bigint as nan_answers, max(abs(difference_largest)) as difference,
       avg(reward) as reward
from samples where step is not null group by step
order by nan_answers desc, difference desc nulls last, reward nulls last, step limit 1
"""


def wish_of(finding: Finding) -> Wish | None:
    """The answers that a finding is of; None where it is of none."""
    only = OF_SAMPLES.get(finding.name)
    if only is None:
        return None
    where = finding.where
    if where.micro_batch is None:
        return Wish(only=only)
    return Wish(only=only, micro_batch=where.micro_batch, phase=where.phase or "", process=where.process or "")


class Worst(NamedTuple):
    """The worst step of a run: that with most answers that have NaN, else with the largest difference, else with the
    lowest mean reward.

    Attributes:
        step: Its number.
        nan_answers: Answers of it that have NaN.
        difference: The largest difference between training's log-probability of a token and rollout's, without its
            sign, nats; None where not both are known.
        reward: The mean of its answers that have a row; None where none is known.
    """

    step: int
    nan_answers: int
    difference: float | None
    reward: float | None

    @property
    def sentence(self) -> str:
        """What it is the worst by."""
        if self.nan_answers:
            of = "1 answer" if self.nan_answers == 1 else f"{self.nan_answers:,} answers"
            return f"Step {self.step} has most NaN: in {of}."
        if self.difference is not None:
            return f"In step {self.step} training and rollout differ most about a token: by {self.difference:.2g} nats."
        if self.reward is not None:
            return f"Step {self.step} has the lowest mean reward: {self.reward:.4g}."
        return f"Step {self.step} is the first: of no step a reward, a difference or NaN is known."


def worst_step(run: Run) -> Worst | None:
    """The worst step of the answers that have a row; None where the run has none."""
    if not run.has("samples"):
        return None
    frame = run.sql(_WORST)
    if frame.empty:
        return None
    numbers = (None if missing(frame[name][0]) else float(frame[name][0]) for name in ("difference", "reward"))
    return Worst(int(frame["step"][0]), whole(frame["nan_answers"][0]) or 0, *numbers)


def name_of(answer: Mapping[str, Any]) -> str:
    """What an answer is called.

    >>> name_of({"uid": "a", "group": "a", "row": 3}), name_of({"uid": "x7", "group": "a", "row": 3})
    ('Answer 3', 'x7')
    >>> name_of({"uid": "0b38afd1-2d6c-4b0f-9ff1_0_1", "group": "0b38afd1-2d6c-4b0f-9ff1", "row": 3})
    '…_0_1'
    """
    uid, group = str(answer["uid"] or ""), str(answer["group"] or "")
    if not uid or uid == group:
        return f"Answer {answer['row']}"
    return f"…{uid.removeprefix(group)}" if group and len(uid) > LONG_NAME and uid.startswith(group) else uid


def became_of(answer: Mapping[str, Any]) -> str:
    """What became of an answer, in a few words: whether it failed, whether other tokens of it are trained than were
    sampled, dropped and why, its turns where it has several, its calls of tools, why it ended, what trained it.

    >>> became_of({"dropped": "stale", "ended": "stop", "micro_batches": [-1]})
    'dropped: stale · stop'
    >>> became_of({"dropped": None, "ended": "length", "micro_batches": [2, 0, 2]})
    'length · micro-batch 0, 2'
    >>> became_of({"has_error": True, "masked": True, "dropped": None, "ended": "", "micro_batches": []})
    'failed · not in the loss'
    >>> became_of({"changed": True, "dropped": None, "ended": "stop", "micro_batches": []})
    'other tokens than sampled · stop'
    >>> became_of({"turns": 3, "tools": 1, "dropped": None, "ended": "stop", "micro_batches": [0]})
    '3 turns · 1 tool call · stop · micro-batch 0'
    """
    turns, tools = answer.get("turns") or 0, answer.get("tools") or 0
    batches = sorted({number for number in answer["micro_batches"] if number >= 0})
    parts = (
        "failed" if answer.get("has_error") and answer["dropped"] != "failed" else "",
        "not in the loss" if answer.get("masked") and not answer["dropped"] else "",
        "other tokens than sampled" if answer.get("changed") else "",
        f"dropped: {answer['dropped']}" if answer["dropped"] else "",
        f"{turns} turns" if turns > 1 else "",
        f"{tools} tool {'call' if tools == 1 else 'calls'}" if tools else "",
        str(answer["ended"] or ""),
        f"micro-batch {', '.join(map(str, batches))}" if batches else "",
    )
    return " · ".join(filter(None, parts))
