"""The writer: the one thread of a process that turns what happened into lines on disk.

The training thread only appends to a queue. Everything else happens in the writer's thread, a few times a
second: deferred rows are built, rows are stamped, written and shown to the session. Only a file that has grown large
becomes Parquet in a thread of its own, so that lines are written meanwhile. Nothing that goes wrong
here reaches training: a full disk, a directory that was removed or a callback that raises is counted, logged
once, told as an :class:`~probe.records.Incident` row, and the thread goes on.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from probe.errors import InputError, RunError
from probe.exits import at_end
from probe.guard import Guard
from probe.hooks import PROCESS, Scope, current_scope, silenced
from probe.records import Process, Row, Unbuilt, stamp, stamp_all
from probe.runs.attempts import Joined, take_place, take_rank
from probe.runs.deferred import DeferredRows
from probe.runs.disk import Disk
from probe.runs.incidents import Incidents
from probe.runs.lines import encode
from probe.runs.marks import Marks
from probe.runs.now_file import NowFile
from probe.runs.parts import sweep
from probe.runs.rolling import RollOvers
from probe.runs.segment_file import ROWS_PER_WRITE, SegmentFile
from probe.runs.shedding import KEPT, KINDS, Entry, Shedding, kind_of
from probe.runs.watchdog import Watchdog

_log = logging.getLogger("probe.runs")

#: With more rows than that waiting at a mark, which a session puts at the end of each step, a round begins at once.
#: Where steps are fast, rounds are short then: none is held up for long by the interpreter's lock, and what waits
#: is too little to start many collections of garbage. Half as many rows would start fewer still, but a round takes half
#: a millisecond of CPU time even where it has little to write.
SOON: Final = 128

Item = Row | Unbuilt | Iterable[Any] | None


class RunWriter:
    """Writes the rows of this process into a run directory, from a thread of its own.

    After ``kill -9`` at most half a second of rows is missing: they are handed to the operating system every
    ``interval_s``. (They are not synced, so a power cut may take more.) A forked child has no writer: what
    it puts is ignored.

    Args:
        directory: A run directory, as :func:`probe.runs.layout.create_run` makes it.
        rank: Of this process, None where it has none: then it is known by the process's ``name``.
        process: Who writes; begins every file. It gets what it is called here, by the place that it takes.
        capacity: Rows that may wait. Beyond it the oldest are dropped, sampled tables first, incidents never; the
            number dropped is told by an incident row of kind ``"dropped_rows"``.
        interval_s: Seconds between two rounds of the thread.
        roll_over_bytes: A JSONL file larger than this becomes Parquet (where pyarrow is there), and a new one begins.
        on_rows: Called in the thread with the stamped rows of each round.
        tick: Called in the thread every ``sample_interval_s``; the rows it returns are written.
        tick_scope: Where these rows happened, asked before and after ``tick``. If its step changed: of no step.
        sample_interval_s: Seconds between two calls of ``tick``.
        place: Of this process in its attempt; None takes it: see :func:`~probe.runs.attempts.take_place`.
        parquet_at_close: Whether what is left as lines becomes Parquet at the end. A process that others wait for, such
            as a loader's worker, leaves it to compaction.
        before_round: Called in the thread before each round: what it tells of the process stands before those rows.

    Attributes:
        directory: The run directory, absolute.
        now: Where the process is now, beside its rows; None where the directory takes no such file.

    Raises:
        InputError: An argument is out of its range.
        RunError: The directory can't be written to.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        rank: int | None,
        process: Process,
        capacity: int = 200_000,
        interval_s: float = 0.35,
        roll_over_bytes: int = 64 * 2**20,
        on_rows: Callable[[list[Row]], None] | None = None,
        tick: Callable[[], Iterable[Any] | None] | None = None,
        tick_scope: Callable[[], Scope] = current_scope,
        sample_interval_s: float = 0.5,
        place: Joined | None = None,
        parquet_at_close: bool = True,
        before_round: Callable[[], None] | None = None,
    ) -> None:
        _check(rank=rank or 0, capacity=capacity, interval_s=interval_s, roll_over_bytes=roll_over_bytes)
        self.directory = Path(directory).absolute()
        self._cpu_ns = 0  # that the thread has used
        self._interval_s = interval_s
        self._queue = Shedding(capacity)
        self._report = Incidents(self._queue)
        self._on_rows = self._guarded("on_rows", on_rows)
        self._tick = self._guarded("tick", tick)
        self._tick_scope = tick_scope
        self._before_round = self._guarded("before_round", before_round)
        self._taking = self._report.guard("put", "rows can't be taken")
        parts = ("_sample", "_round", "_watch", "_finish")
        self._guards = {one: self._report.guard(one, "the writer failed") for one in parts}
        self._sample_interval_s = sample_interval_s
        self._marks = Marks(capacity, self._report)
        self._deferred = DeferredRows(self.add_rows, self._stamp_all, self._report)
        self._late: list[Row] = []  # that callbacks of marks made in this round
        self._awaited: list[threading.Event] = []  # by who waits until its rows are written
        self._parquet_at_close = parquet_at_close
        self._off = False
        self._stop = threading.Event()
        # A plain lock and no Event, whose own lock Ctrl-C in the training thread can leave held for ever.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._lock = threading.Lock()
        self._process = process
        process.rank = rank
        self._place = take_place(self.directory, process) if place is None else place
        self._late_place: Joined | None = None
        try:
            self._file = _open(self.directory, self._place.place, process, Shedding(capacity))
        except RunError:
            self._place.leave()
            raise
        self._disk = Disk(self._file, self._report)
        self._rolling = RollOvers(self._file, roll_over_bytes, self._report)
        self.now = _now_file(self._file, process)
        self._watchdog = None if self.now is None else Watchdog(self.now)
        self._failed, self._exit_code = False, 0
        self._thread = threading.Thread(target=self._run, name="probe-run-writer", daemon=True)
        self._thread.start()
        _alive.add(self)
        _watch_forks()
        self._forget_end = at_end(self.close)
        if self._place.rival is not None:
            self._report.tell_rival(self.directory, self.rank, self._place.rival)

    def _guarded(self, name: str, callback: Callable[..., Any] | None) -> Callable[..., Any]:
        """A callback of the session, which may fail a few times and is switched off then."""
        guard = Guard(name, f"{name} failed", kind="writer", tell=self._report, log=_log)
        return guard(callback or (lambda *_: None))

    # ----------------------------------------------------------------------------------------- for any thread

    @property
    def place(self) -> Joined:
        """What this process has taken in its attempt."""
        return self._place

    @property
    def rank(self) -> int | None:
        """Of this process, None while it isn't known."""
        return self._process.rank

    @property
    def dropped(self) -> dict[str, int]:
        """How many rows were dropped so far, by table (``"deferred"``: not built yet, of an unknown table)."""
        total = dict(self._queue.dropped)
        for table, count in self._file.backlog.dropped.items():
            total[table] = total.get(table, 0) + count
        return total

    @property
    def cost_ns(self) -> int:
        """CPU time that the writer's threads have used, nanoseconds; where its own thread doesn't ask, up to the end of
        its last round.
        """
        if threading.current_thread() is self._thread:
            self._cpu_ns = time.thread_time_ns()
        return self._cpu_ns + self._rolling.cpu_ns

    def add_rows(self, item: Item, scope: Scope, time_ns: int) -> None:
        """Take rows, to be stamped with ``scope`` and ``time_ns`` and written. Returns at once and never raises.

        Args:
            item: A row, a :class:`~probe.records.Deferred`, or any nesting of iterables of them, which are consumed
                here. None and anything added after :meth:`close` are ignored.
            scope: The scope that the rows belong to.
            time_ns: Monotonic nanoseconds, for rows that have no time.
        """
        if self._off and threading.current_thread() is not self._thread:  # its last rounds may still add
            return
        known = KINDS.get(type(item))
        if known is not None:
            self._queue.add(known[0], known[1], item, scope, time_ns)
        elif type(item) is list:  # its rows are taken, or guarded, one by one: it costs nothing more
            for one in item:
                self.add_rows(one, scope, time_ns)
        elif isinstance(item, Row | Unbuilt):  # of a recorder's own; that nobody brings a row's type is told later
            KINDS[type(item)] = kind_of(item)
            self.add_rows(item, scope, time_ns)
        elif item is not None:
            self._add_all(item, scope, time_ns)

    def _add_all(self, items: Iterable[Any], scope: Scope, time_ns: int) -> None:
        with self._taking:  # a recorder's generator, or no iterable at all: it never reaches training
            if isinstance(items, str | bytes):  # an iterable of itself
                raise TypeError(f"row: got {items!r:.200}, expected a probe.records.Row")
            for one in items:
                self.add_rows(one, scope, time_ns)

    def put_through(self, item: Item, scope: Scope, time_ns: int, timeout_s: float = 1.0) -> bool:
        """As :meth:`add_rows`, and wait until the operating system has them: this process may be about to die.

        Args:
            item: As of :meth:`add_rows`.
            scope: As of :meth:`add_rows`.
            time_ns: As of :meth:`add_rows`.
            timeout_s: How long to wait at most.

        Returns:
            False where they may not be written yet.
        """
        self.add_rows(item, scope, time_ns)
        if self._off or threading.current_thread() is self._thread:
            return False
        written = threading.Event()
        self._awaited.append(written)
        self._ring()
        return written.wait(timeout_s)

    def mark(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the writer's thread once everything put before is built, written and seen by
        ``on_rows``. It waits at most :data:`~probe.runs.marks.MARK_WAIT_S` for deferred rows, and not for a disk that
        takes nothing.
        """
        if not self._off:
            self._marks.add(self._queue.next_number(), callback)
            if len(self._queue) > SOON:
                self._ring()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until what was put before can be read by others.

        Returns:
            False when the time ran out, the disk takes nothing, or the writer is closed or called from its
            own thread.
        """
        if self._off or threading.current_thread() is self._thread:
            return False
        reached = threading.Event()
        writable: list[bool] = []

        def arrive() -> None:
            self._write_late(last=False)  # of marks before this one
            writable.append(self._disk.takes)
            reached.set()

        self.mark(arrive)
        self._ring()
        return reached.wait(timeout_s) and writable[0]

    def close(self, timeout_s: float = 10.0, *, failed: bool = False, exit_code: int = 0) -> None:
        """Write what waits, roll the segment over to Parquet and end the thread. Safe to call twice.

        Args:
            timeout_s: After it the thread is left behind; the JSONL file is complete up to then and stays readable.
            failed: Whether an exception has ended the recording.
            exit_code: What the process ends with otherwise, as far as that is known.
        """
        if self._off:
            return
        with self._lock:
            first, self._off = not self._off, True
            self._failed = self._failed or failed
            self._exit_code = self._exit_code or exit_code
        if not first:
            return
        self._forget_end()
        _alive.discard(self)
        self._stop.set()
        self._ring()
        if threading.current_thread() is self._thread:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.warning("the run writer of %s did not end within %s s; it is left behind", self.directory, timeout_s)

    def _ring(self) -> None:
        """A round begins at once."""
        with contextlib.suppress(RuntimeError):  # it has been rung
            self._bell.release()

    def _disable(self) -> None:
        """In a forked child: the thread is gone and the file belongs to the parent."""
        self._off = True
        self._forget_end()
        if self.now is not None:
            self.now.disown()
        try:
            self._file.close()
        except OSError:
            _log.debug("the parent's file could not be closed in a forked child", exc_info=True)

    # ------------------------------------------------------------------------------------ the writer's thread

    def _run(self) -> None:
        with silenced():
            try:
                self._go_round()
                self._isolated("_finish", self._finish)
            finally:
                if self.now is not None:
                    self.now.close(failed=self._failed, exit_code=self._exit_code)
                self._place.leave()
                if self._late_place is not None:
                    self._late_place.leave()
                self._cpu_ns = time.thread_time_ns()

    def _go_round(self) -> None:
        next_tick = 0.0
        while not self._stop.is_set():
            if time.monotonic() >= next_tick and not self._rests():
                next_tick = time.monotonic() + self._sample_interval_s
                self._isolated("_sample", self._sample)
            self._isolated("_round", self._round)
            if self.now is not None:
                self.now.beat()
            self._isolated("_watch", self._watch)
            self._cpu_ns = time.thread_time_ns()
            self._bell.acquire(timeout=self._pause(next_tick))

    def _watch(self) -> None:
        found = None if self._watchdog is None else self._watchdog.look()
        if found is not None:
            self.add_rows(found[0], found[1], time.monotonic_ns())
            self._round()  # what comes next may hold the interpreter's lock for good

    def _rests(self) -> bool:
        """Whether nothing has happened since the rows were sealed: samples alone begin no new file."""
        self._rolling.resting = self._rolling.resting and not len(self._queue)
        return self._rolling.resting

    def _pause(self, next_tick: float) -> float:
        until_tick = self._interval_s if self._rolling.resting else max(next_tick - time.monotonic(), 0.0)
        pause = min(self._interval_s, until_tick)
        return min(pause, 0.01) if self._marks.waiting else pause

    def _isolated(self, name: str, action: Callable[[], None]) -> None:
        with self._guards[name]:
            action()
            return
        self._stop.wait(self._interval_s)  # the next round may fail at once, too

    def _round(self, *, last: bool = False) -> None:
        self._before_round()
        self._report.tell_dropped(self.dropped)
        self._marks.take()  # first: what was put before a mark that is seen here is in the queue already
        awaited, self._awaited = self._awaited, []  # their rows are in the queue already
        entries = self._queue.pop_entries()
        rows: list[Row] = []
        for begin in range(0, len(entries), ROWS_PER_WRITE):
            if begin:  # the disk has the first before the last are stamped
                self._take_in(rows, last)
            rows = self._stamped(entries[begin : begin + ROWS_PER_WRITE])
        rows += self._deferred.built(last)
        self._take_in(rows, last)  # one write: it waits for the interpreter's lock after each
        for one in awaited:
            one.set()
        self._marks.call(self._deferred.oldest(), last)
        self._write_late(last)
        if not last:  # at the end of the interpreter no thread can be begun any more
            self._rolling.advance(idle=not self._deferred.entries)

    def _take_in(self, rows: list[Row], last: bool) -> None:
        self._disk.put_down(rows, last)
        if rows:
            self._on_rows(rows)

    def add_late(self, rows: list[Row], scope: Scope, time_ns: int) -> None:
        """Take rows in a callback of :meth:`mark`: they are written in the same round, and ``on_rows`` isn't told.

        Args:
            rows: Of a session that has ended a step, say.
            scope: The scope that they belong to.
            time_ns: Monotonic nanoseconds, for rows that have no time.
        """
        self._stamp_all(rows, scope, time_ns)
        self._late += rows

    def _write_late(self, last: bool) -> None:
        if self._late:
            rows, self._late = self._late, []
            self._disk.put_down(rows, last)

    def _sample(self) -> None:
        before, rows, after = self._tick_scope(), list(self._tick() or ()), self._tick_scope()
        where = after if after.step == before.step else PROCESS  # the step changed during the reading
        self.add_rows(rows, where, time.monotonic_ns())

    def _stamped(self, entries: list[Entry]) -> list[Row]:
        process, rows, deferred = self._process, [], self._deferred.entries
        ours: dict[str, Any] = {"rank": process.rank, "process": process.process, "attempt": process.attempt}
        for one in entries:
            content = one.content
            if isinstance(content, Unbuilt):
                deferred.append(one)
            else:
                stamp_all((content,), one.scope, time_ns=one.time_ns, **ours)
                rows.append(content)
        return rows

    def _stamp(self, row: Row, scope: Scope, time_ns: int) -> Row:
        process = self._process
        return stamp(row, scope, rank=process.rank, time_ns=time_ns, process=process.process, attempt=process.attempt)

    def _stamp_all(self, rows: list[Row], scope: Scope, time_ns: int) -> None:
        process = self._process
        stamp_all(rows, scope, rank=process.rank, time_ns=time_ns, process=process.process, attempt=process.attempt)

    def seal(self) -> None:
        """Make Parquet of what is written, as at the end, and go on with a new file when something happens. Only from
        the writer's thread, where ``before_round`` is called.
        """
        self._rolling.seal()

    def tell(self, **facts: Any) -> None:
        """Say what has become known of this process: its row is written anew, and readers take the newest. Only from
        the writer's thread, where ``before_round`` is called.

        Args:
            **facts: Fields of :class:`~probe.records.Process`, such as its rank.
        """
        had_rank = self._process.rank is not None
        for name, value in facts.items():
            setattr(self._process, name, value)
        self._process.revision += 1
        self._file.backlog.add(KEPT, "process", encode(self._process))
        if self.now is not None:
            self.now.tell(self._process)
        if self._process.rank is not None and not had_rank:
            self._late_place = take_rank(self.directory, self._process)
            if self._late_place.rival is not None:
                self._report.tell_rival(self.directory, self.rank, self._late_place.rival)

    def _finish(self) -> None:
        self._round(last=True)
        self._rolling.settle()
        self._round(last=True)  # what the above had to tell
        if self._file.waiting:
            self._disk.give_up(filter(None, (self._place, self._late_place)), self._stamp)
            return
        self._rolling.finish(parquet=self._parquet_at_close)


def _check(**values: float) -> None:
    for name, value in values.items():
        least = 0 if name == "rank" else 1 if name in ("capacity", "roll_over_bytes") else 0.001
        if not isinstance(value, int | float) or value < least:
            raise InputError(f"{name}: got {value!r}, expected a number of at least {least}")


def _now_file(file: SegmentFile, process: Process) -> NowFile | None:
    """Where the process is now, beside its rows; None where the directory takes no such file."""
    if file.segment is None:
        return None
    try:
        return NowFile(file.directory / file.segment.now_name, process)
    except (OSError, ValueError) as error:
        _log.warning("%s: the scope that this process is in can't be recorded: %s", file.directory, error)
        return None


def _open(directory: Path, place: str, process: Process, backlog: Shedding) -> SegmentFile:
    file = SegmentFile(directory, place, process, backlog)
    try:
        file.open()
        file.write()
        sweep(directory)
    except OSError as error:
        raise RunError(f"directory: {str(directory)!r} can't be written to: {error}") from error
    return file


_alive: Final[weakref.WeakSet[RunWriter]] = weakref.WeakSet()


@functools.cache  # once in a process
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    for writer in list(_alive):
        writer._disable()
    _alive.clear()
