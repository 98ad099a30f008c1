"""A replica's answers and its long tail in words, as the tables of a step say them."""

from __future__ import annotations

from typing import Final

from probe import text as words
from probe.analysis.long_tail.rules import Rule
from probe.analysis.long_tail.tail import Step

#: Over the columns of :func:`rule_cells`.
RULE_COLUMNS: Final = ("What would have saved time", "A step", "Price")

#: What has to be known to read them.
RULE_NOTE: Final = (
    "Computed as if the tokens of each answer had come evenly, and its request had begun when it did. "
    "More answers than were recorded are an estimate: each is drawn from the recorded ones, and slows none down."
)


def cells(step: Step, at: int) -> tuple[str, ...]:
    """What is said of one replica in a table, in words.

    Args:
        step: The step.
        at: The replica's place.
    """
    one = step.replicas[at]
    times = [_told_seconds(value) for value in (one.median_ns, one.ninth_decile_ns, one.longest_ns)]
    return (one.name, words.count(one.samples), *times, words.count(one.late), _told_seconds(one.idle_ns))


def rule_cells(rule: Rule, step: Step) -> tuple[str, str, str]:
    """A rule, what it would have saved and what it costs, in words.

    Args:
        rule: Of the step.
        step: The step.
    """
    many = f"{words.count(rule.answers)} answer{'' if rule.answers == 1 else 's'}"
    if rule.kind == "more":
        return (
            f"Ask for {many}, keep the first {words.count(rule.kept)}",
            _told_saving(rule, step),
            ("Long answers train less often"),
        )
    tokens = f"{words.count(rule.tokens)} token{'' if rule.tokens == 1 else 's'}"
    if rule.kind == "continue":
        what = f"Continue answers above {tokens} in the next step"
        return what, _told_saving(rule, step), f"{many} train one step later, on older weights"
    price = f"{many} {'is' if rule.answers == 1 else 'are'} cut"
    if rule.right is not None:
        price += f", {words.count(rule.right)} with the larger reward"
    return f"Limit answers to {tokens}", _told_saving(rule, step), price


def _told_saving(rule: Rule, step: Step) -> str:
    if rule.saved_ns <= 0:
        return "nothing"
    reach = f" ± {_told_seconds(rule.reach_ns)}" if rule.reach_ns else ""
    share = f" (−{words.percent(rule.saved_ns / step.step_ns)})" if step.step_ns else ""
    return f"−{_told_seconds(rule.saved_ns)}{reach}{share}"


def _told_seconds(value: int | None) -> str:
    return words.seconds(None if value is None else value / 1e9)
