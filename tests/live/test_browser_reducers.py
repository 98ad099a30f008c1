"""The panel's reducers in the browser and those of the kernel give the same numbers, on the same rows."""

from __future__ import annotations

import base64
import json
import math
import os
import random
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe import dashboards
from probe.dashboards.columns import LIVE, Column, Derived, Table, as_data
from probe.dashboards.courses import over_run
from probe.dashboards.outstanding import who_stands_out
from probe.dashboards.quantities import quantities, series_of
from probe.dashboards.spec import SERIES, listed, pairs
from probe.live import series
from probe.live.protocol import Sender
from probe.live.tables import LiveTable, Words
from probe.views.panel import static_bundle

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "js" / "reduce_specs.js"
REDUCERS = ("max", "min", "sum", "mean", "last", "count", "ratio", "imbalance")
STEPS, RANKS, TEXTS = 6, 4, ("actor", "critic", "rollout", "update", "values")

#: A row type that a recorder brought: nobody here or in the browser has heard of it.
PAUSES = Table(
    rows="pauses",
    columns={
        "t": Column("f8", "s"),
        "step": Column("i4", "id"),
        "rank": Column("i4", "id"),
        "reason": Column("i4", "word"),
        "pause_ns": Column("f8", "ns"),
        "count": Column("i4", "count"),
    },
    derived={"pause_s": Derived("s", ("/", "pause_ns", 1e9)), "each_s": Derived("s", ("/", "pause_s", "count"))},
)
DECLARED = {**LIVE, "pauses": PAUSES}


@pytest.fixture(scope="module")
def node() -> str:
    """Where node is. It is no part of what probe needs, so that a machine without it is no failure; CI has it."""
    found = shutil.which("node")
    if found is None:
        if os.environ.get("PROBE_REQUIRE_NODE"):
            pytest.fail("node isn't there, and PROBE_REQUIRE_NODE is set")
        pytest.skip("node isn't there, so that the browser's reducers can't be run")
    return found


# ------------------------------------------------------------------------------------------------------ random runs


def block_of(table: Table, rows: int, words: Words, draw: random.Random) -> dict[str, Any]:
    """Random columns: some values missing, ranks and steps as a run has them."""

    def value(name: str, dtype: str, unit: str) -> float:
        if unit == "word":
            return words.code(draw.choice((*TEXTS, None)))
        if name in ("step", "rank"):
            return draw.randrange(-1, STEPS if name == "step" else RANKS)
        if dtype == "u1":
            return draw.randrange(3)
        if draw.random() < 0.1:
            return -1 if dtype == "i4" else math.nan
        few = unit == "id" and name != "scope"
        return draw.randrange(4 if few else 5000) if dtype == "i4" else draw.choice((0.0, draw.uniform(0.1, 100)))

    return {
        name: np.array([value(name, column.dtype, column.unit) for _ in range(rows)], column.dtype)
        for name, column in table.columns.items()
    }


def spec_of(name: str, draw: random.Random, *, divides: bool = True) -> dict[str, Any]:
    """A random series spec of a table."""
    table = DECLARED[name]
    numbers = [one for one, column in table.columns.items() if column.unit not in ("id", "word")] + list(table.derived)
    names = [one for one, column in table.columns.items() if column.unit in ("id", "word", "flag")]

    def some(most: int) -> list[str]:
        return draw.sample(names, draw.randrange(most + 1))

    how = draw.choice(REDUCERS)
    spec: dict[str, Any] = {"table": name, "x": "step", "reduce": how, "y": draw.choice(numbers), "by": some(2)}
    if how == "ratio":
        spec["y"] = draw.sample(numbers, 2)
    elif how == "imbalance" or draw.random() < 0.4:
        spec["each"] = some(2) or ["rank"]
    if how == "imbalance" and draw.random() < 0.5:
        spec["slots"] = some(2)
    if draw.random() < 0.5:
        spec[draw.choice(("per", "least"))] = some(2) or ["rank"]
    if draw.random() < 0.3:
        spec["scale"] = draw.choice((2, 0.5, 1e9))
    if draw.random() < 0.4:
        spec["where"] = where_of(table, draw)
    if divides and draw.random() < 0.3:
        spec["divide"] = spec_of(draw.choice(list(DECLARED)), draw, divides=False)
    return spec


def where_of(table: Table, draw: random.Random) -> dict[str, Any]:
    name = draw.choice([one for one, column in table.columns.items() if column.unit in ("word", "id", "flag")])
    if name in table.words:
        ask: Any = draw.choice(("actor", "u*", ["critic", "values"], {"not": "actor"}, ""))
    else:
        ask = draw.choice((1, [0, 2], {"not": 1}))
    return {name: ask}


def own_specs() -> list[dict[str, Any]]:
    """The quantities, and what the dashboards draw over steps."""
    blocks = [panel.live for view in dashboards.views() for panel in view.panels]
    over_steps = [one for one in blocks if one.get("x") == "step"]
    drawn = [{**block, "y": y} for block in over_steps for y in listed(block["y"]) if block.get("reduce") != "ratio"]
    beside = [one for block in over_steps for one in block.get("beside", ())]
    found = [*map(series_of, quantities()), *drawn, *beside]
    return [{name: value for name, value in one.items() if name in SERIES and name != "of"} for one in found]


def run_of(seed: int) -> tuple[dict[str, LiveTable], Words, list[Any]]:
    """A random run's live tables, and the messages that told of them."""
    draw = random.Random(seed)
    words = Words()
    tables = {name: LiveTable(name, declared=table) for name, table in DECLARED.items()}
    encoder, messages = Sender(words), []
    for _ in range(6):
        blocks = {name: block_of(DECLARED[name], draw.randrange(1, 60), words, draw) for name in tables}
        for name, block in blocks.items():
            tables[name].append(block)
        messages.append(encoder.delta(blocks, tables, {}))
    return tables, words, messages


# ---------------------------------------------------------------------------------------------------------- the test


def browser(node: str, messages: list[Any], specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the browser's reducers make of ``specs``: steps, values and the total of each."""
    told = [
        {"head": head, "buffers": [base64.b64encode(one).decode() for one in buffers]} for head, buffers in messages
    ]
    given = json.dumps({"schema": as_data(LIVE), "messages": told, "specs": specs})
    done = subprocess.run([node, str(SCRIPT)], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def same(ours: float, theirs: float | str) -> bool:
    """Whole numbers exactly (from 2**52 on every float is whole), the rest to 12 digits; missing is missing."""
    theirs = float(str(theirs).replace("Infinity", "inf"))
    if math.isnan(ours) or math.isnan(theirs):
        return math.isnan(ours) and math.isnan(theirs)
    if ours == int(ours) and abs(ours) < 2**52 and theirs == int(theirs):
        return ours == theirs
    return math.isclose(ours, theirs, rel_tol=1e-12, abs_tol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kernel_and_browser_reduce_alike(node: str, seed: int) -> None:
    tables, words, messages = run_of(seed)
    draw = random.Random(1000 + seed)
    specs = [spec_of(draw.choice(list(DECLARED)), draw) for _ in range(150)] + own_specs()
    wrong = []
    for spec, found in zip(specs, browser(node, messages, specs), strict=True):
        steps, values = series.by_step(tables, words, spec)
        wrong += differences(spec, dict(zip(steps, values, strict=True)), found)
        total = series.total(tables, words, spec)
        if not same(total, found["total"]):
            wrong.append((spec, "total", total, found["total"]))
        if pairs(spec):
            pooled = static_bundle.course_of(tables, words, {**spec, "pooled": True})
            if not same(over_run({"pooled": True}, pooled), found["pooled"]):
                wrong.append((spec, "pooled", over_run({"pooled": True}, pooled), found["pooled"]))
    assert not wrong[:3], f"{len(wrong)} differ"


@pytest.mark.parametrize("seed", range(6))
def test_d_kernel_and_browser_name_the_same_rank(node: str, seed: int) -> None:
    tables, words, messages = run_of(seed)
    tiles = [
        {**tile, "x": "step", **change}
        for tile in quantities().values()
        if "who" in tile
        for change in ({}, {"window": 3})
    ]
    tiles += [{**tile, "better": "higher", "window": 20} for tile in tiles]
    found = [one["who"] for one in browser(node, messages, tiles)]
    named = 0
    for tile, theirs in zip(tiles, found, strict=True):
        ours = who_stands_out(tile, static_bundle.course_of(tables, words, tile).by_rank)
        assert (ours is None) == (theirs is None), tile
        if ours is None:
            continue
        named += 1
        assert (ours.rank, ours.ranks, ours.stands_out) == (theirs["rank"], theirs["ranks"], theirs["standsOut"]), tile
        for name in ("value", "others", "low", "high"):
            assert same(getattr(ours, name), theirs[name]), (tile, name)
    assert named > len(tiles) / 2


def differences(spec: Any, ours: Mapping[int, float], found: Mapping[str, Any]) -> list[Any]:
    """Where the two say different numbers; a step that one of them leaves out has none."""
    theirs = dict(zip(found["steps"], found["values"], strict=True))
    return [
        (spec, step, ours.get(step), theirs.get(step))
        for step in sorted({*ours, *theirs})
        if not same(ours.get(step, math.nan), theirs.get(step, math.nan))
    ]


def test_a_run_of_this_kind_has_numbers_to_compare(node: str) -> None:
    tables, words, messages = run_of(0)
    spec = {"table": "micro", "y": "tokens", "by": "phase", "per": "round", "each": "rank", "reduce": "imbalance"}
    steps, values = series.by_step(tables, words, spec)
    assert len(steps) == STEPS
    known = [value for value in values if not math.isnan(value)]
    assert known
    assert all(value >= 1 for value in known)  # and none in a step in which no two ranks cut the same phase
    assert not differences(spec, dict(zip(steps, values, strict=True)), browser(node, messages, [spec])[0])
