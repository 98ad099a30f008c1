"""All rows of a run at one moment, as columns; the next moment costs only what was added since."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from probe.errors import RunError
from probe.records import TABLES
from probe.runs.files import Parts, RunFiles
from probe.runs.layout import Segment, check_version
from probe.runs.parts import BAD_LINES, CHUNK_BYTES, Columnar, columns, schema

if TYPE_CHECKING:
    import pandas
    import pyarrow

#: A segment that is rolled over while we look makes us look again; a busy writer does so every few minutes.
TRIES = 20


class _Tail:
    """The rows of one JSONL file, as far as it has been read."""

    def __init__(self) -> None:
        self.columnar = Columnar()
        self.offset = 0
        self.tables: dict[str, list[pyarrow.Table]] = {}

    def take(self, data: bytes) -> None:
        """Add the complete lines of ``data``, which begins where the last ended."""
        begin = 0
        while begin < len(data):
            end = data.rfind(b"\n", begin, begin + CHUNK_BYTES) + 1 or data.find(b"\n", begin) + 1
            if not end:
                break
            for table, found in self.columnar.take(data[begin:end]).items():
                self.tables.setdefault(table, []).append(found)
            begin = end
        self.offset += begin


class Snapshot:
    """Reads a run's files. :meth:`refresh` takes a new look, which all tables then share."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._tails: dict[Segment, _Tail] = {}
        self._parts: dict[Segment, Parts] = {}
        self._checked: dict[Segment, int] = {}  # bad lines of each segment in parts

    def refresh(self) -> None:
        """Look at the files as they are now.

        Raises:
            SchemaVersionError: a process of a newer probe has written to the run.
            RunError: a part can't be read.
        """
        for attempt in range(TRIES):
            try:
                self._look()
                return
            except FileNotFoundError as error:
                if attempt + 1 == TRIES:
                    raise RunError(f"run {self._files.shown!r}: files vanish while they are read: {error}") from error

    def _look(self) -> None:
        segments, parts = self._files.look()
        tails = {segment: self._tail(segment) for segment in sorted(segments)}
        # Empty and with parts: a process took the number of a segment that has just become parts, and will
        # see so.
        tails = {one: tail for one, tail in tails.items() if tail.offset or one not in parts}
        parts = {one: tables for one, tables in parts.items() if one not in tails}
        for tail in tails.values():
            check_version(tail.columnar.newest_version, self._files.shown)
        for segment in parts.keys() - self._checked.keys():
            self._checked[segment] = self._check(parts[segment])
        self._tails, self._parts = tails, parts

    def _tail(self, segment: Segment) -> _Tail:
        tail = self._tails.get(segment) or _Tail()
        data = self._files.read(segment, tail.offset)
        if data is None:  # shorter than it was: another file, so the directory was made anew
            tail = _Tail()
            data = self._files.read(segment, 0) or b""
        tail.take(data)
        return tail

    def _check(self, tables: Parts) -> int:
        import pyarrow as pa
        import pyarrow.compute as pc

        if "process" not in tables:
            return 0
        try:
            found = self._dataset("process", [tables["process"]]).to_table(columns=["schema_version"])
            metadata = self._dataset(None, [tables["process"]]).schema.metadata or {}
        except pa.ArrowInvalid as error:
            raise RunError(f"run {self._files.shown!r}: a part can't be read: {error}") from error
        check_version(pc.max(found["schema_version"]).as_py() or 0, self._files.shown)
        return int(metadata.get(BAD_LINES, b"0"))

    def copy(self) -> Snapshot:
        """The same moment, which a later :meth:`refresh` of this one doesn't change."""
        other = Snapshot(self._files)
        other._parts, other._checked = self._parts, self._checked
        for segment, tail in self._tails.items():
            kept = other._tails[segment] = _Tail()
            kept.tables = {table: list(chunks) for table, chunks in tail.tables.items()}
        return other

    @property
    def bad_lines(self) -> int:
        """Lines that are no rows."""
        in_tails = sum(tail.columnar.bad for tail in self._tails.values())
        return in_tails + sum(self._checked[segment] for segment in self._parts)

    # --------------------------------------------------------------------------------------------- its tables

    def table(self, name: str) -> pyarrow.Table:
        """All rows of a table; those of one rank in the order in which they were written."""
        import pyarrow as pa

        pieces = [piece.to_table() for piece in self._pieces(name)]
        return pa.concat_tables([schema(name).empty_table(), *pieces])

    def scan(self, name: str) -> Any:
        """A table as a pyarrow data set, of which a query reads the columns that it needs."""
        import pyarrow.dataset as ds

        return ds.dataset([ds.dataset(schema(name).empty_table()), *self._pieces(name)])

    def count(self, name: str) -> int:
        """How many rows a table has."""
        return sum(piece.count_rows() for piece in self._pieces(name))

    def _pieces(self, name: str) -> Iterator[Any]:
        """Data sets in the order of the segments; neighbours that are parts are one."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        whole = {**self._tails, **self._parts}
        for is_tail, group in itertools.groupby(sorted(whole), lambda segment: segment in self._tails):
            if is_tail:
                chunks = [chunk for one in group for chunk in self._tails[one].tables.get(name, [])]
                if chunks:
                    yield ds.dataset(pa.concat_tables(chunks).cast(schema(name)))
                continue
            paths = [self._parts[one][name] for one in group if name in self._parts[one]]
            if paths:
                yield self._dataset(name, paths)

    def _dataset(self, name: str | None, paths: list[str]) -> Any:
        import pyarrow.dataset as ds

        system = None if self._files.local else self._files.system
        return ds.dataset(paths, schema=schema(name) if name else None, filesystem=system, format="parquet")


def query(snapshot: Snapshot, text: str, parameters: object) -> pandas.DataFrame:
    """The result of a query over the tables of ``snapshot``, in a database of its own.

    A database for each query costs a few milliseconds and needs no lock: any thread may query. It sees the
    tables and nothing else, neither files nor the network nor Python's variables.
    """
    import duckdb

    from probe.runs.frames import query_frame

    database: Any = duckdb.connect(":memory:", config={"python_enable_replacements": False})
    with database:
        database.execute("set enable_external_access=false; set enable_progress_bar=false")
        database.execute("set lock_configuration=true")
        for table in TABLES:
            database.register(f"_{table}", snapshot.scan(table))
            database.execute(_view(table))
        found = database.sql(text, params=parameters)
        if found is None:
            import pandas as pd

            return pd.DataFrame()
        return query_frame(found.to_arrow_table())


def _view(table: str) -> str:
    distinct = "distinct " if table == "process" else ""
    selected = ", ".join(map(_selected, columns(table)))
    return f'create view "{VIEWS.get(table, table)}" as select {distinct}{selected} from "_{table}"'  # noqa: S608  (our own names)


#: Names of the views that differ from the table's tag.
VIEWS = {"process": "processes"}


def _selected(column: Any) -> str:
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
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else None
