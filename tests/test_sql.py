"""SQL from parts: what fills a hole is SQL or a number, and text of users is quoted or refused."""

from __future__ import annotations

import math
from typing import Any

import duckdb
import numpy as np
import pytest

from probe.errors import InputError, InputTypeError
from probe.sql import Sql, identifier, joined, literal, sql


def asked(query: Sql) -> tuple[Any, ...]:
    with duckdb.connect() as database:
        (row,) = database.execute(query).fetchall()
    return row


def test_holes_are_filled_and_other_braces_stay() -> None:
    text = "select {columns}, {'a': 1} as one from {table} where step = {step} and phase is not distinct from {phase}"
    made = sql(text, columns=[Sql("step"), Sql("phase")], table=identifier('ta"ble'), step=3, phase=literal("it's"))
    assert made == (
        "select step, phase, {'a': 1} as one from \"ta\"\"ble\" where step = 3 and phase is not distinct from 'it''s'"
    )
    assert isinstance(made, Sql)


def test_what_fills_a_hole_isnt_looked_at_for_holes() -> None:
    assert sql("select {a}, {b}", a=literal("{b}"), b=1) == "select '{b}', 1"


@pytest.mark.parametrize("part", ["memory; drop table x", b"x", object(), ["step"]])
def test_plain_text_fills_no_hole(part: Any) -> None:
    with pytest.raises(InputTypeError, match="expected Sql"):
        sql("select * from {table}", table=part)


def test_each_hole_has_its_part_and_each_part_its_hole() -> None:
    with pytest.raises(InputError, match=r"nothing was given for \{table\}"):
        sql("select * from {table}")
    with pytest.raises(InputError, match="have no place in"):
        sql("select * from {table}", table=Sql("memory"), where=Sql("true"))


@pytest.mark.parametrize("value", ["it's", "a\nb", "'; select 1 --", 3, -(2**62), 0.1, 1e300, True, False, None])
def test_a_database_reads_a_literal_as_the_value(value: Any) -> None:
    (read,) = asked(sql("select {value} as value", value=literal(value)))
    assert (float(read) if isinstance(value, float) else read) == value  # DuckDB takes 0.1 for a decimal number


@pytest.mark.parametrize("value", [np.int64(7), np.float64(0.25), np.float32(0.5)])
def test_numpys_numbers_are_numbers(value: Any) -> None:
    for part in (value, literal(value)):
        assert [float(one) for one in asked(sql("select {value}", value=part))] == [value.item()]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_sql_has_no_word_for_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="expected a finite number"):
        sql("select {value}", value=value)


@pytest.mark.parametrize("name", ["step", 'a"b', "select", "ä b"])
def test_an_identifier_is_any_name(name: str) -> None:
    made = sql("select 1 as {name}", name=identifier(name))
    with duckdb.connect() as database:
        assert [column[0] for column in database.execute(made).description] == [name]


def test_pieces_in_a_row() -> None:
    assert joined([Sql("a = 1"), Sql("b = 2")], " and ") == "a = 1 and b = 2"
    with pytest.raises(InputTypeError, match="expected Sql"):
        joined(["a"])  # type: ignore[list-item]
