"""A series spec of a ``live:`` block read in Python: numbers of the live tables.

SQL and the browser read the same specs; this is for what is shown without them: the overview's tiles in a saved
notebook, as text, SVG and plotly JSON. It takes a few milliseconds at any length of the history, since the tables are
bounded. On rows before thinning whole numbers are exactly those of SQL, and others to 12 digits.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from probe.dashboards.columns import Formula, Table
from probe.dashboards.spec import listed, pairs
from probe.live.tables import LiveTable, Words

Numbers = npt.NDArray[np.float64]
Keys = list[npt.NDArray[Any]]

#: What a number belongs to: the values of ``x`` and ``by``, texts as texts, None for missing.
Cell = tuple[Any, ...]

#: What was worked out of tables to which no row comes meanwhile, by the question; None keeps nothing.
_TOLD: ContextVar[dict[str, dict[Any, float]] | None] = ContextVar("told", default=None)

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": lambda above, below: np.where(np.equal(below, 0), np.nan, np.divide(above, below)),
}
_EXTREMES: Final = {"max": np.maximum, "min": np.minimum, "fmax": np.fmax, "fmin": np.fmin}


@contextlib.contextmanager
def at_one_moment() -> Iterator[None]:
    """Within it no row comes to the tables, all of one run: what two questions have in common is worked out once."""
    token = _TOLD.set({})
    try:
        yield
    finally:
        _TOLD.reset(token)


def _once(question: str, answer: Callable[[], dict[Any, float]]) -> dict[Any, float]:
    """An answer, which nobody changes."""
    told = _TOLD.get()
    if told is None:
        return answer()
    if question not in told:
        told[question] = answer()
    return told[question]


def by_step(tables: Mapping[str, LiveTable], words: Words, spec: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """The value of ``spec`` at each step; where it has several series (``by``), the largest of them.

    Args:
        tables: The live tables by name.
        words: Their texts.
        spec: As in :mod:`probe.dashboards.spec`.

    Returns:
        Steps in order, and a value for each: NaN where there is none. Rows outside any step are left out.
    """
    found = _by_step(tables, words, spec)
    steps = sorted(step for step in found if step >= 0)
    return steps, [found[step] for step in steps]


def total(tables: Mapping[str, LiveTable], words: Words, spec: Mapping[str, Any]) -> float:
    """The sum of ``spec`` over the run, rows outside any step included; the largest for reduce: max.

    Args:
        tables: The live tables by name.
        words: Their texts.
        spec: As in :mod:`probe.dashboards.spec`.

    Returns:
        The number; NaN where nothing was recorded of which there could be a largest.
    """
    values = [one for one in _by_step(tables, words, spec).values() if not np.isnan(one)]
    if spec.get("reduce", "max") == "max":
        return max(values, default=np.nan)
    return float(sum(values))


def cells(tables: Mapping[str, LiveTable], words: Words, spec: Mapping[str, Any]) -> dict[Cell, float]:
    """The value of ``spec`` for each ``x`` and each of its series.

    Args:
        tables: The live tables by name.
        words: Their texts.
        spec: As in :mod:`probe.dashboards.spec`, with one ``y``; ``x`` is "step" where it has none.

    Returns:
        Values by (x …, by …). Where ``divide`` has nothing for an x, NaN. Not to be changed.
    """
    return _once(f"cells {dict(spec)!r}", lambda: _cells(tables, words, spec))


def _cells(tables: Mapping[str, LiveTable], words: Words, spec: Mapping[str, Any]) -> dict[Cell, float]:
    table = tables.get(spec["table"])
    if table is None:  # of a row type of which no row has come
        return {}
    x = _x(table.declared, spec)
    names = [*x, *listed(spec.get("by"))]
    keys, values = _reduced_by(table, words, spec, names)
    places = [_plain(table.declared, words, name, key) for name, key in zip(names, keys, strict=True)]
    found = dict(zip(zip(*places, strict=True), values.tolist(), strict=True))
    if pairs(spec):
        below = _under(tables, words, spec)
        found = {place: _divided(value, below.get(place)) for place, value in found.items()}
    elif "divide" in spec:
        under = _largest((place[: len(x)], value) for place, value in _under(tables, words, spec).items())
        found = {place: _divided(value, under.get(place[: len(x)])) for place, value in found.items()}
    return {place: value * spec.get("scale", 1) for place, value in found.items()}


def _under(tables: Mapping[str, LiveTable], words: Words, spec: Mapping[str, Any]) -> dict[Cell, float]:
    return cells(tables, words, {"x": spec.get("x", "step"), **spec["divide"]})


def parts(tables: Mapping[str, LiveTable], words: Words, spec: Mapping[str, Any]) -> dict[Cell, tuple[float, float]]:
    """What is divided and what it is divided by, of each series of ``spec`` at each step.

    Args:
        tables: The live tables by name.
        words: Their texts.
        spec: A series spec with ``divide``, where both have the same ``by``.

    Returns:
        Both by (step, by …), NaN where there is none.
    """
    alone = {name: value for name, value in spec.items() if name not in ("divide", "x")}
    over, under = cells(tables, words, alone), cells(tables, words, {**spec["divide"], "x": "step"})
    return {place: (value, under.get(place, np.nan)) for place, value in over.items()}


def number(table: Table, columns: Mapping[str, npt.NDArray[Any]], name: str) -> Numbers:
    """A column, or one derived from others, as floats.

    Args:
        table: What the columns are.
        columns: The columns that are kept.
        name: Of the one that is asked for; one that isn't there is missing in every row.

    Returns:
        Shape ``(rows,)``, NaN where it is missing.
    """
    if name in table.derived:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(_evaluated(table, columns, table.derived[name].formula), np.float64)
    if name not in columns:
        return np.full(len(next(iter(columns.values()))), np.nan)
    values = columns[name]
    found = values.astype(np.float64)
    if values.dtype == np.int32:
        found[values == -1] = np.nan
    return found


def _evaluated(table: Table, columns: Mapping[str, npt.NDArray[Any]], formula: Formula) -> Any:
    if isinstance(formula, str):
        return number(table, columns, formula)
    if not isinstance(formula, tuple):
        return float(formula)
    operator, left, right = formula
    return _OPERATORS[operator](_evaluated(table, columns, left), _evaluated(table, columns, right))


def _by_step(tables: Mapping[str, LiveTable], words: Words, spec: Mapping[str, Any]) -> dict[int, float]:
    """By step the largest over the series; −1 for rows outside any."""
    return _once(f"by step {dict(spec)!r}", lambda: _largest_by_step(tables, words, spec))


def _largest_by_step(tables: Mapping[str, LiveTable], words: Words, spec: Mapping[str, Any]) -> dict[int, float]:
    if spec["table"] not in tables:  # of a row type of which no row has come
        return {}
    keys, values = _reduced_by(tables[spec["table"]], words, spec, ["step", *listed(spec.get("by"))])
    if pairs(spec):
        quotients = ((place[0], _divided(over, under)) for place, (over, under) in parts(tables, words, spec).items())
        return _largest((-1 if step is None else step, value) for step, value in quotients)
    found = _largest_of(keys[0], values)
    if "divide" in spec:
        under = _by_step(tables, words, spec["divide"])
        found = {step: _divided(value, under.get(step)) for step, value in found.items()}
    return {step: value * spec.get("scale", 1) for step, value in found.items()}


def _largest(found: Iterable[tuple[Any, float]]) -> dict[Any, float]:
    """By place the largest of its values; NaN where all of them are."""
    largest: dict[Any, float] = {}
    for place, value in found:
        known = largest.get(place, np.nan)
        largest[place] = value if np.isnan(known) or value > known else known
    return largest


def _largest_of(places: npt.NDArray[Any], values: Numbers) -> dict[Any, float]:
    """The same of arrays."""
    if not len(places):
        return {}
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    largest = np.fmax.reduceat(np.asarray(values, dtype=np.float64)[order], begins)
    came = np.argsort(order[begins])  # in the order in which they came first
    return dict(zip(ordered[begins][came].tolist(), largest[came].tolist(), strict=True))


def _divided(value: float, under: float | None) -> float:
    return value / under if under else np.nan


def _x(table: Table, spec: Mapping[str, Any]) -> list[str]:
    asked = listed(spec.get("x")) or ["step"]
    return [table.time[0] if one == "time" and table.time else one for one in asked]


def _plain(table: Table, words: Words, name: str, values: npt.NDArray[Any]) -> list[Any]:
    """The values of a key: texts as texts, None for missing."""
    if name in table.words:
        return [None if one < 0 else words.texts[one] for one in values.tolist()]
    return [None if one == -1 or math.isnan(one) else one for one in values.tolist()]


# ------------------------------------------------------------------------------------------------- the numbers


def _reduced_by(table: LiveTable, words: Words, spec: Mapping[str, Any], names: Sequence[str]) -> tuple[Keys, Numbers]:
    """One number for each combination of the columns ``names``: where it has several, the largest of them (``per``) or
    the smallest (``least``)."""
    columns, how = table.columns(), str(spec.get("reduce", "max"))
    ys, each, slots, per, least = (listed(spec.get(one)) for one in ("y", "each", "slots", "per", "least"))
    value = number(table.declared, columns, ys[0]) if ys else np.ones(table.count)
    here = ~np.isnan(value) & _wanted_rows(table, words, spec)
    if "rank" in each or "rank" in least:  # a process without a rank is not one of the ranks
        here &= columns["rank"] != -1
    if "first" in spec:
        here = _of_the_first(spec, columns, words, [_key(table.declared, columns, name) for name in names], here)
    keys = [_key(table.declared, columns, name)[here] for name in (*names, *per, *least)]
    value = value[here]
    if not len(value):
        return keys[: len(names)], value
    if how == "ratio":
        under = np.nan_to_num(number(table.declared, columns, ys[1])[here])
        keys, values = _ratio(keys, value, under)
    elif how == "imbalance":
        waited, compared = ([columns[name][here] for name in some] for some in (slots, each))
        keys, values = _imbalance(keys, waited, compared, value, least=2 if "rank" in each else 1)
    else:
        if each:
            grouped, (value,) = _summed([*keys, *(columns[name][here] for name in each)], value)
            keys = grouped[: len(keys)]
        keys, values = _reduced(keys, value, how)
    if not per and not least:
        return keys, values
    return _reduced(keys[: len(names)], values, "fmin" if least else "fmax")


def _of_the_first(
    spec: Mapping[str, Any],
    columns: Mapping[str, npt.NDArray[Any]],
    words: Words,
    keys: Keys,
    here: npt.NDArray[np.bool_],
) -> npt.NDArray[np.bool_]:
    """Of the rows ``here`` those that have, of their group, the first of the texts that ``where`` lists."""
    if not here.any():
        return here
    texts = [str(one) for one in spec["where"][spec["first"]]]
    places = np.array([texts.index(one) if one in texts else len(texts) for one in words.texts])
    preference = places[columns[spec["first"]][here]]
    order, starts = _groups([key[here] for key in keys])
    counts = np.diff(np.append(starts, len(order)))
    kept = np.empty(len(order), dtype=bool)
    kept[order] = preference[order] == np.repeat(np.minimum.reduceat(preference[order], starts), counts)
    found = here.copy()
    found[here] = kept
    return found


def _key(table: Table, columns: Mapping[str, npt.NDArray[Any]], name: str) -> npt.NDArray[Any]:
    return columns[name] if name in columns else number(table, columns, name)


def _wanted_rows(table: LiveTable, words: Words, spec: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """Which rows ``where`` asks for."""
    columns, found = table.columns(), np.ones(table.count, dtype=bool)
    for name, ask in spec.get("where", {}).items():
        asked = listed(ask["not"] if isinstance(ask, dict) else ask)
        if name in table.declared.words and name in columns:
            here = _has_text(columns[name], asked, words)
        else:
            here = np.isin(number(table.declared, columns, name), [float(one) for one in asked])
        found &= ~here if isinstance(ask, dict) else here
    return found


def _has_text(codes: npt.NDArray[Any], asked: Sequence[Any], words: Words) -> npt.NDArray[np.bool_]:
    asked = [str(one) for one in asked]
    return np.isin(codes, [*words.matching(asked), *([-1] if "" in asked else [])])


def _summed(keys: Keys, *values: Numbers) -> tuple[Keys, list[Numbers]]:
    order, starts = _groups(keys)
    return [key[order][starts] for key in keys], [np.add.reduceat(one[order], starts) for one in values]


def _ratio(keys: Keys, value: Numbers, under: Numbers) -> tuple[Keys, Numbers]:
    """Sum ÷ sum; NaN where the lower one is 0."""
    keys, (above, below) = _summed(keys, value, under)
    with np.errstate(divide="ignore", invalid="ignore"):
        return keys, np.where(below != 0, above / below, np.nan)


def _imbalance(keys: Keys, slots: Keys, each: Keys, value: Numbers, *, least: int) -> tuple[Keys, Numbers]:
    """(Sum over slots of the largest) ÷ (sum over slots of the mean); NaN where there is nothing but 0, or too little.

    Args:
        keys: Of the result.
        slots: What is waited for in turn; none: there is one slot.
        each: What is compared in a slot, over which ``value`` is summed first.
        value: Of each row.
        least: How many values a slot must hold, of at least one slot, so that there is something to compare.

    Returns:
        The keys, each combination once, and their values.
    """
    grouped, (value,) = _summed([*keys, *slots, *each], value)
    inner = grouped[: len(keys) + len(slots)]
    order, starts = _groups(inner)
    counts = np.diff(np.append(starts, len(value)))
    largest, sums = (how.reduceat(value[order], starts) for how in (np.maximum, np.add))
    places = [key[order][starts] for key in inner]
    if slots:
        enough = (counts >= least).astype(np.float64)
        places, (largest, means, compared) = _summed(places[: len(keys)], largest, sums / counts, enough)
    else:
        largest, means, compared = largest * counts, sums, (counts >= least).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return places, np.where((means > 0) & (compared > 0), largest / means, np.nan)


def _reduced(keys: Keys, value: Numbers, how: str) -> tuple[Keys, Numbers]:
    order, starts = _groups(keys)
    value = value[order]
    counts = np.diff(np.append(starts, len(value)))
    kept = [key[order][starts] for key in keys]
    if how in _EXTREMES:
        return kept, _EXTREMES[how].reduceat(value, starts)
    if how == "last":
        return kept, value[np.append(starts[1:], len(value)) - 1]
    if how == "count":
        return kept, counts.astype(np.float64)
    sums = np.add.reduceat(value, starts)
    return kept, sums / counts if how == "mean" else sums


def _groups(keys: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """An order that puts equal keys together, rows of one in their own order, and where each begins."""
    order = np.lexsort(tuple(keys)[::-1])
    new = np.zeros(len(order), dtype=bool)
    new[0] = True
    for key in keys:
        sorted_ = key[order]
        new[1:] |= sorted_[1:] != sorted_[:-1]
    return order, np.flatnonzero(new)
