"""Marks between the rows that wait for a writer: callbacks that are called once what was put before them is written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from probe.runs.incidents import Incidents
from probe.runs.shedding import KEPT, Shedding

#: Longest that a mark waits for deferred rows that were put before it.
MARK_WAIT_S: Final = 3.0


class Marks:
    """The marks of one writer. Any thread adds some; the writer's thread takes and calls them.

    Args:
        capacity: As of the writer; marks are never dropped.
        report: Is told of a callback that failed.
    """

    def __init__(self, capacity: int, report: Incidents) -> None:
        self._marks = Shedding(capacity)
        self._due: list[_Mark] = []
        self._guard = report.guard("mark", "a callback of the run writer failed")

    @property
    def waiting(self) -> bool:
        """Whether some were taken and not called yet."""
        return bool(self._due)

    def add(self, number: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` once everything of a smaller number is written.

        Args:
            number: Of the writer's queue, such as :meth:`~probe.runs.shedding.Shedding.next_number` gives.
            callback: What is called.
        """
        self._marks.add(KEPT, "mark", _Mark(number, callback))

    def take(self) -> None:
        """Hear of those that were added. Before the rows are taken: what was put before a mark that is seen here is in
        their queue already.
        """
        deadline = time.monotonic() + MARK_WAIT_S
        for one in self._marks.pop_entries():
            one.content.deadline = deadline
            self._due.append(one.content)

    def call(self, oldest: int | None, last: bool) -> None:
        """Call those that are due. Only from the writer's thread.

        Args:
            oldest: The number of the oldest rows that aren't built yet; None where all are.
            last: Whether nothing is waited for any more.
        """
        while self._due:
            mark = self._due[0]
            blocked = oldest is not None and oldest < mark.number
            if blocked and not last and time.monotonic() < mark.deadline:
                return
            self._due.pop(0)
            with self._guard:  # the session's code: the thread goes on
                mark.callback()


class _Mark(msgspec.Struct, gc=False):  # as the entries of a queue
    """A callback, and until when it waits for deferred rows since the writer's thread has heard of it."""

    number: int
    callback: Callable[[], None]
    deadline: float = 0.0
