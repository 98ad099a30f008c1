"""Compaction: the many small files of a run become a few large ones, and the run reads exactly the same.

Every process of a run leaves a file for each table, and one that was killed leaves its JSONL file. Of a thousand
processes that is more than ten thousand files, and opening them is what a reader then spends its time on. Compaction
merges them by (place, segment, line), which keeps the order within a process, and lets a query of few ranks skip the
rest.

It works beside readers and writers. What a living process still writes to is left alone. Killed at any moment it leaves
a run that reads the same, because publishing the manifest (see :mod:`probe.runs.manifest`) is one atomic step, before
which the new files don't count and after which the old ones don't.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from probe._io import holding
from probe.errors import RunError
from probe.runs import version_1
from probe.runs.bundles import BundleReader, BundleWriter
from probe.runs.columns import conformed, either_schema
from probe.runs.compaction_files import Folder, open_folder
from probe.runs.files import Parts, RunFiles
from probe.runs.layout import Segment, check_version
from probe.runs.liveness import why_alive
from probe.runs.manifest import Bundle, Held, Manifest
from probe.runs.parts import BAD_LINES
from probe.runs.row_types import learn_all, row_type
from probe.runs.snapshot import Snapshot
from probe.runs.tail import Tail

if TYPE_CHECKING:
    import pyarrow

    from probe.runs.reader import Run

#: A bundle of more rows than this is never written again.
LARGE_ROWS: Final = 50_000_000

#: Segments that are read at a time. A third thread writes.
READERS: Final = 2


class Taken(NamedTuple):
    """The rows of one segment."""

    held: Held
    rows: dict[str, list[pyarrow.Table]]  #: by table


class _LeaveItError(Exception):
    """A segment that can't be taken without losing something, and why."""


@dataclass(frozen=True)
class Compaction:
    """What one compaction of a run did."""

    rows: int = 0  #: that were written into compacted files
    segments: int = 0  #: that they come from
    parts_before: int = 0  #: files with rows: JSONL, parts and compacted ones
    parts_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    left: dict[str, str] = field(default_factory=dict)  #: files that were left alone, and why


def compact(run: Run | str | os.PathLike[str], *, force: bool = False) -> Compaction:
    """Merge the files of ``run`` that nobody writes to any more.

    Args:
        run: A reader, a run directory, or an ``fsspec`` URL of one. A reader shows the compacted files from its next
            :meth:`~probe.runs.reader.Run.refresh` on.
        force: Whether to take it that processes that can't be seen from here (of another machine, or behind a URL) are
            gone, and so is one of this machine whose id exists. A file that is locked, or grew within the last minute
            elsewhere, is left alone all the same.

    Returns:
        What was done; ``rows`` is 0 where there was nothing to do.

    Raises:
        RunNotFoundError: As :class:`~probe.runs.reader.Run`.
        RunError: As :class:`~probe.runs.reader.Run`; also where somebody else compacts the run at this moment, or it
            can't be written to. The run is as it was.
        SchemaVersionError: As :class:`~probe.runs.reader.Run`.
    """
    files = RunFiles(run if isinstance(run, str | os.PathLike) else run.path)
    files.info()
    begin = time.perf_counter()
    with open_folder(files) as folder:
        work = _Work(files, folder, force)
        with contextlib.ExitStack() as locks:
            rows = work.do(locks)
        seconds = time.perf_counter() - begin
        after = _sizes(files)
    return Compaction(
        rows=rows,
        segments=work.segments,
        parts_before=len(work.before),
        parts_after=len(after),
        bytes_before=sum(work.before.values()),
        bytes_after=sum(after.values()),
        seconds=seconds,
        left=work.left,
    )


def _sizes(files: RunFiles) -> dict[str, int]:
    """The files with rows, and their bytes."""
    segments, parts, manifest = files.listing()
    paths = [f"{files.root}/{one.name}" for one in segments]
    paths.extend(path for tables in parts.values() for path in tables.values())
    paths.extend(f"{files.folder}/{name}" for name in manifest.names())
    return files.sizes(paths)


class _Work:
    """One compaction."""

    def __init__(self, files: RunFiles, folder: Folder, force: bool) -> None:
        self.left: dict[str, str] = {}
        self.segments = 0
        self.before = _sizes(files)
        self._files = files
        self._folder = folder
        self._force = force
        self._listing = files.listing()
        self._read: dict[Segment, int] = {}  # bytes that were read of JSONL files
        self._old: list[version_1.Writer] | None = None
        if files.has_old_rows:
            snapshot = Snapshot(files)
            snapshot.refresh()
            self._old = snapshot.rows.old_writers()

    def do(self, locks: contextlib.ExitStack) -> int:
        """Returns how many rows were written."""
        old = self._listing.manifest
        self._folder.clean(old, old)
        sources = self._sources(locks)
        if not sources or (len(sources) == 1 and not old.bundles and None not in sources.values()):
            return 0  # the parts of one segment are as few files as there can be
        merged = self._merged(sources)
        bundle = self._write(sources, merged)
        if not any(held.key in sources for held in bundle.segments):
            return 0
        self._check_unchanged()
        manifest = Manifest(number=old.number + 1, bundles=[*(one for one in old.bundles if one not in merged), bundle])
        self._folder.publish(manifest)
        self._folder.clean(manifest, old)
        self.segments = len(bundle.segments)
        return bundle.size

    # ------------------------------------------------------------------------------------------ what to merge

    def _sources(self, locks: contextlib.ExitStack) -> dict[Segment, Parts | None]:
        """The segments that nobody writes to; None stands for a JSONL file."""
        found: dict[Segment, Parts | None] = {}
        for segment in self._listing.segments:
            why = self._why_alive(segment, locks)
            if why is None:
                found[segment] = None
            else:
                self.left[segment.name] = why
        for segment, parts in self._listing.parts.items():
            unknown = {table for table in parts if row_type(table) is None}
            if unknown and "process" in parts:
                self._learn(parts["process"])
                unknown = {table for table in parts if row_type(table) is None}
            if unknown:
                self.left.update({segment.part(one): "this probe doesn't know the table" for one in unknown})
            elif segment not in self._listing.segments:
                found[segment] = parts
        return found

    def _learn(self, path: str) -> None:
        """Of the tables that a process brings, from its part."""
        learn_all(conformed("process", _whole(self._files, path)[0]))

    def _why_alive(self, segment: Segment, locks: contextlib.ExitStack) -> str | None:
        try:
            if self._files.local and not locks.enter_context(holding(Path(self._files.root) / segment.name)):
                return "its process is writing to it"
            return why_alive(self._files, segment, force=self._force)
        except FileNotFoundError:  # its process has just rolled it over
            if self._files.in_pieces(segment):
                return "it is a copy of an open file: compact the run where it is written, and `probe sync` it again"
            return "it is becoming Parquet"

    def _merged(self, sources: dict[Segment, Parts | None]) -> list[Bundle]:
        """Older bundles that are written again: those that aren't much larger than what comes to them, so that there
        are few bundles, and each row is written again only a few times.
        """
        size = sum(self.before.get(path, 0) for path in self._paths(sources))
        found: list[Bundle] = []
        for bundle in reversed(self._listing.manifest.bundles):
            own = sum(file.bytes for files in bundle.files.values() for file in files)
            if own > 2 * size or bundle.size > LARGE_ROWS:
                break
            found.append(bundle)
            size += own
        return found

    def _paths(self, sources: dict[Segment, Parts | None]) -> Iterator[str]:
        for segment, parts in sources.items():
            yield from [f"{self._files.root}/{segment.name}"] if parts is None else parts.values()

    # ----------------------------------------------------------------------------------------------- its rows

    def _write(self, sources: dict[Segment, Parts | None], merged: list[Bundle]) -> Bundle:
        id = secrets.token_hex(6)
        held = []
        with contextlib.closing(BundleWriter(id, self._folder.create)) as writer:
            with contextlib.closing(self._taken(sources, merged)) as rows:
                for taken in rows:
                    held.append(taken.held)
                    writer.add(taken.rows)
            writer.finish()
            return Bundle(id=id, segments=held, files=writer.files, rows=writer.rows)

    def _taken(self, sources: dict[Segment, Parts | None], merged: list[Bundle]) -> Generator[Taken, None, None]:
        old = {held.key: (held, reader) for reader, one in self._readers(merged) for held in one.segments}
        new = {one: parts for one, parts in sorted(sources.items()) if one not in old}
        with contextlib.closing(self._read_ahead(new)) as read:
            for segment in sorted({*new, *old}):
                if segment in old:
                    held, reader = old[segment]
                    learn_all(reader.rows("process", segment))
                    yield self._named(Taken(held, {table: [reader.rows(table, segment)] for table in reader.tables}))
                    continue
                try:
                    yield self._named(next(read).result())
                except _LeaveItError as error:
                    self.left[segment.name] = str(error)

    def _named(self, taken: Taken) -> Taken:
        """With the process that wrote them in rows of version 1, which don't say it."""
        if self._old is None:
            return taken
        rows = {table: [version_1.attributed(one, self._old) for one in pieces] for table, pieces in taken.rows.items()}
        return Taken(taken.held, rows)

    def _read_ahead(self, sources: dict[Segment, Parts | None]) -> Generator[Future[Taken], None, None]:
        """The rows of each of ``sources``, in their order; the next ones are read meanwhile."""
        with ThreadPoolExecutor(READERS, thread_name_prefix="probe-compaction-read") as pool:
            waiting: deque[Future[Taken]] = deque()
            try:
                for segment, parts in sources.items():
                    waiting.append(pool.submit(self._of, segment, parts))
                    if len(waiting) > READERS:
                        yield waiting.popleft()
                while waiting:
                    yield waiting.popleft()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _of(self, segment: Segment, parts: Parts | None) -> Taken:
        return self._of_lines(segment) if parts is None else _of_parts(self._files, segment, parts)

    def _readers(self, merged: list[Bundle]) -> Iterator[tuple[BundleReader, Bundle]]:
        for bundle in merged:
            yield BundleReader(self._files, bundle), bundle

    def _of_lines(self, segment: Segment) -> Taken:
        data = self._files.read(segment, 0) or b""
        self._read[segment] = len(data)
        tail = Tail()
        tail.add_lines(data)
        check_version(tail.columnar.newest_version, self._files.shown)
        rows = sum(len(chunk) for chunks in tail.tables.values() for chunk in chunks)
        unknown = tail.columnar.lines - tail.columnar.bad - rows
        if unknown:
            raise _LeaveItError(f"{unknown} of its rows are of tables that this probe doesn't know")
        found = {table: [conformed(table, chunk) for chunk in chunks] for table, chunks in tail.tables.items()}
        return Taken(Held(*segment, tail.columnar.bad), found)

    def _check_unchanged(self) -> None:
        """Whoever still writes to a file that was thought to be left wins."""
        sizes = self._files.sizes(f"{self._files.root}/{segment.name}" for segment in self._read)
        for segment, size in self._read.items():
            now = sizes.get(f"{self._files.root}/{segment.name}")
            if now != size:
                raise RunError(
                    f"run {self._files.shown!r}: {segment.name} grew during the compaction; nothing was compacted"
                )


def _of_parts(files: RunFiles, segment: Segment, parts: Parts) -> Taken:
    import pyarrow as pa

    rows: dict[str, list[pyarrow.Table]] = {}
    bad = 0
    for table, path in parts.items():
        try:
            found, metadata = _whole(files, path)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise _LeaveItError(f"its {table} can't be read: {error}") from error
        more = set(found.column_names) - set(either_schema(table).names)
        if more:
            raise _LeaveItError(f"its {table} has columns that this probe doesn't know: {', '.join(sorted(more))}")
        rows[table] = [conformed(table, found)]
        if table == "process":
            check_version(max(found["schema_version"].to_pylist(), default=0), files.shown)
            bad = int(metadata.get(BAD_LINES, b"0"))
    return Taken(Held(*segment, bad), rows)


def _whole(files: RunFiles, path: str) -> tuple[pyarrow.Table, dict[bytes, bytes]]:
    import io

    import pyarrow.parquet as pq

    source: Any = path
    if not files.local:
        with files.asking():
            source = io.BytesIO(files.system.cat_file(path))
    with pq.ParquetFile(source) as file:
        return file.read(use_threads=False), file.metadata.metadata or {}
