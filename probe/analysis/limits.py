"""Whether a run is within limits that are set beside another one: what ``probe check`` says.

A limit that is a number is compared exactly. One that is a change asks whether the run is shown to be no worse than the
base run by more than a margin: the one-sided bound of the change, from the steps of both runs (see
:mod:`probe.analysis.noise`), is inside the margin, beyond it, or tells neither.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from probe.analysis.difference import Waterfall, difference
from probe.analysis.difference.step_time import WARM
from probe.analysis.noise import Change, Verdict, change
from probe.analysis.quantities import courses
from probe.analysis.run_comparison import metrics
from probe.dashboards.quantities import quantities
from probe.dashboards.spelling import spell
from probe.errors import InputError, UnknownNameError
from probe.sql import literal, sql
from probe.text import percent, rows

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Short names of quantities.
ALIASES: Final = {"step": "step_time", "peak": "peak_memory", "carried": "carried_tokens", "padding": "padding_tax"}

#: Of each bound, unless another one is asked for.
CONFIDENCE: Final = 0.95

#: Runs that share less of the shorter one's steps aren't compared step by step.
_SHARED: Final = 0.5

#: Whose difference a limit is about, where there is a waterfall of it.
_EXPLAINED: Final = {"step_time": "step_time", "peak_memory": "peak_memory"}

#: A metric that several ranks logged is the mean of theirs.
_LOGGED: Final = """
select step, avg(value) as value from scalars
where source = 'user' and step is not null and key = {key} group by step"""

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
        of: What ``base`` and ``value`` are of the steps: ``"Median"``, ``"Largest"``, ``"Last"`` or ``"Whole run"``.
        base: The base run's number; NaN where it isn't known.
        value: The run's.
        bound: What it may be; NaN where the base isn't known.
        verdict: ``"within"``, ``"beyond"``, ``"not_shown"`` where the steps are too few or too noisy to tell, or
            ``"unknown"`` where a run lacks the number.
        change: Of the typical step, with its bounds; None where numbers were compared exactly.
        same_tokens: Whether both runs have the same tokens in each step that was compared.
        largest: The larger peaks that keep a change of the typical step from being enough: of the base and of the run,
            over the steps that both have; None where they don't.
        because: What makes most of the difference; "" where nothing tells.
    """

    limit: Limit
    unit: str
    of: str
    base: float
    value: float
    bound: float
    verdict: Verdict | Literal["unknown"]
    change: Change | None = None
    same_tokens: bool = False
    largest: tuple[float, float] | None = None
    because: str = ""

    @property
    def kept(self) -> bool | None:
        """Whether the limit is kept; None where that isn't shown, or can't be checked."""
        return {"within": True, "beyond": False}.get(self.verdict)

    @property
    def steps_needed(self) -> int | None:
        """About how many steps of each run would tell; None where the verdict stands, or no number would."""
        if self.verdict != "not_shown" or self.change is None or self.largest is not None:
            return None
        needed = self.change.steps_needed(self.limit.value)
        return None if needed is None else needed + 1  # the first step doesn't count

    def sentence(self) -> str:
        """In words."""
        name, limit = self.limit.name, self.limit
        if self.verdict == "unknown":
            lacks = "base run" if math.isnan(self.bound) else "run"
            return f"{name} can't be checked: the {lacks} doesn't have it."
        how = {"within": "within", "beyond": "beyond"}.get(self.verdict, "not shown to be within")
        if self.change is None:
            bound = "at most" if limit.side == "max" else "at least"
            told = f"{name} is {how} its limit: {spell(self.value, self.unit)}, {bound} {spell(self.bound, self.unit)}"
            if not math.isnan(self.base):
                ratio = self.value / self.base - 1 if self.base else math.nan
                changed = "" if math.isnan(ratio) else f", {_signed(ratio)}"
                told += f" (base {spell(self.base, self.unit)}{changed})"
        else:
            told = f"{name} is {how} its limit of {_exactly(limit.value)}: {self._shown(self.change)}"
            if not (self.because and self.of == "Largest"):  # which says the same
                told += f". {self.of}: {spell(self.base, self.unit)} → {spell(self.value, self.unit)}"
        return f"{told}. {self.because}".rstrip()

    def _shown(self, of: Change) -> str:
        """The change, and how sure it is."""
        same = ", with the same tokens in each" if self.same_tokens else ""
        told = self._spelled(of.value)
        if of.is_constant:
            changes = f"changes by {told}" if of.value else "is the same"
            return f"it {changes} in each of {of.steps} steps{same}"
        if of.steps < 2:
            return f"it changes by {told} in the only step, which says nothing of noise"
        low, high = (self._spelled(one) for one in of.interval)
        sure = f"{100 * of.confidence:.4g} % confidence"
        steps = f"{of.steps} {'pairs of steps' if of.paired else 'steps'}{same}"
        changes = f"the typical step changes by {told}"
        if self.verdict == "not_shown" and self.largest is None:
            return f"{changes}, from {low} to {high} ({sure} of each end; {steps}). {self._needed()}"
        end = f"at most {high}" if (self.verdict != "beyond") == (self.limit.side == "max") else f"at least {low}"
        beside = ""
        if self.largest is not None:
            one, other = (spell(each, self.unit) for each in self.largest)
            beside = f". But the largest step is beyond it: {one} → {other}"
        return f"{changes}, {end} ({sure}; {steps}){beside}"

    def _needed(self) -> str:
        needed = self.steps_needed
        if needed is None:
            return "This is too near the limit for any number of steps to tell"
        return f"About {needed:,} steps of each run would tell"

    def _spelled(self, value: float) -> str:
        of = self.change
        if of is not None and not of.unit:  # nothing to be a share of
            return f"{'−' if value < 0 else '+'}{spell(abs(value), self.unit)}"
        return _signed(value)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        of = self.change
        low, high = (math.nan, math.nan) if of is None else of.interval
        return {
            "limit": f"{self.limit.side} {self.limit.text}",
            "metric": self.limit.name,
            "unit": self.unit,
            "base": _known(self.base),
            "value": _known(self.value),
            "bound": _known(self.bound),
            "kept": self.kept,
            "verdict": self.verdict,
            "confidence": None if of is None else of.confidence,
            "change": None if of is None else _known(of.value),
            "interval": None if of is None else [_known(low), _known(high)],
            "steps": None if of is None else of.steps,
            "steps_needed": self.steps_needed,
            "paired": None if of is None else of.paired,
            "same_tokens": None if of is None else self.same_tokens,
            "sentence": self.sentence(),
        }


def check(base: Run, run: Run, limits: Sequence[Limit], *, confidence: float = CONFIDENCE) -> list[Judged]:
    """How a run stands to limits.

    Args:
        base: What changes are counted from.
        run: The run.
        limits: That are set.
        confidence: Of each one-sided bound of a change, at least 0.5 and below 1.

    Returns:
        One for each limit, in their order. Numbers are those of :func:`probe.analysis.run_comparison.metrics`.

    Raises:
        InputError: The confidence is none.
        UnknownNameError: Neither run has a number of that name.
    """
    if not 0.5 <= confidence < 1:
        raise InputError(f"confidence: got {confidence:g}, expected at least 0.5 and below 1, such as {CONFIDENCE}")
    known = {str(row["metric"]): row for row in rows(metrics(base, run, {limit.name for limit in limits}))}
    for limit in limits:
        if limit.name not in known:
            raise UnknownNameError.of(f"--{limit.side}", limit.name, [*ALIASES, *metrics(base, run)["metric"]])
    names = {limit.name for limit in limits if limit.relative}
    pair = _Pair(_by_step(base, names), _by_step(run, names), confidence)
    found = [_judged(limit, known[limit.name], pair) for limit in limits]
    if not any(one.kept is False and one.limit.name in _EXPLAINED for one in found):
        return found
    with base.asked_often(), run.asked_often():
        made = {one.measure: one for one in difference(base, run).waterfalls}
    return [_explained(one, made) for one in found]


#: Values of each step.
_Steps = dict[int, float]


def _by_step(run: Run, names: Collection[str]) -> dict[str, _Steps]:
    """What a run says of each step, under each of the names of which it says something; and its tokens."""
    if not names:
        return {}
    specs = {name: spec for name, spec in quantities().items() if name in names and not spec.get("total")}
    specs |= {"tokens": quantities()["tokens"]}
    told = {
        name: dict(zip(course.steps, course.values, strict=True))
        for name, course in zip(specs, courses(run, list(specs.values())), strict=True)
    }
    for name in set(names) - quantities().keys():
        frame = run.sql(sql(_LOGGED, key=literal(name)))
        told[name] = {int(row["step"]): float(row["value"]) for row in rows(frame)}
    return {name: {step: one for step, one in steps.items() if math.isfinite(one)} for name, steps in told.items()}


@dataclass(frozen=True)
class _Pair:
    """What both runs say of each step."""

    base: Mapping[str, _Steps]
    run: Mapping[str, _Steps]
    confidence: float

    def change(self, name: str) -> Change | None:
        """The change of the typical step; None where a run says nothing by step."""
        base, run = (_warm(one.get(name, {})) for one in (self.base, self.run))
        if not base or not run:
            return None
        both = sorted(base.keys() & run.keys())
        if len(both) >= _SHARED * min(len(base), len(run)):
            before, after = ([one[step] for step in both] for one in (base, run))
            return change(before, after, self.confidence, paired=True)
        return change(list(base.values()), list(run.values()), self.confidence, paired=False)

    def same_tokens(self, name: str) -> bool:
        """Whether both runs have the same tokens in each step that is compared."""
        both = _warm(self.base[name]).keys() & _warm(self.run[name]).keys()
        base, run = (one.get("tokens", {}) for one in (self.base, self.run))
        return bool(both) and all(step in base and base[step] == run.get(step) for step in both)

    def largest(self, name: str) -> tuple[float, float]:
        """The largest values of both, over the steps that both have; over all where they share none."""
        base, run = self.base[name], self.run[name]
        both = base.keys() & run.keys()
        return max(base[step] for step in both or base), max(run[step] for step in both or run)


def _warm(steps: _Steps) -> _Steps:
    """All but the first, in their order; all where they are few."""
    return {step: steps[step] for step in sorted(steps)[1 if len(steps) >= WARM else 0 :]}


def _judged(limit: Limit, row: Mapping[str, Any], pair: _Pair) -> Judged:
    base, value = float(row["a"]), float(row["b"])
    bound = base + abs(base) * limit.value if limit.relative else limit.value
    exact = Judged(limit, str(row["unit"]), _of(limit.name), base, value, bound, "unknown")
    if math.isnan(value) or math.isnan(bound):
        return exact
    of = pair.change(limit.name) if limit.relative else None
    logged_once = of is not None and of.steps < 2 and limit.name not in quantities()
    if of is None or logged_once or (of.steps < 2 and value == base):
        kept = value <= bound if limit.side == "max" else value >= bound
        return replace(exact, verdict="within" if kept else "beyond")
    found = replace(
        exact, verdict=of.verdict(limit.value, limit.side), change=of, same_tokens=pair.same_tokens(limit.name)
    )
    if found.verdict != "within" or limit.side == "min" or _of(limit.name) != "Largest":
        return found
    one, other = pair.largest(limit.name)
    return found if other <= one * (1 + limit.value) else replace(found, verdict="not_shown", largest=(one, other))


def _of(name: str) -> str:
    """What the number of a run is of its steps: see :func:`probe.dashboards.courses.over_run`."""
    spec = quantities().get(name)
    if spec is None:
        return "Last"
    if spec.get("total") or spec.get("pooled"):
        return "Whole run"
    return "Largest" if spec.get("unit") == "bytes" else "Median"


def _explained(one: Judged, made: Mapping[str, Waterfall]) -> Judged:
    of = made.get(_EXPLAINED.get(one.limit.name, ""))
    if one.kept is not False or of is None:
        return one
    # What is beyond a margin isn't noise, whatever the interval of the mean over steps that aren't compared in pairs.
    return replace(one, because=replace(of, interval=None).sentence())


def _signed(ratio: float) -> str:
    return f"{'−' if ratio < 0 else '+'}{percent(abs(ratio))}"


def _exactly(ratio: float) -> str:
    """A margin, with all digits that were given."""
    return f"{'−' if ratio < 0 else '+'}{100 * abs(ratio):.6g} %"


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
