"""Rows on their way to a disk, which may say no for a while or lose the file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from probe.guard import Guard, attempt
from probe.hooks import Scope, current_scope
from probe.records import Incident, Row
from probe.runs.attempts import Joined
from probe.runs.incidents import Incidents
from probe.runs.lines import encode, encode_all, table_of
from probe.runs.segment_file import ROWS_PER_WRITE, SegmentFile
from probe.runs.shedding import kind_of

_log = logging.getLogger("probe.runs")

#: Between two tries to write while the disk says no.
RETRY_S: Final = 0.5


def _one_by_one(error: Exception) -> None:
    """One of the rows has what can't be written: which, is found where each is written for itself."""


class Disk:
    """Writes the rows of one writer, and tells once when that fails and when it works again. Only for the writer's
    thread.

    Args:
        file: Where the lines go.
        report: Is told of what goes wrong.

    Attributes:
        file: Where the lines go.
    """

    def __init__(self, file: SegmentFile, report: Incidents) -> None:
        self.file = file
        self._directory = file.directory
        self._report = report
        self._guards: dict[str, Guard] = {}  # by table
        self._since: float | None = None  # it takes nothing
        self._retry_at = 0.0

    @property
    def takes(self) -> bool:
        """Whether it has taken what came last."""
        return self._since is None

    def put_down(self, rows: list[Row], last: bool) -> None:
        """Write rows, and what waits from before.

        Args:
            rows: Stamped.
            last: Whether the disk is asked though it has just refused.
        """
        for begin in range(0, max(len(rows), 1), ROWS_PER_WRITE):  # without rows, what waits is tried again
            self._encode(rows[begin : begin + ROWS_PER_WRITE])
            self._write(last)

    def _encode(self, rows: list[Row]) -> None:
        """Into one piece, where all of them can be written and nothing waits before them."""
        if not self.file.waiting:
            lines = attempt(lambda: encode_all(rows), _one_by_one)
            if lines is not None:
                self.file.take(lines)
                return
        for row in rows:
            with self._guard(table_of(row)):  # whatever a recorder put in a field: the others are written
                self.file.backlog.add(*kind_of(row), encode(row))

    def _guard(self, table: str) -> Guard:
        found = self._guards.get(table)
        if found is None:
            found = self._guards[table] = self._report.guard(table, f"a row of {table} can't be written")
        return found

    def _write(self, last: bool) -> None:
        if self._since is not None and time.monotonic() < self._retry_at and not last:
            return
        try:
            if self.file.lost():
                self.file.close()
                self._tell_lost()
            self.file.write()
        except OSError as error:
            self._unwritable(error)
        else:
            self._writable()

    def _unwritable(self, error: OSError) -> None:
        self._retry_at = time.monotonic() + RETRY_S
        if self._since is None:
            self._since = time.monotonic()
            _log.error("rows can't be written to %s: %s; they are kept and tried again", self._directory, error)
            message = f"rows could not be written for some time: {error}"
            self._report("writer", str(self._directory), message, error)

    def _writable(self) -> None:
        if self._since is not None:
            seconds = time.monotonic() - self._since
            self._since = None
            _log.warning("rows are written to %s again, after %.1f s", self._directory, seconds)

    def _tell_lost(self) -> None:
        message = f"the rows' file in {self._directory} was deleted by someone, with the rows written so far"
        _log.error("%s; a new one is begun", message)
        self._report("writer", str(self._directory), message)

    def give_up(self, places: Iterable[Joined], stamp: Callable[[Row, Scope, int], Row]) -> None:
        """The disk is full to the end: the run itself says what it lacks, in the room that was kept for that.

        Args:
            places: Of the process, which have kept that room.
            stamp: Stamps the rows that say it.
        """
        lost, lines = self.file.give_up()
        for table, count in sorted(lost.items()):
            message = f"{count} rows of {table} are lost: the disk was full to the end"
            _log.error("%s: %s", self._directory, message)
            row = Incident(kind="dropped_rows", where=table, message=message, count=count)
            lines += encode(stamp(row, current_scope(), time.monotonic_ns()))
        try:
            for place in places:
                place.make_room()
            self.file.write_last(lines)
        except OSError as error:
            _log.error("%s: this message can't be written there either: %s", self._directory, error)
        self.file.close()
