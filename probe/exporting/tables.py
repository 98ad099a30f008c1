"""A run's tables as files of their own: one Parquet or CSV file a table.

Parquet keeps every type: a missing value is null, NaN is a number, lists are lists. CSV has texts only:

====================  ====================================================================
value                 in the CSV file
====================  ====================================================================
missing (None)        nothing between the commas: ``,,``
an empty text         two quotes: ``,"",``. Texts are always quoted, so the two differ
NaN, ±infinity        ``nan``, ``inf``, ``-inf``
a finite float        the shortest digits that give exactly that float again
a list                JSON in quotes: ``"[3, 5]"``
true, false           ``true``, ``false``
a text that begins    with ``'`` before it: a spreadsheet would take it for a formula
with = + - @, a tab   and run it. Numbers never are
or a line end
====================  ====================================================================

The rows of one rank stand in the order in which they were written; ``wall_ns`` is in nanoseconds since the epoch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from probe._check import local_directory
from probe._io import expanded
from probe.errors import InputError, UnknownNameError
from probe.exporting.source import Source, opened_for, public_schema, written
from probe.records import TABLES
from probe.redaction import Redaction
from probe.runs.layout import INFO_NAME
from probe.runs.statements import VIEWS

if TYPE_CHECKING:
    import pyarrow

#: Rows of a Parquet row group: what a reader takes at once.
GROUP_ROWS: Final = 262_144

#: Table by the name that people call it, which is that of its file.
NAMES: Final = {VIEWS.get(table, table): table for table in TABLES}

#: Key of a Parquet file's metadata under which ``run.json`` stands.
RUN_KEY: Final = b"probe_run"

#: How a text begins that a spreadsheet takes for a formula.
FORMULA: Final = r"\A[=+\-@\t\r\n]"

#: Takes batches one by one.
Write = Callable[["pyarrow.RecordBatch"], Any]


@dataclass(frozen=True)
class File:
    """One file that was written."""

    table: str
    path: str
    rows: int
    bytes: int


def export_tables(
    run: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    format: str = "parquet",
    tables: Iterable[str] | None = None,
    attempt: int | None = None,
) -> list[File]:
    """Write one file for each table, also for one without rows. Files of the same name are replaced, each when its new
    content is complete. The run is streamed.

    Args:
        run: A run directory or an ``fsspec`` URL of one.
        directory: Where the files go; it is made.
        format: One of "parquet" and "csv".
        tables: Names as in ``run.sql``; None is all.
        attempt: The attempt that is written, alone and whole; None is what the newest has not hidden of each.

    Raises:
        UnknownNameError: There is no such table or format.
        InputError: ``directory`` is a run, a URL, or isn't a directory. There is no such attempt.
        RunNotFoundError: The run can't be read.
        RunError: The run can't be read. A file can't be written.
        SchemaVersionError: The run can't be read.
    """
    if format not in _WRITERS:
        raise UnknownNameError.of("format", format, _WRITERS)
    asked = None if tables is None else list(tables)
    local_directory("directory", directory)
    target = expanded("directory", directory).absolute()
    if target.exists() and not target.is_dir():
        raise InputError(f"directory: {str(target)!r} is a file, expected a directory, for one file per table")
    if (target / INFO_NAME).exists():
        raise InputError(f"directory: {str(target)!r} is a run directory, expected one that holds no run")
    with Source(run, attempt) as source:
        chosen = chosen_tables(asked, source.tables)
        writer = _WRITERS[format]
        return [written(source, partial(_export, source, name, target / f"{name}.{format}", writer)) for name in chosen]


def chosen_tables(tables: Iterable[str] | None, there: Iterable[str] = TABLES) -> list[str]:
    """The names of the tables that are asked for, each once; the row type's tag is accepted, too.

    Args:
        tables: Names, or None for all.
        there: The tables that the run has.

    Returns:
        Names as in ``run.sql``.

    Raises:
        UnknownNameError: There is no such table.
        InputError: There is no name at all.

    >>> chosen_tables(["memory", "process", "memory"])
    ['memory', 'processes']
    """
    names = {VIEWS.get(table, table): table for table in there}
    if tables is None:
        return list(names)
    called = {table: name for name, table in names.items()} | {name: name for name in names}
    chosen = list(dict.fromkeys(tables))
    for name in chosen:
        if name not in called:
            raise UnknownNameError.of("tables", name, names)
    if not chosen:
        raise InputError(f"tables: got none, expected some of {', '.join(sorted(names))}")
    return list(dict.fromkeys(called[name] for name in chosen))


def _export(source: Source, name: str, path: Path, writer: Any) -> File:
    table = NAMES.get(name, name)
    rows = 0
    with opened_for(path) as file, writer(file, table, source) as write:
        for batch in _batches(source, table):
            write(batch)
            rows += batch.num_rows
    return File(name, str(path), rows, path.stat().st_size)


def _batches(source: Source, table: str) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a table. Each segment of a process begins with the same Process row, which counts once."""
    if table != "process":
        yield from source.rows(table)
        return
    known: set[str] = set()
    for batch in source.rows(table):
        keep = []
        for row in batch.to_pylist():
            key = json.dumps(row)
            keep.append(key not in known)
            known.add(key)
        yield batch.filter(_booleans(keep))


def _booleans(values: list[bool]) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.bool_())


@contextmanager
def _parquet(file: IO[bytes], table: str, source: Source) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    info = msgspec.structs.replace(source.info, config=Redaction()(source.info.config))  # who gets it may be anybody
    told = {RUN_KEY: msgspec.json.encode(info)}
    schema = public_schema(table).with_metadata({**(public_schema(table).metadata or {}), **told})
    waiting: list[Any] = []

    def flush() -> None:
        if waiting:
            whole = pa.Table.from_batches(waiting).replace_schema_metadata(schema.metadata)
            parquet.write_table(whole, row_group_size=GROUP_ROWS)
            waiting.clear()

    def write(batch: Any) -> None:
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= GROUP_ROWS:
            flush()

    with pq.ParquetWriter(file, schema, compression="zstd") as parquet:
        yield write
        flush()


@contextmanager
def _csv(file: IO[bytes], table: str, _source: Source) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.csv

    fields = [
        pa.field(one.name, pa.string() if pa.types.is_list(one.type) else one.type) for one in public_schema(table)
    ]
    schema = pa.schema(fields)

    def write(batch: Any) -> None:
        columns = [_csv_cells(values) for values in batch.columns]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

    with pyarrow.csv.CSVWriter(file, schema) as writer:
        yield write


def _csv_cells(values: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(values.type):
        return _json(values)
    if not pa.types.is_string(values.type):
        return values
    harmful = pc.match_substring_regex(values, FORMULA)
    return pc.if_else(harmful, pc.binary_join_element_wise("'", values, ""), values)


def _json(values: Any) -> Any:
    import pyarrow as pa

    texts = [None if one is None else json.dumps(one, ensure_ascii=False) for one in values.to_pylist()]
    return pa.array(texts, pa.string())


_WRITERS: Final = {"parquet": _parquet, "csv": _csv}
