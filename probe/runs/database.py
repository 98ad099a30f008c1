"""SQL over the files of a run: DuckDB, which reads Parquet by itself and the rows of JSONL files as Arrow tables.

A query that only selects sees the run's Parquet files through DuckDB's own reader, which takes of each file what the
query needs. Everything else, and every query of a run that isn't on this machine, gets them as pyarrow data sets in a
database that has no access to any file: what is told to write has nowhere to write to.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from probe.runs import version_1, views
from probe.runs.parts import Column, columns

if TYPE_CHECKING:
    import duckdb
    import pandas
    import pyarrow

#: Names of the views that differ from the table's tag.
VIEWS: Final = {"process": "processes"}

#: In a path DuckDB takes these for patterns.
_PATTERNS: Final = frozenset("*?[]{}")

_SETTINGS: Final = (
    "set enable_progress_bar=false",
    "set parquet_metadata_cache=true",  # parts never change
    "set enable_external_file_cache=false",  # the system's own cache has them
    "set enable_external_access=false",
)

#: No process learnt its rank late.
NOTHING_LATE: Final[Mapping[str, int]] = types.MappingProxyType({})

Tails = Mapping[str, "pyarrow.Table"]


class Parquet:
    """The Parquet files of one moment, as tables ``parts_<table>`` of one database that any thread may ask.

    Args:
        paths: Of the files of each table; on this machine.
        old: The processes of version 1, where the files may hold rows of it; else None.
    """

    def __init__(self, paths: Mapping[str, Sequence[str]], old: Sequence[version_1.Writer] | None = None) -> None:
        self._paths = paths
        self._old = old
        self._lock = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None
        self._views: set[str] = set()

    @staticmethod
    def readable(root: str) -> bool:
        """Whether DuckDB can be told of files below ``root`` one by one.

        >>> Parquet.readable("/runs/grpo/first"), Parquet.readable("/runs/lr=[1e-6]")
        (True, False)
        """
        return not _PATTERNS.intersection(root)

    def cursor(self, text: str) -> tuple[duckdb.DuckDBPyConnection, set[str]]:
        """A connection of one's own for the query ``text``, and the tables that have a view in it: those that the
        text names. To be closed by the caller.
        """
        with self._lock:
            if self._database is None:
                self._database = self._open()
            asked = with_views(text)
            for table in self._paths.keys() - self._views:
                if self._paths[table] and _names(asked, table):
                    self._database.execute(_parquet_view(table, self._paths[table], self._old))
                    self._views.add(table)
            return self._database.cursor(), set(self._views)

    def _open(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        database = duckdb.connect(":memory:", config={"python_enable_replacements": False})
        database.execute("set allowed_paths=?", [[path for paths in self._paths.values() for path in paths]])
        for setting in (*_SETTINGS, "set lock_configuration=true"):
            database.execute(setting)
        return database


def _names(text: str, table: str) -> bool:
    """Whether a query may ask for a table. It may put a name together for ``query()`` and ``query_table()``."""
    lower = text.lower()
    return VIEWS.get(table, table) in lower or "query" in lower


def select(
    parquet: Parquet,
    tables: Iterable[str],
    tails: Tails,
    text: str,
    parameters: object,
    *,
    where: str = "",
    measured: bool = False,
    late: Mapping[str, int] = NOTHING_LATE,
) -> pyarrow.Table:
    """The result of a query over ``tables`` that only selects.

    Args:
        parquet: Their Parquet files.
        tables: Of the run.
        tails: Their other rows.
        text: The query.
        parameters: Of the query.
        where: An SQL condition for the rows that are there; "" is all.
        measured: Whether it is known that the memory of all processes with calls is recorded.
        late: The ranks of processes that began to write before they knew them.

    Returns:
        What it gives.
    """
    cursor, known = parquet.cursor(text)
    with cursor:
        for table in tables:
            sources = [f'"parts_{table}"'] if table in known else []
            if table in tails or not sources:
                cursor.register(f"tail_{table}", tails[table] if table in tails else _nothing(table))
                sources.append(f'"tail_{table}"')
            cursor.execute(view(table, sources, "temp ", where, late))
        for statement in worked_out(text, "temp ", measured=measured):
            cursor.execute(statement)
        return cursor.sql(text, params=parameters).to_arrow_table()


def sealed(
    sources: Mapping[str, Any],
    text: str,
    parameters: object,
    where: str = "",
    late: Mapping[str, int] = NOTHING_LATE,
) -> pandas.DataFrame | pyarrow.Table | None:
    """The result of any statements, over tables that pyarrow reads, in a database of their own; None where the last
    has none. ``where`` and ``late`` are as in :func:`select`.
    """
    import duckdb

    database: Any = duckdb.connect(":memory:", config={"python_enable_replacements": False})
    with database:
        database.execute("set enable_external_access=false; set enable_progress_bar=false")
        database.execute("set lock_configuration=true")
        for table, source in sources.items():
            database.register(f"tail_{table}", source)
            database.execute(view(table, [f'"tail_{table}"'], where=where, late=late))
        for statement in worked_out(text):
            database.execute(statement)
        found = database.sql(text, params=parameters)
        return None if found is None else found.to_arrow_table()


#: Second 0 of the run: when its first process began to record.
_START: Final = "(select coalesce(min(wall_ns), 0) from processes)"


#: What a process is shown as, as :func:`probe.records.who` says it.
_WHO: Final = "who(a_rank, a_process) as coalesce('rank ' || a_rank, split_part(a_process, '.', 1))"


def with_views(text: str) -> str:
    """``text``, and the queries of the views that it names: what it needs of the tables."""
    return "\n".join([text, *(views.query(name, start_ns=_START) for name in views.named(text))])


def worked_out(text: str, temporary: str = "", *, measured: bool = False) -> list[str]:
    """The statements that make the views of ``views.sql`` that ``text`` needs, and the macro ``who``.

    Where all processes are ``measured`` no call tells of a scope. That is said here: DuckDB would read all calls to
    find it out.
    """
    made = {name: views.query(name, start_ns=_START) for name in views.named(text)}
    macros = [f"create {temporary}macro {_WHO}"] if "who" in text.lower() or "query" in text.lower() else []
    if measured and "scope_calls" in made:
        made["scope_calls"] = "select * from calls where false"
    return [*macros, *(f'create {temporary}view "{name}" as {query}' for name, query in made.items())]


def only_selects(text: str) -> bool:
    """Whether ``text`` is one statement, and one that can only read.

    >>> only_selects("from memory"), only_selects("copy memory to 'x.csv'"), only_selects("select 1; drop view memory")
    (True, False, False)
    """
    import duckdb

    try:
        statements = duckdb.extract_statements(text)
    except duckdb.Error:
        return False
    return len(statements) == 1 and statements[0].type == duckdb.StatementType.SELECT


def _nothing(table: str) -> Any:
    from probe.runs.parts import schema

    return schema(table).empty_table()


_DUCK: Final = {"int64": "BIGINT", "double": "DOUBLE", "bool": "BOOLEAN", "string": "VARCHAR"}


def _duck(kind: str) -> str:
    return f"{_DUCK[kind[5:-1]]}[]" if kind.startswith("list<") else _DUCK[kind]


def _parquet_view(table: str, paths: Sequence[str], old: Sequence[version_1.Writer] | None) -> str:
    """With the types of the row type, whatever the files hold: an older one lacks columns or has old names."""
    types = {one.name: _duck(one.type) for one in columns(table)}
    selected = "*" if old is None else version_1.selection(table, list(types), old)
    if old is not None:
        types |= {before: types[now] for before, now in version_1.old_columns(table).items()}
    kinds = ", ".join(
        f"'{name}': {{name: '{name}', type: '{kind}', default_value: NULL}}" for name, kind in types.items()
    )
    listed = ", ".join(map(version_1.quoted, paths))
    source = f"read_parquet([{listed}], schema=map {{{kinds}}}, hive_partitioning=false)"
    return f'create view "parts_{table}" as select {selected} from {source}'  # noqa: S608  (our own names, and quoted paths)


def view(
    table: str, sources: Sequence[str], temporary: str = "", where: str = "", late: Mapping[str, int] = NOTHING_LATE
) -> str:
    """The statement that makes the view of a table over the rows of ``sources`` that ``where`` holds for. Of the rows
    of one process about itself it has the newest.
    """
    distinct = "distinct " if table == "process" else ""
    selected = ", ".join(map(_selected, columns(table)))
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


def _selected(column: Column) -> str:
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
