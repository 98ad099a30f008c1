"""The JSONL file that one process appends to, and what happens when the disk says no."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from pathlib import Path
from typing import Final

from probe._io import lock_descriptor, write_atomically
from probe.records import Incident, Process
from probe.runs.layout import INFO_NAME, PARTS_NAME, Segment, part_of, process_name, segment_of
from probe.runs.lines import decode, encode
from probe.runs.manifest import decode_manifest, manifest_name, newest_manifest
from probe.runs.row_types import table_name
from probe.runs.shedding import Shedding

#: Rows that go to the operating system in one call. What is taken for one call can't be dropped any more.
ROWS_PER_WRITE: Final = 4096


#: Bytes that are written at the end to a disk that is full, of a line that has begun, and of incidents.
LAST_BYTES: Final = 4 * 2**10


class SegmentFile:
    """Appends lines to a segment of ``place`` that nobody else writes to.

    Lines wait in :attr:`backlog` until the operating system has taken them. A write that stops half-way (a
    full disk) goes on at the very byte, so that no line is torn or doubled for those who follow the file.

    Args:
        directory: The run directory.
        place: Whose segments they are, of a rank or of a name.
        process: Who writes; begins every segment. It gets its name by the first one.
        backlog: Where lines wait, and are dropped when there are too many.
    """

    def __init__(self, directory: Path, place: str, process: Process, backlog: Shedding) -> None:
        self.directory = directory
        self.place = place
        self.backlog = backlog
        self.segment: Segment | None = None
        self.size = 0  #: bytes in the file
        self._process = process
        self._descriptor = -1
        self._half_written = b""
        self._at_line_start = True  # whether _half_written begins with the first byte of a line
        self._info, self._private = b"", False
        with contextlib.suppress(OSError):
            self._info = (directory / INFO_NAME).read_bytes()
            self._private = not (directory / INFO_NAME).stat().st_mode & 0o077

    @property
    def waiting(self) -> bool:
        """Whether there are lines that the operating system hasn't taken."""
        return bool(self._half_written) or len(self.backlog) > 0

    def take(self, lines: bytes) -> bool:
        """Take whole lines that go to the operating system in one call, and can't be dropped any more.

        Returns:
            False where other lines wait: these belong behind them, into :attr:`backlog`.
        """
        if self.waiting:
            return False
        self._half_written = lines
        return True

    def write(self) -> None:
        """Hand all waiting lines to the operating system.

        Raises:
            OSError: It takes no more; what it did take is remembered, and the next call goes on from there.
        """
        if not self.waiting:
            return
        if self._descriptor < 0:
            self.open()
        while self.waiting:
            if not self._half_written:
                self._half_written = b"".join([one.content for one in self.backlog.pop_entries(ROWS_PER_WRITE)])
            taken = os.write(self._descriptor, self._half_written)
            self._at_line_start = self._half_written[taken - 1 : taken] == b"\n"
            self._half_written = self._half_written[taken:]
            self.size += taken

    def give_up(self) -> tuple[Counter[str], bytes]:
        """Throw away what waits, but for the rest of a line that has begun.

        Returns:
            How many rows were thrown away, by table, those included that incidents among them tell of; and the lines of
            other incidents, up to :data:`LAST_BYTES`, which aren't counted.
        """
        begun = 0 if self._at_line_start else self._half_written.find(b"\n") + 1
        lines = self._half_written[begun:].splitlines(keepends=True)
        self._half_written = self._half_written[:begun] if begun <= LAST_BYTES else b"\n"
        while len(self.backlog):
            lines.extend(one.content for one in self.backlog.pop_entries(ROWS_PER_WRITE))
        lost: Counter[str] = Counter()
        kept = b""
        for line in lines:
            row = decode(line)
            if isinstance(row, Incident) and row.kind == "dropped_rows":
                lost[row.where] += row.count
            elif isinstance(row, Incident) and len(kept) + len(line) <= LAST_BYTES:
                kept += line
            elif row is not None:
                lost[table_name(type(row))] += 1
        return lost, kept

    def write_last(self, lines: bytes) -> None:
        """Hand the rest of a line that has begun, and ``lines``, to the operating system: into this file, or where it
        takes no more into a new one.

        Raises:
            OSError: It takes neither.
        """
        rest, self._half_written = self._half_written, b""
        try:
            self._write_whole(rest + lines)
        except OSError:
            begun = self._torn() if rest else b""
            self._at_line_start = True
            self.open()
            first, self._half_written = self._half_written, b""
            self._write_whole(first + (begun + rest if begun else b"") + lines)

    def _torn(self) -> bytes:
        """What the file holds of a line that has no end."""
        if self.segment is None:
            return b""
        return (self.directory / self.segment.name).read_bytes().rpartition(b"\n")[2]

    def _write_whole(self, data: bytes) -> None:
        if self._descriptor < 0:
            self.open()
            data, self._half_written = self._half_written + data, b""
        size = os.fstat(self._descriptor).st_size
        taken = os.write(self._descriptor, data)
        if taken != len(data):
            os.ftruncate(self._descriptor, size)
            raise OSError(errno.ENOSPC, f"only {taken} of {len(data)} bytes were written")

    def lost(self) -> bool:
        """Whether somebody deleted the file under us: what is written to it is gone."""
        return self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink == 0

    def open(self) -> None:
        """Begin a new segment, in a directory that is made again should it have gone.

        Raises:
            OSError: It can't be made.
        """
        self.close()
        (self.directory / PARTS_NAME).mkdir(parents=True, exist_ok=True)
        if self._info and not (self.directory / INFO_NAME).exists():
            write_atomically(self.directory / INFO_NAME, self._info, overwrite=False, private=self._private)
        self.segment, self._descriptor = claim(self.directory, self.place, _next_number(self.directory, self.place))
        if not self._process.process:  # nobody else ever has this segment, so nobody has this name
            self._process.process = process_name(*self.segment)
        lock_descriptor(self._descriptor)  # until it is closed or we die: so compaction knows that somebody writes here
        self.size = 0
        # The rest of a line that began in a file that is gone would be torn here.
        end = 0 if self._at_line_start else self._half_written.find(b"\n") + 1
        self._half_written = encode(self._process) + self._half_written[end:]
        self._at_line_start = True

    def finish(self) -> Segment | None:
        """End the segment and return it, None where there is none. What waits goes into the next one."""
        self.close()
        finished, self.segment, self.size = self.segment, None, 0
        return finished

    def close(self) -> None:
        """Let go of the file. What waits stays."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def _next_number(directory: Path, place: str) -> int:
    taken = (found.number for found in _segments(directory) if found.place == place)
    return max(taken, default=-1) + 1


def claim(directory: Path, place: str, number: int) -> tuple[Segment, int]:
    """The first segment of ``place``, from ``number`` on, that nobody has or had; and its new file, opened for
    appending.
    """
    while True:
        segment = Segment(place, number)
        path = directory / segment.name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            number += 1
            continue
        # Another process may have rolled its segment of this number over between our look and our claim.
        # Its parts were there before its file went, so a second look sees them; readers ignore an empty file.
        if segment not in _segments(directory, files=False):
            return segment, descriptor
        path.unlink()
        os.close(descriptor)
        number += 1


def _segments(directory: Path, *, files: bool = True) -> set[Segment]:
    found: set[Segment] = set()
    if files:
        found.update(filter(None, (segment_of(path.name) for path in directory.iterdir())))
    with os.scandir(directory / PARTS_NAME) as entries:
        names = [one.name for one in entries if one.is_file()]
    found.update(part[1] for part in map(part_of, names) if part is not None)
    return found | _compacted(directory / PARTS_NAME, names)


def _compacted(folder: Path, names: list[str]) -> set[Segment]:
    """The segments that the newest manifest names, which may be newer than the listing."""
    number = newest_manifest(names)
    found: set[Segment] = set()
    while True:
        path = folder / manifest_name(number)
        with contextlib.suppress(FileNotFoundError):
            found = decode_manifest(path.read_bytes(), str(folder)).segments()
        number += 1
        if not (folder / manifest_name(number)).is_file():
            return found
