"""Whether a run is within limits that are set beside another one: what ``probe check`` says."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from probe.analysis.difference import Waterfall, difference
from probe.analysis.run_comparison import metrics
from probe.dashboards.spelling import spell
from probe.errors import InputError, UnknownNameError
from probe.text import percent, rows

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Short names of quantities.
ALIASES: Final = {"step": "step_time", "peak": "peak_memory", "carried": "carried_tokens", "padding": "padding_tax"}

#: Whose difference a limit is about, where there is a waterfall of it.
_EXPLAINED: Final = {"step_time": "step_time", "peak_memory": "peak_memory"}

_FORM: Final = re.compile(r"(?P<name>[^=\s]+)=(?P<sign>[+-]?)(?P<number>\d+(\.\d+)?)(?P<percent>%?)")


@dataclass(frozen=True)
class Limit:
    """What a number may be at the most, or at the least.

    Attributes:
        name: Of a quantity, or a metric that the trainer logged.
        side: ``"max"`` or ``"min"``.
        value: The limit; with ``relative`` a share of the base run's number.
        relative: Whether it is a change: ``+3%``.
        text: As it was given.
    """

    name: str
    side: Literal["max", "min"]
    value: float
    relative: bool
    text: str

    @classmethod
    def of(cls, text: str, side: Literal["max", "min"]) -> Limit:
        """From words such as ``peak=+3%`` or ``padding=0.2``.

        Args:
            text: A name and a change of it in per cent, with its sign, or a number in the metric's own unit.
            side: Whether it is the largest or the smallest that is allowed.

        Raises:
            InputError: It is neither.

        >>> Limit.of("peak=+3%", "max").value, Limit.of("reward/mean=-0.5", "min").relative
        (0.03, False)
        """
        found = _FORM.fullmatch(text.strip())
        if found is None or (found["percent"] and not found["sign"]):
            raise InputError(f"--{side}: got {text!r}, expected NAME=+5% (a change), NAME=-2%, or NAME=0.8 (a number)")
        value = float(found["sign"] + found["number"])
        name = ALIASES.get(found["name"], found["name"])
        return cls(name, side, value / 100 if found["percent"] else value, bool(found["percent"]), text)


@dataclass(frozen=True)
class Judged:
    """One limit, and how the run stands to it.

    Attributes:
        limit: That was set.
        unit: Of the numbers.
        base: The base run's number; NaN where it isn't known.
        value: The run's.
        bound: What it may be; NaN where the base isn't known.
        kept: None where that can't be said.
        because: What makes most of the difference; "" where nothing tells.
    """

    limit: Limit
    unit: str
    base: float
    value: float
    bound: float
    kept: bool | None
    because: str = ""

    def sentence(self) -> str:
        """In words."""
        name, limit = self.limit.name, self.limit
        if self.kept is None:
            lacks = "base run" if math.isnan(self.bound) else "run"
            return f"{name} can't be checked: the {lacks} doesn't have it."
        bound = "at most" if limit.side == "max" else "at least"
        told = f"{name} is {'within' if self.kept else 'beyond'} its limit: {spell(self.value, self.unit)}, "
        told += f"{bound} {spell(self.bound, self.unit)}"
        if not math.isnan(self.base):
            ratio = self.value / self.base - 1 if self.base else math.nan
            change = "" if math.isnan(ratio) else f", {'+' if ratio >= 0 else '−'}{percent(abs(ratio))}"
            told += f" (base {spell(self.base, self.unit)}{change})"
        return f"{told}. {self.because}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""

        def known(value: float) -> float | None:
            return value if math.isfinite(value) else None

        return {
            "limit": f"{self.limit.side} {self.limit.text}",
            "metric": self.limit.name,
            "unit": self.unit,
            "base": known(self.base),
            "value": known(self.value),
            "bound": known(self.bound),
            "kept": self.kept,
            "sentence": self.sentence(),
        }


def check(base: Run, run: Run, limits: Sequence[Limit]) -> list[Judged]:
    """How a run stands to limits.

    Args:
        base: What changes are counted from.
        run: The run.
        limits: That are set.

    Returns:
        One for each limit, in their order. Numbers are those of :func:`probe.analysis.run_comparison.metrics`.

    Raises:
        UnknownNameError: Neither run has a number of that name.
    """
    known = {str(row["metric"]): row for row in rows(metrics(base, run))}
    for limit in limits:
        if limit.name not in known:
            raise UnknownNameError.of(f"--{limit.side}", limit.name, [*ALIASES, *known])
    found = [_judged(limit, known[limit.name]) for limit in limits]
    if not any(one.kept is False and one.limit.name in _EXPLAINED for one in found):
        return found
    with base.asked_often(), run.asked_often():
        made = {one.measure: one for one in difference(base, run).waterfalls}
    return [_explained(one, made) for one in found]


def _judged(limit: Limit, row: Mapping[str, Any]) -> Judged:
    base, value = float(row["a"]), float(row["b"])
    bound = base + abs(base) * limit.value if limit.relative else limit.value
    kept = None
    if not math.isnan(value) and not math.isnan(bound):
        kept = value <= bound if limit.side == "max" else value >= bound
    return Judged(limit, str(row["unit"]), base, value, bound, kept)


def _explained(one: Judged, made: Mapping[str, Waterfall]) -> Judged:
    of = made.get(_EXPLAINED.get(one.limit.name, ""))
    if one.kept is not False or of is None:
        return one
    return replace(one, because=of.sentence())
