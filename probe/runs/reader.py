"""The reader: a run directory as pandas frames, as SQL tables and as a stream of new rows.

It only reads, and needs nothing of the processes that write: it works while they do, after they were killed,
and on another machine.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from probe import text as words
from probe._check import needs_views
from probe.errors import InputError, RunError, UnknownNameError
from probe.guard import raised_as
from probe.records import TABLES, Row, place_of_process
from probe.runs.columns import columns
from probe.runs.files import Damaged, RunFiles
from probe.runs.follower import Follower
from probe.runs.frames import table_frame
from probe.runs.kept import Kept
from probe.runs.layout import RunInfo
from probe.runs.named_tables import Frames, NamedTables
from probe.runs.new_rows import Showing, follow, fresh
from probe.runs.now import COLUMNS, frame_rows, now
from probe.runs.snapshot import TRIES, Snapshot, query
from probe.runs.statements import VIEWS
from probe.runs.visibility import Hidden

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from probe.runs.answers import Answers
    from probe.runs.asked_again import Newest
    from probe.runs.changes import Changed, Moment

#: Names by which people call the tables; the row type's tag is accepted, too.
NAMES: Final = {VIEWS.get(table, table): table for table in TABLES}


class Run(NamedTables):
    """The tables of a run that is there, being written or finished.

    All tables show one moment, that of the first look; :meth:`refresh` takes a new one. :meth:`tail` and
    :meth:`new_rows` follow the run instead. Where a compaction has taken away the files of that moment, a table or a
    query that needs them takes a new look by itself; of a run that has ended it shows the same.

    Of several attempts :mod:`probe.runs.visibility` says which rows are shown.

    Args:
        path: The run directory, or an ``fsspec`` URL of one.
        attempt: The attempt that is shown, alone and whole; None shows each step of the newest that has it.

    Attributes:
        path: Absolute path or URL of the run directory.
        info: What run.json says.
        shown_attempt: The attempt that was asked for, None without one.
        by_step: What was worked out of its steps, which whoever looks at it again and again keeps
            (:mod:`probe.analysis.by_step`); None keeps nothing.

    Raises:
        RunNotFoundError: There is nothing.
        RunError: It isn't a run.
        SchemaVersionError: A newer probe wrote it.
        InputError: ``attempt`` isn't one of the run's.
    """

    def __init__(self, path: str | os.PathLike[str], attempt: int | None = None) -> None:
        needs_views("reading a run")
        self._files = RunFiles(path)
        self.shown_attempt = attempt
        self.path = self._files.location
        self.info: RunInfo = self._files.info()
        self._lock = threading.RLock()
        self._snapshot: Snapshot | None = None
        self._fresh = False
        self._frames: dict[str, pandas.DataFrame] = {}
        self._follower = Follower(self._files)
        self._closed = False
        self.by_step: Any = None
        if attempt is not None:
            self._look()  # it must be there

    # --------------------------------------------------------------------------------------------- the tables

    @property
    def tables(self) -> Mapping[str, pandas.DataFrame]:
        """All tables by name, those among them that recorders have brought: ``run.tables["pauses"]``. A frame is read
        when it is asked for.
        """
        with self._lock:
            return Frames(self, [VIEWS.get(table, table) for table in self._look().tables])

    def _known(self, name: Any) -> str:
        """The table that is called ``name``."""
        table = NAMES.get(name, name)
        if table in TABLES:
            return str(table)
        with self._lock:
            tables = self._look().tables
        if table in tables:
            return str(table)
        raise UnknownNameError.of("table", name, [VIEWS.get(table, table) for table in tables])

    def table(self, name: str) -> pandas.DataFrame:
        """The frame of a table by name. It's kept until :meth:`refresh`: copy it before changing it.

        Raises:
            UnknownNameError: There is no such table.
        """
        table = self._known(name)
        with self._lock:
            if table not in self._frames:
                frame = table_frame(self._read(table), columns(table))
                if table == "process":  # each segment of a process begins with the same row
                    frame = _newest(frame.drop_duplicates(ignore_index=True))
                self._frames[table] = frame
            return self._frames[table]

    def _read(self, table: str) -> pyarrow.Table:
        import pyarrow as pa

        with self._files.asking():
            tries = 1
            while True:
                try:
                    return self._look().table(table)
                except (pa.ArrowException, OSError) as error:
                    if tries == TRIES or not self._again():
                        raise RunError(f"run {self.path!r}: a part of {table} can't be read: {error}") from error
                tries += 1

    def sql(
        self, query_text: str, parameters: object = None, *, keep: bool = False, since: int | None = None
    ) -> pandas.DataFrame:
        """The result of a DuckDB query over the tables, such as ``select max(allocated_bytes) from memory``.

        Args:
            query_text: One query in DuckDB's SQL; it can't read files, write or reach the network.
            parameters: For ``?`` (a list) or ``$name`` (a dict) in the query.
            keep: Of a large run on this machine that nobody writes to: find the answer beside the rows, in the folder
                ``answers``, or put it there for who asks the same next. For a query without parameters that asks for
                nothing random.
            since: For a query about steps from this one on: files that have none of them aren't read, so that rows of
                earlier steps, and of no step, may be left out. None reads all.

        Raises:
            InputError: DuckDB doesn't understand the query, or it asks for what isn't allowed.
        """
        tries = 1
        while True:
            try:
                return self._ask(query_text, parameters, keep=keep, since=since)
            except (_QueryError, FileNotFoundError) as error:
                if tries == TRIES or not self._again(damage=not isinstance(error, _QueryError) or error.damage):
                    raise
            tries += 1

    @contextlib.contextmanager
    def asked_often(self) -> Iterator[None]:
        """Within it the views (see :meth:`sql`) are worked out once and kept, in a file of a temporary folder: for many
        questions to a large run. The answers are the same.
        """
        kept = Kept()
        with self._lock:
            snapshot = self._look()
            snapshot.let_go()
            snapshot.kept = kept
        try:
            yield
        finally:
            with self._lock:
                if self._snapshot is not None:
                    self._snapshot.kept = None
                    self._snapshot.let_go()
            kept.close()

    def _ask(self, query_text: str, parameters: object, *, keep: bool, since: int | None) -> pandas.DataFrame:
        with self._lock:
            snapshot = self._look().copy() if since is None else self._look().since(since)
        with raised_as(_query_error):
            return query(snapshot, query_text, parameters, keep=keep)

    def newest(self, since: int) -> Newest | None:
        """The rows of the moment that is shown of steps from ``since`` on, for :mod:`probe.runs.asked_again`; earlier
        ones may be among them. None where Parquet files have such rows.

        Args:
            since: The first of the steps.
        """
        with self._lock:
            return self._look().since(since).newest

    def _again(self, *, damage: bool = True) -> bool:
        """After a failure: look anew where files were compacted since the last look, or are damaged; False where none
        were.
        """
        with self._lock:
            if self._closed or self._snapshot is None:
                return False
            if not self._snapshot.compacted_since() and not (damage and self._files.examine()):
                return False
            self._fresh = False
            return True

    def refresh(self) -> Self:
        """Take a new look at the files. Returns the run itself."""
        with self._lock:
            self._fresh = False
            self._frames = {}
            self._look()
        return self

    def has(self, table: str) -> bool:
        """Whether there are rows of a table, without reading any; of an attempt that is hidden, too.

        Args:
            table: By name.
        """
        with self._lock:
            return self._look().has(self._known(table))

    def moment(self) -> Moment:
        """The moment that is shown, to be compared with a later one by :meth:`changed`."""
        with self._lock:
            return self._look().moment()

    def changed(self, before: Moment) -> Changed | None:
        """Which steps have got rows since a moment.

        Args:
            before: Of :meth:`moment`, before a :meth:`refresh`.

        Returns:
            The first and the last of these steps by table, of tables with new rows; None where any step may differ,
            such as after the begin of an attempt that hides some of an older one's.
        """
        with self._lock:
            return self._look().changed(before)

    def _look(self) -> Snapshot:
        if self._closed:
            raise RunError(f"run {self.path!r} is closed; open it again")
        if self._snapshot is None:
            self._snapshot = Snapshot(self._files, self.shown_attempt)
        if not self._fresh:
            self._snapshot.refresh()
            self._fresh = True
        return self._snapshot

    # ------------------------------------------------------------------------------------------ about the run

    @property
    def attempts(self) -> list[int]:
        """The attempts (launches of the job) that have written to the run, whatever is shown of them."""
        with self._lock:
            return self._look().attempts

    def attempt(self, number: int) -> Self:
        """One attempt, alone and whole, with the steps that a later one has hidden.

        Args:
            number: Out of :attr:`attempts`.

        Returns:
            A reader of its own.

        Raises:
            InputError: There is no such attempt.
        """
        return type(self)(self.path, number)

    @property
    def hidden(self) -> list[Hidden]:
        """What was recorded more than once: the steps of each attempt that a later one hides."""
        with self._lock:
            return self._look().hidden()

    def attempt_of(self, step: int) -> int | None:
        """The attempt whose rows of a step are shown: the newest that has begun at it or before; None without one.

        Args:
            step: Which.
        """
        with self._lock:
            attempts = self._look().attempts
            if self.shown_attempt is not None or len(attempts) < 2:
                return self.shown_attempt if self.shown_attempt is not None else next(iter(attempts), None)
            return max((one for one, first, _ in self._look().extents() if first <= step), default=None)

    @property
    def ranks(self) -> list[int]:
        """The ranks that have written anything, as the files say now; of several attempts those that are shown."""
        ranks, others = self._places()
        if not self._closed and (others or len(self.attempts) > 1):
            return sorted(int(rank) for rank in self.processes["rank"].dropna().unique())
        return ranks

    @property
    def written_by(self) -> str:
        """How many ranks, and processes without a rank, have written, in words."""
        processes = self.processes
        names = processes["process"][processes["rank"].isna()]
        return words.writers(len(self.ranks), names.map(place_of_process).nunique())

    def _places(self) -> tuple[list[int], int]:
        """The ranks, and how many others, by the names of the files alone, of all attempts."""
        segments, parts = self._files.look()
        places = {one.place: one.rank for one in segments | parts.keys()}
        ranks = sorted(rank for rank in places.values() if rank is not None)
        return ranks, len(places) - len(ranks)

    @property
    def missing_ranks(self) -> list[int]:
        """The ranks that should have written, by the world size that the ranks tell, and have not."""
        processes = self.processes
        sizes = processes["world_size"][processes["rank"].notna()]
        return sorted(set(range(int(sizes.max()) if len(sizes) else 0)) - set(self.ranks))

    @property
    def bad_lines(self) -> int:
        """Lines that are no rows and were skipped. A torn last line isn't one: it's still being written."""
        with self._lock:
            return self._look().bad_lines

    @property
    def damaged(self) -> list[Damaged]:
        """The Parquet files that can't be read and are left out, as far as something has asked for them.

        :func:`probe.runs.files.damage` says it as a sentence, with what helps; it is logged once, too.
        """
        return self._files.damaged

    # ------------------------------------------------------------------------------------------- following it

    def now(self) -> pandas.DataFrame:
        """Where each process is now, or was seen last, also one that was killed: of the newest attempt, or of the one
        that is shown. It is read anew at each call, from a page a process.

        Returns:
            One row a process, with the columns of :class:`probe.runs.now.Now`: ``scope`` is the innermost open scope by
            its path, ``begun_ns`` when it was entered (wall clock), ``alive`` whether the process is there (``None``
            where that can't be told from here), ``closed`` whether it has ended in order, ``heartbeat_ns`` when its
            writer came round last. :func:`probe.runs.now.now` gives the same without pandas.

        Raises:
            RunError: The store doesn't answer.
        """
        import pandas as pd

        frame = pd.DataFrame(self.now_rows(), columns=list(COLUMNS))
        times = [one for one in COLUMNS if one.endswith("_ns")]
        return frame.astype(dict.fromkeys(["rank", "step", "micro_batch", *times], "Int64"))

    def now_rows(self) -> list[dict[str, Any]]:
        """As :meth:`now`, without pandas: one dict a process, None where something isn't known.

        Raises:
            RunError: The store doesn't answer.
        """
        return frame_rows(now(self._files, self.shown_attempt))

    @property
    def answers(self) -> Answers | None:
        """Where answers are kept that hold for this run for good, see :mod:`probe.runs.answers`; None where none are:
        a small run, one on another machine, or one of which a process may still go on.

        Raises:
            RunError: The store doesn't answer.
        """
        with self._lock:
            found = self._look().answers
        if found is None or any(one.ended_ns is None for one in now(self._files, 0)):
            return None
        return found

    def new_rows(self) -> list[Row]:
        """The rows that came since the last call, at first all there are; each exactly once, those that a later attempt
        hides among them: ``row.attempt`` says which it is of. Cheap when there are none.
        """
        with self._lock:
            return self._follower.poll()

    def tail(
        self,
        tables: Iterable[str] | str | None = None,
        *,
        poll_s: float = 0.2,
        stop: Callable[[], bool] | threading.Event | None = None,
        from_start: bool = True,
    ) -> Iterator[Row]:
        """Rows as they are written, each exactly once, for as long as it is asked. What a later attempt has hidden by
        the time that a row is read is left out, as it is of the tables.

        Args:
            tables: Names of the tables that are wanted; None is all.
            poll_s: Seconds between two looks at the files.
            stop: Is asked between looks; when true what is there is still given, and then it ends. None means never.
            from_start: Whether to begin with the rows that are there already; False begins with the next one.

        Raises:
            UnknownNameError: There is no such table.
            InputError: ``poll_s`` isn't positive.
        """
        names = [tables] if isinstance(tables, str) else tables
        wanted = None if names is None else {self._known(name) for name in names}
        if not poll_s > 0:
            raise InputError(f"poll_s: got {poll_s!r}, expected a positive number of seconds")
        follower = Follower(self._files)
        asked = stop.is_set if isinstance(stop, threading.Event) else stop
        shown = Showing(lambda: fresh(self._files), alone=self.shown_attempt)
        if not from_start:
            shown.of(follower.poll())
        return follow(lambda: shown.of(follower.poll()), wanted, poll_s, asked)

    # ----------------------------------------------------------------------------------------------- the rest

    def close(self) -> None:
        """Let go of what was read. Safe to call twice."""
        with self._lock:
            self._closed = True
            self._snapshot = None
            self._frames = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        ranks, others = self._places()
        return f"Run({self.path!r}, project={self.info.project!r}, {words.writers(len(ranks), others)})"

    def _repr_html_(self) -> str:
        if self._closed:
            return f"<code>{escape(repr(self))}</code>"
        with self._lock:
            snapshot = self._look()
            counts = {VIEWS.get(table, table): snapshot.count(table) for table in snapshot.tables}
        counts["processes"] = len(self.processes)
        cells = "".join(f"<tr><td>{name}</td><td>{count:,}</td></tr>" for name, count in counts.items())
        about = f"{self.info.project} / {self.info.experiment or ''} · {self.written_by}"
        return (
            f"<div><strong>{escape(about)}</strong> started {escape(self.info.started_at)}<br>"
            f"<code>{escape(self.path)}</code>"
            f"<table><tr><th>table</th><th>rows</th></tr>{cells}</table></div>"
        )


class _QueryError(InputError):
    """A query failed, and it may be for a file that vanished, or, where ``damage`` says so, for one that is damaged."""

    def __init__(self, message: str, *, damage: bool) -> None:
        super().__init__(message)
        self.damage = damage


def _query_error(error: Exception) -> _QueryError | None:
    """What DuckDB and Arrow say of a query; an answer that was kept needs neither."""
    import duckdb
    import pyarrow as pa

    if not isinstance(error, duckdb.Error | pa.ArrowException):
        return None
    of_the_query = (duckdb.ParserException, duckdb.BinderException, duckdb.PermissionException)
    return _QueryError(f"query: {error}", damage=not isinstance(error, of_the_query))


def _newest(processes: pandas.DataFrame) -> pandas.DataFrame:
    """Of the rows of one process about itself the one that says most: the newest."""
    newest = processes.groupby(["process", "time_ns"], dropna=False)["revision"].transform("max")
    return processes[(processes["revision"] == newest) | (processes["process"] == "")].reset_index(drop=True)
