"""SQL statements that make the tables and views of a run, and what a query names of them."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, Final

from probe.runs import version_1, views
from probe.runs.columns import Column, columns
from probe.runs.kept import START

#: Names of the views that differ from the table's tag.
VIEWS: Final = {"process": "processes"}

#: What a query may say that asks for tables without their names: functions that put a name together, and the lists of
#: all tables.
_UNNAMED: Final = re.compile(r"query|duckdb_|information_schema|sqlite_|pg_|show|describe|summarize|pragma")

#: No process learnt its rank late.
NOTHING_LATE: Final[Mapping[str, int]] = types.MappingProxyType({})

#: What a process is shown as, as :func:`probe.records.who` says it.
WHO: Final = "who(a_rank, a_process) as coalesce('rank ' || a_rank, split_part(a_process, '.', 1))"


def with_views(text: str) -> str:
    """``text``, and the queries of the views that it names: what it needs of the tables."""
    return "\n".join([text, *(views.query(name, start_ns=START) for name in views.named(text))])


def worked_out(text: str, temporary: str = "", *, measured: bool = False) -> dict[str, str]:
    """The statements that make the views of ``views.sql`` that ``text`` needs, and the macro ``who``, by name.

    Where all processes are ``measured`` no call tells of a scope. That is said here: DuckDB would read all calls to
    find it out.
    """
    made = {name: views.query(name, start_ns=START) for name in views.named(text)}
    macros = {"who": f"create {temporary}macro {WHO}"} if "who" in text.lower() or "query" in text.lower() else {}
    if measured and "scope_calls" in made:
        made["scope_calls"] = "select * from calls where false"
    return macros | {name: f'create {temporary}view "{name}" as {query}' for name, query in made.items()}


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


def parquet_rows(table: str, paths: Sequence[str], old: Sequence[version_1.Writer] | None) -> str:
    """The name and the query that ``create view`` or ``create table`` needs for the rows of files. They have the types
    of the row type, whatever the files hold: an older one lacks columns or has old names.
    """
    types = {one.name: duck(one.type) for one in columns(table)}
    selected = "*" if old is None else version_1.selection(table, list(types), old)
    if old is not None:
        types |= {before: types[now] for before, now in version_1.old_columns(table).items()}
    kinds = ", ".join(
        f"'{name}': {{name: '{name}', type: '{kind}', default_value: NULL}}" for name, kind in types.items()
    )
    listed = ", ".join(map(version_1.quoted, paths))
    source = f"read_parquet([{listed}], schema=map {{{kinds}}}, hive_partitioning=false)"
    return f'"parts_{table}" as select {selected} from {source}'  # noqa: S608  (our own names, and quoted paths)


def view(
    table: str, sources: Sequence[str], temporary: str = "", where: str = "", late: Mapping[str, int] = NOTHING_LATE
) -> str:
    """The statement that makes the view of a table over the rows of ``sources`` that ``where`` holds for. Of the rows
    of one process about itself it has the newest.
    """
    distinct = "distinct " if table == "process" else ""
    selected = ", ".join(map(selected_column, columns(table)))
    rows = " union all ".join(f"select {distinct}{selected} from {source}" for source in sources)  # noqa: S608  (our own names)
    if distinct and len(sources) > 1:
        rows = f"select distinct * from ({rows})"  # noqa: S608  (our own names)
    rows = with_ranks(rows, late)
    if where:
        rows = f"select * from ({rows}) where {where}"  # noqa: S608  (our own names)
    if distinct:
        rows = f"""select * from ({rows}) qualify process = '' or
            revision = max(revision) over (partition by process, time_ns)"""  # noqa: S608  (our own names)
    return f'create {temporary}view "{VIEWS.get(table, table)}" as {rows}'


def with_ranks(rows: str, late: Mapping[str, int]) -> str:
    """A query for the rows of another one, with the ranks of processes that ``late`` knows."""
    if not late:
        return rows
    known = ", ".join(f"({version_1.quoted(process)}, {rank})" for process, rank in late.items())
    return f"""select r.* replace (coalesce(r.rank, l.rank) as rank) from ({rows}) r
        left join (values {known}) l(process, rank) on l.process = r.process"""  # noqa: S608  (our own names)


def selected_column(column: Column) -> str:
    """A column as it is; with its default where an older probe hadn't the field yet."""
    literal = _literal(column.default) if not column.optional else None
    return f'"{column.name}"' if literal is None else f'coalesce("{column.name}", {literal}) as "{column.name}"'


def _literal(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[]"
    return version_1.quoted(value) if isinstance(value, str) else None
