"""All rows of a run at one moment, as columns; the next moment costs only what was added since."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from probe.errors import InputError, RunError
from probe.records import TABLES
from probe.runs import database, row_types, version_1
from probe.runs.files import Parts, RunFiles
from probe.runs.layout import Segment, check_version
from probe.runs.manifest import Bundle, Span
from probe.runs.parts import BAD_LINES, CHUNK_BYTES, Columnar, conformed, either_schema, schema
from probe.runs.visibility import NEVER_NS, Hidden, Shown, Stretch, Visible, condition, expression, visible

if TYPE_CHECKING:
    import pandas
    import pyarrow

#: Names of the views that differ from the table's tag.
VIEWS = database.VIEWS

#: Tables by whose rows an attempt is seen to have come to a step.
_STEPPED = ("memory", "calls", "micro_batches", "padding", "reductions", "scalars")

#: A segment that is rolled over while we look makes us look again; a busy writer does so every few minutes.
TRIES = 20


class _ChangedError(Exception):
    """A compacted file isn't what its manifest says."""


class Tail:
    """The rows of one JSONL file, as far as it has been read."""

    def __init__(self) -> None:
        self.columnar = Columnar()
        self.offset = 0
        self.tables: dict[str, list[pyarrow.Table]] = {}

    def add_lines(self, data: bytes) -> None:
        """Add the complete lines of ``data``, which begins where the last ended."""
        begin = 0
        while begin < len(data):
            end = data.rfind(b"\n", begin, begin + CHUNK_BYTES) + 1 or data.find(b"\n", begin) + 1
            if not end:
                break
            for table, found in self.columnar.add_lines(data[begin:end]).items():
                self.tables.setdefault(table, []).append(found)
            begin = end
        self.offset += begin


class Snapshot:
    """Reads a run's files. :meth:`refresh` takes a new look, which all tables then share.

    Args:
        files: Of the run.
        attempt: Which attempt is shown; None is what the newest has not hidden of each: :mod:`probe.runs.visibility`.
    """

    def __init__(self, files: RunFiles, attempt: int | None = None) -> None:
        self._files = files
        self._attempt = attempt
        self._attempts: dict[Segment | str, frozenset[int]] = {}  # of segments in parts, and of bundles
        self._shown: tuple[Visible, ...] | None = None
        self._stretched: list[Stretch] | None = None
        self._tails: dict[Segment, Tail] = {}
        self._parts: dict[Segment, Parts] = {}  # every segment that is Parquet; {} where it is compacted
        self._bundles: dict[str, Bundle] = {}
        self._checked: dict[Segment, int] = {}  # bad lines of each segment in parts
        self._parquet: database.Parquet | None = None
        self._scans: dict[str, Any] = {}
        self._writers: list[version_1.Writer] | None = None
        self._late: dict[str, int] | None = None
        self.tables: tuple[str, ...] = tuple(TABLES)  #: that the run has, with those that its recorders brought

    def refresh(self) -> None:
        """Look at the files as they are now.

        Raises:
            InputError: There is no such attempt.
            SchemaVersionError: A process of a newer probe has written to the run.
            RunError: A part can't be read.
        """
        import pyarrow as pa

        for attempt in range(TRIES):
            try:
                self._look()
                return
            except FileNotFoundError as error:
                if attempt + 1 == TRIES:
                    raise RunError(f"run {self._files.shown!r}: files vanish while they are read: {error}") from error
            except (pa.ArrowException, OSError, _ChangedError) as error:
                if attempt + 1 == TRIES or not self._files.examine():
                    raise RunError(f"run {self._files.shown!r}: a part can't be read: {error}") from error

    def _look(self) -> None:
        segments, parts, manifest = self._files.listing()
        tails = {segment: self._tail(segment) for segment in sorted(segments)}
        # Empty and with parts: a process took the number of a segment that has just become parts, and will
        # see so.
        tails = {one: tail for one, tail in tails.items() if tail.offset or one not in parts}
        parts = {one: tables for one, tables in parts.items() if one not in tails}
        for tail in tails.values():
            check_version(tail.columnar.newest_version, self._files.shown)
        self._check(parts)
        bundles = {bundle.id: bundle for bundle in manifest.bundles}
        for bundle in manifest.bundles:
            if bundle.id not in self._bundles:
                self._check_bundle(bundle)
            parts.update((held.key, {}) for held in bundle.segments)
        if parts != self._parts or bundles != self._bundles:
            self._parquet = None
        self._scans = {}
        self._shown = self._stretched = None
        self._writers = self._late = None
        self._tails, self._parts, self._bundles = tails, parts, bundles
        self.tables = (*TABLES, *self._own_tables())
        if self._attempt is not None and self._attempt not in self.attempts:
            have = ", ".join(map(str, self.attempts)) or "none yet"
            raise InputError(f"attempt: got {self._attempt}, expected one that the run has: {have}")

    def _own_tables(self) -> list[str]:
        """The tables that recorders have brought themselves. Their types stand in the processes' rows, which are read
        where a file has the name of a table that isn't known.
        """
        found = {name for tail in self._tails.values() for name in tail.columnar.own_tables}
        named = {name for tables in self._parts.values() for name in tables}
        named |= {name for bundle in self._bundles.values() for name in bundle.files}
        if named - found - TABLES.keys():
            found.update(row_types.learn_all(self._as_written("process")))
        return sorted(found)

    def _tail(self, segment: Segment) -> Tail:
        tail = self._tails.get(segment) or Tail()
        data = self._files.read(segment, tail.offset)
        if data is None:  # shorter than it was: another file, so the directory was made anew
            tail = Tail()
            data = self._files.read(segment, 0) or b""
        tail.add_lines(data)
        return tail

    # ---------------------------------------------------------------------------------------- checking its files

    def _check(self, parts: dict[Segment, Parts]) -> None:
        """Learn of each segment what the footer of its process part says, and refuse those of a newer probe."""
        new = {
            one: tables["process"] for one, tables in parts.items() if one not in self._checked and "process" in tables
        }
        for segment, footer in zip(new, self._footers(new.values()), strict=True):
            check_version(max(_range(footer, "schema_version"), default=0), self._files.shown)
            self._checked[segment] = int((footer.metadata or {}).get(BAD_LINES, b"0"))
            self._attempts[segment] = frozenset(_range(footer, "attempt"))

    def _footers(self, paths: Iterable[str]) -> Iterator[Any]:
        """Of files of one row each: from another machine all of them at once, and whole."""
        import pyarrow.parquet as pq

        if self._files.local:
            yield from map(pq.read_metadata, paths)
            return
        listed = list(paths)
        with self._files.asking():
            found = self._files.system.cat(listed) if listed else {}
        for path in listed:
            yield pq.read_metadata(io.BytesIO(found[path]))

    def _check_bundle(self, bundle: Bundle) -> None:
        """That the files of a manifest are there and are what it says."""
        for files in bundle.files.values():
            for file in files:
                path = f"{self._files.folder}/{file.name}"
                found = self._rows(path) if self._files.local else self._bytes(path)
                told = (file.rows, "rows") if self._files.local else (file.bytes, "bytes")
                if found != told[0]:
                    raise _ChangedError(
                        f"{file.name} has {found} {told[1]} and the manifest of compacted parts says {told[0]}; it was "
                        f"changed after it was written"
                    )
        told_by = self._loaded("process", self._compacted(bundle, "process"))["attempt"]
        self._attempts[bundle.id] = frozenset(one or 1 for one in told_by.unique().to_pylist())

    def _rows(self, path: str) -> int:
        import pyarrow.parquet as pq

        return int(pq.read_metadata(path).num_rows)

    def _bytes(self, path: str) -> int:
        with self._files.asking():
            return int(self._files.system.size(path))

    # ------------------------------------------------------------------------------------------ what is shown

    @property
    def attempts(self) -> list[int]:
        """The attempts that have written anything."""
        found = {1} if self._files.has_old_rows else set()
        for tail in self._tails.values():
            found |= tail.columnar.attempts
        keys: list[Segment | str] = [*self._parts, *self._bundles]
        found.update(*(self._attempts.get(key, ()) for key in keys))
        return sorted(found - {0})

    def shown(self) -> tuple[Visible, ...]:
        """What is shown of each attempt; empty is all of all."""
        if self._shown is None:
            attempts = self.attempts
            if self._attempt is not None:
                gone = (one for one in attempts if one != self._attempt)
                self._shown = (Visible(self._attempt), *(Visible(one, 0, NEVER_NS) for one in gone))
            elif len(attempts) < 2:
                self._shown = ()
            else:
                self._shown = visible(attempts, self._stretches())
        return self._shown

    def extents(self) -> list[tuple[int, int, int]]:
        """The first and the last step of each attempt that has one, where there are several attempts.

        Returns:
            Attempt, first step, last step; in order.
        """
        if len(self.attempts) < 2:
            return []
        steps: dict[int, list[int]] = {}
        for one in self._stretches():
            steps.setdefault(one.attempt, []).append(one.step)
        return [(attempt, min(found), max(found)) for attempt, found in sorted(steps.items())]

    def shown_from_now(self) -> Shown:
        """What is shown of the rows that come after this moment."""
        attempts = self.attempts
        if self._attempt is not None:
            return Shown(attempts, self.shown(), alone=True)
        newest = max(attempts, default=1)
        begins = (one.step for one in self._stretches() if one.attempt == newest) if newest > 1 else ()
        return Shown(attempts, self.shown(), min(begins, default=None))

    def _stretches(self) -> list[Stretch]:
        if self._stretched is None:
            self._stretched = self._ask_stretches()
        return self._stretched

    def _ask_stretches(self) -> list[Stretch]:
        rows = " union all ".join(f"select attempt, step, wall_ns from {VIEWS.get(one, one)}" for one in _STEPPED)  # noqa: S608  (our own names)
        text = f"select attempt, step, min(wall_ns) from ({rows}) where step is not null group by all"  # noqa: S608  (our own names)
        found = self._answer(text, None, "")
        return [Stretch(*row) for row in zip(*(column.to_pylist() for column in found.columns), strict=True)]

    def hidden(self) -> list[Hidden]:
        """The steps that a later attempt hides, in the order of the attempts."""
        if self._attempt is not None or len(self.attempts) < 2:
            return []
        limits = {one.attempt: one.before_step for one in self.shown()}
        gone: dict[int, list[int]] = {}
        for one in self._stretches():
            limit = limits.get(one.attempt)
            if limit is not None and one.step >= limit:
                gone.setdefault(one.attempt, []).append(one.step)
        return [Hidden(attempt, min(steps), max(steps)) for attempt, steps in sorted(gone.items())]

    def _filter(self) -> Any:
        """The rows that are shown, for pyarrow; None is all."""
        shown = self.shown()
        return expression(shown) if shown else None

    def copy(self) -> Snapshot:
        """The same moment, which a later :meth:`refresh` of this one doesn't change."""
        other = Snapshot(self._files, self._attempt)
        other.tables = self.tables
        other._attempts, other._shown, other._stretched = dict(self._attempts), self.shown(), self._stretched
        other._parts, other._checked, other._bundles = self._parts, self._checked, self._bundles
        other._parquet, other._scans, other._writers = self._reader(), self._scans, self.old_writers()
        other._late = self.late_ranks()
        for segment, tail in self._tails.items():
            kept = other._tails[segment] = Tail()
            kept.tables = {table: list(chunks) for table, chunks in tail.tables.items()}
        return other

    def places(self) -> tuple[dict[Segment, tuple[int, int]], frozenset[Segment]]:
        """How far each JSONL file was read, in bytes and lines; and the segments that are Parquet, read whole."""
        return {one: (tail.offset, tail.columnar.lines) for one, tail in self._tails.items()}, frozenset(self._parts)

    @property
    def bad_lines(self) -> int:
        """Lines that are no rows."""
        in_tails = sum(tail.columnar.bad for tail in self._tails.values())
        in_parts = sum(self._checked.get(segment, 0) for segment, tables in self._parts.items() if tables)
        return in_tails + in_parts + sum(held.bad for one in self._bundles.values() for held in one.segments)

    # --------------------------------------------------------------------------------------------- its tables

    def table(self, name: str) -> pyarrow.Table:
        """All rows of a table; those of one process in the order in which they were written."""
        found = ranked(self._attributed(self._as_written(name)), self.late_ranks())
        chosen = self._filter()
        return found if chosen is None else found.filter(chosen)

    def late_ranks(self) -> dict[str, int]:
        """The ranks of processes that began to write before they knew them, by what the processes are called. A file
        that is named by a rank is of one that knew.
        """
        if self._late is None:
            self._late = {}
            if any(one.rank is None for one in (*self._tails, *self._parts)):
                told = self._attributed(self._as_written("process"))
                pairs = list(zip(told["process"].to_pylist(), told["rank"].to_pylist(), strict=True))
                early = {process for process, rank in pairs if rank is None}
                self._late = {process: rank for process, rank in pairs if rank is not None and process in early}
        return self._late

    def old_writers(self) -> list[version_1.Writer]:
        """The processes of version 1 that wrote to the run."""
        if self._writers is None:
            self._writers = version_1.writers(self._as_written("process")) if self._files.has_old_rows else []
        return self._writers

    def _as_written(self, name: str) -> pyarrow.Table:
        import pyarrow as pa

        whole = {key: self._loaded(name, self._compacted(one, name)) for key, one in self._bundles.items()}
        spans = {key: one.spans(name) for key, one in self._bundles.items()}
        pieces = [schema(name).empty_table()]
        for kind, group in self._groups():
            if kind in whole:
                pieces.extend(whole[kind].slice(begin, end - begin) for begin, end in _joined(spans[kind], group))
            else:
                pieces.extend(conformed(name, piece.to_table()) for piece in self._loose(name, kind, group))
        return pa.concat_tables(pieces)

    def scan(self, name: str) -> Any:
        """A table as a pyarrow data set, of which a query reads the columns that it needs."""
        chosen = self._filter()
        whole = self._whole(name)
        return whole if chosen is None else whole.filter(chosen)

    def _whole(self, name: str) -> Any:
        """The rows of all attempts."""
        import pyarrow.dataset as ds

        if name not in self._scans and self._files.has_old_rows:
            self._scans[name] = ds.dataset(self._attributed(self._as_written(name)))
        if name not in self._scans:
            self._scans[name] = ds.dataset([ds.dataset(schema(name).empty_table()), *self._pieces(name)])
        return self._scans[name]

    def count(self, name: str) -> int:
        """How many rows a table has."""
        chosen = self._filter()
        if chosen is not None:
            return int(self.scan(name).count_rows())
        compacted = sum(bundle.total(name) for bundle in self._bundles.values())
        return compacted + sum(int(piece.count_rows()) for piece in self._pieces(name, compacted=False))

    def _groups(self) -> Iterator[tuple[str, list[Segment]]]:
        """All segments in their order; neighbours of one kind ("tail", "part" or a bundle's id) together."""
        kinds = dict.fromkeys(self._parts, "part") | dict.fromkeys(self._tails, "tail")
        kinds |= {held.key: bundle.id for bundle in self._bundles.values() for held in bundle.segments}
        for kind, group in itertools.groupby(sorted(kinds), kinds.__getitem__):
            yield kind, list(group)

    def _pieces(self, name: str, *, compacted: bool = True) -> Iterator[Any]:
        """Data sets that together hold the table."""
        if compacted:
            paths = [path for bundle in self._bundles.values() for path in self._compacted(bundle, name)]
            if paths:
                yield self._dataset(name, paths)
        for kind, group in self._groups():
            yield from self._loose(name, kind, group)

    def _loose(self, name: str, kind: str, group: list[Segment]) -> Iterator[Any]:
        """Data sets of neighbours that aren't compacted, in their order."""
        import pyarrow.dataset as ds

        if kind == "tail":
            chunks = self._tail_of(name, group)
            if chunks is not None:
                yield ds.dataset(chunks)
        elif kind == "part":
            paths = [self._parts[one][name] for one in group if name in self._parts[one]]
            if paths:
                yield self._dataset(name, paths)

    def _tail_of(self, name: str, group: Iterable[Segment]) -> pyarrow.Table | None:
        import pyarrow as pa

        chunks = [chunk for one in group for chunk in self._tails[one].tables.get(name, [])]
        return pa.concat_tables(chunks).cast(schema(name)) if chunks else None

    def _compacted(self, bundle: Bundle, name: str) -> list[str]:
        return [f"{self._files.folder}/{file.name}" for file in bundle.files.get(name, ())]

    def _loaded(self, name: str, paths: list[str]) -> pyarrow.Table:
        return conformed(name, self._dataset(name, paths).to_table())

    def _dataset(self, name: str, paths: list[str]) -> Any:
        import pyarrow.dataset as ds

        if not paths:
            return ds.dataset(schema(name).empty_table())
        system = None if self._files.local else self._files.system
        columns = either_schema(name) if self._files.has_old_rows else schema(name)
        return ds.dataset(paths, schema=columns, filesystem=system, format="parquet")

    # --------------------------------------------------------------------------------------------- asking it

    def _reader(self) -> database.Parquet | None:
        """Whether DuckDB can read the files by itself, and what does so."""
        if self._parquet is None and self._files.local and database.Parquet.readable(self._files.root):
            old = self.old_writers() if self._files.has_old_rows else None
            self._parquet = database.Parquet({name: list(self._paths(name)) for name in self.tables}, old)
        return self._parquet

    def _paths(self, name: str) -> Iterator[str]:
        for bundle in self._bundles.values():
            yield from self._compacted(bundle, name)
        for segment in sorted(self._parts):
            if name in self._parts[segment]:
                yield self._parts[segment][name]

    def answer(self, text: str, parameters: object) -> pyarrow.Table | None:
        """The result of SQL statements over the tables; None where the last statement has none.

        Raises:
            FileNotFoundError: A part was compacted since the last look.
        """
        return self._answer(text, parameters, condition(self.shown()) if self.shown() else "")

    def _answer(self, text: str, parameters: object, where: str) -> Any:
        reader = self._reader()
        if reader is None or not database.only_selects(text):
            whole = {name: self._whole(name) for name in self.tables}
            return database.sealed(whole, text, parameters, where, self.late_ranks())
        tails = {name: self._tail_of(name, sorted(self._tails)) for name in self.tables}
        known = {name: self._attributed(found) for name, found in tails.items() if found is not None}
        measured = self._all_measured()
        late = self.late_ranks()
        return database.select(reader, self.tables, known, text, parameters, where=where, measured=measured, late=late)

    def _all_measured(self) -> bool:
        """Whether every process that has told of calls has told of its memory, as far as the files' names and the
        manifest say it: a segment is of one process.
        """
        loose = (tables.keys() for tables in self._parts.values())
        tails = (tail.tables.keys() for tail in self._tails.values())
        if any("calls" in one and "memory" not in one for one in (*loose, *tails)):
            return False
        return all(
            memory > 0 or calls == 0
            for bundle in self._bundles.values()
            for calls, memory in zip(bundle.counts("calls"), bundle.counts("memory"), strict=True)
        )

    def _attributed(self, found: pyarrow.Table) -> pyarrow.Table:
        return version_1.attributed(found, self.old_writers()) if self._files.has_old_rows else found

    def compacted_since(self) -> bool:
        """Whether files of this moment were compacted since."""
        found = {bundle.id for bundle in self._files.listing().manifest.bundles}
        return found != self._bundles.keys()


def ranked(found: pyarrow.Table | pyarrow.RecordBatch, late: Mapping[str, int]) -> Any:
    """``found`` with the ranks that became known later: see :meth:`Snapshot.late_ranks`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not late:
        return found
    place = pc.index_in(found["process"], pa.array(list(late), pa.string()))
    known = pc.take(pa.array(list(late.values()), pa.int64()), place)
    column = found.schema.get_field_index("rank")
    return found.set_column(column, found.schema.field(column), pc.coalesce(found["rank"], known))


def _joined(spans: dict[Segment, Span], group: list[Segment]) -> Iterator[tuple[int, int]]:
    """The rows of neighbours as few stretches."""
    begin = end = 0
    for segment in group:
        if spans[segment].begin != end:
            yield begin, end
            begin = spans[segment].begin
        end = spans[segment].end
    yield begin, end


def _range(footer: Any, name: str) -> list[int]:
    """The smallest and the largest value of a column of a process part, by its statistics; one has few rows."""
    found: set[int] = set()
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            column = footer.row_group(group).column(index)
            if column.path_in_schema == name and column.statistics is not None:
                found |= {column.statistics.min or 0, column.statistics.max or 0}
    return sorted(found)


def query(snapshot: Snapshot, text: str, parameters: object) -> pandas.DataFrame:
    """The result of a query over the tables of ``snapshot``, which any thread may ask. It sees the tables and nothing
    else: no other files, not the network, not Python's variables.
    """
    from probe.runs.frames import query_frame

    found = snapshot.answer(text, parameters)
    if found is None:
        import pandas as pd

        return pd.DataFrame()
    return query_frame(found)
