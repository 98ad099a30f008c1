"""Queries about the newest steps that are asked again and again, each worked out by DuckDB once.

Of a thousand rows nearly all that a query takes is the planning of it: parsing, binding the views, and an optimiser
that looks for ways to read less of them. So who watches a run has a database in memory whose tables hold the rows of
the newest steps alone, without an optimiser, in which each query is prepared; a look puts the new rows into the tables
and asks what is there. What a query says is the same.

DuckDB works a prepared query out again, each time that it is asked, where it has parameters, and where a table, a view
or a relation was made after it. So the steps that are asked about stand in a table, too, new rows come out of an
object that stays, and a query is asked as it is at first, and prepared when the next one of the same text comes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from probe.runs import databases, last_seen, statements
from probe.runs.columns import columns, schema
from probe.sql import Sql, identifier, sql

if TYPE_CHECKING:
    import duckdb
    import pyarrow

_log = logging.getLogger("probe.runs")

#: Rows up to which they are asked here: of more the optimiser is worth its time.
MOST_ROWS: Final = 50_000

#: Moments after which the database is made anew, since it keeps what rows that are gone have taken.
MOMENTS: Final = 500

#: Numbers that no query has by itself, and what stands in their places.
_PLACES: Final = {
    2_000_000_000_000_000_003: '(select "first" from steps_asked)',
    2_000_000_000_000_000_007: '(select "last" from steps_asked)',
}

#: Gives the query, which only selects, for the steps from the first to the last of two.
Query = Callable[[int, int], str]


class Newest(NamedTuple):
    """The rows of the newest steps at one moment, and what a query sees of them; see :func:`probe.runs.database.select`
    for the last three.
    """

    tables: tuple[str, ...]  #: of the run
    rows: Mapping[str, pyarrow.Table]  #: of the tables that have any
    where: str
    late: Mapping[str, int]
    measured: bool

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return sum(len(one) for one in self.rows.values())


class _Prepared(NamedTuple):
    name: str  #: of the statement; "" before there is one
    changes: int  #: how often anything had been made in the database before it
    schema: pyarrow.Schema  #: of its answer


class AskedAgain:
    """A database for the newest rows of one run. Any thread may ask.

    Attributes:
        prepared: How many queries were worked out so far.
    """

    def __init__(self) -> None:
        self.prepared = 0
        self._lock = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None
        self._meaning: object = None
        self._newest: Newest | None = None
        self._steps: tuple[int, int] | None = None
        self._moments = self._changes = 0
        self._made: set[str] = set()
        self._sources: dict[str, _Source] = {}
        self._full: set[str] = set()  # tables with rows
        self._known: dict[str, _Prepared] = {}  # by their texts
        self._refused: set[str] = set()

    def ask(self, newest: Newest, query: Query, first: int, last: int) -> pyarrow.Table | None:
        """The answer of a query about some steps.

        Args:
            newest: The rows that it is asked of.
            query: The query.
            first: Of the steps.
            last: Of the steps.

        Returns:
            What it gives; None where it can't be asked here: of too many rows, or where the steps aren't told by their
            numbers alone.
        """
        import duckdb

        text = _template(query, first, last)
        if text is None or text in self._refused or newest.row_count > MOST_ROWS or last_seen.NAME in text.lower():
            return None
        with self._lock:
            try:
                return self._asked(newest, text, first, last)
            except duckdb.Error:  # such as a step where only a constant may stand: then it is asked as it is
                _log.debug("a query isn't prepared: %s", text, exc_info=True)
                self._refused.add(text)
                self._forget()
                return None

    def _asked(self, newest: Newest, text: str, first: int, last: int) -> pyarrow.Table:
        asked = self._filled(newest)
        if self._steps != (first, last):
            steps = sql('update steps_asked set "first" = {first}, "last" = {last}', first=int(first), last=int(last))
            asked.execute(steps)
            self._steps = first, last
        known = self._known.get(text)
        if known is None:
            self._tell(asked, newest, text)
            self._changes += 1
            found = asked.sql(text).to_arrow_table()
            self._known[text] = _Prepared("", 0, found.schema)
            return found
        if known.changes != self._changes:
            self.prepared += 1
            if known.name:
                asked.execute(f"deallocate {known.name}")
            known = self._known[text] = _Prepared(f"query_{self.prepared}", self._changes, known.schema)
            asked.execute(f"prepare {known.name} as {text}")
        return _table(asked.execute(f"execute {known.name}").fetchall(), known.schema)

    def _forget(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database, self._newest, self._steps, self._moments = None, None, None, 0
        for kept in (self._made, self._sources, self._full, self._known):
            kept.clear()

    def _filled(self, newest: Newest) -> duckdb.DuckDBPyConnection:
        """The database with these rows in the tables that were asked for so far."""
        meaning = newest.tables, newest.where, newest.late, newest.measured
        if self._database is None or meaning != self._meaning or self._moments >= MOMENTS:
            self._forget()
            self._database, self._meaning = _opened(), meaning
        if newest is not self._newest:
            for table in self._full:
                self._database.execute(f'execute "empty_{table}"')
            self._full.clear()
            for table in self._sources:
                self._fill(self._database, table, newest)
            self._newest = newest
            self._moments += 1
        return self._database

    def _tell(self, asked: duckdb.DuckDBPyConnection, newest: Newest, text: str) -> None:
        """Make the tables and views that a query names, where they aren't there."""
        whole = statements.with_views(text)
        for table in newest.tables:
            if table not in self._sources and statements.names(whole, table):
                types = ", ".join(f'"{one.name}" {statements.duck(one.type)}' for one in columns(table))
                asked.execute(f'create table "tail_{table}" ({types})')
                asked.execute(statements.view(table, [f'"tail_{table}"'], "", newest.where, newest.late))
                source = self._sources[table] = _Source(table)
                asked.register(f"new_{table}", source)
                for statement in _filling(table):
                    asked.execute(statement)
                self._fill(asked, table, newest)
        for name, statement in statements.worked_out(text, measured=newest.measured).items():
            if name not in self._made:
                asked.execute(statement)
                self._made.add(name)

    def _fill(self, asked: duckdb.DuckDBPyConnection, table: str, newest: Newest) -> None:
        if table in newest.rows:
            self._full.add(table)
            self._sources[table].rows = newest.rows[table]
            asked.execute(f'execute "fill_{table}"')
            self._sources[table].rows = None


class _Source:
    """Rows of a table that DuckDB reads, other ones each time.

    Args:
        table: Whose.
    """

    def __init__(self, table: str) -> None:
        self._columns = [one.name for one in columns(table)]
        self._none = schema(table).empty_table()
        self.rows: pyarrow.Table | None = None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        rows = self._none if self.rows is None else self.rows
        return rows.select(self._columns).__arrow_c_stream__(requested_schema)


def _filling(table: str) -> tuple[Sql, Sql]:
    """The statements that prepare the filling and the emptying of a table."""
    kept = identifier(f"tail_{table}")
    filled = sql(
        "prepare {name} as insert into {kept} select * from {rows}",
        name=identifier(f"fill_{table}"),
        kept=kept,
        rows=identifier(f"new_{table}"),
    )
    return filled, sql("prepare {name} as delete from {kept}", name=identifier(f"empty_{table}"), kept=kept)


def _opened() -> duckdb.DuckDBPyConnection:
    found = databases.database()
    for setting in ("set threads=1", "set enable_progress_bar=false", "set enable_external_access=false"):
        found.execute(setting)
    found.execute("pragma disable_optimizer")
    found.execute('create table steps_asked as select 0::bigint as "first", 0::bigint as "last"')
    return found


def _template(query: Query, first: int, last: int) -> str | None:
    """The query with its steps out of the table; None where that isn't the same query."""
    text = again = query(*_PLACES)
    for (number, place), told in zip(_PLACES.items(), (first, last), strict=True):
        text, again = text.replace(str(number), place), again.replace(str(number), str(told))
    return text if again == query(first, last) else None


def _table(rows: list[tuple[Any, ...]], like: pyarrow.Schema) -> pyarrow.Table:
    """Rows as the table that DuckDB makes of them, which it would run a prepared query twice for."""
    import pyarrow as pa

    held = zip(*rows, strict=True) if rows else [()] * len(like)
    arrays = [pa.array(values, field.type) for values, field in zip(held, like, strict=True)]
    return pa.Table.from_arrays(arrays, schema=like)
