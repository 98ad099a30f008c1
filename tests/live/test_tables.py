"""Live tables: rows of many keys at once lie where they lie when they come one by one."""

from __future__ import annotations

import numpy as np
import pytest

from probe.dashboards.columns import LIVE
from probe.live import series, tables
from probe.live.tables import LiveTable, Words
from probe.live.thinning import Block


def block_of(name: str, count: int, seed: int, spread: int) -> Block:
    """Rows with keys that come again, and some without one."""
    chance = np.random.default_rng(seed)
    found = {one: chance.integers(0, 100, count).astype(column.dtype) for one, column in LIVE[name].columns.items()}
    for key in LIVE[name].key:
        found[key] = chance.integers(0, spread, count).astype(LIVE[name].columns[key].dtype)
    last = LIVE[name].key[-1]
    if np.issubdtype(found[last].dtype, np.signedinteger):
        found[last][chance.random(count) < 0.1] = -1
    return found


@pytest.mark.parametrize("name", ["spans", "micro", "padding"])
@pytest.mark.parametrize("spread", [3, 40, 2**31 - 2])
def test_11_rows_that_come_at_once_lie_where_they_lie_one_by_one(
    name: str, spread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last spread has more possible keys than a number of 64 bits can tell."""
    if spread > 255 and any(LIVE[name].columns[one].dtype == np.uint8 for one in LIVE[name].key):
        spread = 200
    blocks = [block_of(name, 500, seed, spread) for seed in range(4)]
    told: dict[int, LiveTable] = {}
    for many in (1, 2**40):
        monkeypatch.setattr(tables, "_MANY", many)
        told[many] = LiveTable(name, 10_000)
        for block in blocks:
            told[many].append(block)
    at_once, one_by_one = told[1], told[2**40]
    assert (at_once.count, at_once.next) == (one_by_one.count, one_by_one.next)
    for column, values in one_by_one.columns().items():
        np.testing.assert_array_equal(at_once.columns()[column], values)
    keys = zip(*(blocks[-1][one].tolist() for one in LIVE[name].key), strict=True)
    key = next(one for one in keys if one[-1] != -1)
    assert at_once.row(key) == one_by_one.row(key) is not None


def test_11_the_largest_by_step_of_arrays_is_that_of_pairs() -> None:
    chance = np.random.default_rng(3)
    steps, values = chance.integers(-1, 9, 300), chance.random(300)
    values[chance.random(300) < 0.3] = np.nan
    values[steps == 4] = np.nan
    found = series._largest_of(steps, values)
    expected = series._largest(zip(steps.tolist(), values.tolist(), strict=True))
    assert list(found) == list(expected)
    np.testing.assert_array_equal(list(found.values()), list(expected.values()))
    assert series._largest_of(np.empty(0, np.int64), np.empty(0)) == {}


def test_11_at_one_moment_what_two_questions_share_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    micro, words = LiveTable("micro"), Words()
    micro.append(block_of("micro", 200, 1, 40))
    held, spec = {"micro": micro}, {"table": "micro", "y": "tokens", "reduce": "sum", "by": "rank"}
    asked, reduced_by = [], series._reduced_by
    monkeypatch.setattr(series, "_reduced_by", lambda *told: asked.append(told) or reduced_by(*told))
    alone = series.cells(held, words, spec), series.by_step(held, words, spec)
    with series.at_one_moment():
        for _ in range(3):
            assert (series.cells(held, words, spec), series.by_step(held, words, spec)) == alone
        assert len(asked) == 4
    micro.append(block_of("micro", 200, 2, 40))
    assert series.cells(held, words, spec) != alone[0]
