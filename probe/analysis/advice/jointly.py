"""The changes of an advice taken together: replayed as one, since what each saves alone doesn't add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from probe.analysis.advice.suggestions import Advice, Suggestion
from probe.analysis.memory_model import risk_of
from probe.analysis.what_if.answering import Replayer, WhatIf, together
from probe.analysis.what_if.settings import Settings
from probe.errors import InputError

#: Role and phase.
Where = tuple[str | None, str | None]

#: Times that differ by less than this share of their sum count as the same.
_SAME: Final = 0.01


@dataclass(frozen=True)
class Joint:
    """What :func:`jointly` gives.

    Attributes:
        suggestions: That are taken together, at least two, the largest gain first.
        left_out: The others, each with the reason in words.
        what_if: The replay of those that are taken.
        gain_s: Seconds of a step that they save together, and how far the interval reaches; None where it isn't known.
        sum_s: What they save alone, added up; None where ``gain_s`` is.
        risk: Share of runs of 1,000 steps that run out of memory, in the phase where it is largest; None where no model
            says it.
    """

    suggestions: tuple[Suggestion, ...]
    left_out: tuple[tuple[Suggestion, str], ...]
    what_if: WhatIf
    gain_s: tuple[float, float] | None
    sum_s: float | None
    risk: float | None

    @property
    def beside_sum(self) -> str:
        """How the gain compares with the sum: ``"less than"``, ``"more than"`` or ``"as much as"``; "" if unknown."""
        if self.gain_s is None or self.sum_s is None:
            return ""
        other = self.gain_s[0] - self.sum_s
        if abs(other) <= _SAME * abs(self.sum_s):
            return "as much as"
        return "less than" if other < 0 else "more than"


def jointly(replayer: Replayer, advice: Advice) -> Joint | tuple[tuple[Suggestion, str], ...]:
    """The changes of an advice, replayed together.

    They are taken in their order. One that sets what an earlier one sets otherwise, or that the packer refuses beside
    them, is left out.

    Args:
        replayer: The batches of the run, with both models.
        advice: For the same run.

    Returns:
        The :class:`Joint`; where no two changes can be replayed together, those that are left out, with their reasons.
    """
    if len(advice.suggestions) < 2:
        return ()
    taken: list[Suggestion] = []
    left_out: list[tuple[Suggestion, str]] = []
    merged: dict[Where, dict[str, Any]] = {}
    answers: dict[Where, WhatIf] = {}
    for one in advice.suggestions:
        wanted = _merged(merged, one)
        if any(advice.values.get(key) != value for key, value in one.values.items()) or wanted is None:
            left_out.append((one, "Another change sets the same, or switches it off."))
            continue
        try:
            new = {where: _answer(replayer, where, wanted[where]) for where in _changes(one)}
        except InputError as error:
            left_out.append((one, f"It can't be replayed beside the others: {error}."))
            continue
        taken.append(one)
        merged, answers = wanted, answers | new
    if len(taken) < 2:
        return tuple(left_out)
    gain = _gain(taken, answers)
    total = None if gain is None else sum(one.gain_s[0] for one in taken if one.gain_s is not None)
    found = together(list(answers.values()))
    return Joint(tuple(taken), tuple(left_out), found, gain, total, _risk(replayer, merged))


def _changes(one: Suggestion) -> dict[Where, Mapping[str, Any]]:
    """By role and phase what a suggestion changes, as what-ifs name it."""
    frame, changes = one.what_if.frame, one.what_if.changes
    places = list(frame[["role", "phase"]].drop_duplicates().itertuples(index=False, name=None))
    by_phase = bool(changes) and all(isinstance(value, Mapping) for value in changes.values())
    return {where: changes[str(where[1])] if by_phase else changes for where in places}


def _merged(merged: Mapping[Where, dict[str, Any]], one: Suggestion) -> dict[Where, dict[str, Any]] | None:
    """With another suggestion; None where it sets something otherwise."""
    found = dict(merged)
    for where, changes in _changes(one).items():
        known = found.get(where, {})
        if any(known.get(name, value) != value for name, value in changes.items()):
            return None
        found[where] = {**known, **changes}
    return found


def _answer(replayer: Replayer, where: Where, changes: Mapping[str, Any]) -> WhatIf:
    return replayer.only(*where).answer(Settings.of(changes), lambda: True)


def _gain(taken: Sequence[Suggestion], answers: Mapping[Where, WhatIf]) -> tuple[float, float] | None:
    """By the time model of every phase. Micro-batches that are made even save what ranks in step wait, which that model
    doesn't count.
    """
    if any(one.gain_s is None or one.kind == "evened" for one in taken):
        return None
    saved = [answer.saved_s.get(where) for where, answer in answers.items()]
    known = [one for one in saved if one is not None]
    if len(known) < len(saved):
        return None
    return sum(one[0] for one in known), sum(one[1] for one in known)


def _risk(replayer: Replayer, merged: Mapping[Where, Mapping[str, Any]]) -> float | None:
    told = []
    for where, changes in merged.items():
        model, own = replayer.memory.get(where), replayer.only(*where)
        if model is None:
            continue
        steps = []
        for at in range(len(own)):
            try:
                steps.append(sorted(own.after(at, Settings.of(changes)).micro_batches))
            except InputError:  # which the answer tells of
                continue
        told.append(risk_of(model, steps))
        if model.untold([one for step in steps for one in step]):
            return None
    known = [one for one in told if one is not None]
    return max(known, default=None)
