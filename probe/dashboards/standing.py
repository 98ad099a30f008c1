"""Where a quantity stands: its number, what it means, and which limit it has reached."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probe import text as say
from probe.dashboards.courses import Course, in_window, is_of_the_run, over_window
from probe.dashboards.outstanding import said_of, who_stands_out
from probe.dashboards.spelling import extent, spell


@dataclass(frozen=True)
class Standing:
    """Where a quantity stands, in numbers and in words.

    Attributes:
        value: One number, NaN without any.
        text: The value as a person says it.
        note: Of what it is, with the smallest and largest of the run; or what is left; or why there is nothing.
        means: What it means, in a sentence; empty where nothing can be said.
        status: "good", "warn", "alarm", or "none" where nothing can be said.
        who: Which rank stands out, compared with what, or that none does; empty where fewer than two are compared.
    """

    value: float
    text: str
    note: str
    means: str
    status: str
    who: str = ""


def standing(spec: Mapping[str, Any], course: Course) -> Standing:
    """Where a quantity stands: the number of :func:`over_window`, and what it means.

    Args:
        spec: A quantity, or a tile.
        course: Its values.

    Returns:
        The same for every view, since each of them says it by this function.
    """
    value, unit = over_window(spec, course), str(spec.get("unit", "number"))
    if math.isnan(value):
        return Standing(value, spell(value, unit), why_missing(spec, rows=bool(course.steps)), "", "none")
    note, status = _note(spec, course, unit), status_of(spec, value)
    if "capacity" in spec:
        status = "none"
        if course.capacity > 0:  # warn and alarm are shares of it then
            share = value / course.capacity
            note = f"The peak takes {say.percent(share)} of {spell(course.capacity, unit)}."
            status = status_of(spec, share)
    who = said_of(who_stands_out(spec, course.by_rank), spec)
    return Standing(value, spell(value, unit), note, meaning(spec, status), status, who)


def meaning(spec: Mapping[str, Any], status: str) -> str:
    """What a value means, in a sentence.

    Args:
        spec: A quantity, or a tile.
        status: Of the value, which is known.

    Returns:
        The sentence. A quantity without limits has one for all values; of one with limits that can't be compared with
        them (of bytes, because no capacity is known) none is said.

    >>> meaning({"means": {"good": "The others wait."}}, "none")
    'The others wait.'
    >>> meaning({"warn": 1, "means": {"good": "Fine."}}, "none")
    ''
    """
    if status == "none" and ("warn" in spec or "alarm" in spec):
        return "No capacity is known to compare it with." if "capacity" in spec else ""
    return str(spec.get("means", {}).get("good" if status == "none" else status, ""))


def why_missing(spec: Mapping[str, Any], *, rows: bool) -> str:
    """Why there is no value.

    Args:
        spec: A quantity, or a tile.
        rows: Whether there are rows of the quantity, which have no value.

    Returns:
        The reason in a sentence.

    >>> why_missing({"missing": {"rows": "Nothing was cut.", "value": "Needs two ranks."}}, rows=True)
    'Needs two ranks.'
    """
    told = spec.get("missing", {})
    return str((told.get("value") if rows else None) or told.get("rows", "Not measured."))


def _note(spec: Mapping[str, Any], course: Course, unit: str) -> str:
    if spec.get("total"):
        return "Over the run."
    known = [one for one in course.values if not math.isnan(one)]
    inside = known if is_of_the_run(spec) else [course.values[at] for at in in_window(spec, course)]
    if spec.get("pooled") and len(inside) > 1:
        return f"The last {len(inside)} steps together."
    if len(inside) == 1:
        return "Of one step."
    return f"{extent(min(inside), max(inside), unit)} in {say.count(len(inside))} steps."


def status_of(spec: Mapping[str, Any], value: float) -> str:
    """Which limit a value has reached.

    Args:
        spec: A quantity, or a tile.
        value: In its unit; of one with a capacity the share of it.

    Returns:
        "good", "warn" or "alarm"; "none" without a value or without limits.

    >>> status_of({"warn": 1.1, "alarm": 1.25}, 1.2), status_of({}, 1.2)
    ('warn', 'none')
    """
    if math.isnan(value) or ("warn" not in spec and "alarm" not in spec):
        return "none"
    sign = -1 if spec.get("better") == "higher" else 1
    reached = (name for name in ("alarm", "warn") if name in spec and sign * value >= sign * spec[name])
    return next(reached, "good")
