"""The rows of an answer: the numbers of each role and phase before and after a change, and the time of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from probe.analysis.memory_model import MemoryModel
from probe.analysis.time_model import TimeModel
from probe.analysis.what_if.happened import Happened
from probe.analysis.what_if.numbers import NUMBERS, RankWork, StepNumbers

#: Added to those of :data:`probe.analysis.what_if.numbers.NUMBERS` where a model says them.
PREDICTED: Final = {
    "predicted_s": "seconds of the phase's micro-batches in a step, those of the slowest rank of each round",
    "predicted_peak_bytes": "largest peak of a micro-batch",
}

FRAME: Final = ("role", "phase", "number", "before", "after", "low", "high", "modelled")

Where = tuple[str | None, str | None]


@dataclass
class Phase:
    """What is gathered of one role and phase.

    Attributes:
        steps: That were replayed; None outside of steps.
        before: What each came to as it was cut.
        after: What each comes to.
        predicted: Whether its models hold under the new settings.
        measured: Whether what the run measured in these steps is known to be of these batches.
    """

    steps: list[int | None] = field(default_factory=list)
    before: list[StepNumbers] = field(default_factory=list)
    after: list[StepNumbers] = field(default_factory=list)
    predicted: bool = True
    measured: bool = True

    def saved(self, time: TimeModel | None, steps: set[int | None] | None = None) -> tuple[float, float] | None:
        """Seconds less in all these steps, and how far the interval reaches; None where that can't be said.

        Args:
            time: Of the phase.
            steps: Only these; None means all.
        """
        chosen = [at for at, step in enumerate(self.steps) if steps is None or step in steps]
        before, after = ([side[at] for at in chosen] for side in (self.before, self.after))
        if not self.predicted:
            return None
        if time is None:
            same = [one.works for one in before] == [one.works for one in after]
            return (0.0, 0.0) if same else None
        return time.saved(_rounds(before, time), _rounds(after, time))


def rows_of(
    where: Where, one: Phase, memory: MemoryModel | None, time: TimeModel | None, known: Happened
) -> list[tuple[Any, ...]]:
    """The rows of a frame for one role and phase.

    Args:
        where: Role and phase.
        one: What was gathered.
        memory: None predicts no peak.
        time: None predicts no time.
        known: What was measured.
    """
    told: list[tuple[Any, ...]] = []
    for name in NUMBERS:
        before, after = (_over_steps(name, [each.values[name] for each in side]) for side in (one.before, one.after))
        told.append((*where, name, before, after, math.nan, math.nan, math.nan))
    places = [(step, *where) for step in one.steps] if one.measured else []
    if time is not None and one.predicted:
        steps = len(one.before)
        (modelled, _), (value, reach) = (time.seconds(_rounds(side, time)) for side in (one.before, one.after))
        took = [known.seconds.get(place, math.nan) for place in places]
        ends = (seconds / steps for seconds in (value, value - reach, value + reach, modelled))
        told.append((*where, "predicted_s", _mean(took) if took else math.nan, *ends))
    if memory is not None and memory.fit is not None and one.predicted:
        modelled, _, _ = peak(memory, one.before)
        peaks = [known.peak_bytes[place] for place in places if place in known.peak_bytes]
        happened = max(peaks) if peaks and len(peaks) == len(places) else math.nan
        told.append((*where, "predicted_peak_bytes", happened, *peak(memory, one.after), modelled))
    return told


def step_time(
    phases: Mapping[Where, Phase], times: Mapping[Any, TimeModel], known: Happened
) -> tuple[float, float, float] | None:
    """Seconds of a step as measured, over the steps that ended; less what the phases save; and how far the interval of
    that reaches. None where one of it isn't known.

    Args:
        phases: All that are replayed.
        times: Models of those that have one.
        known: What was measured.
    """
    replayed = {step for one in phases.values() for step in one.steps}
    ended = replayed & known.step_s.keys()
    if not ended or not all(one.measured for one in phases.values()):
        return None
    saved = squared = 0.0
    for where, one in phases.items():
        told = one.saved(times.get(where), ended)
        if told is None:
            return None
        saved, squared = saved + told[0], squared + told[1] ** 2  # each phase has a fit of its own
    before = _mean([known.step_s[step] for step in ended])
    return before, before - saved / len(ended), math.sqrt(squared) / len(ended)


def step_times_together(told: Sequence[tuple[float, float, float] | None]) -> tuple[float, float, float] | None:
    """Times of the same steps under changes of different phases, as one; a step saves what all of them save.

    Args:
        told: Of :func:`step_time`.
    """
    known = [one for one in told if one is not None]
    if len(known) < len(told) or len({before for before, _, _ in known}) != 1:
        return None
    before = known[0][0]
    saved = math.fsum(before - after for _, after, _ in known)
    return before, before - saved, math.hypot(*(reach for _, _, reach in known))


def peak(model: MemoryModel, steps: Sequence[StepNumbers]) -> tuple[float, float, float]:
    """The largest peak in bytes, and the ends of its interval; NaN where it isn't told.

    Args:
        model: Of the role and phase.
        steps: What each step comes to.
    """
    return model.largest(_micro_batches(steps))


def untold(where: Where, model: MemoryModel, steps: Sequence[StepNumbers]) -> str:
    """Why no peak is told of a phase, and what would tell it, in sentences; "" where it is told.

    Args:
        where: Role and phase.
        model: Of them.
        steps: What each step comes to.
    """
    why = model.untold(_micro_batches(steps))
    return f"{where[1] or 'no phase'}: no peak is told. {why}" if why else ""


def _micro_batches(steps: Sequence[StepNumbers]) -> list[tuple[int, int, int]]:
    return sorted({one for step in steps for one in step.micro_batches})


def _rounds(steps: Sequence[StepNumbers], time: TimeModel) -> list[RankWork]:
    """The slowest rank of each round of all steps, which have what the coefficients are off by in common."""
    return time.slowest([works for step in steps for works in step.works])


def _over_steps(name: str, values: list[float]) -> float:
    if name == "over_cap":
        return math.fsum(values)
    return max(values) if name == "largest_tokens" else _mean(values)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
