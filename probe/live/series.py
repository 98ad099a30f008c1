"""A series spec of a ``live:`` block read in Python: one number for each step, from the live tables.

The browser reads the same specs; this is for what is shown without one: the overview's tiles in a saved notebook, as
text, SVG and plotly JSON. It takes a few milliseconds at any length of the history, since the tables are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.dashboards.spec import TABLES, listed
from probe.live.tables import LiveTable, Words

Numbers = npt.NDArray[np.float64]


def by_step(tables: Mapping[str, LiveTable], words: Words, spec: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """The value of ``spec`` at each step; where it has several series (``by``), the largest of them.

    Returns:
        Steps in order, and a value for each: NaN where there is none. Rows outside any step are left out.
    """
    found = _values(tables, words, spec)
    if "divide" in spec:
        under = _values(tables, words, spec["divide"])
        found = {step: value / under[step] if under.get(step) else np.nan for step, value in found.items()}
    steps = sorted(step for step in found if step >= 0)
    return steps, [float(found[step]) for step in steps]


def total(tables: Mapping[str, LiveTable], words: Words, spec: Mapping[str, Any]) -> float:
    """The sum of ``spec`` over the run, rows outside any step included; the largest for reduce: max."""
    values = [one for one in _values(tables, words, spec).values() if not np.isnan(one)]
    if spec.get("reduce", "max") == "max":
        return max(values, default=np.nan)
    return float(sum(values))


def _values(tables: Mapping[str, LiveTable], words: Words, spec: Mapping[str, Any]) -> dict[int, float]:
    columns = tables[spec["table"]].columns()
    ys = listed(spec.get("y"))
    value = number(columns, ys[0]) if ys else np.ones(len(columns["rank"]))
    here = ~np.isnan(value)
    for name, ask in spec.get("where", {}).items():
        here &= _wanted(spec["table"], columns[name], name, ask, words)
    names = ("step", *listed(spec.get("by")))
    keys = [columns[name][here] for name in names]
    value, how = value[here], str(spec.get("reduce", "max"))
    if not len(value):
        return {}
    if how == "ratio":
        under = np.nan_to_num(number(columns, ys[1])[here])
        keys, (above, below) = _summed(keys, value, under)
        with np.errstate(divide="ignore", invalid="ignore"):
            reduced = np.where(below != 0, above / below, np.nan)
    else:
        each = [columns[name][here] for name in listed(spec.get("each"))]
        if each:
            grouped, (value,) = _summed([*keys, *each], value)
            keys = grouped[: len(names)]
        keys, reduced = _reduced(keys, value, how)
    found: dict[int, float] = {}
    for step, one in zip(keys[0].tolist(), reduced.tolist(), strict=True):
        found[step] = one if np.isnan(found.get(step, np.nan)) else max(found[step], one)
    return found


def number(columns: Mapping[str, npt.NDArray[Any]], name: str) -> Numbers:
    """A column, or one derived from others, as floats; NaN where it is missing."""
    if name in columns:
        values = columns[name]
        found = values.astype(np.float64)
        if values.dtype == np.int32:
            found[values == -1] = np.nan
        return found
    if name == "duration":
        return number(columns, "end") - number(columns, "begin")
    if name == "on_padding":
        with np.errstate(divide="ignore", invalid="ignore"):
            padding = 1 - number(columns, "tokens") / number(columns, "slots")
        return np.where(number(columns, "slots") > 0, number(columns, "duration") * padding, np.nan)
    if name == "padding":
        return number(columns, "sequences") * number(columns, "width") - number(columns, "tokens")
    with np.errstate(divide="ignore", invalid="ignore"):
        return number(columns, "tokens") / number(columns, "cap")  # "use"


def _wanted(table: str, values: npt.NDArray[Any], name: str, ask: Any, words: Words) -> npt.NDArray[np.bool_]:
    """Which rows a ``where`` asks for."""
    if isinstance(ask, dict):
        return ~_wanted(table, values, name, ask["not"], words)
    if TABLES[table][name] != "word":
        return np.isin(values, [float(one) for one in listed(ask)])
    asked = [str(one) for one in listed(ask)]
    codes = [
        code
        for code, text in enumerate(words.texts)
        if any(text.startswith(one[:-1]) if one.endswith("*") else text == one for one in asked)
    ]
    return np.isin(values, [*codes, *([-1] if "" in asked else [])])


def _summed(keys: Sequence[npt.NDArray[Any]], *values: Numbers) -> tuple[list[npt.NDArray[Any]], list[Numbers]]:
    order, starts = _groups(keys)
    return [key[order][starts] for key in keys], [np.add.reduceat(one[order], starts) for one in values]


def _reduced(keys: Sequence[npt.NDArray[Any]], value: Numbers, how: str) -> tuple[list[npt.NDArray[Any]], Numbers]:
    order, starts = _groups(keys)
    value = value[order]
    counts = np.diff(np.append(starts, len(value)))
    kept = [key[order][starts] for key in keys]
    if how in ("max", "min"):
        return kept, (np.maximum if how == "max" else np.minimum).reduceat(value, starts)
    if how == "last":
        return kept, value[np.append(starts[1:], len(value)) - 1]
    if how == "count":
        return kept, counts.astype(np.float64)
    sums = np.add.reduceat(value, starts)
    if how == "mean":
        return kept, sums / counts
    if how == "imbalance":
        largest = np.maximum.reduceat(value, starts)
        with np.errstate(divide="ignore", invalid="ignore"):
            return kept, np.where(sums > 0, largest * counts / sums, np.nan)
    return kept, sums


def _groups(keys: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """An order that puts equal keys together, rows of one in their own order, and where each begins."""
    order = np.lexsort(tuple(keys)[::-1])
    new = np.zeros(len(order), dtype=bool)
    new[0] = True
    for key in keys:
        sorted_ = key[order]
        new[1:] |= sorted_[1:] != sorted_[:-1]
    return order, np.flatnonzero(new)
