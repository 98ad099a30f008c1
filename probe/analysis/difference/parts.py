"""A difference and its parts, which sum to it exactly."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from probe.errors import UnknownNameError
from probe.text import count, percent, seconds, size

#: What makes a number other than it was, in the order in which a waterfall has it.
CAUSES: Final = {
    "tokens": "Number of tokens",
    "lengths": "Length of sequences",
    "balance": "Balance",
    "padding": "Padding",
    "micro_batches": "Micro-batch count",
    "waiting": "Waiting",
    "fates": "What became of the tokens",
    "rest": "Rest",
}

FRAME: Final = ("measure", "unit", "cause", "phase", "value", "share", "about")

#: Numbers are whole multiples of it, so that sums of them are exact: of a second a trillionth, of bytes one.
_GRIDS: Final = {"s": 2.0**-40, "bytes": 1.0, "tokens": 2.0**-20}

#: Parts below this share of the largest one, and of the difference, aren't spelled out.
_SPELLED: Final = 0.005


@dataclass(frozen=True)
class Part:
    """One cause, in one phase.

    Attributes:
        cause: Of :data:`CAUSES`.
        phase: Where; "" where it is of no phase.
        value: What it changes, in the unit of its waterfall.
        about: What has changed, in words: before → after.
    """

    cause: str
    phase: str
    value: float
    about: str = ""


@dataclass(frozen=True)
class Waterfall:
    """What makes one number of two runs differ.

    Attributes:
        measure: ``"step_time"``, ``"peak_memory"`` or ``"carried_tokens"``.
        title: In words.
        unit: ``"s"``, ``"bytes"`` or ``"tokens"``.
        before: Of the first run.
        after: Of the second run.
        parts: They sum to ``after - before`` exactly.
        interval: 95 % interval of the difference of step times, from how steps differ among each other, each taken for
            itself; None where that tells nothing. A peak has none: a run has just one, so that nothing tells its
            noise. Nor have counted tokens.
        notes: What the parts assume.
    """

    measure: str
    title: str
    unit: str
    before: float
    after: float
    parts: tuple[Part, ...]
    interval: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()

    @property
    def change(self) -> float:
        """After − before."""
        return self.after - self.before

    def of(self, cause: str) -> float:
        """What a cause changes, over all phases.

        Args:
            cause: Of :data:`CAUSES`.
        """
        return math.fsum(one.value for one in self.parts if one.cause == cause)

    @property
    def by_cause(self) -> dict[str, float]:
        """What each cause changes that there is a part of, in the order of :data:`CAUSES`."""
        return {cause: self.of(cause) for cause in CAUSES if any(one.cause == cause for one in self.parts)}

    @property
    def is_noise(self) -> bool:
        """Whether steps differ so much among each other that the difference may be none."""
        return self.interval is not None and self.interval[0] <= 0 <= self.interval[1]

    def spelled(self, value: float, *, signed: bool = False) -> str:
        """A number with its unit.

        Args:
            value: In the unit of the waterfall.
            signed: Whether a plus stands before it.
        """
        told = {"s": seconds, "bytes": size, "tokens": count}[self.unit](abs(value))
        return f"{'−' if value < 0 else '+' if signed else ''}{told}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "measure": self.measure,
            "unit": self.unit,
            "before": self.before,
            "after": self.after,
            "change": self.change,
            "interval": None if self.interval is None else list(self.interval),
            "causes": self.by_cause,
            "parts": [
                {"cause": one.cause, "phase": one.phase, "value": one.value, "about": one.about} for one in self.parts
            ],
            "notes": list(self.notes),
        }

    def sentence(self) -> str:
        """The difference, and what makes most of it."""
        ratio = f" ({'+' if self.change >= 0 else '−'}{percent(abs(self.change / self.before))})" if self.before else ""
        told = f"{self.title}: {self.spelled(self.before)} → {self.spelled(self.after)}{ratio}"
        if self.is_noise:
            return f"{told}. Steps differ as much among each other."
        most = max(self.by_cause.items(), key=lambda one: abs(one[1]), default=None)
        if most is None or not self.change or most[1] * self.change <= 0:
            return f"{told}."
        return f"{told}. Most of it: {CAUSES[most[0]].lower()}, {self.spelled(most[1], signed=True)}."

    def __repr__(self) -> str:
        lines = [self.sentence()]
        largest = max((abs(one) for one in self.by_cause.values()), default=0.0)
        for cause, value in self.by_cause.items():
            if abs(value) < _SPELLED * largest or not value:
                continue
            lines.append(f"  {self.spelled(value, signed=True):>11}  {CAUSES[cause]}")
            own = [one for one in self.parts if one.cause == cause and abs(one.value) >= _SPELLED * largest]
            lines.extend(_told(self, one) for one in sorted(own, key=lambda one: -abs(one.value))[:4])
        return "\n".join([*lines, *(textwrap.fill(one, 100, initial_indent="  ") for one in self.notes)])


def _told(of: Waterfall, part: Part) -> str:
    value = of.spelled(part.value, signed=True)
    return f"{'':15}{' · '.join(filter(None, [part.phase, part.about]))} ({value})"


@dataclass(frozen=True, repr=False)
class Difference:
    """What makes two runs differ.

    Attributes:
        waterfalls: One for each number that both runs tell.
        missing: Why others aren't there.
    """

    waterfalls: tuple[Waterfall, ...]
    missing: tuple[str, ...] = ()

    def __getitem__(self, measure: str) -> Waterfall:
        """The waterfall of a number.

        Args:
            measure: ``"step_time"``, ``"peak_memory"`` or ``"carried_tokens"``.

        Raises:
            UnknownNameError: It isn't there; ``missing`` says why.
        """
        for one in self.waterfalls:
            if one.measure == measure:
                return one
        raise UnknownNameError.of("measure", measure, [one.measure for one in self.waterfalls])

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each part: measure, unit, cause, phase, value, share (of the difference; NaN where that is 0) and
        about. Values of a measure sum to its difference.
        """
        told = [
            (
                of.measure,
                of.unit,
                one.cause,
                one.phase,
                one.value,
                one.value / of.change if of.change else math.nan,
                one.about,
            )
            for of in self.waterfalls
            for one in of.parts
        ]
        return pd.DataFrame(told, columns=list(FRAME))

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"waterfalls": [one.to_dict() for one in self.waterfalls], "missing": list(self.missing)}

    def __repr__(self) -> str:
        return "\n\n".join([*map(repr, self.waterfalls), *self.missing])


def exact(
    measure: str,
    title: str,
    unit: str,
    ends: tuple[float, float],
    parts: Iterable[Part],
    *,
    rest: str = "",
    interval: tuple[float, float] | None = None,
    notes: tuple[str, ...] = (),
) -> Waterfall:
    """A waterfall whose parts sum to its difference: what is left is one more part, the rest.

    Args:
        measure: Its name.
        title: In words.
        unit: Of its numbers.
        ends: Before and after.
        parts: What is known.
        rest: What the rest is, in words.
        interval: Of the difference.
        notes: What the parts assume.
    """
    grid = _GRIDS[unit]

    def on_grid(value: float) -> float:
        return round(value / grid) * grid

    before, after = map(on_grid, ends)
    known = [Part(one.cause, one.phase, on_grid(one.value), one.about) for one in parts]
    left = (after - before) - math.fsum(one.value for one in known)
    told = (*known, Part("rest", "", left, rest))
    return Waterfall(measure, title, unit, before, after, told, interval, notes)
