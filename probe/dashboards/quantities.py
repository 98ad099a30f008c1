"""The quantities of a run, each defined once in ``dashboards/quantities.yaml``.

A quantity is a series spec with words and limits. It compiles to SQL (:mod:`probe.dashboards.compile`: report,
findings, tracking backends) and is read by the live reducers (kernel and browser) as it is; so that whoever changes it
there finds it changed everywhere.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from probe import text as say
from probe.dashboards import files
from probe.dashboards.spec import SERIES, check_tiles, check_window
from probe.errors import InputError, UnknownNameError

#: Values by step and rank.
ByRank = Mapping[tuple[int, int], float]

#: Fewer ranks than one more than this are compared with nobody.
MOST_ALONE: Final = 1

#: A rank stands out whose number is so many times as bad as the middle of the others, over so many steps or more.
OUTSTANDING: Final = 1.1
LEAST_STEPS: Final = 3

#: What stands behind the name of a quantity, by its unit.
_SUFFIXES: Final = {"s": "_s", "bytes": "_bytes", "ratio": "_ratio", "percent": "_ratio"}


@lru_cache(maxsize=1)
def quantities() -> Mapping[str, Mapping[str, Any]]:
    """All quantities by their name, in the order of the file.

    Returns:
        Of each a series spec with ``id``, ``title``, ``unit``, ``better``, ``missing``, ``means`` and maybe ``warn``,
        ``alarm``, ``capacity`` and ``total``.

    Raises:
        InputError: The file says something that can't be used; the message names quantity and field.
    """
    data = _read()
    found: dict[str, Mapping[str, Any]] = {}
    for one in data["quantities"] if isinstance(data["quantities"], list) else ():
        whole = resolved(one, found)
        found[str(whole.get("id") if isinstance(whole, dict) else whole)] = whole
    check_tiles(list(found.values()), "quantities")
    return found


def _read() -> dict[str, Any]:
    data = files.loaded(files.text("quantities"), "quantities")
    if not isinstance(data, dict) or set(data) != {"quantities", "window_steps"}:
        raise InputError(f"quantities: got {data!r}, expected a list under 'quantities', and 'window_steps'")
    return data


@lru_cache(maxsize=1)
def window_steps() -> int:
    """Of how many last steps a tile shows the median, where the tile doesn't say another number.

    Returns:
        ``window_steps`` of ``dashboards/quantities.yaml``.

    Raises:
        InputError: It is no whole number from 1 on.
    """
    steps = _read()["window_steps"]
    check_window(steps, "quantities: window_steps")
    return int(steps)


def quantity(name: str) -> Mapping[str, Any]:
    """The quantity called ``name``.

    Args:
        name: Such as "rank_imbalance".

    Returns:
        Its series spec with words and limits.

    Raises:
        UnknownNameError: There is none; the message lists what there is.
    """
    known = quantities()
    if name not in known:
        raise UnknownNameError.of("quantity", name, known)
    return known[name]


def series_of(name: str) -> dict[str, Any]:
    """The quantity called ``name`` as a series spec alone, without words and limits.

    Args:
        name: Such as "rank_imbalance".

    Returns:
        The fields of a series spec.

    Raises:
        UnknownNameError: There is none; the message lists what there is.
    """
    return _series_of(name, quantities())


def _series_of(name: str, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    if name not in known:
        raise UnknownNameError.of("quantity", name, known)
    return {field: value for field, value in known[name].items() if field in SERIES}


def resolved(block: Any, known: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
    """A ``live:`` block, or part of one, in which each ``quantity: name`` has become the fields of that quantity.

    Fields beside the name win. A tile (something in a list ``tiles``) gets words and limits too; anything else gets the
    series alone.

    Args:
        block: As YAML gave it.
        known: The quantities that may be named; None is all there are.

    Returns:
        The same with plain fields.

    Raises:
        UnknownNameError: There is no such quantity.

    >>> resolved({"mark": "line", "x": "step", "quantity": "peak_memory"})["y"]
    'peak'
    """
    if isinstance(block, list):
        return [resolved(one, known) for one in block]
    if not isinstance(block, dict):
        return block
    found = {
        name: [_tile(one, known) for one in value]
        if name == "tiles" and isinstance(value, list)
        else resolved(value, known)
        for name, value in block.items()
    }
    if "quantity" not in found:
        return found
    return {**_series_of(str(found.pop("quantity")), quantities() if known is None else known), **found}


def _tile(tile: Any, known: Mapping[str, Mapping[str, Any]] | None) -> Any:
    if not isinstance(tile, dict):
        return tile
    words = quantity(str(tile["quantity"])) if "quantity" in tile else {}
    return {"window": window_steps(), **words, **resolved(tile, known)}


def field_of(spec: Mapping[str, Any]) -> str:
    """The name of a quantity with its unit, as it stands in frames, in JSON and in metric keys.

    >>> field_of({"id": "step_time", "unit": "s"}), field_of({"id": "alerts", "unit": "count"})
    ('step_time_s', 'alerts')
    """
    return str(spec["id"]) + _SUFFIXES.get(str(spec.get("unit")), "")


# ------------------------------------------------------------------------------------------------ over a whole run


#: By series (the values of ``by``) what is divided, and what it is divided by.
Parts = Mapping[tuple[Any, ...], tuple[float, float]]


@dataclass(frozen=True)
class Course:
    """A quantity over a run, wherever it was read: by SQL or from live tables.

    Attributes:
        steps: In order.
        values: One for each step, NaN where there is none.
        total: The sum over the run, of what is counted (``total: true``); else NaN.
        capacity: What it is measured against; NaN without.
        by_rank: The values of :func:`who_series`, by step and rank; none where nobody asked for them.
        parts: Of a ratio of sums (``pooled: true``), for each step: by series what is divided, and by what.
    """

    steps: Sequence[int]
    values: Sequence[float]
    total: float = math.nan
    capacity: float = math.nan
    by_rank: ByRank = field(default_factory=dict)
    parts: Sequence[Parts] = ()


@dataclass(frozen=True)
class Who:
    """The rank whose numbers are the worst, and what they are compared with.

    Attributes:
        rank: Its number.
        value: Its median of the steps of the window; of bytes its largest of the run.
        others: The middle of the others' numbers.
        ranks: How many ranks are compared.
        low: The smallest of all their numbers.
        high: The largest of all their numbers.
        steps: Over how many steps.
        stands_out: Whether it is worse by so much, over so many steps, that it is named.
    """

    rank: int
    value: float
    others: float
    ranks: int
    low: float
    high: float
    steps: int
    stands_out: bool


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


def over_run(spec: Mapping[str, Any], course: Course) -> float:
    """One number for the whole run: the total of what is counted, the largest of bytes, of a ratio of sums that of all
    steps, else the middle of the steps.

    Args:
        spec: A quantity.
        course: Its values.

    Returns:
        The number; NaN where no step has a value.

    >>> over_run({"unit": "s"}, Course([0, 1, 2], [3.0, 1.0, 2.0]))
    2.0
    """
    if spec.get("total"):
        return course.total
    if spec.get("pooled"):
        return _pooled(course.parts)
    known = [one for one in course.values if not math.isnan(one)]
    if not known:
        return math.nan
    return max(known) if spec.get("unit") == "bytes" else statistics.median(known)


def over_window(spec: Mapping[str, Any], course: Course) -> float:
    """The number that a tile shows and judges: the median of the last ``window`` steps that have a value, or where it
    is pooled their ratio of sums.

    Args:
        spec: A tile; without a ``window`` it is of the last step alone.
        course: Its values.

    Returns:
        The number; of what is counted, and of bytes, that of the run. NaN where no step has a value.

    >>> over_window({"unit": "s", "window": 3}, Course([0, 1, 2, 3, 4], [9.0, 3.0, 1.0, math.nan, 2.0]))
    2.0
    """
    if _is_of_the_run(spec):
        return over_run(spec, course)
    inside = _in_window(spec, course)
    if spec.get("pooled"):
        return _pooled([course.parts[at] for at in inside])
    return statistics.median(course.values[at] for at in inside) if inside else math.nan


def _pooled(parts: Iterable[Parts]) -> float:
    """Sum ÷ sum of each series; the largest of them, NaN where there is none.

    >>> _pooled([{(0,): (1.0, 10.0), (1,): (8.0, 10.0)}, {(0,): (9.0, 10.0)}])
    0.8
    """
    over: dict[tuple[Any, ...], float] = {}
    under: dict[tuple[Any, ...], float] = {}
    for step in parts:
        for series, (above, below) in step.items():
            if not math.isnan(above) and not math.isnan(below):
                over[series] = over.get(series, 0.0) + above
                under[series] = under.get(series, 0.0) + below
    return max((over[series] / below for series, below in under.items() if below), default=math.nan)


def _is_of_the_run(spec: Mapping[str, Any]) -> bool:
    return bool(spec.get("total")) or spec.get("unit") == "bytes"


def _in_window(spec: Mapping[str, Any], course: Course) -> list[int]:
    """Which of the steps are in it."""
    known = [at for at, one in enumerate(course.values) if not math.isnan(one)]
    return known[-int(spec.get("window", 1)) :]


def who_series(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """The series by which the ranks of a quantity are compared.

    Args:
        spec: A quantity, or a tile.

    Returns:
        A series spec over steps; None where nobody is compared.

    >>> who_series({"table": "spans", "y": "peak", "reduce": "max", "title": "Peak", "who": "rank"})
    {'table': 'spans', 'y': 'peak', 'reduce': 'max', 'by': 'rank', 'x': 'step'}
    """
    who = spec.get("who")
    if who is None:
        return None
    own = {name: value for name, value in spec.items() if name in SERIES}
    return {**({**own, "by": who} if isinstance(who, str) else who), "x": "step"}


def who_stands_out(spec: Mapping[str, Any], by_rank: ByRank) -> Who | None:
    """Compare the ranks over the steps that the number of a tile is of.

    Args:
        spec: A quantity, or a tile.
        by_rank: The values of :func:`who_series`, by step and rank.

    Returns:
        The worst rank; None where fewer than two have a value.

    >>> seconds = {(step, rank): 1.0 + (rank == 2) for step in range(3) for rank in range(4)}
    >>> found = who_stands_out({"window": 20}, seconds)
    >>> found.rank, found.value, found.others, found.stands_out
    (2, 2.0, 1.0, True)
    """
    known = {place: value for place, value in by_rank.items() if not math.isnan(value)}
    steps = sorted({step for step, _ in known})
    inside = set(steps if _is_of_the_run(spec) else steps[-int(spec.get("window", 1)) :])
    found: dict[int, list[float]] = {}
    for (step, rank), value in known.items():
        if step in inside:
            found.setdefault(rank, []).append(value)
    if len(found) < MOST_ALONE + 1:
        return None
    middle = max if _is_of_the_run(spec) else statistics.median
    return _worst({rank: float(middle(values)) for rank, values in sorted(found.items())}, spec, len(inside))


def _worst(numbers: Mapping[int, float], spec: Mapping[str, Any], steps: int) -> Who:
    choose = min if spec.get("better") == "higher" else max
    rank = choose(numbers, key=lambda one: numbers[one])  # of equal ones the first
    value, others = numbers[rank], statistics.median([numbers[one] for one in numbers if one != rank])
    above, below = (others, value) if spec.get("better") == "higher" else (value, others)
    stands_out = steps >= LEAST_STEPS and below > 0 and above >= OUTSTANDING * below
    return Who(rank, value, others, len(numbers), min(numbers.values()), max(numbers.values()), steps, stands_out)


def said_of(who: Who | None, spec: Mapping[str, Any]) -> str:
    """Who stands out, in a sentence.

    Args:
        who: As :func:`who_stands_out` found it.
        spec: The quantity, or the tile.

    Returns:
        The sentence; empty where fewer than two ranks were compared.

    >>> said_of(Who(5, 1.5, 1.25, 8, 1.2, 1.5, 20, True), {"unit": "s"})
    'Rank 5: 1.50 s, the other 7: 1.25 s.'
    """
    if who is None:
        return ""
    unit = str((who_series(spec) or spec).get("unit", spec.get("unit", "number")))
    value, others, low, high = (
        spell(one, unit) + (" tokens" if unit == "tokens" else "") for one in (who.value, who.others, who.low, who.high)
    )
    if who.stands_out:
        return f"Rank {who.rank}: {value}, the other {who.ranks - 1}: {others}."
    extent = f"{low}." if low == high else f"{low} to {high}."
    return f"No rank stands out: {extent}" if who.steps >= LEAST_STEPS else f"{who.ranks} ranks: {extent}"


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
            note = f"{say.percent(1 - share)} of {spell(course.capacity, unit)} are free."
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
    inside = known if _is_of_the_run(spec) else [course.values[at] for at in _in_window(spec, course)]
    if spec.get("pooled") and len(inside) > 1:
        return f"The last {len(inside)} steps together."
    if len(inside) == 1:
        return "Of one step."
    return f"{extent(min(inside), max(inside), unit)} in {say.count(len(inside))} steps."


def extent(low: float, high: float, unit: str) -> str:
    """From one value to another, the unit said once where it is the same.

    Args:
        low: The smaller one.
        high: The larger one.
        unit: Of both.

    Returns:
        The text.

    >>> extent(49.6, 53.0, "s"), extent(0.5, 2.0, "s"), extent(1.0, 1.0, "s")
    ('49.6 to 53.0 s', '500 ms to 2.00 s', '1.00 s')
    """
    first, last = spell(low, unit), spell(high, unit)
    number, space, word = first.rpartition(" ")
    if first == last:
        return last
    return f"{number if space and last.endswith(f' {word}') else first} to {last}"


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


def spell(value: float, unit: str) -> str:
    """A value with its unit.

    >>> spell(3 * 1024**3, "bytes"), spell(1.25, "ratio"), spell(0.06, "percent"), spell(float("nan"), "s")
    ('3.00 GiB', '1.25×', '6.0 %', '–')
    """
    if math.isnan(value):
        return say.UNKNOWN
    spellings: dict[str, Callable[[float | None], str]] = {
        "bytes": say.size,
        "tokens": say.count,
        "tokens/s": say.count,
        "count": say.count,
        "ratio": say.ratio,
        "percent": say.percent,
        "s": say.seconds,
    }
    spelled = spellings.get(unit)
    return say.number(value) if spelled is None else spelled(value)
