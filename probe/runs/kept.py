"""Views that are worked out once and asked many times, as a report does.

A view of ``views.sql`` is SQL that each question works out anew: of a run of ten million rows half a minute of a
processor for a hundred questions. Here its rows are put into a table first, in a file of DuckDB's own that lies in a
temporary folder, so that they are compressed and needn't stay in memory; questions are answered from there. What they
say stays the same: a table stands where the text of its view stood. Only where a question asks for the spans of some
steps a span may know its batch that otherwise didn't: the rows of the step before, which tell it, are there.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

from probe.runs import views
from probe.sql import Sql, identifier, joined, literal, sql

if TYPE_CHECKING:
    import duckdb

#: The views that are kept, in the order in which their texts are looked for: what holds another one comes first.
NAMES: Final = ("spans", "scopes", "padding_counted", "padding_widest", "micro_batches_counted")

#: What DuckDB may have in memory meanwhile.
MEMORY: Final = "256MB"

#: Rows from which a view is made at once.
SHARE_ROWS: Final = 600_000

#: The table whose rows a question restricts, and so those of the view.
_TABLES: Final = {
    "spans": "memory",
    "scopes": "memory",
    "padding_counted": "padding",
    "padding_widest": "padding",
    "micro_batches_counted": "micro_batches",
}
#: A view that is answered from the spans where these are kept.
_TIMED: Final = "micro_batches_timed"
_ROWS: Final = re.compile(r"\(select \* from (\w+) where (\([^()]*\) or step is null|[^()]*)\)")
_MARK: Final = "\x00"


class _Told(NamedTuple):
    """A view as a question tells of it."""

    text: str  #: the whole of it, with a mark where second 0 stands
    where: str  #: what holds for its rows


class Kept:
    """Tables with the rows of views, for one moment of one run. Any thread may ask.

    Attributes:
        folder: Where the database lies; it is deleted with :meth:`close`.
    """

    def __init__(self) -> None:
        self._directory = TemporaryDirectory(prefix="probe-", ignore_cleanup_errors=True)
        self.folder = self._directory.name
        self._lock = threading.Lock()
        self._made: set[str] = set()
        self._of: object = None

    def close(self) -> None:
        """Delete the tables."""
        self._directory.cleanup()

    def settings(self) -> list[str]:
        """The statements by which a database gets a place for the tables."""
        return [
            f"set temp_directory='{self.folder}'",
            f"set memory_limit='{MEMORY}'",
            f"attach '{self.folder}/kept.duckdb' as kept",
        ]

    def rewritten(self, text: str, start_ns: str) -> tuple[str, dict[str, Sql]]:
        """``text`` with tables where the texts of views stood.

        Args:
            text: A query.
            start_ns: SQL for second 0 of the run, in views that are called by their name.

        Returns:
            The query to ask, and the queries of the views that it calls by their names.
        """
        text = text.replace(views.query(_TIMED), _timed())  # the spans are there, or soon will be
        for name in NAMES:
            for told in _tellings(name, text):
                text = _replaced(name, told, text)
        return text, {name: _table(name, Sql(start_ns)) for name in views.named(text) if name in NAMES}

    def missing(self, of: object, text: str, named: Iterable[str]) -> list[str]:
        """The views of which :meth:`rewritten` text needs the tables that aren't there.

        Args:
            of: The moment that the rows are of; those of another one don't count.
            text: The query to ask.
            named: The views that it calls by their names.
        """
        with self._lock:
            made = self._made if of is self._of else set()
            return [name for name in NAMES if name not in made and (name in named or _place(name) in text)]

    def make(self, cursor: duckdb.DuckDBPyConnection, of: object, names: Iterable[str]) -> None:
        """Make the tables of views.

        Args:
            cursor: A connection to the database, which has the run's tables.
            of: The moment that their rows are of.
            names: Of the views.
        """
        with self._lock:
            if of is not self._of:
                for name in self._made:
                    cursor.execute(f"drop table {_place(name)}")
                self._made.clear()
                self._of = of
            for name in names:
                if name not in self._made:
                    _make(cursor, name)
                    self._made.add(name)


def _timed() -> Sql:
    """The rows of the view of micro-batches, out of the spans."""
    columns = Sql(
        "step, rank, process, role, phase, kind, level, micro_batch, scope, begin_ns, end_ns, duration, batch, tokens,"
        " slots, sequences, longest"
    )
    spans = views.query("spans")
    return sql("select {columns} from ({spans}) where kind = 'micro_batch'", columns=columns, spans=spans)


def _place(name: str) -> Sql:
    return sql("kept.main.{name}", name=identifier(name))


def _make(cursor: duckdb.DuckDBPyConnection, name: str) -> None:
    place, query = _place(name), views.query(name)
    cursor.execute(sql("create or replace table {place} as select * from ({query}) limit 0", place=place, query=query))
    for rows in _shares(cursor, name):
        sources = {one: _some(one, rows) for one in views.SOURCES} if rows else None
        cursor.execute(sql("insert into {place} {query}", place=place, query=views.query(name, sources)))


def _some(table: str, rows: Sql) -> Sql:
    return sql("(select * from {table} where {rows})", table=Sql(table), rows=rows)


def _replaced(name: str, told: _Told, text: str) -> str:
    where = f" where {told.where}" if told.where else ""
    before, mark, _ = told.text.partition(_MARK)
    if not mark:
        return text.replace(told.text, _table(name, Sql("0")) + where)
    starts = [_SECOND_0.match(one) for one in text.split(before)[1:]]  # a pattern of the whole takes long to compile
    for start in dict.fromkeys(one[0] for one in starts if one is not None):
        text = text.replace(told.text.replace(_MARK, start), _table(name, Sql(start)) + where)
    return text


class _Writer(NamedTuple):
    """A process: how many rows it has, and of which ranks they are."""

    process: str | None
    rows: int
    first: int | None
    last: int | None
    unranked: int


def _shares(cursor: duckdb.DuckDBPyConnection, name: str) -> list[Sql]:
    """Conditions that part the rows that a view is made of, so that each part can be worked on in little memory: no
    view sets processes side by side. Empty for all rows at once.
    """
    sources = ("memory", "scope_calls", "micro_batches") if name in ("spans", "scopes") else (_TABLES[name],)
    rows = [sql("select process, rank from {table}", table=Sql(one)) for one in sources]
    told = cursor.execute(
        sql(
            """select process, count(*), min(rank), max(rank), count(*) - count(rank) from ({rows})
        group by process order by process nulls first""",
            rows=joined(rows, " union all "),
        )
    ).fetchall()
    shares: list[list[_Writer]] = [[]]
    for one in map(_Writer._make, told):
        shares[-1].append(one)
        if sum(writer.rows for writer in shares[-1]) >= SHARE_ROWS:
            shares.append([])
    shares = [share for share in shares if share]
    return list(map(_condition, shares)) if len(shares) > 1 else [Sql("")]


def _condition(share: list[_Writer]) -> Sql:
    """Which rows are of a share. The ranks follow from the processes; DuckDB sees by them what it needn't read."""
    first, last = share[0].process, share[-1].process
    begin, end = literal(first or ""), literal(last or "")
    known = sql("process between {begin} and {end}", begin=begin, end=end)
    if first is None:
        return sql("(process is null or process <= {end})", end=end)
    ranks = [rank for one in share for rank in (one.first, one.last) if rank is not None]
    if not ranks or any(one.unranked for one in share):
        return known
    return sql("{known} and rank between {low} and {high}", known=known, low=min(ranks), high=max(ranks))


#: Second 0 of the run, as SQL: when its first process began to record.
START: Final = Sql("(select coalesce(min(wall_ns), 0) from processes)")


_SECOND_0: Final = re.compile(rf"\d+|{re.escape(START)}")


def _tellings(name: str, text: str) -> Iterator[_Told]:
    """The ways in which ``text`` may tell of a view: whole, or of some rows."""
    yield _Told(views.query(name, start_ns=_MARK), "")
    for rows in dict.fromkeys(_ROWS.findall(text)):
        table, where = rows
        if table == _TABLES[name]:
            sources = {table: _some(table, Sql(where))}
            yield _Told(views.query(name, sources, _MARK), f"({where})")


def _table(name: str, start_ns: Sql) -> Sql:
    if name != "spans":
        return sql("select * from {place}", place=_place(name))
    return sql(
        'select * replace ((begin_ns - {start}) / 1e9 as begin, (end_ns - {start}) / 1e9 as "end") from {place}',
        start=start_ns,
        place=_place(name),
    )
