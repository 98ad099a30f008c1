"""SQL statements that make the tables and views of a run, and what a query names of them."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, Final

from probe.runs import row_types, version_1, views
from probe.runs.columns import Column, columns
from probe.runs.kept import START
from probe.sql import Sql, identifier, joined, literal, sql

#: Names of the views that differ from the table's tag.
VIEWS: Final = {"process": "processes"}

#: What a query may say that asks for tables without their names: functions that put a name together, and the lists of
#: all tables.
_UNNAMED: Final = re.compile(r"query|duckdb_|information_schema|sqlite_|pg_|show|describe|summarize|pragma")

#: No process learnt its rank late.
NOTHING_LATE: Final[Mapping[str, int]] = types.MappingProxyType({})

#: What a process is shown as, as :func:`probe.records.who` says it.
WHO: Final = Sql("who(a_rank, a_process) as coalesce('rank ' || a_rank, split_part(a_process, '.', 1))")


def with_views(text: str) -> str:
    """``text``, and the queries of the views that it names: what it needs of the tables."""
    return "\n".join([text, *(views.query(name, start_ns=START) for name in views.named(text))])


def worked_out(text: str, temporary: str = "", *, measured: bool = False) -> dict[str, Sql]:
    """The statements that make the views of ``views.sql`` that ``text`` needs, and the macro ``who``, by name.

    Where all processes are ``measured`` no call tells of a scope. That is said here: DuckDB would read all calls to
    find it out.
    """
    made = {name: views.query(name, start_ns=START) for name in views.named(text)}
    kind, asked = Sql(temporary), text.lower()
    macros = {}
    if "who" in asked or "query" in asked:
        macros["who"] = sql("create {kind}macro {who}", kind=kind, who=WHO)
    if measured and "scope_calls" in made:
        made["scope_calls"] = Sql("select * from calls where false")
    return macros | {
        name: sql("create {kind}view {name} as {query}", kind=kind, name=identifier(name), query=query)
        for name, query in made.items()
    }


def names(text: str, table: str) -> bool:
    """Whether a query may ask for a table."""
    lower = text.lower()
    return VIEWS.get(table, table) in lower or _UNNAMED.search(lower) is not None


def lists_tables(text: str) -> bool:
    """Whether a query may ask for tables without their names."""
    return _UNNAMED.search(text.lower()) is not None


_DUCK: Final = {"int64": "BIGINT", "double": "DOUBLE", "bool": "BOOLEAN", "string": "VARCHAR"}


def duck(kind: str) -> str:
    """What DuckDB calls the type of a column."""
    return f"{_DUCK[kind[5:-1]]}[]" if kind.startswith("list<") else _DUCK[kind]


def parquet_rows(table: str, paths: Sequence[str], old: Sequence[version_1.Writer] | None) -> Sql:
    """The name and the query that ``create view`` or ``create table`` needs for the rows of files. They have the types
    of the row type, whatever the files hold: an older one lacks columns or has old names.
    """
    types = {one.name: duck(one.type) for one in columns(table)}
    selected = Sql("*") if old is None else version_1.selection(table, list(types), old)
    if old is not None:
        types |= {before: types[now] for before, now in version_1.old_columns(table).items()}
    kinds = [
        sql("{name}: {name: {name}, type: {kind}, default_value: NULL}", name=literal(name), kind=literal(kind))
        for name, kind in types.items()
    ]
    return sql(
        "{table} as select {selected} from read_parquet([{paths}], schema=map {{kinds}}, hive_partitioning=false)",
        table=identifier(f"parts_{table}"),
        selected=selected,
        paths=map(literal, paths),
        kinds=kinds,
    )


def view(
    table: str, sources: Sequence[str], temporary: str = "", where: str = "", late: Mapping[str, int] = NOTHING_LATE
) -> Sql:
    """The statement that makes the view of a table over the rows of ``sources`` that ``where`` holds for. Of the rows
    of one process about itself it has the newest.
    """
    distinct = Sql("distinct " if table == "process" else "")
    selected = selected_columns(table)
    each = [
        sql("select {distinct}{selected} from {source}", distinct=distinct, selected=selected, source=Sql(source))
        for source in sources
    ]
    rows = joined(each, " union all ")
    if distinct and len(sources) > 1:
        rows = sql("select distinct * from ({rows})", rows=rows)
    rows = with_ranks(rows, late)
    if where:
        rows = sql("select * from ({rows}) where {where}", rows=rows, where=Sql(where))
    if distinct:
        rows = sql(
            """select * from ({rows}) qualify process = '' or
            revision = max(revision) over (partition by process, time_ns)""",
            rows=rows,
        )
    name = identifier(VIEWS.get(table, table))
    return sql("create {kind}view {name} as {rows}", kind=Sql(temporary), name=name, rows=rows)


def with_ranks(rows: Sql, late: Mapping[str, int]) -> Sql:
    """A query for the rows of another one, with the ranks of processes that ``late`` knows."""
    if not late:
        return rows
    known = [sql("({process}, {rank})", process=literal(process), rank=rank) for process, rank in late.items()]
    return sql(
        """select r.* replace (coalesce(r.rank, l.rank) as rank) from ({rows}) r
        left join (values {known}) l(process, rank) on l.process = r.process""",
        rows=rows,
        known=known,
    )


@functools.cache  # a question makes views, and none of them has other columns
def selected_columns(table: str) -> Sql:
    """The columns of a table as they are; with their defaults where an older probe hadn't the fields yet."""
    return joined(map(_selected, columns(table)))


row_types.when_changed(selected_columns.cache_clear)


def _selected(column: Column) -> Sql:
    default, name = None if column.optional else _default(column.default), identifier(column.name)
    return name if default is None else sql("coalesce({name}, {default}) as {name}", name=name, default=default)


def _default(value: Any) -> Sql | None:
    if isinstance(value, list):
        return Sql("[]")
    return literal(value) if isinstance(value, int | float | str) else None
