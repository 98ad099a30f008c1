"""All rows of a run at one moment, as columns; the next moment costs only what was added since."""

from __future__ import annotations

import bisect
import functools
import io
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from probe.errors import InputError, RunError
from probe.records import TABLES
from probe.runs import changes, database, last_seen, row_types, version_1
from probe.runs.answers import Answers
from probe.runs.asked_again import Newest
from probe.runs.files import Parts, RunFiles
from probe.runs.kept import Kept
from probe.runs.layout import Segment, check_version
from probe.runs.manifest import Bundle, Span
from probe.runs.parts import (
    BAD_LINES,
    CHUNK_BYTES,
    Columnar,
    add_lines_of,
    columns,
    conformed,
    either_schema,
    schema,
)
from probe.runs.visibility import NEVER_NS, Hidden, Shown, Stretch, Visible, condition, expression, visible

if TYPE_CHECKING:
    import pandas
    import pyarrow

#: Names of the views that differ from the table's tag.
VIEWS = database.VIEWS

#: Tables by whose rows an attempt is seen to have come to a step.
STEPPED = ("memory", "calls", "micro_batches", "padding", "reductions", "scalars")

#: A segment that is rolled over while we look makes us look again; a busy writer does so every few minutes.
TRIES = 20


#: Bytes of a file up to which its lines are read together with those of other files.
FEW_BYTES: Final = 2**17

#: Rows of JSONL files up to which a question is worked out by one thread, where Parquet files have few too. Waking
#: others takes longer than what they would do.
FEW_ROWS: Final = 2**16

#: Pieces of a file that are made one.
TOGETHER: Final = 32

#: Files whose lines are read together.
FILES: Final = 128


class _ChangedError(Exception):
    """A compacted file isn't what its manifest says."""


class Tail:
    """The rows of one JSONL file, as far as it has been read."""

    def __init__(self) -> None:
        self.columnar = Columnar()
        self.offset = 0
        self.tables: dict[str, list[pyarrow.Table]] = {}
        self._extents: dict[str, list[changes.Extent]] = {}
        self._latest: dict[str, list[float]] = {}  # the last step of the pieces up to each
        self.rows: dict[str, int] = {}
        self._large: dict[str, int] = {}  # how many pieces were made of several, at the beginning

    def extents(self, table: str) -> list[changes.Extent]:
        """Of which steps the rows of each piece of a table are."""
        known, pieces = self._extents.setdefault(table, []), self.tables.get(table, ())
        if len(known) < len(pieces):
            known.extend(changes.of_steps(one["step"]) for one in pieces[len(known) :])
        return known

    def since(self, table: str, step: int) -> list[pyarrow.Table]:
        """The pieces of a table that have rows of steps from one on, in their order."""
        extents, pieces = self.extents(table), self.tables[table]
        latest = self._latest.setdefault(table, [])
        for extent in extents[len(latest) :]:
            latest.append(max(latest[-1], extent.last) if latest else extent.last)
        begin = bisect.bisect_left(latest, step)  # of many pieces the newest alone, as a rule
        return [pieces[at] for at in range(begin, len(pieces)) if extents[at].last >= step]

    def add_lines(self, data: bytes) -> None:
        """Add the complete lines of ``data``, which begins where the last ended."""
        begin = 0
        while begin < len(data):
            end = data.rfind(b"\n", begin, begin + CHUNK_BYTES) + 1 or data.find(b"\n", begin) + 1
            if not end:
                break
            self.add(self.columnar.add_lines(data[begin:end]), end - begin)
            begin = end

    def add(self, found: Mapping[str, pyarrow.Table], size: int) -> None:
        """Add what was made of that many bytes."""
        for table, rows in found.items():
            self._add(table, rows)
        self.offset += size

    def _add(self, table: str, found: pyarrow.Table) -> None:
        """Add rows. Who looks every few seconds adds thousands of pieces until a file is rolled over: of many older
        ones is made one.
        """
        import pyarrow as pa

        pieces = self.tables.setdefault(table, [])
        pieces.append(found)
        self.rows[table] = self.rows.get(table, 0) + len(found)
        small = len(pieces) - self._large.get(table, 0)
        if small > 2 * TOGETHER:
            begin = self._large.get(table, 0)
            pieces[begin : begin + TOGETHER] = [pa.concat_tables(pieces[begin : begin + TOGETHER]).combine_chunks()]
            self._latest.pop(table, None)
            known = self._extents.get(table, [])
            known[begin : begin + TOGETHER] = [changes.of_steps(pieces[begin]["step"])] if len(known) > begin else []
            self._large[table] = begin + 1


class Sources(NamedTuple):
    """The rows of a table at one moment: files that never change, rows that aren't in such files yet, and what a reader
    makes of both.
    """

    table: str
    paths: list[str]  #: of Parquet files that count
    rows: pyarrow.Table | None  #: of JSON lines
    columns: pyarrow.Schema  #: to read the files by
    system: Any  #: the fsspec file system that has them; None is this machine
    shown: Any  #: a pyarrow expression; None shows all
    late: Mapping[str, int]
    old_writers: list[version_1.Writer]

    def finished(self, found: pyarrow.Table) -> pyarrow.Table:
        """Rows as a reader gives them: without those that are hidden, with the ranks that became known later, and with
        the defaults of columns that an older probe hadn't.

        Args:
            found: Some of the rows, as their file has them.
        """
        if self.old_writers:
            found = version_1.attributed(found, self.old_writers)
        found = ranked(conformed(self.table, found), self.late)
        for column in columns(self.table):
            if not column.optional and column.default is not msgspec.NODEFAULT and not column.type.startswith("list"):
                place = found.schema.get_field_index(column.name)
                filled = found[column.name].fill_null(column.default)
                found = found.set_column(place, found.schema.field(place), filled)
        return found if self.shown is None else found.filter(self.shown)


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
        self._measured: bool | None = None
        self._moment = object()
        self._answers: Answers | None = None
        self._extents: dict[str, changes.Extent] = {}  # of Parquet files, by path
        self._newest: tuple[dict[str, list[str]], database.Parquet] | None = None  # of the last call of `since`
        self._since: tuple[int, Snapshot] | None = None  # of this moment
        self._held = database.Held()  # of this moment
        self._joined: dict[str, pyarrow.Table | None] = {}  # the rows of JSONL files, of this moment
        self._fresh: dict[str, tuple[list[pyarrow.Table], pyarrow.Table]] = {}  # read last: pieces, and all as one
        self.newest: Newest | None = None  #: the rows, where they are those of `since` and no Parquet file has any
        self.kept: Kept | None = None  #: where views are kept that are asked for often
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
        tails = self._read_tails(segments)
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
        self._held, self._joined = database.Held(), {}
        self._scans, self._since = {}, None
        self._moment = object()
        self._shown = self._stretched = None
        self._writers = self._late = self._measured = None
        self._tails, self._parts, self._bundles = tails, parts, bundles
        self._answers = self._kept_answers()
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

    def _read_tails(self, segments: Iterable[Segment]) -> dict[Segment, Tail]:
        found, few = {}, []
        self._fresh = {}
        for segment in sorted(segments):
            found[segment], data = self._read_tail(segment)
            if len(data) > FEW_BYTES:
                found[segment].add_lines(data)
            elif data:
                few.append((found[segment], data[: data.rfind(b"\n") + 1]))
        for begin in range(0, len(few), FILES):
            part = few[begin : begin + FILES]
            told = add_lines_of([(tail.columnar, data) for tail, data in part])
            for (tail, data), tables in zip(part, told.each, strict=True):
                tail.add(tables, len(data))
            if len(few) <= FILES:
                self._fresh = {
                    table: ([tables[table] for tables in told.each if table in tables], whole)
                    for table, whole in told.whole.items()
                }
        return found

    def _read_tail(self, segment: Segment) -> tuple[Tail, bytes]:
        tail = self._tails.get(segment) or Tail()
        data = self._files.read(segment, tail.offset)
        if data is None:  # shorter than it was: another file, so the directory was made anew
            tail = Tail()
            data = self._files.read(segment, 0) or b""
        return tail, data

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
        told_by = (self._attempts_of(path) for path in self._compacted(bundle, "process"))
        self._attempts[bundle.id] = frozenset(itertools.chain.from_iterable(told_by))

    def _attempts_of(self, path: str) -> set[int]:
        """The attempts of the processes that a compacted file tells of; a row that doesn't say is of the first."""
        import pyarrow.parquet as pq

        source: Any = path
        if not self._files.local:
            with self._files.asking():
                source = io.BytesIO(self._files.system.cat_file(path))
        with pq.ParquetFile(source) as file:  # a data set would load pandas, for a second
            if "attempt" not in file.schema_arrow.names:
                return {1}
            return {one or 1 for one in file.read(["attempt"], use_threads=False)["attempt"].unique().to_pylist()}

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
        rows = " union all ".join(f"select attempt, step, wall_ns from {VIEWS.get(one, one)}" for one in STEPPED)  # noqa: S608  (our own names)
        text = f"select attempt, step, min(wall_ns) from ({rows}) where step is not null group by all"  # noqa: S608  (our own names)
        found = self._asked(text, None, "", keep=True)
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
        other = self._with_tails(
            {one: {name: list(rows) for name, rows in tail.tables.items()} for one, tail in self._tails.items()}
        )
        other._joined = self._joined
        return other

    def _with_tails(self, tails: Mapping[Segment, dict[str, list[pyarrow.Table]]]) -> Snapshot:
        """The same moment, with these rows of the JSONL files."""
        other = Snapshot(self._files, self._attempt)
        other.tables, other.kept, other._moment = self.tables, self.kept, self._moment
        other._answers, other._held = self._answers, self._held
        other._attempts, other._shown, other._stretched = dict(self._attempts), self.shown(), self._stretched
        other._parts, other._checked, other._bundles = self._parts, self._checked, self._bundles
        other._parquet, other._scans, other._writers = self._reader(), self._scans, self.old_writers()
        other._late, other._measured = self.late_ranks(), self._all_measured()
        for segment, tables in tails.items():
            kept = other._tails[segment] = Tail()
            kept.tables = tables
        return other

    def since(self, step: int) -> Snapshot:
        """The same moment, in which rows of steps before ``step`` may be left out, and rows of no step: whole files and
        pieces of them are. The same as :meth:`copy` where that can't be, or would change what rows say. It is asked in
        one connection.
        """
        if self._since is None or self._since[0] != step:
            self._since = step, self._restricted(step)
        return self._since[1]

    def _restricted(self, step: int) -> Snapshot:
        # Which calls tell of scopes depends on whose memory is recorded, in whichever step.
        plain = self._all_measured() or not self.has("memory")
        if self._reader() is None or self._files.has_old_rows or not plain:
            return self.copy()
        other = self._with_tails(
            {one: {name: tail.since(name, step) for name in tail.tables} for one, tail in self._tails.items()}
        )
        paths = {name: [one for one in self._paths(name) if self._extent(one).last >= step] for name in self.tables}
        if self._newest is None or self._newest[0] != paths:
            self._newest = paths, database.Parquet(paths, threads=1)  # of few rows more take longer
        other._parquet, other._answers, other.kept = self._newest[1], None, None
        other._held = database.Held()
        if not any(paths.values()):
            rows = {name: found for name in self.tables if (found := self._as_one(name, other)) is not None}
            where = condition(self.shown()) if self.shown() else ""
            other.newest = Newest(self.tables, rows, where, self.late_ranks(), self._all_measured())
        return other

    def _as_one(self, name: str, other: Snapshot) -> pyarrow.Table | None:
        """The rows of a table in the JSONL files of ``other``, in one piece; None where there are none."""
        pieces, whole = self._fresh.get(name, ((), None))
        segments = sorted(other._tails)
        told = (piece for one in segments for piece in other._tails[one].tables.get(name, ()))
        if whole is not None and all(
            map(operator.is_, itertools.chain(told, (None,)), itertools.chain(pieces, (None,)))
        ):
            return whole.cast(schema(name)).combine_chunks()
        found = other._tail_of(name, segments)
        return None if found is None else found.combine_chunks()

    def _extent(self, path: str) -> changes.Extent:
        if path not in self._extents:
            self._extents[path] = changes.of_file(path)
        return self._extents[path]

    def has(self, table: str) -> bool:
        """Whether there are rows of a table, as the names of the files and the manifest say it: hidden ones, too."""
        return (
            any(tail.tables.get(table) for tail in self._tails.values())
            or any(table in one for one in self._parts.values())
            or any(one.files.get(table) for one in self._bundles.values())
        )

    def moment(self) -> changes.Moment:
        """This moment, to compare a later one with."""
        read = {segment: changes.Read(tail, dict(tail.rows)) for segment, tail in self._tails.items()}
        meaning = (self.shown(), tuple(sorted(self.late_ranks().items())), self._all_measured(), tuple(self.attempts))
        return changes.Moment(read, self._parts, frozenset(self._bundles), meaning)

    def changed(self, before: changes.Moment) -> changes.Changed | None:
        """The steps that have got rows since a moment, by table; None where anything may differ."""
        covered = {key: [held.key for held in one.segments] for key, one in self._bundles.items()}
        return changes.since(before, self.moment(), self._tails, covered)

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

    def may_have(self, name: str) -> bool:
        """Whether a table may have rows: whether there is a file or a line of it. Nothing is read to know it."""
        bundled = (name in bundle.files for bundle in self._bundles.values())
        parted = (name in tables for tables in self._parts.values())
        return any(bundled) or any(parted) or any(tail.tables.get(name) for tail in self._tails.values())

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
        if kind == "tail":
            chunks = self._tail_of(name, group)
            if chunks is not None:
                import pyarrow.dataset as ds

                yield ds.dataset(chunks)
        elif kind == "part":
            paths = [self._parts[one][name] for one in group if name in self._parts[one]]
            if paths:
                yield self._dataset(name, paths)

    def _tail_of(self, name: str, group: Iterable[Segment]) -> pyarrow.Table | None:
        import pyarrow as pa

        chunks = [chunk for one in group for chunk in self._tails[one].tables.get(name, [])]
        return pa.concat_tables(chunks).cast(schema(name)) if chunks else None

    def _whole_tail(self, name: str) -> pyarrow.Table | None:
        """The rows of a table in all JSONL files."""
        if name not in self._joined:
            self._joined[name] = self._tail_of(name, sorted(self._tails))
        return self._joined[name]

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
        if not self._files.local or not database.Parquet.readable(self._files.root):
            return None
        rows = sum(sum(tail.rows.values()) for tail in self._tails.values())
        if self._parquet is None or (self._parquet.threads == 1 and rows > FEW_ROWS):
            old = self.old_writers() if self._files.has_old_rows else None
            paths = {name: list(self._paths(name)) for name in self.tables}
            few = rows <= FEW_ROWS and database.bytes_of(list(itertools.chain(*paths.values()))) <= database.FEW_BYTES
            self._parquet = database.Parquet(paths, old, threads=1 if few else 0)
        return self._parquet

    def _paths(self, name: str) -> Iterator[str]:
        for bundle in self._bundles.values():
            yield from self._compacted(bundle, name)
        for segment in sorted(self._parts):
            if name in self._parts[segment]:
                yield self._parts[segment][name]

    def let_go(self) -> None:
        """Close what was opened to ask; the next question opens it again."""
        self._parquet, self._held = None, database.Held()

    def answer(self, text: str, parameters: object, *, keep: bool = False) -> pyarrow.Table | None:
        """The result of SQL statements over the tables; None where the last statement has none.

        Args:
            text: The statements.
            parameters: Of the last one.
            keep: Whether the answer of one query without parameters may be kept beside the rows, and found there: see
                :mod:`probe.runs.answers`.

        Raises:
            FileNotFoundError: A part was compacted since the last look.
        """
        return self._asked(text, parameters, condition(self.shown()) if self.shown() else "", keep=keep)

    @property
    def answers(self) -> Answers | None:
        """Where answers of this moment are kept; None where none are."""
        return self._answers

    def _asked(self, text: str, parameters: object, where: str, *, keep: bool) -> Any:
        more = last_seen.views(text, self._files, self._attempt)
        answers = self._answers if keep and parameters is None and not more else None
        if answers is None:
            return self._answer(text, parameters, where, more)
        old = self.old_writers() if self._files.has_old_rows else None
        question = database.definition(text, self.tables, where, self.late_ranks(), old, measured=self._all_measured())
        found = answers.find(question)
        if found is None:
            found = self._answer(text, None, where, more)
            answers.keep(question, found)
        return found

    def _kept_answers(self) -> Answers | None:
        """Where answers of this moment may be kept: beside files that never change, on this machine."""
        if not self._files.local or any(tail.offset for tail in self._tails.values()):
            return None
        return Answers(self._files.root, functools.partial(_paths, self._files.folder, self._parts, self._bundles))

    def _answer(self, text: str, parameters: object, where: str, more: Mapping[str, str]) -> Any:
        reader = self._reader()
        if reader is None or not database.only_selects(text):
            whole = {name: self._whole(name) for name in self.tables}
            return database.sealed(whole, text, parameters, where, self.late_ranks(), more)
        asked = database.with_views(text)
        wanted = (one for one in self.tables if self.kept is not None or database.names(asked, one))
        tails = {name: self._whole_tail(name) for name in wanted}
        known = {name: self._attributed(found) for name, found in tails.items() if found is not None}
        measured = self._all_measured()
        late = self.late_ranks()
        told: dict[str, Any] = {"where": where, "measured": measured, "late": late, "more": more}
        return database.select(
            reader, self.tables, known, text, parameters, **told, kept=self.kept, moment=self._moment, held=self._held
        )

    def _all_measured(self) -> bool:
        """Whether every process that has told of calls has told of its memory, as far as the files' names and the
        manifest say it: a segment is of one process.
        """
        loose = (tables.keys() for tables in self._parts.values())
        tails = (tail.tables.keys() for tail in self._tails.values())
        if self._measured is None:
            self._measured = not any("calls" in one and "memory" not in one for one in (*loose, *tails)) and all(
                memory > 0 or calls == 0
                for bundle in self._bundles.values()
                for calls, memory in zip(bundle.counts("calls"), bundle.counts("memory"), strict=True)
            )
        return self._measured

    def _attributed(self, found: pyarrow.Table) -> pyarrow.Table:
        return version_1.attributed(found, self.old_writers()) if self._files.has_old_rows else found

    def sources(self, name: str) -> Sources:
        """Where the rows of a table are, for an engine that reads them itself."""
        read_by = either_schema(name) if self._files.has_old_rows else schema(name)
        found = self._whole_tail(name)
        system = None if self._files.local else self._files.system
        old = self.old_writers()
        return Sources(name, list(self._paths(name)), found, read_by, system, self._filter(), self.late_ranks(), old)

    def compacted_since(self) -> bool:
        """Whether files of this moment were compacted since."""
        found = {bundle.id for bundle in self._files.listing().manifest.bundles}
        return found != self._bundles.keys()


def _paths(folder: str, parts: Mapping[Segment, Parts], bundles: Mapping[str, Bundle]) -> list[str]:
    """The Parquet files of one moment."""
    loose = [path for tables in parts.values() for path in tables.values()]
    compacted = (file.name for one in bundles.values() for files in one.files.values() for file in files)
    return [*loose, *(f"{folder}/{name}" for name in compacted)]


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


def query(snapshot: Snapshot, text: str, parameters: object, *, keep: bool = False) -> pandas.DataFrame:
    """The result of a query over the tables of ``snapshot``, which any thread may ask. It sees the tables and nothing
    else: no other files, not the network, not Python's variables. ``keep`` is as in :meth:`Snapshot.answer`.
    """
    from probe.runs.frames import query_frame

    found = snapshot.answer(text, parameters, keep=keep)
    if found is None:
        import pandas as pd

        return pd.DataFrame()
    return query_frame(found)
