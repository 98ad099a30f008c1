"""A bounded queue, one thread behind it, and a lane for each backend, so that none can hold up another.

The thread makes floats of what was queued, puts them into the lanes of the backends that want them, and sends lane
after lane. A lane that fails waits for its time to try again while the others go on. A lane that hangs keeps the
thread; the next call then starts another thread for the other lanes, and the old one ends when it comes free.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from probe.hooks import silenced
from probe.tracking.backends import Backend, Values
from probe.tracking.numbers import Snapshot
from probe.tracking.reports import Reports

#: A backend that keeps the thread for longer is given up to its own thread, seconds.
STALL_S: Final = 10.0
#: First and longest pause before a failed backend is tried again, seconds.
BACK_OFF_S: Final = (0.1, 30.0)
#: Attempts after which one call's values are given up, where the error isn't one of the connection (OSError).
ATTEMPTS: Final = 5
#: Failures in a row after which a backend isn't tried again while the stream is closing.
CLOSING_FAILURES: Final = 3
#: How often a value that is under way from a device is looked for, seconds.
POLL_S: Final = 0.005

_log = logging.getLogger("probe.tracking")


class Entry:
    """One call of ``log``: what, when, and for which backends (None for all)."""

    __slots__ = ("names", "snapshot", "step", "wall_ns")

    def __init__(self, snapshot: Snapshot, step: int, wall_ns: int, names: frozenset[str] | None) -> None:
        self.snapshot = snapshot
        self.step = step
        self.wall_ns = wall_ns
        self.names = names


class _Item:
    """Something to be done with one backend, and how often that was tried."""

    __slots__ = ("attempts", "send", "what")

    def __init__(self, what: str, send: Callable[[], object]) -> None:
        self.what = what
        self.send = send
        self.attempts = 0


class Lane:
    """One backend, what waits for it, and how it is doing. Guarded by the stream's lock."""

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self.backend = backend
        self.pending: deque[_Item] = deque()
        self.busy = False
        self.closed = False
        self.failures = 0  # in a row
        self.retry_at = 0.0

    def idle(self) -> bool:
        """Nothing waits and nothing is being sent."""
        return not self.busy and not self.pending


class Stream:
    """Sends to backends what is put into it, on a thread of its own.

    Args:
        backends: by name. reports: told of everything that goes wrong.
        capacity: calls of ``log`` that may wait, in the queue and for each backend; beyond it the oldest is dropped,
            counted and reported.
        stall_s: see :data:`STALL_S`.
    """

    def __init__(
        self,
        backends: Mapping[str, Backend],
        reports: Reports,
        *,
        capacity: int = 4096,
        stall_s: float = STALL_S,
    ) -> None:
        self.lanes = [Lane(name, backend) for name, backend in backends.items()]
        self._reports = reports
        self._capacity = capacity
        self._stall_s = stall_s
        self._queue: deque[Entry] = deque()
        self._steps: dict[str, int] = {}  # last step by metric
        self._change = threading.Condition()
        self._owner: threading.Thread | None = None
        self._busy_since: float | None = None
        self._converting = False
        self._turn = 0
        self._exit_code: int | None = None  # set when the stream is closing
        self._start_thread()

    # ------------------------------------------------------------------------------------------- on any thread

    def put(self, entry: Entry) -> None:
        """Queue one call. Never waits for a backend."""
        dropped = 0
        with self._change:
            if len(self._queue) >= self._capacity:
                self._queue.popleft()
                dropped = 1
            self._queue.append(entry)
            self._relieve()
            self._change.notify_all()
        if dropped:
            self._reports.tell("dropped_rows", "tracking", f"the queue is full ({self._capacity} calls)", count=1)

    def do(self, name: str, what: str, action: Callable[[], object]) -> None:
        """Queue something else for one backend, such as its parameters; tried again as values are."""
        with self._change:
            self._lane(name).pending.append(_Item(what, action))
            self._change.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything so far is sent, and the backends have flushed. False when the time ran out."""
        deadline = time.monotonic() + timeout_s
        if not self._wait(self._idle, deadline):
            return False
        for lane in self.lanes:
            flush = getattr(lane.backend, "flush", None)
            if flush is not None:
                self.do(lane.name, "flush", flush)
        return self._wait(self._idle, deadline)

    def close(self, exit_code: int, timeout_s: float) -> bool:
        """Send what waits, close the backends, end the thread. False when the deadline came first."""
        deadline = time.monotonic() + timeout_s
        with self._change:
            self._exit_code = exit_code
            self._stall_s = min(self._stall_s, timeout_s / 2)
            self._change.notify_all()
        complete = self._wait(self._finished, deadline)
        with self._change:
            owner, self._owner = self._owner, None
            self._change.notify_all()
        if complete and owner is not None:
            owner.join(max(0.0, deadline - time.monotonic()) + 1.0)
        if not complete:
            self._tell_unfinished(timeout_s)
        return complete

    def _wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        with self._change:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._relieve()
                self._change.wait(min(left, 0.25))
            return True

    def _idle(self) -> bool:
        return not self._queue and not self._converting and all(lane.idle() for lane in self.lanes)

    def _finished(self) -> bool:
        return self._idle() and all(lane.closed for lane in self.lanes)

    def _lane(self, name: str) -> Lane:
        return next(lane for lane in self.lanes if lane.name == name)

    def _tell_unfinished(self, timeout_s: float) -> None:
        for lane in self.lanes:
            if not lane.closed:
                left = len(lane.pending)
                message = f"not finished within {timeout_s:g} s; {left} calls were not sent"
                self._reports.tell("backend", lane.name, message, about="unfinished")
        if self._queue:
            message = f"{len(self._queue)} calls were not sent: their values had not arrived from the device"
            self._reports.tell("dropped_rows", "tracking", message, about="unfinished", count=len(self._queue))

    def _relieve(self) -> None:
        """Give the lanes another thread where a backend has kept the present one for too long."""
        since = self._busy_since
        if since is None or time.monotonic() - since < self._stall_s:
            return
        stuck = ", ".join(lane.name for lane in self.lanes if lane.busy)
        self._busy_since = None
        self._start_thread()
        self._reports.tell("backend", stuck, f"has not answered for {self._stall_s:g} s; the others go on", about="stall")

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="probe-tracking", daemon=True)
        previous, self._owner = self._owner, thread
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down; the present thread does what it can
            self._owner = previous

    # ------------------------------------------------------------------------------------------ on its own thread

    def _work(self) -> None:
        me = threading.current_thread()
        with silenced():
            while True:
                with self._change:
                    job = self._job()
                    while job is None and self._owner is me:
                        self._change.notify_all()
                        self._change.wait(self._pause())
                        job = self._job() if self._owner is me else None
                    if self._owner is not me or job is None:
                        if job is not None:
                            self._put_back(job)
                        return
                job()

    def _job(self) -> Callable[[], None] | None:
        raise NotImplementedError

    def _pause(self) -> float | None:
        raise NotImplementedError
