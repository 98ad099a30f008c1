"""Rows that a writer builds later: when a device has answered, or at the end without it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from probe.guard import Guard
from probe.hooks import Scope
from probe.records import Row, Unbuilt
from probe.runs.incidents import Incidents
from probe.runs.shedding import Entry

_log = logging.getLogger("probe.runs")

#: Longest that the end waits for a device to come to the end of what was queued there.
LAST_WAIT_S: Final = 1.0


def _lacks_all(item: Unbuilt) -> bool:
    """Whether nothing of it can be told before it is ready."""
    return not item.partial


def _isnt_ready(item: Unbuilt) -> bool:
    return item.ready is not None and not item.ready()


class DeferredRows:
    """The deferred items of one writer that it has taken from its queue. Only for the writer's thread.

    Args:
        add_rows: Takes what is deferred among the rows that were built.
        stamp_all: Stamps the rows that were built.
        report: Is told of what fails or is given up.

    Attributes:
        entries: Those that aren't built yet, in their order.
    """

    def __init__(
        self,
        add_rows: Callable[[Unbuilt, Scope, int], None],
        stamp_all: Callable[[list[Row], Scope, int], None],
        report: Incidents,
    ) -> None:
        self.entries: list[Entry] = []
        self._add_rows = add_rows
        self._stamp_all = stamp_all
        self._report = report
        self._building: Unbuilt | None = None
        self._guard = Guard("build", "deferred rows failed", kind="deferred", tell=self._tell, most=None, log=_log)

    def _tell(self, kind: str, where: str, message: str, error: BaseException | None, count: int, off: bool) -> None:
        where = where if self._building is None else _name(self._building)
        self._report.each(kind, where, message, error, count, off)

    def oldest(self) -> int | None:
        """The smallest number of those that aren't built yet; None where all are."""
        return min((one.number for one in self.entries), default=None)

    def built(self, last: bool) -> list[Row]:
        """Rows of the deferred items that are ready. At the end the device may still be at work: it gets a moment, then
        rows are written without what it would have told, and those that can't be are given up.

        Args:
            last: Whether it is the end.
        """
        rows = self._made_of_ready()
        deadline = time.monotonic() + LAST_WAIT_S
        while last and self.entries and time.monotonic() < deadline:
            time.sleep(0.005)
            rows += self._made_of_ready()
        if last:
            rows += self._made_of_ready(but=_lacks_all)
        waiting = self.entries
        if last and waiting:
            message = f"{len(waiting)} deferred rows were not ready when the run closed, and are missing"
            self._report("deferred", "close", message, count=len(waiting))
            self.entries = []
        return rows

    def _made_of_ready(self, but: Callable[[Any], bool] = _isnt_ready) -> list[Row]:
        """Rows of the deferred items, but of those that ``but`` holds back."""
        rows: list[Row] = []
        waiting: list[Entry] = []
        left = iter(self.entries)
        while not self._make(left, but, rows, waiting):
            pass
        self._building = None  # it holds what its rows are made of
        self.entries = waiting
        return rows

    def _make(self, left: Iterator[Entry], but: Callable[[Any], bool], rows: list[Row], waiting: list[Entry]) -> bool:
        """Build what is left, up to one that fails, for which nothing has to be guarded item by item.

        Returns:
            Whether nothing is left.
        """
        with self._guard:  # a recorder's code: its failure is told and the others go on
            for one in left:
                self._building = one.content
                if but(one.content):
                    waiting.append(one)
                else:
                    rows += self._made(one)
            return True
        return False

    def _made(self, deferred: Entry) -> list[Row]:
        """The rows of a deferred item, stamped. What is deferred among them is put into the queue.

        Raises:
            TypeError: It makes something else.
        """
        made: list[Row] = []
        for one in deferred.content.build():
            if isinstance(one, Row):
                made.append(one)
            elif isinstance(one, Unbuilt):
                self._add_rows(one, deferred.scope, deferred.time_ns)
            elif one is not None:
                raise TypeError(f"row: got {one!r:.200}, expected a probe.records.Row")
        self._stamp_all(made, deferred.scope, deferred.time_ns)
        return made


def _name(item: Unbuilt) -> str:
    return str(getattr(item.build, "__qualname__", type(item.build).__name__))
