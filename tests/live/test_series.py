"""Series specs read in Python: what they ask for, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.dashboards.columns import LIVE
from probe.live import series
from probe.live.tables import LiveTable, Words

STEPS = [0, 0, 0, 1, 1, 2, -1]
TOKENS = [4, 2, 6, 9, 3, -1, 7]
RANKS = [0, 0, 1, 0, 1, 0, 0]


@pytest.fixture
def run() -> tuple[dict[str, LiveTable], Words]:
    words, tables = Words(), {name: LiveTable(name) for name in LIVE}
    block = {name: np.zeros(7, column.dtype) for name, column in LIVE["micro"].columns.items()}
    block |= {"step": np.array(STEPS), "tokens": np.array(TOKENS), "rank": np.array(RANKS)}
    block |= {"width": np.full(7, 5), "sequences": np.full(7, 2), "cap": np.full(7, 12)}
    block |= {"batch": np.arange(7)}
    block["phase"] = np.array([words.code(one) for one in ("a", "ab", "a", "b", "b", "b", None)])
    tables["micro"].append(block)
    return tables, words


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"reduce": "sum"}, {0: 12, 1: 12}),
        ({}, {0: 6, 1: 9}),
        ({"reduce": "min"}, {0: 2, 1: 3}),
        ({"reduce": "mean"}, {0: 4, 1: 6}),
        ({"reduce": "last"}, {0: 6, 1: 3}),
        ({"reduce": "count"}, {0: 3, 1: 2}),
        ({"y": None, "reduce": "count"}, {0: 3, 1: 2, 2: 1}),
        ({"reduce": "imbalance", "each": "rank"}, {0: 1.0, 1: 1.5}),
        ({"reduce": "imbalance", "each": "rank", "where": {"rank": 1}}, {0: None, 1: None}),
        ({"reduce": "imbalance", "each": "rank", "slots": "batch"}, {0: None, 1: None}),
        ({"reduce": "imbalance", "each": "batch", "where": {"rank": 1}}, {0: 1, 1: 1}),
        ({"reduce": "max", "each": "rank"}, {0: 6, 1: 9}),
        ({"reduce": "mean", "each": ["rank"]}, {0: 6, 1: 6}),
        ({"reduce": "sum", "by": "phase"}, {0: 10, 1: 12}),
        ({"y": ["tokens", "cap"], "reduce": "ratio"}, {0: 12 / 36, 1: 12 / 24}),
        ({"y": "padding", "reduce": "sum"}, {0: 18, 1: 8}),
        ({"y": "use"}, {0: 0.5, 1: 0.75}),
        ({"where": {"phase": "a"}, "reduce": "sum"}, {0: 10}),
        ({"where": {"phase": "a*"}, "reduce": "sum"}, {0: 12}),
        ({"where": {"phase": ["ab", "b"]}, "reduce": "sum"}, {0: 2, 1: 12}),
        ({"where": {"phase": {"not": "b"}}, "reduce": "sum"}, {0: 12}),
        ({"where": {"rank": 1}, "reduce": "sum"}, {0: 6, 1: 3}),
        ({"where": {"phase": "nobody"}}, {}),
        ({"reduce": "sum", "divide": {"table": "micro", "y": "tokens", "reduce": "max"}}, {0: 2, 1: 12 / 9}),
        ({"divide": {"table": "micro", "y": "tokens", "where": {"rank": 7}}}, {0: None, 1: None}),
    ],
)
def test_by_step(run, spec, expected):
    steps, values = series.by_step(*run, {"table": "micro", "y": "tokens", **spec})
    found = {step: None if math.isnan(value) else value for step, value in zip(steps, values, strict=True)}
    assert found == pytest.approx(expected)


def test_total_counts_what_has_no_step(run):
    assert series.total(*run, {"table": "micro", "y": "tokens", "reduce": "sum"}) == 31
    assert series.total(*run, {"table": "micro", "y": "tokens"}) == 9
    assert math.isnan(series.total(*run, {"table": "spans", "y": "peak"}))
    assert series.total(*run, {"table": "events", "y": "count", "reduce": "sum"}) == 0


# ------------------------------------------------------------------------------------- what ranks wait for, by hand


def micro(rows: list[dict[str, Any]]) -> tuple[dict[str, LiveTable], Words]:
    """Live tables of which that of micro-batches holds ``rows``; what a row doesn't say is missing."""
    words, tables = Words(), {name: LiveTable(name) for name in LIVE}
    made = []
    for index, row in enumerate(rows):
        whole = {"batch": index, "micro_batch": index, **row}
        made.append({**whole, "phase": words.code(whole.get("phase")), "process": words.code(f"{whole.get('rank')}")})
    if made:
        block = {
            name: np.array([row.get(name, -1 if column.dtype == "i4" else 0) for row in made], column.dtype)
            for name, column in LIVE["micro"].columns.items()
        }
        tables["micro"].append(block)
    return tables, words


TWO_ROUNDS = [
    # The first batch is uneven by ranks, the second the other way round: the sum over the step is even.
    {"step": 0, "phase": "update", "round": 1, "rank": 0, "micro_batch": 0, "tokens": 30},
    {"step": 0, "phase": "update", "round": 1, "rank": 1, "micro_batch": 0, "tokens": 10},
    {"step": 0, "phase": "update", "round": 2, "rank": 0, "micro_batch": 0, "tokens": 10},
    {"step": 0, "phase": "update", "round": 2, "rank": 1, "micro_batch": 0, "tokens": 10},
    {"step": 0, "phase": "update", "round": 2, "rank": 1, "micro_batch": 1, "tokens": 20},
    {"step": 0, "phase": "update", "round": 2, "rank": -1, "micro_batch": 1, "tokens": 900},
]
IMBALANCE: dict[str, Any] = {"table": "micro", "y": "tokens", "by": "phase", "each": "rank", "reduce": "imbalance"}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, 1.0),  # 40 and 40
        ({"per": "round"}, 1.5),  # 30 of a mean of 20, 30 of a mean of 20
        ({"per": "round", "slots": "micro_batch"}, 1.5),  # (10 + 20) ÷ (10 + 20) in the second round
        ({"slots": "micro_batch"}, (40 + 20) / (30 + 20)),
        ({"per": ["round", "rank"], "each": "micro_batch"}, 20 / 15),
        ({"scale": 2, "per": "round"}, 3.0),
        ({"reduce": "sum", "each": None, "per": "round"}, 940),
        ({"reduce": "mean", "per": "round"}, 20),
        ({"y": ["tokens", "sequences"], "reduce": "ratio", "each": None, "per": "round"}, None),
        ({"divide": {"table": "micro", "y": "tokens", "scale": 4, "where": {"rank": 0}}}, 1 / 120),
    ],
)
def test_the_worst_of_several_is_shown(spec, expected):
    steps, (value,) = series.by_step(*micro(TWO_ROUNDS), {**IMBALANCE, **spec})
    assert steps == [0]
    assert math.isnan(value) if expected is None else value == pytest.approx(expected, rel=1e-12)


def test_nothing_but_zero_tokens_has_no_imbalance():
    rows = [{"step": 0, "rank": rank, "round": 1, "tokens": 0} for rank in range(2)]
    assert np.isnan(series.by_step(*micro(rows), {**IMBALANCE, "per": "round"})[1]).all()
    rows += [{"step": 0, "rank": rank, "round": 2, "tokens": rank} for rank in range(2)]
    assert series.by_step(*micro(rows), {**IMBALANCE, "per": "round"}) == ([0], [2.0])


def test_derived_columns_follow_their_formula():
    tables, _ = micro([{"tokens": 6, "cap": 0, "sequences": 2, "width": 5}, {"tokens": 6, "cap": 12, "width": -1}])
    table = tables["micro"]
    found = {name: series.number(table.declared, table.columns(), name).tolist() for name in ("padding", "use")}
    assert found["padding"] == pytest.approx([4.0, math.nan], nan_ok=True)
    assert found["use"] == pytest.approx([math.nan, 0.5], nan_ok=True)
    assert np.isnan(series.number(table.declared, table.columns(), "nobody_has_it")).all()


def test_cells_are_by_x_and_by_series():
    found = series.cells(*micro(TWO_ROUNDS), {**IMBALANCE, "x": "round", "scale": 10})
    assert found == pytest.approx({(1, "update"): 15.0, (2, "update"): 15.0})
    spec = {"table": "micro", "y": "tokens", "x": ["rank", "micro_batch"], "reduce": "sum"}
    assert series.cells(*micro(TWO_ROUNDS), spec) == {(0, 0): 40, (1, 0): 20, (1, 1): 20, (None, 1): 900}
    spec = {"table": "micro", "y": "tokens", "reduce": "sum", "divide": {"table": "micro", "y": "tokens", "scale": 2}}
    assert series.cells(*micro(TWO_ROUNDS), spec) == {(0,): 980 / 1800}
    assert series.cells(*micro([]), spec) == {}


# ----------------------------------------------------------------------------------------- against plain Python

COLUMNS = ("step", "rank", "phase", "round", "micro_batch")
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "step": st.integers(-1, 2),
            "rank": st.integers(-1, 2),
            "phase": st.sampled_from([None, "a", "b"]),
            "round": st.integers(1, 2),
            "micro_batch": st.integers(-1, 2),
            "tokens": st.one_of(st.just(-1), st.integers(0, 5), st.integers(0, 2**31 - 1)),
            "cap": st.integers(-1, 3),
        }
    ),
    max_size=25,
)
SOME = st.lists(st.sampled_from(COLUMNS[1:]), max_size=2, unique=True)
SPECS = st.fixed_dictionaries(
    {
        "table": st.just("micro"),
        "by": SOME,
        "each": SOME,
        "per": SOME,
        "slots": SOME,
        "reduce": st.sampled_from(["max", "min", "sum", "mean", "count", "ratio", "imbalance"]),
        "where": st.sampled_from([{}, {"phase": "a"}, {"phase": {"not": "a"}}, {"rank": [0, 1]}, {"cap": {"not": 1}}]),
        "scale": st.sampled_from([1, 2, 0.5]),
    }
)


def plainly(rows: list[dict[str, Any]], spec: dict[str, Any]) -> dict[int, float]:
    """The meaning of a series spec over the steps, in as plain a Python as may be; NaN for no number."""
    kept = [row for row in rows if row["tokens"] != -1 and matches(row, spec["where"])]
    if "rank" in spec["each"]:
        kept = [row for row in kept if row["rank"] != -1]
    found: dict[int, float] = {}
    for (step, *_), by in grouped(kept, ["step", *spec["by"]]).items():
        results = [reduced(group, spec) for group in grouped(by, spec["per"]).values()]
        known = [one for one in (*results, found.get(step, math.nan)) if not math.isnan(one)]
        found[step] = max(known, default=math.nan)
    return {step: value * spec["scale"] for step, value in found.items() if step >= 0}


def matches(row: dict[str, Any], where: dict[str, Any]) -> bool:
    for name, ask in where.items():
        asked = ask["not"] if isinstance(ask, dict) else ask
        if (row[name] in (asked if isinstance(asked, list) else [asked])) == isinstance(ask, dict):
            return False
    return True


def grouped(rows: list[dict[str, Any]], names: list[str]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def reduced(rows: list[dict[str, Any]], spec: dict[str, Any]) -> float:
    how = spec["reduce"]
    if how == "ratio":
        below = sum(row["cap"] for row in rows if row["cap"] != -1)
        return sum(row["tokens"] for row in rows) / below if below else math.nan
    if how == "imbalance":
        slots = [sums(inside, spec["each"] or COLUMNS) for inside in grouped(rows, spec["slots"]).values()]
        mean = sum(sum(one) / len(one) for one in slots)
        return sum(map(max, slots)) / mean if mean else math.nan
    values = sums(rows, spec["each"]) if spec["each"] else [row["tokens"] for row in rows]
    if how == "mean":
        return sum(values) / len(values)
    return {"max": max, "min": min, "sum": sum, "count": len}[how](values)


def sums(rows: list[dict[str, Any]], each: Sequence[str]) -> list[int]:
    return [sum(row["tokens"] for row in group) for group in grouped(rows, list(each)).values()]


@settings(deadline=None, max_examples=150)
@given(rows=ROWS, spec=SPECS)
def test_any_series_is_what_it_says(rows, spec):
    if spec["reduce"] == "imbalance" and not spec["each"]:
        spec = {**spec, "each": ["micro_batch"]}
    spec = {**spec, "y": ["tokens", "cap"] if spec["reduce"] == "ratio" else "tokens"}
    rows = [{**row, "batch": index} for index, row in enumerate(rows)]
    steps, values = series.by_step(*micro(rows), spec)
    assert dict(zip(steps, values, strict=True)) == pytest.approx(plainly(rows, spec), rel=1e-12, nan_ok=True)
