"""Rows as columns: from JSONL lines to Arrow, and a finished segment to Parquet.

The types of the columns come from the row types in ``probe.records``, never from the data. Two columns are
added: ``wall_ns``, the wall-clock time that belongs to ``time_ns`` by the segment's Process row, and
``line``, the number of the line in its segment, by which a reader that has followed the JSONL file finds its
place again.

pyarrow is imported when it's first needed, which in a training worker is in the writer thread at the first
roll-over.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import re
import sys
import time
import types
import typing
from array import array
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from probe._io import ASIDE, sync_directory, written_aside
from probe.errors import UnknownNameError
from probe.records import SCHEMA_VERSION, TABLES, Row
from probe.runs import row_types, version_1
from probe.runs.layout import PARTS_NAME, Segment
from probe.runs.lines import decode, table_of

if TYPE_CHECKING:
    import pyarrow

#: Bytes of JSONL that are turned into columns at once: about 20 ms.
CHUNK_BYTES: Final = 4 * 2**20

#: An aside file this old belongs to nobody any more.
STALE_S: Final = 600

#: Libraries of pyarrow that a roll-over doesn't need.
_NEVER_LOADED: Final = re.compile("flight|substrait|gandiva|encryption|orc|gcsfs|s3fs|azurefs|hdfs|tests")

WALL: Final = "wall_ns"
LINE: Final = "line"

#: Key of a part's metadata: how many lines of the segment were unreadable.
BAD_LINES: Final = b"probe_bad_lines"


class Column(typing.NamedTuple):
    """One field of a row type as a column."""

    name: str
    type: str  #: "int64", "double", "bool", "string", "list<int64>" or "list<string>"
    optional: bool  #: None is a value of it
    default: Any  #: for rows of an older probe that hadn't the field; msgspec.NODEFAULT where there's none


_TYPES: Final = {
    int: "int64",
    float: "double",
    bool: "bool",
    str: "string",
    list[int]: "list<int64>",
    list[str]: "list<string>",
}


@functools.cache
def columns(table: str) -> tuple[Column, ...]:
    """The columns of ``table``: the fields of its row type, then ``wall_ns``."""
    kind = _row_type(table)
    hints = typing.get_type_hints(kind)
    found = [_column(field, hints[field.name]) for field in msgspec.structs.fields(kind)]
    if all(column.name != WALL for column in found):  # Process has one of its own, which is the same moment
        found.append(Column(WALL, "int64", True, None))
    return tuple(found)


def _row_type(table: str) -> type[Row]:
    found = row_types.row_type(table)
    if found is None:
        raise UnknownNameError.of("table", table, TABLES)
    return found


def _column(field: Any, hint: Any) -> Column:
    optional = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    inner = next(one for one in typing.get_args(hint) if one is not type(None)) if optional else hint
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if optional and default is msgspec.NODEFAULT:  # it must be said when a row is made, and may be None
        default = None
    return Column(field.name, _TYPES[inner], optional, default)


def _arrow_type(name: str) -> Any:
    import pyarrow as pa

    if name.startswith("list<"):
        return pa.list_(_arrow_type(name[5:-1]))
    return pa.type_for_alias(name)


@functools.cache
def schema(table: str) -> pyarrow.Schema:
    """The Arrow schema of ``table``, ``line`` included. All columns may be null: an older part lacks some."""
    import pyarrow as pa

    fields = [pa.field(column.name, _arrow_type(column.type)) for column in columns(table)]
    metadata = {"probe_schema_version": str(SCHEMA_VERSION), "probe_table": table}
    return pa.schema([*fields, pa.field(LINE, pa.int64())], metadata=metadata)


def conformed(table: str, found: pyarrow.Table) -> pyarrow.Table:
    """``found`` with exactly the columns of :func:`schema`: under today's names, and what an older probe hadn't yet is
    null.
    """
    import pyarrow as pa

    wanted = schema(table)
    if _of_version_1(found):
        found = version_1.upgraded(table, found)
    if found.schema.equals(wanted):
        return found.replace_schema_metadata(wanted.metadata)
    arrays = [found[one.name] if one.name in found.column_names else pa.nulls(len(found), one.type) for one in wanted]
    return pa.Table.from_arrays(arrays, names=wanted.names).cast(wanted)


def _of_version_1(found: pyarrow.Table) -> bool:
    return "process" not in found.column_names or found["process"].null_count > 0


@functools.cache
def either_schema(table: str) -> pyarrow.Schema:
    """:func:`schema` with the old names of columns beside today's: what a file of either version is read by."""
    found = schema(table)
    for old, new in version_1.old_columns(table).items():
        found = found.append(found.field(new).with_name(old))
    return found


# ------------------------------------------------------------------------------------------- lines to columns


#: How a line begins that is no row about its process, and the tables by what comes next.
_TAG: Final = b'{"table":"'
_TAGS: Final = {name.encode(): name for name in TABLES if name != "process"}


class Columnar:
    """Turns the lines of one segment into one Arrow table for each kind of row, a chunk at a time.

    Attributes:
        lines: How many were taken, the unreadable ones included.
        bad: How many of them were unreadable, and are left out.
        offset_ns: wall-clock minus monotonic time, from the segment's Process row; None before it was seen.
        newest_version: The largest schema version that a Process row told.
        attempts: To which attempts its Process rows belong.
        own_tables: Those that the process has brought itself.
    """

    def __init__(self) -> None:
        self.lines = 0
        self.bad = 0
        self.offset_ns: int | None = None
        self.newest_version = 0
        self.attempts: set[int] = set()
        self.own_tables: tuple[str, ...] = ()
        self._tags = _TAGS

    def add_lines(self, data: bytes) -> dict[str, pyarrow.Table]:
        """Columns of the complete lines in ``data``, by table; tables without rows are left out."""
        lines, numbers = self._sorted(data)
        return {table: self._columns(table, lines[table], numbers[table]) for table in lines}

    def _sorted(self, data: bytes) -> tuple[dict[str, list[bytes]], dict[str, list[int]]]:
        """The lines of each table, and their numbers."""
        lines: dict[str, list[bytes]] = defaultdict(list)
        numbers: dict[str, list[int]] = defaultdict(list)
        found = data.split(b"\n")
        for number, line in enumerate(found[:-1], self.lines):  # a call for each line would double the time of the loop
            table = self._tags.get(line[10 : line.find(b'"', 10)]) if line[:10] == _TAG else None
            table = table or self._table_of_other_line(line)
            if table is not None:
                lines[table].append(line)
                numbers[table].append(number)
        self.lines += len(found) - 1
        return lines, numbers

    def _table_of_other_line(self, line: bytes) -> str | None:
        """The table that a line belongs to which doesn't begin as others do; None where it can't be used."""
        row = self._decode(line)
        if row is None:
            return None
        table = table_of(row)
        if table == "process":
            self._anchor(row)
        return table

    def _anchor(self, row: Any) -> None:
        self.newest_version = max(self.newest_version, row.schema_version)
        self.attempts.add(row.attempt)
        self.own_tables = tuple(row_types.learn(row.tables)) or self.own_tables
        self._tags = _TAGS | {name.encode(): name for name in self.own_tables}
        if self.offset_ns is None:
            self.offset_ns = row.wall_ns - row.time_ns

    def _decode(self, line: bytes) -> Row | None:
        try:
            return version_1.decode(line) if self._old else decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.bad += 1
            return None

    @property
    def _old(self) -> bool:
        return self.newest_version == version_1.VERSION

    @property
    def told_together(self) -> bool:
        """Whether its lines may be read together with those of other segments."""
        return not self._old and self.offset_ns is not None

    def _columns(self, table: str, lines: list[bytes], numbers: list[int]) -> pyarrow.Table:
        found = _fast(table, lines, old=self._old)
        if found is None:
            found, numbers = self._slow(table, lines, numbers)
        return self._finished(table, found, numbers)

    def _finished(self, table: str, found: pyarrow.Table, numbers: list[int]) -> pyarrow.Table:
        """With the columns that no line has."""
        import pyarrow as pa

        if self._old:  # who wrote it is told when all processes of the run are known
            found = found.set_column(found.column_names.index("process"), "process", pa.nulls(len(found), pa.string()))
        if table != "process":
            found = found.append_column(pa.field(WALL, pa.int64()), self._wall(found))
        found = found.append_column(pa.field(LINE, pa.int64()), _integers(numbers))
        return found.replace_schema_metadata(schema(table).metadata)

    def _wall(self, found: pyarrow.Table) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.offset_ns is None:
            return pa.nulls(len(found), pa.int64())
        return pc.add(found["time_ns"], _integers([self.offset_ns])[0])

    def _slow(self, table: str, lines: list[bytes], numbers: list[int]) -> tuple[pyarrow.Table, list[int]]:
        """Row by row, for what :func:`_fast` leaves: floats that aren't finite, unreadable lines, missing
        fields.
        """
        rows, kept = [], []
        for line, number in zip(lines, numbers, strict=True):
            row = self._decode(line)
            if row is None:
                continue
            if not _fits(row):
                self.bad += 1
                continue
            rows.append(row)
            kept.append(number)
        return _from_rows(table, rows), kept


class Lines(NamedTuple):
    """What :func:`add_lines_of` gives."""

    each: list[dict[str, pyarrow.Table]]  #: of each segment
    whole: dict[str, pyarrow.Table]  #: of all of them, of the tables whose rows were read together


def add_lines_of(many: Sequence[tuple[Columnar, bytes]]) -> Lines:
    """As :meth:`Columnar.add_lines`, of several segments at once: of a few lines from each of many segments nearly all
    time goes into calling the reader of JSON, which is called once for each table here.

    Args:
        many: Of each segment what turns its lines to columns, and complete lines.

    Returns:
        The columns.
    """
    told = [columnar._sorted(data) for columnar, data in many]
    found = Lines([{} for _ in many], {})
    for table in dict.fromkeys(name for lines, _ in told for name in lines):
        # A process's own row comes first in its segment, and tells whether the others are of an older version.
        own = [at for at, (lines, _) in enumerate(told) if table in lines]
        together = None
        if len(own) > 1 and all(many[at][0].told_together for at in own):
            together = _fast(table, [line for at in own for line in told[at][0][table]], old=False)
        if together is None:
            for at in own:
                columnar, (lines, numbers) = many[at][0], told[at]
                found.each[at][table] = columnar._columns(table, lines[table], numbers[table])
            continue
        counts = [len(told[at][1][table]) for at in own]
        offsets = [many[at][0].offset_ns or 0 for at in own]
        together = _finished_together(table, together, [told[at][1][table] for at in own], offsets)
        found.whole[table] = together
        for at, begin, count in zip(own, itertools.accumulate(counts, initial=0), counts, strict=False):
            found.each[at][table] = together.slice(begin, count)
    return found


def _finished_together(
    table: str, found: pyarrow.Table, numbers: Sequence[list[int]], offsets: Sequence[int]
) -> pyarrow.Table:
    """Rows of several segments with the columns that no line has: those of :meth:`Columnar._finished`.

    Args:
        table: Of the rows.
        found: The rows, segment by segment.
        numbers: Of their lines, by segment.
        offsets: Wall-clock minus monotonic time of each segment, nanoseconds.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if table != "process":
        moved = [offset for offset, own in zip(offsets, numbers, strict=True) for _ in own]
        found = found.append_column(pa.field(WALL, pa.int64()), pc.add(found["time_ns"], _integers(moved)))
    found = found.append_column(pa.field(LINE, pa.int64()), _integers(list(itertools.chain.from_iterable(numbers))))
    return found.replace_schema_metadata(schema(table).metadata)


def _stored(table: str) -> tuple[Column, ...]:
    return tuple(column for column in columns(table) if column.name in _row_type(table).__struct_fields__)


@functools.cache
def _parse_options(table: str, old: bool) -> Any:
    import pyarrow as pa
    import pyarrow.json as pj

    names = [one.name for one in _stored(table)] + (list(version_1.old_columns(table)) if old else [])
    fields = [either_schema(table).field(name) for name in names]
    return pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")


def _fast(table: str, lines: list[bytes], *, old: bool) -> pyarrow.Table | None:
    """By Arrow's own JSON reader, which holds no lock of Python's; None where it wouldn't be exact, and where it
    refuses a row: a number that isn't finite is written as text.
    """
    import pyarrow as pa

    data = b"\n".join(lines)
    if not _is_text(data):
        return None
    try:
        found = _parse(table, data, old)
    except pa.ArrowException:
        return None
    if old:
        found = version_1.upgraded(table, found).select([one.name for one in _stored(table)])
    added = version_1.ADDED if old else ()
    strict = (one.name for one in _stored(table) if not one.optional and one.name not in added)
    if len(found) != len(lines) or any(found[name].null_count for name in strict):
        return None
    return found


def _parse(table: str, data: bytes, old: bool = False) -> pyarrow.Table:
    import pyarrow as pa
    import pyarrow.json as pj

    options = pj.ReadOptions(use_threads=False, block_size=len(data) + 2**10)
    return pj.read_json(pa.BufferReader(data), read_options=options, parse_options=_parse_options(table, old))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fits(row: Row) -> bool:
    """Whether every integer of ``row`` is one of 64 bits."""
    for name in row.__struct_fields__:
        value = getattr(row, name)
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, int) and not -(2**63) <= one < 2**63:
                return False
    return True


def _from_rows(table: str, rows: list[Row]) -> pyarrow.Table:
    """By the same JSON reader, from rows that are known to be whole; the floats, which JSON can't say, by hand.

    (``pyarrow.array`` would do all of it. Like ``pyarrow.scalar`` and ``pyarrow.table`` it imports pandas, which
    a training worker never loads.)
    """
    import pyarrow as pa

    if not rows:
        return pa.Table.from_batches([], schema=_parse_options(table, False).explicit_schema)
    found = _parse(table, b"\n".join(map(msgspec.json.encode, rows)))
    for one in _stored(table):
        if one.type == "double":
            values = [getattr(row, one.name) for row in rows]
            found = found.set_column(found.column_names.index(one.name), one.name, _doubles(values))
    return found


def _doubles(values: list[float | None]) -> pyarrow.Array:
    import pyarrow as pa

    known = bytearray((len(values) + 7) // 8)
    for index, value in enumerate(values):
        if value is not None:
            known[index // 8] |= 1 << index % 8
    numbers = array("d", [0.0 if value is None else value for value in values])
    return pa.Array.from_buffers(
        pa.float64(), len(values), [pa.py_buffer(bytes(known)), pa.py_buffer(numbers.tobytes())]
    )


def _integers(values: list[int]) -> pyarrow.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(array("q", values).tobytes())])


for _cached in (columns, schema, either_schema, _parse_options):
    row_types.when_changed(_cached.cache_clear)


def rows_of(table: str, found: pyarrow.Table) -> Iterator[tuple[int, Row]]:
    """The rows of an Arrow table of :func:`schema`, each with its line number."""
    kind = _row_type(table)
    known = set(kind.__struct_fields__)
    defaults = {one.name: one.default for one in columns(table)}
    for values in found.to_pylist():
        fields = {name: defaults[name] if value is None else value for name, value in values.items() if name in known}
        yield values[LINE], kind(**fields)


# --------------------------------------------------------------------------------------- a segment to Parquet


def can_roll_over() -> bool:
    """Whether lines can become Parquet here. Where pyarrow isn't installed they stay lines, which readers read as well,
    and ``probe compact`` makes Parquet of them where it is.
    """
    return importlib.util.find_spec("pyarrow") is not None


def warm_up() -> None:
    """Read pyarrow's libraries, so that its import finds them in memory. Reading lets other threads run; loading a
    library doesn't, and from a slow disk keeps all of the process waiting, training and the writer's thread included.
    """
    found = None if "pyarrow" in sys.modules else importlib.util.find_spec("pyarrow")
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        for path in sorted(Path(folder).glob("*.so*")):
            if path.is_symlink() or _NEVER_LOADED.search(path.name):
                continue
            with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
                while file.read(CHUNK_BYTES):
                    pass


def roll_over(directory: Path, segment: Segment) -> Generator[None, None, None]:
    """Turn a finished JSONL segment into Parquet parts. A generator, so that the caller can do its other
    work in
    between: it yields every few dozen milliseconds, and has done nothing that counts until it ends.

    The parts are written aside, synced and renamed; then the JSONL file is deleted, which is the commit.
    Killed at any moment it leaves either the JSONL file, which wins over parts of its segment, or all of the
    parts.

    Raises:
        OSError: A file can't be read or written; the JSONL file is as it was.
    """
    source = directory / segment.name
    chunks: dict[str, list[pyarrow.Table]] = {}
    columnar = Columnar()
    for data in _chunks(source):
        for table, found in columnar.add_lines(data).items():
            chunks.setdefault(table, []).append(found)
        yield
    parts = directory / PARTS_NAME
    parts.mkdir(exist_ok=True)
    for table, found in chunks.items():
        _write(parts / segment.part(table), table, found, columnar.bad)
        yield
    sync_directory(parts)
    source.unlink()
    sync_directory(directory)


def _chunks(source: Path) -> Iterator[bytes]:
    """The file in pieces that end with a line; a torn last line is left out."""
    with source.open("rb") as file:
        rest = b""
        while data := file.read(CHUNK_BYTES):
            data = rest + data
            end = data.rfind(b"\n") + 1
            rest = data[end:]
            yield data[:end]


def _write(path: Path, table: str, chunks: Iterable[pyarrow.Table], bad: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {**schema(table).metadata, BAD_LINES: str(bad)}
    whole = pa.concat_tables(chunks).cast(schema(table)).replace_schema_metadata(metadata)
    with written_aside(path) as aside, aside.open("wb") as file:
        pq.write_table(whole, file, compression="zstd")


def sweep(directory: Path) -> None:
    """Delete aside files that a killed process left behind."""
    for folder in (directory, directory / PARTS_NAME):
        for path in folder.glob(f"*{ASIDE}"):
            with contextlib.suppress(OSError):  # somebody else sweeps too
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink()
