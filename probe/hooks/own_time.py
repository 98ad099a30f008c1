"""The time that probe itself takes in the program that it observes."""

from __future__ import annotations

import threading
import time
from typing import Final

_clock: Final = time.monotonic_ns
_thread_id: Final = threading.get_ident

#: What hooks have taken, by thread: each key has one writer, so that no update is lost.
spent_by_thread: Final[dict[int, int]] = {}


def spent_ns() -> int:
    """Time that points with listeners have taken so far, on all threads, nanoseconds.

    It counts from before the first listener hears of a beginning (or of an end) until after the last one has, so that
    what happens in between counts as well: a collection of garbage that a listener's rows set off, or waiting for the
    interpreter's lock. The observed call itself, and the block of a scope, are not in it.
    """
    return sum(spent_by_thread.values())


def spend(begin_ns: int) -> None:
    """Count the time since ``begin_ns`` as what hooks have taken on the calling thread."""
    thread = _thread_id()
    spent_by_thread[thread] = spent_by_thread.get(thread, 0) + _clock() - begin_ns


class spending:  # reads as a word at the point of use: `with spending():`
    """The block's time is probe's own: it counts in :func:`spent_ns`, what hooks in it take not twice.

    For what stands before a point, such as the reading of lengths that it is to carry.
    """

    __slots__ = ("_before_ns", "_begin_ns")

    def __enter__(self) -> None:
        self._begin_ns = _clock()
        self._before_ns = spent_by_thread.get(_thread_id(), 0)

    def __exit__(self, *_: object) -> None:
        spent_by_thread[_thread_id()] = self._before_ns + _clock() - self._begin_ns
