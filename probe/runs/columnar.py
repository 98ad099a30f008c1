"""JSONL lines become Arrow tables, a chunk of one segment at a time, or a few lines of many segments together.

pyarrow is imported when it's first needed, which in a training worker is in the writer thread at the first
roll-over.
"""

from __future__ import annotations

import functools
import itertools
from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from probe.records import TABLES, Row
from probe.runs import row_types, version_1
from probe.runs.columns import LINE, WALL, either_schema, schema, stored
from probe.runs.lines import decode, table_of

if TYPE_CHECKING:
    import pyarrow

#: Bytes of JSONL that are turned into columns at once: about 20 ms.
CHUNK_BYTES: Final = 4 * 2**20

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


@functools.cache
def _parse_options(table: str, old: bool) -> Any:
    import pyarrow as pa
    import pyarrow.json as pj

    names = [one.name for one in stored(table)] + (list(version_1.old_columns(table)) if old else [])
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
        found = version_1.upgraded(table, found).select([one.name for one in stored(table)])
    added = version_1.ADDED if old else ()
    strict = (one.name for one in stored(table) if not one.optional and one.name not in added)
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
    for one in stored(table):
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


row_types.when_changed(_parse_options.cache_clear)
