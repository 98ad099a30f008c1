"""A bounded queue that knows what it may lose."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from operator import attrgetter
from typing import Any, Final, cast

import msgspec

from probe.records import TABLES, Incident, Row, Unbuilt
from probe.runs.lines import table_of

#: What a full queue gives up, in this order; the last is never given up.
SAMPLED: Final = 0
ORDINARY: Final = 1
KEPT: Final = 2

#: What is done with a row of each type when there are too many, and its table.
KINDS: Final[dict[type, tuple[int, str]]] = {
    kind: (KEPT if kind is Incident else SAMPLED if kind.sampled else ORDINARY, table) for table, kind in TABLES.items()
}


def kind_of(item: Row | Unbuilt) -> tuple[int, str]:
    """:data:`KINDS` of a row or of rows that don't exist yet; of a type that a recorder brings, too.

    Args:
        item: What is to wait in a queue.
    """
    found = KINDS.get(type(item))
    if found is None and isinstance(item, Unbuilt):
        return SAMPLED, "deferred"
    return found or (SAMPLED if cast("Row", item).sampled else ORDINARY, table_of(cast("Row", item)))


class Entry(msgspec.Struct, gc=False):  # else those that wait would start collections of garbage; it is in no cycle
    """One thing in the queue."""

    number: int  #: unique, and they are in order
    table: str  #: what it counts as, should it be dropped
    content: Any
    scope: Any = None  #: where it happened
    time_ns: int = 0  #: when


_number: Final = attrgetter("number")


class Shedding:
    """A first-in-first-out queue for many producers and one consumer. Full, it drops the oldest sampled
    entries first, then the oldest ordinary ones, and never one that is to be kept.

    Adding takes no lock: numbering (``itertools.count``) and appending (``deque``) are one C call each, so
    no other thread can come between. Each kind has a deque of its own, so that dropping is one pop; the
    numbers put them in order again. Two producers that add at the same moment may do so in either order.

    Args:
        capacity: Entries; beyond it adding one drops one.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.dropped: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._sampled: deque[Entry] = deque()
        self._ordinary: deque[Entry] = deque()
        self._kept: deque[Entry] = deque()
        self._queues = (self._sampled, self._ordinary, self._kept)
        # Re-entrant: a signal handler or a finaliser may add while its own thread is dropping.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._sampled) + len(self._ordinary) + len(self._kept)

    def add(self, priority: int, table: str, content: Any, scope: Any = None, time_ns: int = 0) -> None:
        """Append ``content``; ``table`` is what it counts as, should it be dropped."""
        self._queues[priority].append(Entry(next(self._numbers), table, content, scope, time_ns))
        if len(self._sampled) + len(self._ordinary) > self.capacity:
            self._shed()

    def next_number(self) -> int:
        """A number larger than that of every entry so far, and smaller than those to come."""
        return next(self._numbers)

    def _shed(self) -> None:
        with self._lock:
            while len(self._sampled) + len(self._ordinary) > self.capacity:
                try:
                    entry = (self._sampled or self._ordinary).popleft()
                except IndexError:  # the consumer was faster
                    continue
                self.dropped[entry.table] = self.dropped.get(entry.table, 0) + 1

    def pop_entries(self, most: int | None = None) -> list[Entry]:
        """Remove and return the entries in order, ``most`` of them or all that are there now."""
        if most is not None and len(self) > most:
            return self._take_some(most)
        taken: list[Entry] = []
        for queue in self._queues:
            taken.extend(_pop(queue, len(queue)))
        taken.sort(key=_number)
        return taken

    def _take_some(self, most: int) -> list[Entry]:
        taken: list[Entry] = []
        while len(taken) < most:
            filled = [queue for queue in self._queues if queue]
            if not filled:
                break
            taken.extend(_pop(min(filled, key=lambda queue: queue[0].number), 1))
        return taken


def _pop(queue: deque[Entry], count: int) -> list[Entry]:
    taken: list[Entry] = []
    try:
        for _ in range(count):
            taken.append(queue.popleft())
    except IndexError:  # a producer dropped some meanwhile
        pass
    return taken
