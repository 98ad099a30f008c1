"""Rows of a run as they are written, without those that a later attempt hides: what ``run.tail()`` gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from probe.records import Process, Row
from probe.runs.files import RunFiles
from probe.runs.lines import table_of
from probe.runs.snapshot import Snapshot
from probe.runs.visibility import Shown


def fresh(files: RunFiles) -> Snapshot:
    """What the files hold now."""
    snapshot = Snapshot(files)
    snapshot.refresh()
    return snapshot


class Showing:
    """Which of the rows that come are shown.

    Args:
        look: Takes a look at the run.
        alone: The only attempt that is shown; None is what the newest has not hidden of each.
    """

    def __init__(self, look: Callable[[], Snapshot], *, alone: int | None) -> None:
        self._look = look
        self._alone = alone
        self._shown = Shown()
        self._wall_ns: dict[str, int] = {}  # of each process, at its monotonic 0

    def of(self, rows: list[Row]) -> list[Row]:
        """Those of ``rows``, which have come since the last call."""
        for row in rows:
            if isinstance(row, Process):
                self._wall_ns[row.process] = row.wall_ns - row.time_ns
        if self._alone is not None:
            return [row for row in rows if row.attempt == self._alone]
        if self._shown.hides_more(rows):
            self._shown = self._look().shown_from_now()
        return [row for row in rows if self._shown.shows(row, row.time_ns + self._wall_ns.get(row.process, 0))]


def follow(
    poll: Callable[[], list[Row]], wanted: set[str] | None, poll_s: float, stop: Callable[[], bool] | None
) -> Iterator[Row]:
    """The rows that ``poll`` gives of the wanted tables, until ``stop`` says so.

    Args:
        poll: Gives what has come since it was asked last.
        wanted: Names of the tables; None is all.
        poll_s: Seconds between two looks.
        stop: Is asked between looks; when true what is there is still given. None means never.
    """
    while True:
        last = stop is not None and stop()
        for row in poll():
            if wanted is None or table_of(row) in wanted:
                yield row
        if last:
            return
        if stop is None or not stop():
            time.sleep(poll_s)
