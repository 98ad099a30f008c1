"""New rows of a run that other processes are writing, each exactly once."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import msgspec

from probe.errors import RunError
from probe.records import Process, Row
from probe.runs import version_1
from probe.runs.bundles import BundleReader
from probe.runs.columns import LINE, conformed, either_schema, rows_of, schema
from probe.runs.files import Parts, RunFiles
from probe.runs.layout import Segment, check_version
from probe.runs.lines import decode
from probe.runs.manifest import Manifest
from probe.runs.row_types import learn, row_type
from probe.runs.snapshot import TRIES, Snapshot


class _UnreadableError(Exception):
    """A Parquet file can't be read."""


@contextmanager
def _telling_damage() -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise _UnreadableError(error) from error


class _Place:
    """How far one segment has been followed."""

    def __init__(self) -> None:
        self.offset = 0
        self.lines = 0


class Follower:
    """Remembers its place in every segment: a byte and the number of a line. When a segment has been rolled
    over meanwhile, the line's number tells which rows of its parts are still new.

    Attributes:
        bad_lines: Lines that were no rows.
    """

    def __init__(self, files: RunFiles) -> None:
        self.bad_lines = 0
        self._files = files
        self._places: dict[Segment, _Place] = {}
        self._done: set[Segment] = set()
        self._processes: set[tuple[str | int | None, int, int, int]] = set()
        self._writers: dict[int, str] = {}  # of rows of version 1, which don't say: by rank, the one that began last
        self._numbers: dict[int, itertools.count[int]] = defaultdict(itertools.count)

    @classmethod
    def from_snapshot(cls, files: RunFiles, snapshot: Snapshot, processes: Iterable[Process]) -> Self:
        """One that goes on from the moment that ``snapshot`` shows.

        Args:
            files: The files of the run.
            snapshot: The snapshot to go on from.
            processes: The processes that were seen in it; they count once.
        """
        made = cls(files)
        places, whole = snapshot.places()
        for segment, (offset, lines) in places.items():
            place = made._places.setdefault(segment, _Place())
            place.offset, place.lines = offset, lines
        made._done.update(whole)
        for process in processes:
            made._is_new(process)
        return made

    def poll(self) -> list[Row]:
        """The rows that came since the last call; rows of one rank in the order in which they were written.

        Raises:
            SchemaVersionError: A process of a newer probe has written to the run.
            RunError: A file can't be read.
        """
        rows: list[Row] = []
        for _ in range(TRIES):
            segments, parts, manifest = self._files.listing()
            compacted = self._compacted(manifest)
            missed: set[str] = set()  # places whose later rows have to wait, to come in their order
            for segment in sorted((segments | parts.keys() | compacted.keys()) - self._done):
                if segment.place in missed:
                    continue
                try:
                    if segment in compacted:
                        with _telling_damage():
                            rows.extend(self._of_bundle(segment, compacted[segment]))
                    else:
                        rows.extend(self._segment(segment, segment in segments, parts.get(segment)))
                except FileNotFoundError:  # rolled over or compacted since we looked; its rows are elsewhere now
                    missed.add(segment.place)
                except _UnreadableError as error:  # a part is damaged: it is left out of the next look
                    if not self._files.examine():
                        raise RunError(f"run {self._files.shown!r}: a part can't be read: {error}") from error
                    missed.add(segment.place)
            if not missed:
                break
        old = self._files.has_old_rows
        return [row for row in rows if (not old and type(row) is not Process) or self._is_new(row)]

    def _compacted(self, manifest: Manifest) -> dict[Segment, BundleReader]:
        found: dict[Segment, BundleReader] = {}
        for bundle in manifest.bundles:
            found.update(dict.fromkeys((held.key for held in bundle.segments), BundleReader(self._files, bundle)))
        return found

    def _of_bundle(self, segment: Segment, reader: BundleReader) -> list[Row]:
        first = self._places.get(segment, _Place()).lines
        for _, process in rows_of("process", reader.rows("process", segment)):
            self._learn(process)
        known = [table for table in reader.tables if row_type(table) is not None]
        return self._finish(segment, [row for one in known for row in rows_of(one, reader.rows(one, segment, first))])

    def _learn(self, row: Row) -> None:
        """Of the tables that the process brings."""
        if isinstance(row, Process):
            learn(row.tables)

    def _segment(self, segment: Segment, is_file: bool, parts: Parts | None) -> list[Row]:
        place = self._places.setdefault(segment, _Place())
        if is_file:
            data = self._files.read(segment, place.offset) or b""
            if data or place.offset or parts is None:
                return self._lines(place, data)
        tables = sorted(parts or {}, key=lambda table: table != "process")  # it tells of the others
        with _telling_damage():
            found = [row for one in tables for row in self._part(one, (parts or {})[one], place.lines)]
        return self._finish(segment, found)

    def _finish(self, segment: Segment, found: list[tuple[int, Row]]) -> list[Row]:
        """A segment's last rows, in the order of their lines."""
        self._done.add(segment)
        self._places.pop(segment, None)
        return [row for _, row in sorted(found, key=lambda pair: pair[0])]

    def _lines(self, place: _Place, data: bytes) -> list[Row]:
        end = data.rfind(b"\n") + 1
        rows: list[Row] = []
        lines = data[:end].split(b"\n")[:-1]
        for line in lines:
            try:
                row = version_1.decode(line) if self._files.has_old_rows else decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self.bad_lines += 1
                continue
            if row is not None:
                if type(row) is Process:  # it may tell of tables that the lines behind it are of
                    self._learn(row)
                rows.append(row)
        place.lines += len(lines)
        place.offset += end
        return rows

    def _part(self, table: str, path: str, begin: int) -> list[tuple[int, Row]]:
        import pyarrow.dataset as ds

        if row_type(table) is None:
            return []
        system = None if self._files.local else self._files.system
        columns = either_schema(table) if self._files.has_old_rows else schema(table)
        part: Any = ds.dataset([path], schema=columns, filesystem=system, format="parquet")
        if table != "process":
            return list(rows_of(table, conformed(table, part.to_table(filter=ds.field(LINE) >= begin))))
        rows = list(rows_of(table, conformed(table, part.to_table())))
        for _, row in rows:
            self._learn(row)
        return [one for one in rows if one[0] >= begin]

    def _is_new(self, row: Row) -> bool:
        """Every segment of a process begins with the newest Process row; each revision counts once."""
        if not isinstance(row, Process):
            self._attribute(row)
            return True
        check_version(row.schema_version, self._files.shown)
        key = (row.process or row.rank, row.pid, row.time_ns, row.revision)
        if key in self._processes:
            return False
        self._processes.add(key)
        self._attribute(row)
        return True

    def _attribute(self, row: Row) -> None:
        """Tell who wrote a row of version 1: the process of its rank that began last."""
        if not self._files.has_old_rows or row.rank is None:
            return
        if isinstance(row, Process) and row.schema_version == version_1.VERSION:
            name = version_1.process_name(row.rank, next(self._numbers[row.rank]))
            self._writers[row.rank] = row.process or name
        row.process = row.process or self._writers.get(row.rank) or version_1.process_name(row.rank, 0)
