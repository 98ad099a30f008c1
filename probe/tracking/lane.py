"""One backend, how far it is, and how it is doing."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from probe.tracking.backends.base import Backend, Values
from probe.tracking.journal import Journal, Record
from probe.tracking.reports import Reports

#: First and longest pause before a failed backend is tried again, seconds.
BACK_OFF_S: Final = (0.1, 30.0)
#: Attempts at one call after which, where the error isn't one of the connection (OSError), the next call is tried.
ATTEMPTS: Final = 5
#: As many values are sent at once to a backend that is behind and takes several calls.
TOGETHER: Final = 1000
#: Failures in a row after which a backend isn't tried again while the stream is closing.
CLOSING_FAILURES: Final = 3

_log = logging.getLogger("probe.tracking")


class Item:
    """Something else to be done with a backend, such as its parameters, after the call number ``after``."""

    __slots__ = ("action", "after", "attempts", "what")

    def __init__(self, what: str, action: Callable[[], object], after: int) -> None:
        self.what = what
        self.action = action
        self.after = after
        self.attempts = 0


class Lane:
    """Sends one backend its calls in order, on a thread of its own. Its fields are guarded by the stream's lock.

    A call that fails is tried again, with growing pauses. Where a call has failed :data:`ATTEMPTS` times and the
    connection isn't the reason, the call after it is tried: when the backend takes that one, it refuses the first,
    which is put aside; when it takes neither, it is out of order, and both wait.
    """

    def __init__(self, name: str, backend: Backend, journal: Journal, reports: Reports, lock: threading.Lock) -> None:
        self.name = name
        self.backend = backend
        self.todo: deque[Item] = deque()
        self.wake = threading.Condition(lock)  # something has changed for its thread
        self.busy_since: float | None = None
        self.failures = 0  # in a row
        self.retry_at = 0.0
        self.gave_up = False  # the stream is closing, and it doesn't answer
        self.closed = False
        self.ended = False  # its run is complete there
        self._journal = journal
        self._reports = reports
        self._attempts = 0  # at the first call that waits
        self._lasting_error = False
        self._parts: dict[int, int] = {}  # how much of a call was sent before it failed
        # The process before may have died between sending (one call, or two; more where a backend takes its time with
        # what it was sent) and noting that.
        slow = backend.settles_s > 0
        self._doubted = journal.last if slow else min(journal.last, journal.cursor(name) + 2)
        self._under_way: deque[tuple[float, int, int]] = deque()  # when, number and step of calls that aren't noted yet
        self._held: Record | None = None
        self._item: Item | None = None  # what is being done, where it's no call
        self._medium: str | None = None  # the one that is being shown
        self._refuses_media = False  # the last one was given up: each is tried once until one is taken
        self._last_error: BaseException | None = None
        self._reported_stuck: float | None = None

    def behind(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self.todo) or self._journal.cursor(self.name) < self._journal.last

    def idle(self) -> bool:
        """Nothing waits and nothing is being sent."""
        return self.busy_since is None and not self.behind()

    def stuck(self, now: float, stall_s: float) -> bool:
        """Whether it has answered nothing for longer than that; true once for each time."""
        since = self.busy_since
        if since is None or now - since <= stall_s or since == self._reported_stuck:
            return False
        self._reported_stuck = since
        return True

    def job(self, closing: bool) -> Callable[[], None] | None:
        """What to do next, if anything."""
        at = self._journal.cursor(self.name)
        if self.todo and self.todo[0].after <= at:
            return self._do_item
        if at < self._journal.last:
            limit = 2 if closing else ATTEMPTS
            if self._medium is not None and self._lasting_error:
                return self._skip_medium if self._refuses_media or self._attempts >= limit else self._send_first
            return self._try_next if self._lasting_error and self._attempts % limit == 0 else self._send_first
        return None

    # -------------------------------------------------------------------------------------- on its own thread

    def _send_first(self) -> None:
        upto = self._journal.last
        record = self._first()
        if record is None:
            self._settle(upto, None)
            return
        several = self._several(record)
        if len(several) > 1:
            self.backend.log_many([(Values(one.values, one.wall_ns), one.step) for one in several])
        else:
            self._send(record)
        self._settle(several[-1].n, several[-1].step)

    def _several(self, first: Record) -> list[Record]:
        """Calls to send at once: those that wait, where the backend takes several and nothing has gone wrong."""
        found = [first]
        if self._attempts or self._parts or first.n <= self._doubted or not self.backend.takes("log_many"):
            return found
        size = 0
        while not found[-1].media and (size := size + len(found[-1].values)) < TOGETHER:
            following = self._journal.after(self.name, found[-1].n)
            if following is None or following.media:
                break
            found.append(following)
        return found

    def _first(self) -> Record | None:
        if self._held is None:
            self._held = self._journal.after(self.name, self._journal.cursor(self.name))
        return self._held

    def _try_next(self) -> None:
        first = self._first()
        following = None if first is None else self._proof(first)
        if first is None or following is None:
            self._send_first()
            return
        self._prove(following)
        error = RuntimeError("see the incident of this backend")
        path = self._journal.refuse(self.name, first, self._last_error or error)
        place = "" if path is None else f"; its values are in {path}"
        message = f"refuses the values of step {first.step}, which are given up{place}"
        self._reports.tell("backend", self.name, message, about="calls given up")
        self._settle(first.n, first.step)

    def _proof(self, first: Record) -> Record | None:
        """The next call that holds numbers, which tell more than media do; else the next."""
        following = found = self._journal.after(self.name, first.n)
        while found is not None and not found.values:
            found = self._journal.after(self.name, found.n)
        return found or following

    def _prove(self, following: Record) -> None:
        """Send enough of a call to know that the backend is in order: its numbers, or all of it where it has none."""
        if following.values and following.n not in self._parts:
            self._send_values(following)
            self._parts[following.n] = 1
        elif not following.values:
            try:
                self._send(following)
            finally:
                self._medium = None  # it isn't the first call's

    def _skip_medium(self) -> None:
        """Its values have arrived, or it has none, and the connection is in order: what holds it up is put aside."""
        record, name = self._first(), self._medium
        if record is None or name is None:
            return
        error = self._last_error or RuntimeError("see the incident of this backend")
        aside = replace(record, values={}, media={name: record.media[name]})
        path = self._journal.refuse(self.name, aside, error)
        place = "" if path is None else f"; it is in {path}"
        message = f"doesn't take {name!r} of step {record.step}, which is given up{place}: {error!r}"
        self._reports.tell("backend", self.name, message, about="media given up")
        self._parts[record.n] = list(record.media).index(name) + 2
        self._medium, self._refuses_media = None, True
        self._attempts, self._lasting_error = 0, False

    def _send(self, record: Record) -> None:
        done = self._parts.get(record.n, 0)
        if done == 0:
            self._send_values(record)
            done = self._parts[record.n] = 1
        for place, (name, medium) in enumerate(record.media.items(), 1):
            if place < done:
                continue
            if medium.kind in self.backend.shows:
                self._medium = name
                self.backend.show(name, medium, record.step, record.wall_ns)
                self._medium, self._refuses_media = None, False
            else:
                message = f"can't show a {medium.kind}: {name!r} at step {record.step} is left out"
                self._reports.tell("value", self.name, message, about=f"kind {medium.kind}")
            self._parts[record.n] = place + 1

    def _send_values(self, record: Record) -> None:
        values = Values(record.values, record.wall_ns)
        if record.n <= self._doubted:
            values = Values(self.backend.missing(values, record.step), record.wall_ns)
        if values:
            self.backend.log(values, record.step)

    def _settle(self, n: int, step: int | None) -> None:
        self._journal.settle(self.name, n)
        self._note(n, step)
        self._parts = {number: done for number, done in self._parts.items() if number > n}
        self._held = self._medium = None
        self._attempts = 0
        self._lasting_error = False

    def _note(self, n: int, step: int | None) -> None:
        """Note what the backend surely has: all, or what it was sent some seconds and a step ago."""
        settles_s = self.backend.settles_s
        if not settles_s:
            self._journal.note(self.name, n)
            return
        now = time.monotonic()
        if step is not None:
            self._under_way.append((now, n, step))
        sure = None
        while self._under_way and self._under_way[0][0] <= now - settles_s and self._under_way[0][2] != step:
            sure = self._under_way.popleft()[1]
        if sure is not None:
            self._journal.note(self.name, sure)

    def _do_item(self) -> None:
        item = self._item = self.todo[0]
        item.attempts += 1
        item.action()
        self.todo.popleft()
        self._item = None

    # ---------------------------------------------------------------------------- after it, in the stream's lock

    def succeeded(self) -> None:
        """What follows when a job was done."""
        if self.failures:
            _log.info("%s: works again after %d failures", self.name, self.failures)
        self.failures = 0
        self.retry_at = 0.0

    def failed(self, error: BaseException, closing: bool) -> str:
        """What follows when a job wasn't done; returns what was being done."""
        what = self._blame(error)
        self.failures += 1
        first, longest = BACK_OFF_S
        pause = min(longest, first * 2.0 ** min(self.failures - 1, 20))
        self.retry_at = time.monotonic() + (min(pause, 4 * first) if closing else pause)
        if closing and self.failures >= CLOSING_FAILURES:
            self.gave_up = True
        return what

    def _blame(self, error: BaseException) -> str:
        lasting = not isinstance(error, OSError)
        if self._item is not None:
            item, self._item = self._item, None
            if lasting and item.attempts >= ATTEMPTS:
                self.todo.popleft()
            return item.what
        self._attempts += 1
        self._lasting_error = lasting
        self._last_error = error
        return "a step" if self._held is None else f"step {self._held.step}"

    def end(self, exit_code: int) -> Callable[[], Any]:
        """Its last job."""

        def close() -> None:
            self.backend.close(exit_code)
            if not self.gave_up:
                self._journal.note(self.name, self._journal.cursor(self.name))
            self.closed = self.ended = True

        return close
