"""Reading and writing the files of a bundle: rows of many segments in a few large Parquet files."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from probe.runs.columns import LINE, conformed, schema
from probe.runs.files import RunFiles
from probe.runs.layout import Segment
from probe.runs.manifest import Bundle, Compacted, Span, compacted_name

if TYPE_CHECKING:
    import pyarrow

#: Rows that are compressed together: what a reader of a few columns takes at once, and the unit of its threads.
GROUP_ROWS: Final = 122_880

#: Rows of a file, after which the next begins.
FILE_ROWS: Final = 64 * GROUP_ROWS

#: Row groups of a table that wait for the thread that writes.
_WAITING: Final = 2


class _Group(NamedTuple):
    begin: int  #: number of its first row in the table
    path: str
    at: int  #: number of it in its file


class BundleReader:
    """Rows of single segments of a bundle. Cheap when they are asked for in their order."""

    def __init__(self, files: RunFiles, bundle: Bundle) -> None:
        self._files = files
        self._bundle = bundle
        self._spans: dict[str, dict[Segment, Span]] = {}
        self._groups: dict[str, list[_Group]] = {}
        self._last: dict[str, tuple[_Group, pyarrow.Table]] = {}

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that have rows in it."""
        return tuple(self._bundle.files)

    def rows(self, table: str, segment: Segment, first_line: int = 0) -> pyarrow.Table:
        """The rows of ``segment`` whose line is ``first_line`` or a later one.

        Raises:
            FileNotFoundError: The bundle was merged into another one.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        begin, end = self._span(table, segment)
        pieces = [schema(table).empty_table()]
        groups = self._groups_of(table) if begin < end else []
        at = max(bisect.bisect_right([group.begin for group in groups], begin) - 1, 0)
        while at < len(groups) and groups[at].begin < end:
            first = groups[at].begin
            pieces.append(self._read(table, groups[at])[max(begin - first, 0) : end - first])
            at += 1
        found = pa.concat_tables(pieces)
        return found.filter(pc.field(LINE) >= first_line) if first_line else found

    def _span(self, table: str, segment: Segment) -> Span:
        if table not in self._spans:
            self._spans[table] = self._bundle.spans(table)
        return self._spans[table][segment]

    def _groups_of(self, table: str) -> list[_Group]:
        if table not in self._groups:
            found, begin = [], 0
            for file in self._bundle.files.get(table, ()):
                path = f"{self._files.folder}/{file.name}"
                with self._open(path) as parquet:
                    for index in range(parquet.num_row_groups):
                        found.append(_Group(begin, path, index))
                        begin += parquet.metadata.row_group(index).num_rows
            self._groups[table] = found
        return self._groups[table]

    def _read(self, table: str, group: _Group) -> pyarrow.Table:
        if table not in self._last or self._last[table][0] != group:
            with self._open(group.path) as parquet:
                self._last[table] = group, conformed(table, parquet.read_row_group(group.at))
        return self._last[table][1]

    def _open(self, path: str) -> Any:
        import pyarrow.parquet as pq

        with self._files.asking():
            return pq.ParquetFile(path, filesystem=None if self._files.local else self._files.system)


class BundleWriter:
    """Writes a bundle: rows come segment by segment, in the order of the segments.

    Args:
        id: The id of the new bundle.
        create: Opens a new file of that name for writing, and finishes it when it's closed.
    """

    def __init__(self, id: str, create: Callable[[str], Any]) -> None:
        self.files: dict[str, list[Compacted]] = {}
        self.rows: dict[str, list[int]] = {}
        self._id = id
        self._create = create
        self._segments = 0
        self._tables: dict[str, _TableWriter] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="probe-compaction")

    def add(self, segment: dict[str, list[pyarrow.Table]]) -> None:
        """Take all rows of the next segment, by table."""
        for table, pieces in segment.items():
            if table not in self._tables:
                self._tables[table] = _TableWriter(table, self._named(table), self._pool)
                self.rows[table] = [0] * self._segments
            self._tables[table].add(pieces)
            self.rows[table].append(sum(map(len, pieces)))
        for table in self.rows.keys() - segment.keys():
            self.rows[table].append(0)
        self._segments += 1

    def _named(self, table: str) -> Callable[[], tuple[str, Any]]:
        numbers = itertools.count()

        def create() -> tuple[str, Any]:
            name = compacted_name(table, self._id, next(numbers))
            return name, self._create(name)

        return create

    def finish(self) -> None:
        """Write what waits and finish the files, which :attr:`files` then tells."""
        for table in sorted(self._tables):
            self.files[table] = self._tables[table].finish()

    def close(self) -> None:
        """Let go of everything; files that aren't finished are given up."""
        self._pool.shutdown(cancel_futures=True)
        for one in self._tables.values():
            one.abandon()


class _TableWriter:
    """The files of one table: rows are put together into row groups, which another thread writes."""

    def __init__(self, table: str, create: Callable[[], tuple[str, Any]], pool: ThreadPoolExecutor) -> None:
        self._table = table
        self._create = create
        self._pool = pool
        self._waiting: list[pyarrow.Table] = []
        self._count = 0
        self._written: list[Future[None]] = []
        self._files: list[Compacted] = []
        self._file: _File | None = None

    def add(self, pieces: list[pyarrow.Table]) -> None:
        self._waiting.extend(pieces)
        self._count += sum(map(len, pieces))
        while self._count >= GROUP_ROWS:
            self._send(GROUP_ROWS)

    def _send(self, rows: int) -> None:
        import pyarrow as pa

        whole = pa.concat_tables(self._waiting)
        self._waiting, self._count = [whole[rows:]], len(whole) - rows
        self._written.append(self._pool.submit(self._write, whole[:rows]))
        while len(self._written) > _WAITING:
            self._written.pop(0).result()

    def _write(self, group: pyarrow.Table) -> None:
        if self._file is None:
            self._file = _File(self._table, *self._create())
        self._file.write(group)
        if self._file.rows >= FILE_ROWS:
            self._end_file()

    def _end_file(self) -> None:
        if self._file is not None:
            self._files.append(self._file.finish())
            self._file = None

    def finish(self) -> list[Compacted]:
        if self._count:
            self._send(self._count)
        for one in self._written:
            one.result()
        self._end_file()
        return self._files

    def abandon(self) -> None:
        if self._file is not None:
            self._file.abandon()
            self._file = None


class _File:
    """One Parquet file that is being written."""

    def __init__(self, table: str, name: str, sink: Any) -> None:
        import pyarrow.parquet as pq

        self.rows = 0
        self._name = name
        self._sink = sink
        self._ranges: dict[str, tuple[int, int] | None] = dict.fromkeys(("rank", "step", "wall_ns"))
        self._writer: Any = pq.ParquetWriter(sink, schema(table), compression="zstd")

    def write(self, group: pyarrow.Table) -> None:
        import pyarrow.compute as pc

        self._writer.write_table(group, row_group_size=len(group))
        self.rows += len(group)
        for name, known in self._ranges.items():
            found = pc.min_max(group[name])
            low, high = found["min"].as_py(), found["max"].as_py()
            if low is not None:
                self._ranges[name] = (low, high) if known is None else (min(low, known[0]), max(high, known[1]))

    def finish(self) -> Compacted:
        self._writer.close()
        size = int(self._sink.tell())
        self._sink.close()
        ranks, steps, wall_ns = (self._ranges[name] for name in ("rank", "step", "wall_ns"))
        return Compacted(self._name, self.rows, size, ranks, steps, wall_ns)

    def abandon(self) -> None:
        self._sink.abandon()
