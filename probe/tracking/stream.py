"""A bounded queue, one thread behind it that converts, and beside each backend a thread that sends.

The converting thread makes floats of what was queued and writes each call to the journal. Each backend's thread sends
it what the journal holds, in order, at its own pace: one that hangs, fails or isn't there holds up no other, and what
it misses waits on disk.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from probe.errors import UnknownNameError
from probe.hooks import silenced
from probe.text import seconds
from probe.tracking.backends.base import NOTES, Backend
from probe.tracking.journal import Journal
from probe.tracking.lane import CLOSING_FAILURES, Item, Lane
from probe.tracking.notes import Notes
from probe.tracking.numbers import Snapshot
from probe.tracking.reports import Reports
from probe.tracking.state import LastStep

_log = logging.getLogger("probe.tracking")

#: A backend that answers nothing for longer is reported, seconds.
STALL_S: Final = 10.0
#: More distinct names than this are told: they make every page slow, and mostly come from a number inside a name.
MANY_NAMES: Final = 2000
#: The end of a run that takes longer says what it waits for, seconds.
ANNOUNCE_S: Final = 0.5
#: How often values that are under way from a device are looked for, seconds.
POLL_S: Final = 0.01


class Entry:
    """One call of ``log``: what, when, and for which backends (None for all)."""

    __slots__ = ("names", "snapshot", "step", "wall_ns")

    def __init__(self, snapshot: Snapshot, step: int, wall_ns: int, names: frozenset[str] | None) -> None:
        self.snapshot = snapshot
        self.step = step
        self.wall_ns = wall_ns
        self.names = names


class Stream:
    """Sends to backends what is put into it, on threads of its own.

    Args:
        backends: The backends by name.
        reports: Is told of everything that goes wrong.
        journal: Keeps calls until they are sent; None for one in memory.
        notes: Keeps what is said of the run, likewise.
        last_step: Knows how far the process before has come.
        capacity: Calls of ``log`` that may wait in the queue, and in memory where there is no disk to keep them; then
            the oldest is dropped, counted and reported.
        stall_s: See :data:`STALL_S`.
    """

    def __init__(
        self,
        backends: Mapping[str, Backend],
        reports: Reports,
        *,
        journal: Journal | None = None,
        notes: Notes | None = None,
        last_step: LastStep | None = None,
        capacity: int = 4096,
        stall_s: float = STALL_S,
    ) -> None:
        self._notes = notes or Notes(None, backends)
        self._last_step = last_step or LastStep(None)
        self._noted: dict[str, Any] = {}  # notes by kind that aren't kept yet
        self._journal = journal or Journal(None, list(backends), set(), reports, capacity)
        self._lock = threading.Lock()  # guards everything here
        self._change = threading.Condition(self._lock)  # tells flush and close of progress
        self._lanes = [Lane(name, backend, self._journal, reports, self._lock) for name, backend in backends.items()]
        self._reports = reports
        self._converts = reports.guard("value", "left out", about="convert")
        self._capacity = capacity
        self._stall_s = stall_s
        self._queue: deque[Entry] = deque()
        self._steps: dict[str, int] = {}  # last step by metric
        self._names_limit = MANY_NAMES
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._listening = False  # the converting thread waits for the bell
        self._converting = False
        self._exit_code: int | None = None  # set once the stream is closing
        self._queue_done = False  # closing, and the queue is empty for good
        self._abandoned = False  # the deadline has come
        self._patient_until = 0.0  # while closing: how long values may take to arrive from a device
        for kind in self._notes.kinds():  # what an earlier process has left
            self._pass_on(kind)
        # All of them now: an interpreter that is shutting down starts none.
        self._threads = [threading.Thread(target=self._convert_queue, name="probe-tracking", daemon=True)]
        for lane in self._lanes:
            name = f"probe-tracking {lane.name}"
            self._threads.append(threading.Thread(target=self._serve, args=(lane,), name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------------------------------ on any thread

    def enqueue(self, entry: Entry) -> None:
        """Queue one call. Never waits for a backend, nor for a disk."""
        with self._lock:
            full = len(self._queue) >= self._capacity
            if full:
                self._queue.popleft()
            self._queue.append(entry)
            self._ring()
        if full:
            message = f"the queue is full: the oldest of {self._capacity} waiting calls is dropped"
            self._reports.tell("dropped_rows", "tracking", message)

    def note(self, kind: str, content: Any) -> None:
        """Take something that is said of the run as a whole. Never waits; see :class:`Notes`."""
        with self._lock:
            before = self._noted.get(kind)
            self._noted[kind] = {**before, **content} if kind == "tag" and before else content
            self._ring()

    def do(self, name: str, what: str, action: Callable[[], object]) -> None:
        """Queue something else for one backend, such as its parameters; tried again as values are.

        Where the same waits already, and isn't being done, it isn't queued twice.
        """
        with self._lock:
            for lane in self._lanes:
                if lane.name == name:
                    waiting = list(lane.todo)[0 if lane.busy_since is None else 1 :]
                    if all(item.what != what for item in waiting):
                        lane.todo.append(Item(what, action, self._journal.cursor(name)))
                    lane.wake.notify()
                    return
        raise UnknownNameError.of("name", name, [lane.name for lane in self._lanes])

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything so far is sent and flushed. False when the time ran out."""
        deadline = time.monotonic() + timeout_s
        if not self._wait(self._idle, deadline):
            return False
        for lane in self._lanes:
            if lane.backend.takes("flush") and not lane.closed:
                self.do(lane.name, "flush", lane.backend.flush)
        return self._wait(self._idle, deadline)

    def close(self, exit_code: int, timeout_s: float) -> bool:
        """Send what waits, close the backends, end the threads. False when the deadline came first."""
        deadline = time.monotonic() + timeout_s
        with self._change:
            if self._exit_code is not None:
                return self._finished()
            self._exit_code = exit_code
            self._patient_until = deadline - timeout_s / 2
            for lane in self._lanes:
                lane.retry_at = 0.0
                lane.wake.notify()
            self._ring()
        complete = self._wait(self._finished, min(deadline, time.monotonic() + ANNOUNCE_S))
        if not complete:
            self._announce_wait(deadline - time.monotonic())
            complete = self._wait(self._finished, deadline)
        with self._lock:
            self._abandoned = True
            self._ring()
            for lane in self._lanes:
                lane.wake.notify()
        self._tell_unsent(complete, timeout_s)
        self._last_step.note()
        for thread in self._threads if complete else self._threads[:1]:
            if thread is not threading.current_thread():
                thread.join(max(0.1, deadline - time.monotonic()))
        self._let_go()
        return complete

    def _announce_wait(self, seconds: float) -> None:
        with self._lock:
            waited_for = [lane.name for lane in self._lanes if not lane.closed]
        kept = "" if self._journal.folder is None else f"; what is unsent by then is kept in {self._journal.folder}"
        if seconds > 0:
            names = ", ".join(waited_for) or "values"
            _log.warning("waiting up to %d s for %s to finish%s", math.ceil(seconds), names, kept)

    def complete(self) -> list[str]:
        """The backends that were closed in order."""
        with self._lock:
            return [lane.name for lane in self._lanes if lane.ended]

    def _let_go(self) -> None:
        """Close the journal once nobody needs it: a backend that hangs may still come back."""
        with self._lock:
            if self._abandoned and all(lane.busy_since is None for lane in self._lanes) and not self._converting:
                self._journal.close()

    def _ring(self) -> None:
        """Wake the converting thread where it waits. Cheaper than notifying a Condition, and training pays for it."""
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
                self._change.wait(min(left, 0.25))

    def _idle(self) -> bool:
        quiet = not self._queue and not self._noted and not self._converting
        return quiet and all(lane.idle() for lane in self._lanes)

    def _finished(self) -> bool:
        return self._queue_done and all(lane.closed for lane in self._lanes)

    def _tell_unsent(self, complete: bool, timeout_s: float) -> None:
        folder = self._journal.folder
        for lane in self._lanes:
            count = self._journal.waiting(lane.name)
            if not lane.closed and not complete:
                unsent = f"; {_calls(count)} not sent" if count else ""
                message = f"not finished within {seconds(timeout_s)}{unsent}"
                self._reports.tell("backend", lane.name, message, about="unfinished")
            if folder is not None:
                self._tell_kept(lane.name, folder, count)
            elif count:
                message = f"{_calls(count)} given up"
                self._reports.tell("backend", lane.name, message, about="calls given up", count=count)
        if self._queue:
            message = f"{_calls(len(self._queue))} not sent when the time for finishing ran out"
            self._reports.tell("dropped_rows", "tracking", message, about="unfinished", count=len(self._queue))

    def _tell_kept(self, name: str, folder: Path, count: int) -> None:
        lost = min(count, self._journal.unwritten(name))
        kept = count - lost
        if kept:
            them = "it" if kept == 1 else "them"
            message = f"{_calls(kept, 'is', 'are')} kept in {folder}; the next start in this directory sends {them}"
            self._reports.tell("backend", name, message, about="calls kept", count=kept)
        if lost:
            message = f"{_calls(lost, 'is', 'are')} lost: {folder} took no more to the end"
            self._reports.tell("dropped_rows", name, message, about="calls lost", count=lost)

    # --------------------------------------------------------------------------------------- the converting thread

    def _convert_queue(self) -> None:
        with silenced():
            while (job := self._next()) is not None:
                try:
                    with self._converts:  # whatever it is, the next call goes on
                        job()
                finally:
                    with self._lock:
                        self._converting = False
                        for lane in self._lanes:
                            lane.wake.notify()
                        self._change.notify_all()
            self._journal.write_rest()

    def _next(self) -> Callable[[], None] | None:
        """What to do, when there is something; None when this thread is to end."""
        while True:
            with self._lock:
                if self._abandoned:
                    return None
                now = time.monotonic()
                if self._noted:
                    self._converting = True
                    noted, self._noted = self._noted, {}
                    return partial(self._keep, noted)
                if self._queue and self._arrived(now):
                    self._converting = True
                    return partial(self._convert, self._queue.popleft())
                if self._exit_code is not None and not self._queue:
                    self._queue_done = True
                    for lane in self._lanes:
                        lane.wake.notify()
                    self._change.notify_all()
                    return None
                stuck = [lane.name for lane in self._lanes if lane.stuck(now, self._stall_s)]
                pause = self._pause()
                self._listening = True
            self._tell_stuck(stuck)
            with contextlib.suppress(Empty):
                self._bell.get(timeout=pause)

    def _arrived(self, now: float) -> bool:
        """Whether the first call's values are on the host."""
        snapshot = self._queue[0].snapshot
        if snapshot.ready():
            return True
        if self._exit_code is not None and now >= self._patient_until:
            snapshot.abandon()
            return True
        return False

    def _pause(self) -> float | None:
        if self._queue:
            return POLL_S
        return self._stall_s if any(lane.behind() for lane in self._lanes) else None

    def _tell_stuck(self, names: list[str]) -> None:
        for name in names:
            message = f"no answer for {self._stall_s:g} s; the other backends go on without it"
            self._reports.tell("backend", name, message, about="no answer")

    def _keep(self, noted: Mapping[str, Any]) -> None:
        for kind, content in noted.items():
            self._notes.keep(kind, content)
            self._pass_on(kind)

    def _pass_on(self, kind: str) -> None:
        for name in self._notes.takers(kind):
            self.do(name, NOTES[kind], partial(self._notes.send, name, kind))

    def _convert(self, entry: Entry) -> None:
        good, bad = entry.snapshot.floats()
        media = entry.snapshot.media
        for name, why in bad.items():
            self._reports.tell("value", "tracking", f"{name!r} at step {entry.step} is left out: {why}", about=name)
        self._check_steps(good, entry.step)
        if good or media:
            self._journal.append(entry.step, entry.wall_ns, entry.names, good, media)

    def _check_steps(self, values: dict[str, float], step: int) -> None:
        before = self._last_step.see(step)
        if before is not None:
            message = (
                f"this run was at step {before} and resumes at step {step}: a backend keeps both values or the first"
            )
            self._reports.tell("step", "tracking", message, about="resume")
        for name in values:
            last = self._steps.get(name)
            if last is not None and step < last:
                message = f"{name!r} goes back from step {last} to {step}; some backends drop or misdraw that"
                self._reports.tell("step", "tracking", message)
            self._steps[name] = step
        if len(self._steps) > self._names_limit:
            self._names_limit = 10 * len(self._steps)
            message = f"{len(self._steps)} distinct names; log a histogram or a table where a number is in the name"
            self._reports.tell("name", "tracking", message, about="many names")

    # ----------------------------------------------------------------------------------- the backends' threads

    def _serve(self, lane: Lane) -> None:
        with silenced():
            while (job := self._job(lane)) is not None:
                self._attempt(lane, job)

    def _job(self, lane: Lane) -> Callable[[], object] | None:
        """What to do, when there is something; None when the thread is to end."""
        with self._lock:
            while not lane.closed and not (lane.gave_up and lane.failures > 2 * CLOSING_FAILURES):
                if self._abandoned:
                    return None
                now = time.monotonic()
                job = self._ready(lane, now)
                if job is not None:
                    lane.busy_since = now
                    return job
                lane.wake.wait(lane.retry_at - now if lane.retry_at > now else None)
            lane.closed = True
            self._change.notify_all()
            return None

    def _ready(self, lane: Lane, now: float) -> Callable[[], object] | None:
        if now < lane.retry_at:
            return None
        if not lane.gave_up:
            job = lane.job(self._exit_code is not None)
            if job is not None:
                return job
        return lane.end(self._exit_code) if self._queue_done and self._exit_code is not None else None

    def _attempt(self, lane: Lane, job: Callable[[], object]) -> None:
        error: BaseException | None = None
        try:
            job()
        except BaseException as caught:  # a backend's answer, SystemExit too: training and its neighbours go on
            error = caught
        what = ""
        with self._lock:
            lane.busy_since = None
            if error is None:
                lane.succeeded()
            else:
                what = lane.failed(error, self._exit_code is not None)
            self._change.notify_all()
        if error is not None:
            message = f"failed at {what}: {error!r}; training goes on"
            self._reports.tell("backend", lane.name, message, error=error)
        self._let_go()


def _calls(count: int, one: str = "was", more: str = "were") -> str:
    """So many calls and their verb.

    >>> _calls(1), _calls(2, "is", "are")
    ('1 call was', '2 calls are')
    """
    return f"1 call {one}" if count == 1 else f"{count} calls {more}"
