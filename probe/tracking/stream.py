"""A bounded queue, one thread behind it, and a lane for each backend, so that none can hold up another.

The thread makes floats of what was queued, puts them into the lanes of the backends that want them, and sends
lane after lane. A lane that fails waits for its time to try again while the others go on. A lane that hangs
keeps the thread; the next call then starts another thread for the other lanes, and the old one ends when it
comes free.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from probe.errors import UnknownNameError
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
#: How often values that are under way from a device are looked for, seconds.
POLL_S: Final = 0.01

_log = logging.getLogger("probe.tracking")


class Entry:
    """One call of ``log``: what, when, and for which backends (None for all)."""

    __slots__ = ("names", "snapshot", "step", "wall_ns")

    def __init__(self, snapshot: Snapshot, step: int, wall_ns: int, names: frozenset[str] | None) -> None:
        self.snapshot = snapshot
        self.step = step
        self.wall_ns = wall_ns
        self.names = names

    def wanted_by(self, name: str) -> bool:
        """Whether it is for the backend of that name."""
        return self.names is None or name in self.names


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
        self.failures = 0  # in a row
        self.retry_at = 0.0
        self.closing = False  # nothing but its close is to come
        self.closed = False

    def idle(self) -> bool:
        """Nothing waits and nothing is being sent."""
        return not self.busy and not self.pending

    def available(self, now: float) -> bool:
        """Whether it may be sent to."""
        return not self.busy and not self.closed and now >= self.retry_at


class Stream:
    """Sends to backends what is put into it, on a thread of its own.

    Args:
        backends: by name. reports: told of everything that goes wrong.
        capacity: calls of ``log`` that may wait, in the queue and for each backend; beyond it the oldest is
            dropped, counted and reported.
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
        self._lanes = [Lane(name, backend) for name, backend in backends.items()]
        self._reports = reports
        self._capacity = capacity
        self._stall_s = stall_s
        self._queue: deque[Entry] = deque()
        self._steps: dict[str, int] = {}  # last step by metric
        self._change = threading.Condition()  # guards everything here; tells flush and close of progress
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._listening = False  # the thread waits for the bell
        self._owner: threading.Thread | None = None
        self._busy_since: float | None = None  # when the owner turned to a backend
        self._converting = False
        self._turn = 0
        self._exit_code: int | None = None  # set once the stream is closing
        self._patient_until = 0.0  # while closing: how long values may take to arrive from a device
        self._start_thread()

    # ------------------------------------------------------------------------------------------ on any thread

    def put(self, entry: Entry) -> None:
        """Queue one call. Never waits for a backend."""
        with self._change:
            full = len(self._queue) >= self._capacity
            if full:
                self._queue.popleft()
            self._queue.append(entry)
            stuck = "" if self._busy_since is None else self._relieve()
            self._ring()
        if full:
            message = f"the queue is full: the oldest of {self._capacity} waiting calls is dropped"
            self._reports.tell("dropped_rows", "tracking", message)
        self._tell_stuck(stuck)

    def do(self, name: str, what: str, action: Callable[[], object]) -> None:
        """Queue something else for one backend, such as its parameters; tried again as values are."""
        with self._change:
            for lane in self._lanes:
                if lane.name == name:
                    lane.pending.append(_Item(what, action))
                    self._ring()
                    return
        raise UnknownNameError.of("name", name, [lane.name for lane in self._lanes])

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything so far is sent and flushed. False when the time ran out."""
        deadline = time.monotonic() + timeout_s
        if not self._wait(self._idle, deadline):
            return False
        for lane in self._lanes:
            flush = getattr(lane.backend, "flush", None)
            if flush is not None and not lane.closed:
                self.do(lane.name, "flush", flush)
        return self._wait(self._idle, deadline)

    def close(self, exit_code: int, timeout_s: float) -> bool:
        """Send what waits, close the backends, end the thread. False when the deadline came first."""
        deadline = time.monotonic() + timeout_s
        with self._change:
            if self._exit_code is not None:
                return self._finished()
            self._exit_code = exit_code
            self._patient_until = deadline - timeout_s / 2
            self._stall_s = min(self._stall_s, timeout_s / 2)
            for lane in self._lanes:
                lane.retry_at = 0.0
            self._ring()
        complete = self._wait(self._finished, deadline)
        with self._change:
            owner, self._owner = self._owner, None
            self._ring()
        if complete and owner is not None and owner is not threading.current_thread():
            owner.join(max(1.0, deadline - time.monotonic()))
        if not complete:
            self._tell_unfinished(timeout_s)
        return complete

    def _ring(self) -> None:
        """Wake the thread where it waits. Cheaper than notifying a Condition, and training pays for it."""
        if self._listening:
            self._listening = False
            self._bell.put(None)

    def _wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        while True:
            with self._change:
                if condition():
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                stuck = self._relieve()
                if not stuck:
                    self._change.wait(min(left, 0.25))
            self._tell_stuck(stuck)

    def _idle(self) -> bool:
        return not self._queue and not self._converting and all(lane.idle() for lane in self._lanes)

    def _finished(self) -> bool:
        return self._idle() and all(lane.closed for lane in self._lanes)

    def _tell_unfinished(self, timeout_s: float) -> None:
        for lane in self._lanes:
            if not lane.closed:
                message = f"not finished within {timeout_s:g} s; {len(lane.pending)} calls were not sent"
                self._reports.tell("backend", lane.name, message, about="unfinished")
        if self._queue:
            message = f"{len(self._queue)} calls were not sent when the time for finishing ran out"
            self._reports.tell("dropped_rows", "tracking", message, about="unfinished", count=len(self._queue))

    def _relieve(self) -> str:
        """Where a backend has kept the thread for too long, start another; returns that backend's name."""
        since = self._busy_since
        if since is None or time.monotonic() - since < self._stall_s:
            return ""
        self._busy_since = None
        self._start_thread()
        return ", ".join(lane.name for lane in self._lanes if lane.busy)

    def _tell_stuck(self, names: str) -> None:
        if names:
            message = f"no answer for {self._stall_s:g} s; the other backends go on without it"
            self._reports.tell("backend", names, message, about="no answer")

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="probe-tracking", daemon=True)
        previous, self._owner = self._owner, thread
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down; the present thread does what it can
            self._owner = previous

    # -------------------------------------------------------------------------------------- on its own thread

    def _work(self) -> None:
        me = threading.current_thread()
        with silenced():
            while (job := self._next(me)) is not None:
                job()

    def _next(self, me: threading.Thread) -> Callable[[], None] | None:
        """What to do, when there is something; None when this thread is to end."""
        while True:
            with self._change:
                if self._owner is not me:
                    return None
                now = time.monotonic()
                job = self._conversion(now) or self._sending(now)
                if job is not None:
                    return job
                pause = self._pause(now)
                self._listening = True
            with contextlib.suppress(Empty):
                self._bell.get(timeout=pause)

    def _conversion(self, now: float) -> Callable[[], None] | None:
        """Turn to the queue where a backend has nothing to do; until then calls wait in the bounded queue."""
        if not self._queue:
            return None
        closing = self._exit_code is not None
        hungry = any(lane.available(now) and not lane.pending for lane in self._lanes)
        if self._lanes and not hungry and not closing:
            return None
        if not self._queue[0].snapshot.ready():
            if not closing or now < self._patient_until:
                return None
            self._queue[0].snapshot.abandon()
        self._converting = True
        return partial(self._convert, self._queue.popleft())

    def _sending(self, now: float) -> Callable[[], None] | None:
        for offset in range(len(self._lanes)):
            lane = self._lanes[(self._turn + offset) % len(self._lanes)]
            self._finish_lane(lane)
            if lane.pending and lane.available(now):
                self._turn += offset + 1
                lane.busy = True
                self._busy_since = now
                return partial(self._send, lane, lane.pending.popleft())
        return None

    def _finish_lane(self, lane: Lane) -> None:
        """Let the close of a backend follow its last values."""
        if self._exit_code is None or lane.closing or self._queue or self._converting or not lane.idle():
            return
        lane.closing = True
        lane.pending.append(_Item("the end of the run", partial(lane.backend.close, self._exit_code)))

    def _pause(self, now: float) -> float | None:
        waits = [lane.retry_at - now for lane in self._lanes if lane.pending and not lane.busy]
        if self._queue:
            waits.append(POLL_S if self._queue[0].snapshot.transfer is not None else BACK_OFF_S[0])
        return max(0.0, min(waits)) if waits else None

    def _convert(self, entry: Entry) -> None:
        good, bad = entry.snapshot.floats()
        for name, why in bad.items():
            self._reports.tell("value", "tracking", f"{name!r} at step {entry.step} is left out: {why}", about=name)
        self._check_steps(good, entry.step)
        with self._change:
            self._converting = False
            full = [
                lane
                for lane in self._lanes
                if good and entry.wanted_by(lane.name) and not self._feed(lane, good, entry)
            ]
            self._change.notify_all()
        for lane in full:
            message = f"is behind by {self._capacity} calls: the oldest is dropped"
            self._reports.tell("dropped_rows", lane.name, message)

    def _feed(self, lane: Lane, values: dict[str, float], entry: Entry) -> bool:
        """Put one call's numbers into a lane; False where another had to go for it."""
        full = len(lane.pending) >= self._capacity
        if full:
            lane.pending.popleft()
        send = partial(lane.backend.log, Values(values, entry.wall_ns), entry.step)
        lane.pending.append(_Item(f"step {entry.step}", send))
        return not full

    def _check_steps(self, values: dict[str, float], step: int) -> None:
        for name in values:
            last = self._steps.get(name)
            if last is not None and step < last:
                message = f"{name!r} goes back from step {last} to {step}; some backends drop or misdraw that"
                self._reports.tell("step", "tracking", message)
            self._steps[name] = step

    def _send(self, lane: Lane, item: _Item) -> None:
        error: BaseException | None = None
        try:
            item.send()
        except BaseException as caught:  # whatever a backend raises, training and its neighbours go on
            error = caught
        with self._change:
            lane.busy = False
            if self._owner is threading.current_thread():
                self._busy_since = None
            lost = self._settle(lane, item, error)
            self._change.notify_all()
            self._ring()  # where this thread was relieved, another one may wait for this very lane
        if error is not None:
            message = f"failed at {item.what}: {error!r}; training goes on"
            self._reports.tell("backend", lane.name, message, error=error)
        if lost:
            self._reports.tell("backend", lane.name, f"{lost} calls were given up", about="calls given up", count=lost)

    def _settle(self, lane: Lane, item: _Item, error: BaseException | None) -> int:
        """Decide what follows an attempt; returns the number of calls that are given up."""
        if error is None:
            if lane.failures:
                _log.info("%s: works again after %d failures", lane.name, lane.failures)
            lane.failures = 0
            lane.closed = lane.closing
            return 0
        item.attempts += 1
        lane.failures += 1
        first, longest = BACK_OFF_S
        closing = self._exit_code is not None
        pause = min(longest, first * 2.0 ** min(lane.failures - 1, 20))
        lane.retry_at = time.monotonic() + (min(pause, 4 * first) if closing else pause)
        if closing and lane.failures >= CLOSING_FAILURES:
            lost = 0 if lane.closing else 1 + len(lane.pending)
            lane.pending.clear()
            lane.closed = lane.closing
            return lost
        if item.attempts < ATTEMPTS or isinstance(error, OSError):
            lane.pending.appendleft(item)
            return 0
        return 1
