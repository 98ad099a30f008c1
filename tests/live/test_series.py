"""Series specs read in Python: what they ask for, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probe.dashboards.spec import TABLES
from probe.live import series
from probe.live.tables import LiveTable, Words, dtype

STEPS = [0, 0, 0, 1, 1, 2, -1]
TOKENS = [4, 2, 6, 9, 3, -1, 7]
RANKS = [0, 0, 1, 0, 1, 0, 0]


@pytest.fixture
def run() -> tuple[dict[str, LiveTable], Words]:
    words, tables = Words(), {name: LiveTable(name) for name in TABLES}
    block = {name: np.zeros(7, dtype(kind)) for name, kind in TABLES["micro"].items()}
    block |= {"step": np.array(STEPS), "tokens": np.array(TOKENS), "rank": np.array(RANKS)}
    block |= {"width": np.full(7, 5), "sequences": np.full(7, 2), "cap": np.full(7, 12)}
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
