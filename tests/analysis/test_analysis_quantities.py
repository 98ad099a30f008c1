"""Quantities over a run, asked of SQL: what is divided, what is measured against something, and steps that lack it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from probe.analysis.quantities import courses
from probe.records import Scalar
from tests.sample_run import MS, clock, open_run

A = {"table": "scalars", "where": {"key": "a"}, "y": "value", "reduce": "sum"}
B = {**A, "where": {"key": "b"}}
C = {**A, "where": {"key": "c"}}


@pytest.fixture
def run(tmp_path: Path):
    values = {"a": [6.0, 9.0, 5.0, 4.0], "b": [2.0, 3.0, 0.0], "c": [4.0, 6.0, 1.0, 2.0]}
    rows = [
        Scalar(key=key, value=value, step=step, rank=0, time_ns=clock(0) + step * MS)
        for key, own in values.items()
        for step, value in enumerate(own)
    ]
    with open_run(tmp_path, {0: rows}) as opened:
        yield opened


def values_of(run, *specs):
    return [dict(zip(one.steps, one.values, strict=True)) for one in courses(run, specs)]


def test_each_course_is_that_of_its_own_definition(run) -> None:
    first, second, again = values_of(run, A, B, A)
    assert first == again == {0: 6.0, 1: 9.0, 2: 5.0, 3: 4.0}
    assert second == {0: 2.0, 1: 3.0, 2: 0.0}


def test_what_is_divided_by_0_or_by_nothing_is_missing(run) -> None:
    (found,) = values_of(run, {**A, "divide": B})
    assert (found[0], found[1]) == (3.0, 3.0)
    assert math.isnan(found[2])
    assert math.isnan(found[3])


def test_a_quotient_may_be_divided_by_a_quotient(run) -> None:
    (found,) = values_of(run, {**A, "divide": {**C, "divide": B}})
    assert (found[0], found[1]) == (6.0 / (4.0 / 2.0), 9.0 / (6.0 / 3.0))


def test_only_the_rows_that_are_asked_for_count(run) -> None:
    (found,) = courses(run, [A], "step between 1 and 2")
    assert found.steps == [1, 2]
