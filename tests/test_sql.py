"""SQL from parts: what fills a hole is SQL or a number, and text of users is quoted or refused."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path
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


ROOT = Path(__file__).parents[1]


def queries(tree: ast.Module) -> Iterator[tuple[int, str, set[str]]]:
    """Calls of `sql` whose text stands in the file: line, text, names of the parts."""
    texts = {}
    for one in tree.body:
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None:
            place = one.targets[0] if isinstance(one, ast.Assign) else one.target
            plain = isinstance(one.value, ast.Call) and getattr(one.value.func, "id", "") == "Sql"
            value = one.value.args[0] if plain else one.value
            if isinstance(place, ast.Name) and isinstance(value, ast.Constant):
                texts[place.id] = value.value
    for one in ast.walk(tree):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "sql" and one.args:
            first = one.args[0]
            text = first.value if isinstance(first, ast.Constant) else texts.get(getattr(first, "id", ""))
            names = {word.arg for word in one.keywords if word.arg is not None}
            if isinstance(text, str) and len(names) == len(one.keywords):
                yield one.lineno, text, names


def test_every_query_of_the_source_names_its_parts() -> None:
    """A hole without a part raises only where somebody asks that very question."""
    found = 0
    for path in sorted((ROOT / "probe").rglob("*.py")):
        for line, text, names in queries(ast.parse(path.read_text(encoding="utf-8"))):
            found += 1
            assert set(re.findall(r"\{([a-z_][a-z_0-9]*)\}", text)) == names, f"{path.relative_to(ROOT)}:{line}"
    assert found > 200


def test_a_hole_that_is_named_otherwise_is_found() -> None:
    planted = 'TEXT = Sql("select {a}")\nsql(TEXT, b=1)\nsql("select {c}", c=2)\n'
    assert list(queries(ast.parse(planted))) == [(2, "select {a}", {"b"}), (3, "select {c}", {"c"})]
