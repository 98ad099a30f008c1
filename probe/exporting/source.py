"""A run's rows as a stream of Arrow batches, and files that appear whole or not at all."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from probe._io import written_aside
from probe.errors import InputError, RunError
from probe.records import place_of_process
from probe.runs import databases, views
from probe.runs.columns import columns
from probe.runs.files import RunFiles
from probe.runs.snapshot import Snapshot
from probe.runs.sources import ranked
from probe.runs.statements import VIEWS, with_ranks, worked_out
from probe.sql import identifier, sql

if TYPE_CHECKING:
    import pyarrow

Written = TypeVar("Written")

#: Rows of one batch: a few megabytes.
#: Numbers from here on are no ranks.
NUMBERS: Final = 10_000_000

BATCH_ROWS: Final = 32_768

#: What DuckDB may hold; larger sorts and joins go through a temporary directory.
MEMORY_LIMIT: Final = "1GB"


class Source:
    """One moment of a run, as batches.

    Args:
        path: The run directory, or an ``fsspec`` URL of one.
        attempt: As :class:`probe.runs.reader.Run`.
        numbered: Whether processes without a rank get a number that no rank has, in the place of it.

    Attributes:
        names: What those are shown as that have such a number.

    Raises:
        RunNotFoundError: As :class:`probe.runs.reader.Run`.
        RunError: As :class:`probe.runs.reader.Run`.
        SchemaVersionError: As :class:`probe.runs.reader.Run`.
        InputError: As :class:`probe.runs.reader.Run`.
    """

    def __init__(self, path: str | os.PathLike[str], attempt: int | None = None, *, numbered: bool = False) -> None:
        self.files = RunFiles(path)
        self.info = self.files.info()
        self._snapshot = Snapshot(self.files, attempt)
        with self.files.asking():
            self._snapshot.refresh()
        self.names: dict[int, str] = {}  #: what those are shown as that have a number instead of a rank
        self._numbers = dict(self._snapshot.rows.late_ranks())
        if numbered:
            self._number()
        self._spill: tempfile.TemporaryDirectory[str] | None = None
        self._database: Any = None

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of the run, with those that its recorders have brought."""
        return self._snapshot.tables

    def rows(self, table: str) -> Iterator[pyarrow.RecordBatch]:
        """All rows of a table, those of one rank in the order in which they were written; all columns of
        :func:`probe.runs.columns.columns`, the fields that an older probe hadn't filled with their default.

        Raises:
            RunError: A part can't be read.
        """
        import pyarrow as pa

        names = [column.name for column in columns(table)]
        with self._reading(table):
            late = self._snapshot.rows.late_ranks()
            for written in self._snapshot.scan(table).to_batches(columns=names, batch_size=BATCH_ROWS):
                batch = ranked(written, late)
                filled = [_filled(values, column) for values, column in zip(batch.columns, columns(table), strict=True)]
                yield pa.RecordBatch.from_arrays(filled, schema=public_schema(table))

    def ask(self, query: str) -> Iterator[pyarrow.RecordBatch]:
        """The result of a query over the tables, a batch at a time. The names are those of ``run.sql``.

        Raises:
            RunError: A part can't be read, or the temporary directory has no room.
        """
        import duckdb

        with self._reading("tables"):
            try:
                found = self._open().sql(query)
                # The name that older DuckDBs have, where the newer one isn't there.
                stream = getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader
                yield from stream(BATCH_ROWS)
            except duckdb.Error as error:
                raise RunError(f"run {self.files.shown!r}: can't be exported: {error}") from error

    def _number(self) -> None:
        """Give each process without a rank a number that no rank has."""
        told = self._snapshot.table("process")
        pairs = zip(told["rank"].to_pylist(), told["process"].to_pylist(), strict=True)
        nameless = {process for rank, process in pairs if rank is None}
        for number, place in enumerate(sorted(set(map(place_of_process, nameless))), NUMBERS):
            self.names[number] = place
            self._numbers.update((one, number) for one in nameless if place_of_process(one) == place)

    def _open(self) -> Any:
        if self._database is None:
            self._spill = tempfile.TemporaryDirectory(prefix="probe-export-")
            self._database = databases.database(temp_directory=self._spill.name, memory_limit=MEMORY_LIMIT)
            self._database.execute("set enable_progress_bar=false")
            for table in self.tables:
                self._database.register(f"rows_{table}", self._snapshot.scan(table))
                rows = with_ranks(sql("select * from {rows}", rows=identifier(f"rows_{table}")), self._numbers)
                name = identifier(VIEWS.get(table, table))
                self._database.execute(sql("create view {name} as {rows}", name=name, rows=rows))
            for statement in worked_out(" ".join(views.texts())).values():
                self._database.execute(statement)
        return self._database

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        import pyarrow as pa

        with self.files.asking():
            try:
                yield
            except (pa.ArrowException, OSError) as error:
                raise RunError(f"run {self.files.shown!r}: {what} can't be read: {error}") from error

    def again(self) -> bool:
        """After a failure: leave out what is damaged. False where nothing is, or nothing more."""
        if not self.files.examine():
            return False
        self.close()
        with self.files.asking():
            self._snapshot.refresh()
        return True

    def close(self) -> None:
        """Let go of what was read, and of the temporary directory. Safe to call twice."""
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._spill is not None:
            self._spill.cleanup()
            self._spill = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def written(source: Source, write: Callable[[], Written]) -> Written:
    """What ``write`` returns, which writes from ``source``; begun anew without the files that it found damaged.

    Raises:
        RunError: It fails for another reason.
    """
    while True:
        try:
            return write()
        except RunError:
            if not source.again():
                raise


def public_schema(table: str) -> pyarrow.Schema:
    """The columns that readers see, without the reader's own ``line``."""
    from probe.runs.columns import LINE, schema

    found = schema(table)
    return found.remove(found.get_field_index(LINE))


def _filled(values: Any, column: Any) -> Any:
    import pyarrow as pa

    if column.optional or not values.null_count:
        return values
    return pa.array([column.default if one is None else one for one in values.to_pylist()], values.type)


@contextmanager
def opened_for(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that becomes ``path`` when the block ends; compressed where the name ends with ``.gz``.

    Raises:
        InputError: ``path`` is a directory.
        RunError: It can't be written.
    """
    if path.is_dir():
        raise InputError(f"path: {str(path)!r} is a directory, expected a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(path, sync=False) as aside, aside.open("wb") as plain:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=plain, compresslevel=5) as packed:
                    yield cast("IO[bytes]", packed)
            else:
                yield plain
    except OSError as error:
        raise RunError(f"path: {str(path)!r} can't be written: {error}") from error
