"""SQL over the files of a run: DuckDB, which reads Parquet by itself and the rows of JSONL files as Arrow tables.

A query that only selects sees the run's Parquet files through DuckDB's own reader, which takes of each file what the
query needs. Everything else, and every query of a run that isn't on this machine, gets them as pyarrow data sets in a
database that has no access to any file: what is told to write has nowhere to write to.
"""

from __future__ import annotations

import functools
import math
import os
import secrets
import threading
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, Final

from probe.runs import databases, version_1, views
from probe.runs.columns import schema
from probe.runs.kept import START, Kept
from probe.runs.statements import NOTHING_LATE, lists_tables, names, parquet_rows, view, with_views, worked_out
from probe.sql import Sql, identifier, sql

if TYPE_CHECKING:
    import duckdb
    import pandas
    import pyarrow

#: The variable of a process that must stay small: how many megabytes DuckDB may have in memory there, such as "70MB".
#: It then asks with one thread. A question that needs more is asked again with twice as much, up to a gigabyte, and
#: then without a limit.
SMALL: Final = "PROBE_SQL_MEMORY"
_MOST_MB: Final = 1000

#: Bytes of Parquet files up to which their rows are taken into the database at the first question; they take ten to
#: thirty times as much there. DuckDB looks at the files anew with each question: for few rows that takes five times as
#: long as the answer.
FEW_BYTES: Final = 2**21
_FEW_BYTES_OF_A_MB: Final = 2**13  # where memory is limited

#: Files up to which their sizes are asked for.
_FEW_FILES: Final = 2**9

#: In a path DuckDB takes these for patterns.
_PATTERNS: Final = frozenset("*?[]{}")

_SETTINGS: Final = (
    "set enable_progress_bar=false",
    "set parquet_metadata_cache=true",  # parts never change
    "set enable_external_file_cache=false",  # the system's own cache has them
    "set enable_external_access=false",
)

#: What a question no longer needs is given back at once, not kept for the next one.
_FLUSHED: Final = ("set allocator_flush_threshold='1MB'", "set allocator_bulk_deallocation_flush_threshold='1MB'")

#: No table but those of the rows.
NOTHING_MORE: Final[Mapping[str, str]] = types.MappingProxyType({})

Tails = Mapping[str, "pyarrow.Table"]


class Parquet:
    """The Parquet files of one moment, as tables ``parts_<table>`` of one database that any thread may ask.

    Args:
        paths: Of the files of each table; on this machine.
        old: The processes of version 1, where the files may hold rows of it; else None.
        threads: That a question is worked out by; 0 is as many as there are cores.
    """

    def __init__(
        self, paths: Mapping[str, Sequence[str]], old: Sequence[version_1.Writer] | None = None, threads: int = 0
    ) -> None:
        self.threads = threads
        self._limit_mb = int(os.environ.get(SMALL, "").removesuffix("MB") or 0)  # 0 is none
        self._paths = paths
        self._old = old
        self._lock = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None
        self._views: set[str] = set()
        self._kept: Kept | None = None
        self._left: float = FEW_BYTES  # that may still be taken into the database

    @staticmethod
    def readable(root: str) -> bool:
        """Whether DuckDB can be told of files below ``root`` one by one.

        >>> Parquet.readable("/runs/grpo/first"), Parquet.readable("/runs/lr=[1e-6]")
        (True, False)
        """
        return not _PATTERNS.intersection(root)

    @property
    def keeps(self) -> bool:
        """Whether views are kept."""
        return self._kept is not None

    def keep(self, kept: Kept | None) -> None:
        """Have a place for ``kept`` from now on; None for none."""
        with self._lock:
            if kept is not self._kept:
                self._kept, self._database, self._views = kept, None, set()

    def allow_more(self) -> bool:
        """Answer with more memory from now on. Gives whether it was limited."""
        with self._lock:
            had = self._limit_mb
            self._limit_mb = 2 * had if 2 * had <= _MOST_MB else 0
            if had:
                self._database, self._views = None, set()
            return had > 0

    def cursor(self, text: str) -> tuple[duckdb.DuckDBPyConnection, set[str]]:
        """A connection of one's own for the query ``text``, and the tables that have a view in it: those that the
        text names. To be closed by the caller.
        """
        with self._lock:
            database = self._prepared(text)
            return database.cursor(), set(self._views)

    def known(self, text: str) -> set[str]:
        """The tables that have a view in each connection, those among them that ``text`` names."""
        with self._lock:
            self._prepared(text)
            return set(self._views)

    def _prepared(self, text: str) -> duckdb.DuckDBPyConnection:
        if self._database is None:
            self._database = self._open()
        asked = with_views(text)
        for table in self._paths.keys() - self._views:
            if self._paths[table] and names(asked, table):
                kind = "table" if self._takes(self._paths[table]) else "view"
                self._database.execute(f"create {kind} {parquet_rows(table, self._paths[table], self._old)}")
                self._views.add(table)
        return self._database

    def _takes(self, paths: Sequence[str]) -> bool:
        """Whether the rows of a table's files are taken into the database."""
        size = bytes_of(paths)
        takes = size <= self._left
        self._left -= size if takes else 0
        return takes

    def _open(self) -> duckdb.DuckDBPyConnection:
        database = databases.database()
        self._left = _FEW_BYTES_OF_A_MB * self._limit_mb if self._limit_mb else FEW_BYTES
        database.execute("set allowed_paths=?", [[path for paths in self._paths.values() for path in paths]])
        # A folder of its own, which DuckDB makes where it needs room and removes: queries may read and write in there.
        own = Path(gettempdir()) / f"probe-duckdb-{secrets.token_hex(8)}"
        room = [f"set temp_directory={version_1.quoted(str(own))}"] if self._kept is None else self._kept.settings()
        limited = self._limit_mb and self._kept is None
        small = [f"set memory_limit='{self._limit_mb}MB'", *_FLUSHED] if limited else []
        count = self.threads or (1 if small else 0)
        threads = [f"set threads={count}"] if count else []
        for setting in (*room, *small, *threads, *_SETTINGS, "set lock_configuration=true"):
            database.execute(setting)
        return database


class Held:
    """A connection that is used again, with the views that were made in it, by their names what made them: for many
    questions to one moment, one after the other. Making views takes longer than many a question.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.cursor: duckdb.DuckDBPyConnection | None = None
        self.made: dict[str, str] = {}

    def forget(self) -> None:
        """Take another connection with the next question."""
        with self.lock:
            self.cursor = None
            self.made.clear()


def bytes_of(paths: Sequence[str]) -> float:
    """Of files of this machine; infinity where they are many, or one has gone."""
    try:
        return sum(map(os.path.getsize, paths)) if len(paths) <= _FEW_FILES else math.inf
    except FileNotFoundError:
        return math.inf


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
    kept: Kept | None = None,
    moment: object = None,
    held: Held | None = None,
    more: Mapping[str, str] = NOTHING_MORE,
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
        kept: Where views are kept that are asked for often; None works them out.
        moment: Of the run, which what is kept belongs to.
        held: Is asked in this connection, where nobody else asks in it; None makes one.
        more: Other tables that it may name, by their names the queries that give their rows.

    Returns:
        What it gives.
    """
    import duckdb

    answer = functools.partial(
        _select, parquet, tuple(tables), tails, text, parameters, where=where, measured=measured, late=late, kept=kept,
        moment=moment, held=held, more=more,
    )  # fmt: skip
    while True:
        try:
            return answer()
        except duckdb.OutOfMemoryException:
            if not parquet.allow_more():
                raise
        if held is not None:
            held.forget()


def _select(
    parquet: Parquet,
    tables: tuple[str, ...],
    tails: Tails,
    text: str,
    parameters: object,
    *,
    where: str,
    measured: bool,
    late: Mapping[str, int],
    kept: Kept | None,
    moment: object,
    held: Held | None,
    more: Mapping[str, str],
) -> pyarrow.Table:
    """As :func:`select`, within the limit of memory."""
    parquet.keep(kept)
    own: Mapping[str, str] = dict(more)
    whole = functools.partial(_with_tables, parquet, tables, tails, where=where, measured=measured, late=late)
    if kept is not None:
        text, own = kept.rewritten(text, START)
        own = {**own, **more}
        missing = kept.missing(moment, text, own)
        if missing:
            with whole("\n".join(map(views.query, missing)), every=True) as cursor:
                kept.make(cursor, moment, missing)
    import duckdb

    # What lists the tables would see those of earlier questions.
    if held is not None and not lists_tables(text) and held.lock.acquire(blocking=False):
        try:
            cursor = whole(text, own, held=held)
            return cursor.sql(text, params=parameters).to_arrow_table()
        except duckdb.CatalogException:
            pass
        finally:
            held.lock.release()
    try:
        with whole(text, own) as cursor:
            return cursor.sql(text, params=parameters).to_arrow_table()
    except duckdb.CatalogException:  # asked again with all tables, DuckDB says which of them may be meant
        with whole(text, own, every=True) as cursor:
            return cursor.sql(text, params=parameters).to_arrow_table()


def _with_tables(
    parquet: Parquet,
    tables: Sequence[str],
    tails: Tails,
    text: str,
    own: Mapping[str, str] | None = None,
    *,
    where: str,
    measured: bool,
    late: Mapping[str, int],
    every: bool = False,
    held: Held | None = None,
) -> duckdb.DuckDBPyConnection:
    """A connection in which the query ``text`` finds what it names, or ``every`` table; ``own`` are views that are made
    of something else than the tables, by name. To be closed by the caller, unless it is the one that is ``held``.
    """
    made: dict[str, str] = {} if held is None else held.made
    if held is not None and held.cursor is not None:
        cursor, known = held.cursor, parquet.known(text)
    else:
        cursor, known = parquet.cursor(text)
    if held is not None:
        held.cursor = cursor
    asked = with_views(text)
    for table in tables:
        if not (every or names(asked, table)):
            continue
        sources = [f'"parts_{table}"'] if table in known else []
        if table in tails or not sources:
            if table not in made:
                cursor.register(f"tail_{table}", tails[table] if table in tails else _nothing(table))
            sources.append(f'"tail_{table}"')
        statement = view(table, sources, "or replace temp ", where, late)
        if made.get(table) != statement:  # whoever asks what is hidden wants all rows
            cursor.execute(statement)
            made[table] = statement
    told = {
        name: sql("create or replace temp view {name} as {query}", name=identifier(name), query=Sql(query))
        for name, query in (own or {}).items()
    }
    others = worked_out(text, "or replace temp ", measured=measured)
    for name, statement in (told | others | told).items():  # theirs first and in place of others
        if made.get(name) != statement:
            cursor.execute(statement)
            made[name] = statement
    return cursor


def sealed(
    sources: Mapping[str, Any],
    text: str,
    parameters: object,
    where: str = "",
    late: Mapping[str, int] = NOTHING_LATE,
    more: Mapping[str, str] = NOTHING_MORE,
) -> pandas.DataFrame | pyarrow.Table | None:
    """The result of any statements, over tables that pyarrow reads, in a database of their own; None where the last
    has none. ``where``, ``late`` and ``more`` are as in :func:`select`.
    """
    with databases.database() as database:
        database.execute("set enable_external_access=false; set enable_progress_bar=false")
        database.execute("set lock_configuration=true")
        for table, source in sources.items():
            database.register(f"tail_{table}", source)
            database.execute(view(table, [f'"tail_{table}"'], where=where, late=late))
        for name, query in more.items():
            database.execute(f'create view "{name}" as {query}')
        for statement in worked_out(text).values():
            database.execute(statement)
        found = database.sql(text, params=parameters)
        return None if found is None else found.to_arrow_table()


def definition(
    text: str,
    tables: Iterable[str],
    where: str,
    late: Mapping[str, int],
    old: Sequence[version_1.Writer] | None,
    *,
    measured: bool,
) -> str:
    """What a query means: all that its answer depends on but the rows. The arguments are those of :func:`select`, and
    ``old`` of :class:`Parquet`.

    Returns:
        The query, and the text of each view and table that it may ask for.
    """
    asked = with_views(text)
    named = [table for table in tables if names(asked, table)]
    made = [view(table, [f'"parts_{table}"'], "", where, late) for table in named]
    read = [parquet_rows(table, [], old) for table in named]
    return "\n".join([text, *worked_out(text, measured=measured).values(), *made, *read, repr(old)])


@functools.lru_cache(maxsize=256)  # what is asked is asked again
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
    import pyarrow as pa

    return pa.Table.from_batches([], schema=schema(table))  # its own way to an empty table loads pandas
