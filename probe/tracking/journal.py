"""What was logged, in order and on disk, until every backend has it.

In the folder ``tracking`` of the run's directory:

* ``journal-000000000001.jsonl`` …: one line a call of ``log``, numbered; the name holds the first number.
* ``<backend>.at``: the number up to which that backend has everything.
* ``<backend>.refused.jsonl``: calls that a backend refuses though it takes others, with its error.
* ``damaged.jsonl``: lines of the journal that are no calls, put aside by the next process that opens it.

A call is on disk before it is sent. A process that is killed leaves what its backends haven't got, and the next one
that opens the same directory sends it. Without a directory, and while the disk is full, calls wait in memory, up to a
bound.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from probe._io import FileLock, write_atomically
from probe.guard import on_error
from probe.tracking.media import Medium, medium_of, strict_json
from probe.tracking.reports import Reports
from probe.tracking.state import FOLDER, backend_name, file_name, homes

#: A segment that is longer is followed by the next; those that every backend has are deleted.
SEGMENT_BYTES: Final = 8 * 2**20
#: Calls that stay in memory though they are on disk, for the backends that are nearly up to date.
NEAR: Final = 512

#: Where lines are put aside that are no calls.
DAMAGED: Final = "damaged.jsonl"

_SEGMENT = re.compile(r"journal-(\d{12,})\.jsonl")


@dataclass(frozen=True, slots=True)
class Record:
    """One call of ``log``; ``names`` are the backends that it is for, None for all."""

    n: int
    step: int
    wall_ns: int
    names: frozenset[str] | None
    values: Mapping[str, float]
    media: Mapping[str, Medium] = field(default_factory=dict)

    def wanted_by(self, name: str) -> bool:
        """Whether it is for the backend of that name."""
        return self.names is None or name in self.names

    def line(self, **more: Any) -> bytes:
        """As one line of JSON."""
        names = None if self.names is None else sorted(self.names)
        media = {name: one.plain() for name, one in self.media.items()}
        fields = {"n": self.n, "step": self.step, "wall_ns": self.wall_ns, "to": names, "data": self.values}
        return strict_json(fields | ({"media": media} if media else {}) | more).encode() + b"\n"


def record_of(line: bytes) -> Record | None:
    """What :meth:`Record.line` wrote; None for half a line, and for anything else."""
    try:
        found = json.loads(line)
        whole = found["n"], found["step"], found["wall_ns"]
        names = None if found["to"] is None else frozenset(found["to"])
        if not all(type(one) is int and one >= 0 for one in whole) or isinstance(found["to"], str | dict):
            return None
        values = {name: float(value) for name, value in found["data"].items()}
        media = {name: medium_of(plain) for name, plain in found.get("media", {}).items()}
        return Record(*whole, names, values, media)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


class Journal:
    """Calls by number. One thread appends; each backend's thread reads and acknowledges.

    Args:
        directory: The directory of the run; None keeps everything in memory.
        names: Names of the backends. A new one begins at the end, a known one where it was.
        lasting: The backends that are served by a later process too.
        reports: Is told of everything that goes wrong.
        capacity: Calls that are kept in memory where they can't be on disk; then the oldest goes.
        private: Whether the folder is for its owner alone.

    Attributes:
        last: The number of the last call.
        folder: Where it is on disk; None where it isn't.
    """

    def __init__(
        self,
        directory: Path | None,
        names: list[str],
        lasting: set[str],
        reports: Reports,
        capacity: int,
        *,
        private: bool = False,
    ) -> None:
        self._private = private
        self._reports = reports
        self._capacity = capacity
        self._names = names
        self._guard = threading.Lock()  # the window and the cursors
        self._window: deque[Record] = deque()
        self._written = 0  # calls up to that number are on disk
        self._scans: dict[str, tuple[int, Iterator[Record]]] = {}
        self._marks: dict[str, int] = {}  # open <backend>.at
        self._file: int | None = None
        self._size = 0
        self._lock: FileLock | None = None
        self.folder: Path | None = None
        self.last = 0
        self._cursors: dict[str, int] = {}
        self._given: dict[str, int] = {}  # what a backend has in hand
        if directory is not None:
            self._open(directory / FOLDER, lasting)
        for name in names:
            self._cursors.setdefault(name, self.last)

    # ------------------------------------------------------------------------------------------------ opening

    def _open(self, folder: Path, lasting: set[str]) -> None:
        try:
            with on_error(lambda _: self.release()):
                self._lock_and_read(folder, lasting)
        except OSError as error:
            self._tell(f"{folder} can't be written: {error!r}; what can't be sent waits in memory only", error)

    def _lock_and_read(self, folder: Path, lasting: set[str]) -> None:
        folder.mkdir(0o700 if self._private else 0o777, parents=True, exist_ok=True)
        if self._private:  # it may have been there before
            folder.chmod(0o700)
        lock = FileLock(folder / "lock")
        if not lock.acquire():
            self._tell(f"another process has {folder} open; what can't be sent waits in memory only")
            return
        self._lock = lock
        self._put_damaged_aside(folder)
        self.last = self._written = max([_last_number(folder), *_marks(folder).values()])
        known = _marks(folder)
        for name in self._names:
            if name in lasting:
                self._cursors[name] = known.get(name, self.last)
                self._marks[name] = os.open(_mark(folder, name), os.O_RDWR | os.O_CREAT, 0o666)
                os.pwrite(self._marks[name], _mark_text(self._cursors[name]), 0)
        self.folder = folder

    def _put_damaged_aside(self, folder: Path) -> None:
        """Move lines that are no calls out of the journal. A torn last line isn't one: its process was killed."""
        count = 0
        for _, path in sorted(_segments(folder).items()):
            content = path.read_bytes()
            lines = content.splitlines(keepends=True)
            bad = {place for place, line in enumerate(lines) if line.endswith(b"\n") and record_of(line) is None}
            if not bad:
                continue
            count += len(bad)
            with (folder / DAMAGED).open("ab") as file:
                file.writelines(lines[place] for place in sorted(bad))
            write_atomically(path, b"".join(line for place, line in enumerate(lines) if place not in bad))
        if count:
            message = f"{count} damaged lines of {folder} aren't sent; they are moved to {DAMAGED} there"
            self._reports.tell("backend", "journal", message, about="damaged", count=count)

    def _tell(self, message: str, error: BaseException | None = None) -> None:
        self._reports.tell("backend", "journal", message, about="journal", error=error)

    # ---------------------------------------------------------------------------------------------- appending

    def append(
        self,
        step: int,
        wall_ns: int,
        names: frozenset[str] | None,
        values: Mapping[str, float],
        media: Mapping[str, Medium],
    ) -> None:
        """Number one call and write it. What the disk doesn't take stays in memory and is written later."""
        record = Record(self.last + 1, step, wall_ns, names, values, media)
        with self._guard:
            self._window.append(record)
        self._write()
        self.last = record.n  # from here on backends may ask for it
        self._trim()

    def write_rest(self) -> None:
        """Try once more to write what waits in memory; no call comes any more. On the thread that appends."""
        if self._lock is not None and self._window and self._written < self._window[-1].n:
            self._write()

    def _write(self) -> None:
        if self.folder is None:
            return
        try:
            for record in self._unwritten():
                self._write_one(self.folder, record)
                self._written = record.n
        except OSError as error:
            self._tell(f"{self.folder} takes no more: {error!r}; calls wait in memory until it does", error)

    def _unwritten(self) -> list[Record]:
        with self._guard:
            newest = self._window[-1]
            if self._written == newest.n - 1:
                return [newest]
            return [record for record in self._window if record.n > self._written]

    def _write_one(self, folder: Path, record: Record) -> None:
        file = self._file
        if file is None or self._size > SEGMENT_BYTES:
            file = self._next_segment(folder, record.n)
        line = record.line()
        try:
            written = os.write(file, line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were taken")
        except OSError:
            self._file = None
            os.ftruncate(file, self._size)  # where that fails too, the next line begins a new file
            self._file = file
            raise
        self._size += len(line)

    def _next_segment(self, folder: Path, first: int) -> int:
        # Always a new file: the last one of a killed process may end in half a line.
        # A pipe of that name is an error, as it would hold its writer.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | getattr(os, "O_NONBLOCK", 0)
        new = os.open(folder / f"journal-{first:012d}.jsonl", flags, 0o666)
        old, self._file, self._size = self._file, new, 0
        if old is not None:
            os.close(old)
        self._delete_done(folder, first)
        return new

    def _delete_done(self, folder: Path, current: int) -> None:
        """Delete the segments that every backend has, those of earlier processes included."""
        done = min(_marks(folder).values(), default=self._written)
        segments = sorted(_segments(folder).items())
        for place, (first, path) in enumerate(segments):
            after = segments[place + 1][0] if place + 1 < len(segments) else current
            if first < current and after - 1 <= done:
                path.unlink(missing_ok=True)

    def _trim(self) -> None:
        lost: list[Record] = []
        with self._guard:
            slowest = min(self._cursors.values(), default=self.last)
            while self._window and (oldest := self._window[0]).n < self.last:
                if oldest.n > slowest:
                    on_disk = oldest.n <= self._written
                    if len(self._window) <= (NEAR if on_disk else self._capacity):
                        break
                    if not on_disk:
                        lost.append(oldest)
                self._window.popleft()
        for record in lost:
            self._tell_lost(record)

    def _tell_lost(self, record: Record) -> None:
        for name, cursor in self._cursors.items():
            if max(cursor, self._given.get(name, 0)) < record.n and record.wanted_by(name):
                message = f"is behind by {self._capacity} calls: the oldest is dropped"
                self._reports.tell("dropped_rows", name, message)

    # ------------------------------------------------------------------------------------------------ reading

    def after(self, name: str, n: int) -> Record | None:
        """The first call after number ``n`` that is for that backend."""
        while n < self.last:
            record = self._near(n) or self._far(self.folder, name, n)
            if record is None or record.wanted_by(name):
                self._given[name] = n if record is None else record.n
                return record
            n = record.n
        return None

    def _near(self, n: int) -> Record | None:
        """From memory. None where disk has it, or nobody."""
        with self._guard:
            first = self._window[0].n if self._window else self.last + 1
            if first <= n + 1:
                place = n + 1 - first
                return self._window[place] if place < len(self._window) else None
            if self.folder is not None and n < self._written:
                return None
            return self._window[0] if self._window else None  # what came before is gone

    def _far(self, folder: Path | None, name: str, n: int) -> Record | None:
        """From disk, where a backend is far behind, or an earlier process left it."""
        at, scan = self._scans.pop(name, (-1, iter(())))
        if at != n and folder is not None:
            scan = _scan(folder, n)
        record = next(scan, None)
        if folder is not None and record is not None and record.n != n + 1:  # what was read ahead has changed since
            scan = _scan(folder, n)
            record = next(scan, None)
        if record is None:  # somebody deleted or changed the files
            return self._oldest(n)
        self._scans[name] = (record.n, scan)
        return record

    def _oldest(self, n: int) -> Record | None:
        with self._guard:
            return next((record for record in self._window if record.n > n), None)

    def cursor(self, name: str) -> int:
        """The number up to which that backend has everything."""
        return self._cursors[name]

    def waiting(self, name: str) -> int:
        """How many calls that backend hasn't got. On any thread."""
        cursor = self._cursors[name]
        with self._guard:
            near = [record for record in self._window if record.n > cursor]
        count = sum(record.wanted_by(name) for record in near)
        first = near[0].n if near else self.last + 1
        if self.folder is not None and cursor + 1 < first:
            far = itertools.takewhile(lambda record: record.n < first, _scan(self.folder, cursor))
            count += sum(record.wanted_by(name) for record in far)
        return count

    def unwritten(self, name: str) -> int:
        """How many calls neither that backend has got nor the disk. On any thread."""
        with self._guard:
            seen = max(self._cursors[name], self._written)
            return sum(record.n > seen and record.wanted_by(name) for record in self._window)

    # ------------------------------------------------------------------------------------------ acknowledging

    def settle(self, name: str, n: int) -> None:
        """That backend was sent everything up to number ``n``; :meth:`note` makes the next process know."""
        self._cursors[name] = n

    def note(self, name: str, n: int) -> None:
        """That backend has everything up to number ``n``, whatever happens to this process."""
        mark = self._marks.get(name)
        if mark is not None:
            try:
                os.pwrite(mark, _mark_text(n), 0)
            except OSError as error:
                self._tell(f"{self.folder}: what {name} has can't be noted: {error!r}", error)

    def refuse(self, name: str, record: Record, error: BaseException) -> Path | None:
        """Put a call aside that the backend refuses; returns the file, None where it couldn't be written."""
        if self.folder is None:
            return None
        path = self.folder / f"{file_name(name)}.refused.jsonl"
        try:
            with path.open("ab") as file:
                file.write(record.line(error=repr(error)))
        except OSError:
            return None
        return path

    def close(self) -> None:
        """Delete what every backend has, and let go of the directory."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self.folder is not None:
            with contextlib.suppress(OSError):  # the run is over, and the next start deletes it
                self._delete_done(self.folder, self.last + 1)
        self._scans.clear()
        self.release()

    def release(self) -> None:
        """Let go of the directory, whatever is in it. Safe to call twice."""
        for mark in self._marks.values():
            os.close(mark)
        self._marks.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def in_use(directory: Path) -> bool:
    """Whether a process, this one included, has that run's directory open."""
    path = directory / FOLDER / "lock"
    if not path.exists():
        return False
    lock = FileLock(path)
    ours = lock.acquire()
    lock.release()
    return not ours


def records_in(directory: Path) -> Iterator[Record]:
    """All calls that a run's directory still holds, in order. Reads only."""
    return _scan(directory / FOLDER, 0)


def unsent(directory: Path) -> dict[str, int]:
    """How many calls each backend of a run's directory hasn't got, of all attempts. Reads only.

    What a process that is still running is about to send counts too.
    """
    counts: Counter[str] = Counter()
    for home in homes(directory).values():
        counts.update(unsent_of(home))
    return dict(counts)


def unsent_of(home: Path) -> dict[str, int]:
    """The same of one attempt; see :func:`probe.tracking.state.home_of`."""
    folder = home / FOLDER
    counts: dict[str, int] = {}
    for name, mark in _marks(folder).items():
        count = sum(record.wanted_by(name) for record in _scan(folder, mark))
        if count:
            counts[name] = count
    return counts


def _mark(folder: Path, name: str) -> Path:
    return folder / f"{file_name(name)}.at"


def _mark_text(n: int) -> bytes:
    return f"{n:020d}\n".encode()  # always as long: it is overwritten in place, on a full disk too


def _marks(folder: Path) -> dict[str, int]:
    marks: dict[str, int] = {}
    for path in filter(Path.is_file, folder.glob("*.at")):
        text = path.read_text(encoding="ascii", errors="replace").strip()
        if text.isdigit():
            marks[backend_name(path.name.removesuffix(".at"))] = int(text)
    return marks


def _segments(folder: Path) -> dict[int, Path]:
    found = ((_SEGMENT.fullmatch(path.name), path) for path in folder.glob("journal-*.jsonl"))
    return {int(match[1]): path for match, path in found if match and path.is_file()}  # a pipe would hold its reader


def _last_number(folder: Path) -> int:
    for _, path in sorted(_segments(folder).items(), reverse=True):
        numbers = [record.n for record in map(record_of, path.read_bytes().splitlines()) if record]
        if numbers:
            return max(numbers)
    return 0


def _scan(folder: Path, n: int) -> Iterator[Record]:
    """Calls on disk after number ``n``, in order."""
    firsts = sorted(_segments(folder).items())
    for place, (_, path) in enumerate(firsts):
        if place + 1 < len(firsts) and firsts[place + 1][0] <= n + 1:
            continue  # all of it is before
        try:
            with path.open("rb") as file:
                for line in file:
                    record = record_of(line)
                    if record is not None and record.n > n:
                        n = record.n
                        yield record
        except FileNotFoundError:
            continue
    yield from _rest(folder, n, firsts)


def _rest(folder: Path, n: int, seen: list[tuple[int, Path]]) -> Iterator[Record]:
    """Segments that were begun while the others were read."""
    if len(_segments(folder)) and max(_segments(folder)) > (seen[-1][0] if seen else 0):
        yield from _scan(folder, n)
