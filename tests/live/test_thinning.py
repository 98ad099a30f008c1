"""Thinning: bounded, extremes stay, steps stay whole where sums are taken over them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.dashboards.columns import LIVE
from probe.live import thinning
from probe.live.tables import LiveTable


def block(table: str, count: int, **columns: object) -> thinning.Block:
    made = {name: np.zeros(count, column.dtype) for name, column in LIVE[table].columns.items()}
    for name, values in columns.items():
        made[name][:] = values
    return made


SCALARS = LIVE["scalars"].thinning

NUMBERS = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), min_size=1, max_size=200)


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(*[st.integers(-3, 3)] * n), min_size=1)))
def test_distinct_rows_are_those_of_all_columns(rows):
    columns = [np.array(column, dtype=np.int32) for column in zip(*rows, strict=True)]
    distinct, inverse = thinning._distinct(columns)
    found = list(zip(*distinct.tolist(), strict=True))
    assert sorted(found) == sorted(set(rows))
    assert [found[place] for place in inverse] == rows


@settings(deadline=None, max_examples=60)
@given(values=NUMBERS, groups=st.integers(1, 5), size=st.integers(3, 20))
def test_extremes_of_every_group_stay(values, groups, size):
    column, key = np.array(values), np.arange(len(values)) % groups
    kept = thinning.extremes(SCALARS, block("scalars", len(values), value=column, key=key), size)
    for group in range(groups):
        mine = column[key == group]
        left = column[(key == group) & kept]
        if len(mine[~np.isnan(mine)]):
            assert np.nanmin(left) == np.nanmin(mine)
            assert np.nanmax(left) == np.nanmax(mine)
        assert np.isnan(left).any() == np.isnan(mine).any()


@settings(deadline=None, max_examples=40)
@given(values=NUMBERS, target=st.integers(4, 60))
def test_a_reduction_comes_near_its_target(values, target):
    found, gone = thinning.reduced(SCALARS, block("scalars", len(values), value=values), target)
    assert len(found["value"]) == len(values) - gone <= max(target, 3)
    if len(values) <= target:
        assert gone == 0


def test_many_groups_are_reduced_too():
    found, gone = thinning.reduced(SCALARS, block("scalars", 1000, key=np.arange(1000)), 100)
    assert (len(found["key"]), gone) == (100, 900)


@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(1, 30), min_size=8, max_size=40), seed=st.integers(0, 99))
def test_steps_stay_whole_and_the_largest_is_among_them(lengths, seed):
    steps = np.repeat(np.arange(len(lengths)), lengths)
    tokens = np.random.default_rng(seed).integers(0, 1000, len(steps))
    kept = thinning._whole_steps(steps, tokens.astype(float), len(steps) // 2)
    for step in range(len(lengths)):
        assert kept[steps == step].all() or not kept[steps == step].any()
    assert tokens[kept].max() == tokens.max()
    assert kept[len(steps) // 2 :].all()


@pytest.mark.parametrize("table", sorted(LIVE))
def test_every_table_forgets_without_end(table):
    made = LiveTable(table, limit=100)
    for begin in range(0, 1000, 7):
        numbers = np.arange(begin, begin + 7)
        columns = {
            name: numbers
            for name in ("step", "scope", "value", "tokens", "peak", "batch")
            if name in LIVE[table].columns
        }
        made.append(block(table, 7, **columns))
        assert made.count <= 100
    assert made.next == 7 * 143
    assert made.count + made.thinned == made.next
    step = made.columns()["step"].tolist()
    assert step == sorted(step)
    assert step[-1] == 1000


def test_one_step_larger_than_the_table_is_cut_inside():
    made = LiveTable("micro", limit=100)
    made.append(block("micro", 1000, step=3, tokens=np.arange(1000), micro_batch=np.arange(1000)))
    assert 0 < made.count <= 100
    assert made.columns()["tokens"].max() == 999


def test_rows_with_the_same_key_replace_each_other_also_after_thinning():
    made = LiveTable("spans", limit=50)
    for scope in range(200):
        made.append(block("spans", 1, step=scope, scope=scope, peak=scope))
    count = made.count
    made.append(block("spans", 2, step=199, scope=[199, 199], peak=[5, 6]))
    assert made.count == count
    assert made.value("peak", made.row((0, 199))) == 6
    assert made.next == 202


@pytest.mark.parametrize("keyed", ["memory", "spans"])
def test_an_append_costs_the_same_at_any_length(keyed):
    """Counted in bytes that are moved, not in time: columns double, and nothing else is copied."""
    made, sizes = LiveTable(keyed, limit=10_000), []
    for begin in range(0, 9_000, 10):
        made.append(block(keyed, 10, **({"scope": np.arange(begin, begin + 10)} if keyed == "spans" else {})))
        sizes.append(len(made._columns["rank"]))
    assert len(set(sizes)) <= 10
