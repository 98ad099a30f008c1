"""Rows that a writer builds later: when a device has answered, or at the end without it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from probe.hooks import Scope
from probe.records import Row, Unbuilt
from probe.runs.shedding import Entry

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
        report: Is told of what fails or is given up: kind, where, message and the error.

    Attributes:
        entries: Those that aren't built yet, in their order.
    """

    def __init__(
        self,
        add_rows: Callable[[Unbuilt, Scope, int], None],
        stamp_all: Callable[[list[Row], Scope, int], None],
        report: Callable[..., None],
    ) -> None:
        self.entries: list[Entry] = []
        self._add_rows = add_rows
        self._stamp_all = stamp_all
        self._report = report

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
        for one in self.entries:
            try:
                if but(one.content):
                    waiting.append(one)
                    continue
                rows += self._made(one)
            except Exception as error:  # a recorder's code: its failure is told and the others go on
                self._report("deferred", _name(one.content), f"deferred rows failed: {error!r}", error)
        self.entries = waiting
        return rows

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
                raise TypeError(f"{one!r} isn't a row")
        self._stamp_all(made, deferred.scope, deferred.time_ns)
        return made


def _name(item: Unbuilt) -> str:
    return str(getattr(item.build, "__qualname__", type(item.build).__name__))
