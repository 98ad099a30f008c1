"""All rows of a run at one moment, as columns; the next moment costs only what was added since."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from probe.errors import InputError, RunError
from probe.records import TABLES
from probe.runs import changes, database, last_seen, row_types
from probe.runs.answers import Answers
from probe.runs.asked_again import Newest
from probe.runs.checked import ChangedError, Checked
from probe.runs.columns import either_schema, schema
from probe.runs.files import Parts, RunFiles
from probe.runs.held_rows import HeldRows
from probe.runs.kept import Kept
from probe.runs.layout import Segment, check_version
from probe.runs.manifest import Bundle
from probe.runs.sources import Sources, ranked
from probe.runs.statements import VIEWS, names, with_views
from probe.runs.tail import Fresh, read_tails
from probe.runs.visibility import NEVER_NS, Hidden, Shown, Stretch, Visible, condition, expression, visible
from probe.sql import Sql, joined, sql

if TYPE_CHECKING:
    import pandas
    import pyarrow

#: Tables by whose rows an attempt is seen to have come to a step.
STEPPED = ("memory", "calls", "micro_batches", "padding", "reductions", "scalars")

#: A segment that is rolled over while we look makes us look again; a busy writer does so every few minutes.
TRIES = 20

#: Rows of JSONL files up to which a question is worked out by one thread, where Parquet files have few too. Waking
#: others takes longer than what they would do.
FEW_ROWS: Final = 2**16


class Snapshot:
    """Reads a run's files. :meth:`refresh` takes a new look, which all tables then share.

    Args:
        files: Of the run.
        attempt: Which attempt is shown; None is what the newest has not hidden of each: :mod:`probe.runs.visibility`.
    """

    def __init__(self, files: RunFiles, attempt: int | None = None) -> None:
        self._files = files
        self._attempt = attempt
        self._shown: tuple[Visible, ...] | None = None
        self._stretched: list[Stretch] | None = None
        self._checked = Checked(files)
        self._parquet: database.Parquet | None = None
        self._moment = object()
        self._answers: Answers | None = None
        self._extents: dict[str, changes.Extent] = {}  # of Parquet files, by path
        self._newest: tuple[dict[str, list[str]], database.Parquet] | None = None  # of the last call of `since`
        self._since: tuple[int, Snapshot] | None = None  # of this moment
        self._held = database.Held()  # of this moment
        self._fresh: Fresh = {}
        self.rows = HeldRows(files)  #: of this moment, those that are hidden included
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
            except (pa.ArrowException, OSError, ChangedError) as error:
                if attempt + 1 == TRIES or not self._files.examine():
                    raise RunError(f"run {self._files.shown!r}: a part can't be read: {error}") from error

    def _look(self) -> None:
        segments, parts, manifest = self._files.listing()
        self._fresh = {}
        tails, self._fresh = read_tails(self._files, self.rows.tails, segments)
        # Empty and with parts: a process took the number of a segment that has just become parts, and will
        # see so.
        tails = {one: tail for one, tail in tails.items() if tail.offset or one not in parts}
        parts = {one: tables for one, tables in parts.items() if one not in tails}
        for tail in tails.values():
            check_version(tail.columnar.newest_version, self._files.shown)
        self._checked.check(parts)
        bundles = {bundle.id: bundle for bundle in manifest.bundles}
        for bundle in manifest.bundles:
            if bundle.id not in self.rows.bundles:
                self._checked.check_bundle(bundle)
            parts.update((held.key, {}) for held in bundle.segments)
        if parts != self.rows.parts or bundles != self.rows.bundles:
            self._parquet = None
        self._held, self._since = database.Held(), None
        self._moment = object()
        self._shown = self._stretched = None
        self.rows = HeldRows(self._files, tails, parts, bundles)
        self._answers = self._kept_answers()
        self.tables = (*TABLES, *self._own_tables())
        if self._attempt is not None and self._attempt not in self.attempts:
            have = ", ".join(map(str, self.attempts)) or "none yet"
            raise InputError(f"attempt: got {self._attempt}, expected one that the run has: {have}")

    def _own_tables(self) -> list[str]:
        """The tables that recorders have brought themselves. Their types stand in the processes' rows, which are read
        where a file has the name of a table that isn't known.
        """
        found = {name for tail in self.rows.tails.values() for name in tail.columnar.own_tables}
        named = {name for tables in self.rows.parts.values() for name in tables}
        named |= {name for bundle in self.rows.bundles.values() for name in bundle.files}
        if named - found - TABLES.keys():
            found.update(row_types.learn_all(self.rows.as_written("process")))
        return sorted(found)

    # ------------------------------------------------------------------------------------------ what is shown

    @property
    def attempts(self) -> list[int]:
        """The attempts that have written anything."""
        found = {1} if self._files.has_old_rows else set()
        for tail in self.rows.tails.values():
            found |= tail.columnar.attempts
        keys: list[Segment | str] = [*self.rows.parts, *self.rows.bundles]
        found.update(*(self._checked.attempts.get(key, ()) for key in keys))
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
        each = [sql("select attempt, step, wall_ns from {table}", table=Sql(VIEWS.get(one, one))) for one in STEPPED]
        rows = joined(each, " union all ")
        text = sql("select attempt, step, min(wall_ns) from ({rows}) where step is not null group by all", rows=rows)
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
        return self._with_rows(self.rows.copy())

    def _with_rows(self, rows: HeldRows) -> Snapshot:
        """The same moment, with these rows of it."""
        other = Snapshot(self._files, self._attempt)
        other.tables, other.kept, other._moment = self.tables, self.kept, self._moment
        other._answers, other._held = self._answers, self._held
        other._checked, other._shown, other._stretched = self._checked.copy(), self.shown(), self._stretched
        other._parquet, other.rows = self._reader(), rows
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
        plain = self.rows.all_measured() or not self.has("memory")
        if self._reader() is None or self._files.has_old_rows or not plain:
            return self.copy()
        other = self._with_rows(
            self.rows.same(
                {one: {name: tail.since(name, step) for name in tail.tables} for one, tail in self.rows.tails.items()}
            )
        )
        paths = {name: [one for one in self.rows.paths(name) if self._extent(one).last >= step] for name in self.tables}
        if self._newest is None or self._newest[0] != paths:
            self._newest = paths, database.Parquet(paths, threads=1)  # of few rows more take longer
        other._parquet, other._answers, other.kept = self._newest[1], None, None
        other._held = database.Held()
        if not any(paths.values()):
            rows = {name: found for name in self.tables if (found := other.rows.as_one(name, self._fresh)) is not None}
            where = condition(self.shown()) if self.shown() else ""
            other.newest = Newest(self.tables, rows, where, self.rows.late_ranks(), self.rows.all_measured())
        return other

    def _extent(self, path: str) -> changes.Extent:
        if path not in self._extents:
            self._extents[path] = changes.of_file(path)
        return self._extents[path]

    def has(self, table: str) -> bool:
        """Whether there are rows of a table, as the names of the files and the manifest say it: hidden ones, too."""
        return self.rows.has(table)

    def moment(self) -> changes.Moment:
        """This moment, to compare a later one with."""
        read = {segment: changes.Read(tail, dict(tail.rows)) for segment, tail in self.rows.tails.items()}
        late, measured = tuple(sorted(self.rows.late_ranks().items())), self.rows.all_measured()
        meaning = (self.shown(), late, measured, tuple(self.attempts))
        return changes.Moment(read, self.rows.parts, frozenset(self.rows.bundles), meaning)

    def changed(self, before: changes.Moment) -> changes.Changed | None:
        """The steps that have got rows since a moment, by table; None where anything may differ."""
        covered = {key: [held.key for held in one.segments] for key, one in self.rows.bundles.items()}
        return changes.since(before, self.moment(), self.rows.tails, covered)

    def places(self) -> tuple[dict[Segment, tuple[int, int]], frozenset[Segment]]:
        """How far each JSONL file was read, in bytes and lines; and the segments that are Parquet, read whole."""
        read = {one: (tail.offset, tail.columnar.lines) for one, tail in self.rows.tails.items()}
        return read, frozenset(self.rows.parts)

    @property
    def bad_lines(self) -> int:
        """Lines that are no rows."""
        in_tails = sum(tail.columnar.bad for tail in self.rows.tails.values())
        in_parts = sum(self._checked.bad.get(segment, 0) for segment, tables in self.rows.parts.items() if tables)
        return in_tails + in_parts + sum(held.bad for one in self.rows.bundles.values() for held in one.segments)

    # --------------------------------------------------------------------------------------------- its tables

    def table(self, name: str) -> pyarrow.Table:
        """All rows of a table; those of one process in the order in which they were written."""
        found = ranked(self.rows.attributed(self.rows.as_written(name)), self.rows.late_ranks())
        chosen = self._filter()
        return found if chosen is None else found.filter(chosen)

    def scan(self, name: str) -> Any:
        """A table as a pyarrow data set, of which a query reads the columns that it needs."""
        chosen = self._filter()
        whole = self.rows.whole(name)
        return whole if chosen is None else whole.filter(chosen)

    def count(self, name: str) -> int:
        """How many rows a table has."""
        chosen = self._filter()
        if chosen is not None:
            return int(self.scan(name).count_rows())
        compacted = sum(bundle.total(name) for bundle in self.rows.bundles.values())
        return compacted + sum(int(piece.count_rows()) for piece in self.rows.pieces(name, bundled=False))

    # --------------------------------------------------------------------------------------------- asking it

    def _reader(self) -> database.Parquet | None:
        """Whether DuckDB can read the files by itself, and what does so."""
        if not self._files.local or not database.Parquet.readable(self._files.root):
            return None
        rows = sum(sum(tail.rows.values()) for tail in self.rows.tails.values())
        if self._parquet is None or (self._parquet.threads == 1 and rows > FEW_ROWS):
            old = self.rows.old_writers() if self._files.has_old_rows else None
            paths = {name: list(self.rows.paths(name)) for name in self.tables}
            few = rows <= FEW_ROWS and database.bytes_of(list(itertools.chain(*paths.values()))) <= database.FEW_BYTES
            self._parquet = database.Parquet(paths, old, threads=1 if few else 0)
        return self._parquet

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
        old = self.rows.old_writers() if self._files.has_old_rows else None
        late, measured = self.rows.late_ranks(), self.rows.all_measured()
        question = database.definition(text, self.tables, where, late, old, measured=measured)
        found = answers.find(question)
        if found is None:
            found = self._answer(text, None, where, more)
            answers.keep(question, found)
        return found

    def _kept_answers(self) -> Answers | None:
        """Where answers of this moment may be kept: beside files that never change, on this machine."""
        if not self._files.local or any(tail.offset for tail in self.rows.tails.values()):
            return None
        paths = functools.partial(_paths, self._files.folder, self.rows.parts, self.rows.bundles)
        return Answers(self._files.root, paths)

    def _answer(self, text: str, parameters: object, where: str, more: Mapping[str, str]) -> Any:
        reader = self._reader()
        if reader is None or not database.only_selects(text):
            whole = {name: self.rows.whole(name) for name in self.tables}
            return database.sealed(whole, text, parameters, where, self.rows.late_ranks(), more)
        asked = with_views(text)
        wanted = (one for one in self.tables if self.kept is not None or names(asked, one))
        tails = {name: self.rows.whole_tail(name) for name in wanted}
        known = {name: self.rows.attributed(found) for name, found in tails.items() if found is not None}
        measured = self.rows.all_measured()
        late = self.rows.late_ranks()
        told: dict[str, Any] = {"where": where, "measured": measured, "late": late, "more": more}
        return database.select(
            reader, self.tables, known, text, parameters, **told, kept=self.kept, moment=self._moment, held=self._held
        )

    def sources(self, name: str) -> Sources:
        """Where the rows of a table are, for an engine that reads them itself."""
        read_by = either_schema(name) if self._files.has_old_rows else schema(name)
        found = self.rows.whole_tail(name)
        system = None if self._files.local else self._files.system
        late, old = self.rows.late_ranks(), self.rows.old_writers()
        return Sources(name, list(self.rows.paths(name)), found, read_by, system, self._filter(), late, old)

    def compacted_since(self) -> bool:
        """Whether files of this moment were compacted since."""
        found = {bundle.id for bundle in self._files.listing().manifest.bundles}
        return found != self.rows.bundles.keys()


def _paths(folder: str, parts: Mapping[Segment, Parts], bundles: Mapping[str, Bundle]) -> list[str]:
    """The Parquet files of one moment."""
    loose = [path for tables in parts.values() for path in tables.values()]
    compacted = (file.name for one in bundles.values() for files in one.files.values() for file in files)
    return [*loose, *(f"{folder}/{name}" for name in compacted)]


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
