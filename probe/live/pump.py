"""The one thread of a live panel: looks at the run, and sends what is new, at most four times a second.

Whatever fails in it is kept and shown by the panel; it never reaches the training, and the thread goes on.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from probe.errors import ProbeError
from probe.guard import Guard
from probe.live import history
from probe.live.feed import Feed
from probe.live.protocol import Message, Sender, size_of
from probe.live.thinning import Block

_log = logging.getLogger("probe.views.panel")

#: Seconds between two looks at a store that isn't this machine's, and at a run that is over.
REMOTE_S: Final = 1.0
FINISHED_S: Final = 1.0

#: Seconds after which a page is told that we are still there, where nothing else is news; and seconds without any
#: message after which it takes us for gone, above what a look took.
HEARTBEAT_S: Final = 2.0
SILENCE_S: Final = 6.0

#: A look may take this share of the time; where it takes more, looks become rarer.
BUSY_SHARE: Final = 0.2

#: Seconds between two tries after failures, at most.
MOST_PATIENT_S: Final = 10.0

#: Where a failure makes the next look come later.
_LOOKING: Final = frozenset({"open", "run", "send"})

#: Failures that are kept.
KEPT: Final = 20

#: Looks at the end of a cell may take so long; the thread goes on with one that takes longer.
PATIENCE_S: Final = 1.0

Deliver = Callable[[dict[str, Any], list[bytes]], None]


class Pump:
    """Follows a feed and sends it.

    Args:
        feed: The feed of the run.
        deliver: Is called with the head and the buffers of a message.
        interval_s: Seconds between two looks.
        looked: Is called in the thread after each look.
        also: Gives more of the state: what others have found out about the run.

    Attributes:
        failures: What went wrong, newest last: dicts with "where", "message" and "at" (seconds since the epoch).
    """

    def __init__(
        self,
        feed: Feed,
        deliver: Deliver | None,
        interval_s: float,
        looked: Callable[[], None] | None = None,
        also: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self.feed = feed
        self.deliver = deliver
        self.failures: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._looked = looked
        self._also = also
        self._sender = Sender(feed.words)
        self._interval_s = interval_s if feed.local else max(interval_s, REMOTE_S)
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._awaited: deque[threading.Event] = deque()
        self._thread: threading.Thread | None = None
        self._failed: dict[str, dict[str, Any]] = {}  # by where: what fails now
        self._fails_in_a_row = 0
        self._guards: dict[str, Guard] = {}  # by where
        self._finished = False
        self._looked_for_end = 0.0
        self._whole_asked = False
        self._attempts_asked: deque[int | None] = deque()
        self._wishes: deque[Sequence[history.Wish]] = deque()
        self._steps_asked: deque[int] = deque()
        self._took_s = 0.0
        self._told_at = time.monotonic()
        self._cost: dict[str, float] = {"kernel_ms": 0.0, "bytes": 0}

    # ------------------------------------------------------------------------------------------------ its life

    def open(self) -> None:
        """Read what is there; a failure is kept, and tried again by the thread."""
        self.isolated("open", self.feed.open)
        self.isolated("open", self._look_for_end)

    def start(self) -> None:
        """Begin to follow; once."""
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="probe-panel", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread, look a last time, and tell the browser that it's over. Safe to call twice."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
        if thread is None or not thread.is_alive():  # else it hangs in a store that doesn't answer
            self.round(to_the_end=True)

    @property
    def running(self) -> bool:
        """Whether the thread follows the run."""
        return self._thread is not None and self._thread.is_alive() and not self._stop.is_set()

    @property
    def finished(self) -> bool:
        """Whether the run had ended when it was last looked at."""
        return self._finished

    def catch_up(self, timeout_s: float = PATIENCE_S) -> bool:
        """Let the thread look now, at the run's end too, and wait for it.

        Returns:
            False where nobody follows the run, or a look takes longer than ``timeout_s``.
        """
        if not self.running or threading.current_thread() is self._thread:
            return False
        done = threading.Event()
        self._awaited.append(done)
        self._wake.set()
        return done.wait(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._await_turn()
            self._wake.clear()
            if self._stop.is_set():
                return
            awaited = [self._awaited.popleft() for _ in range(len(self._awaited))]
            begin = time.monotonic()
            self.round(to_the_end=bool(awaited))
            self._took_s = time.monotonic() - begin
            for one in awaited:
                one.set()
            self.isolated("copy", self._tell)

    def _await_turn(self) -> None:
        """Wait for the next look, however long that is, and stay heard of meanwhile."""
        due = time.monotonic() + self._pause()
        while not self._wake.wait(max(min(due - time.monotonic(), HEARTBEAT_S), 0.0)) and time.monotonic() < due:
            self._beat()

    def _beat(self) -> None:
        """Say that we are there, where nothing has been said for a while."""
        if time.monotonic() - self._told_at >= HEARTBEAT_S:
            self.isolated("send", lambda: self._send(self._sender.heartbeat(self._here())))

    def _tell(self) -> None:
        if self._looked is not None:
            self._looked()

    def _pause(self) -> float:
        pause = max(self._interval_s, self._took_s / BUSY_SHARE)
        if self._finished:
            pause = max(pause, FINISHED_S)
        if self._fails_in_a_row:
            pause = max(pause, min(self._interval_s * 2.0**self._fails_in_a_row, MOST_PATIENT_S))
        return pause

    # ------------------------------------------------------------------------------------------------- a round

    def round(self, *, to_the_end: bool = False) -> None:
        """One look and at most one message.

        Args:
            to_the_end: Whether to look if the run has ended, however short a time ago that was done.
        """
        begin = time.thread_time_ns()
        with self._lock:
            self._looked_for_end = 0.0 if to_the_end else self._looked_for_end
            message = self.isolated("run", self._message)
            if message is None:
                self._beat()
            else:
                self.isolated("send", lambda: self._send(message))
                spent = (time.thread_time_ns() - begin) / 1e6
                self._cost = {"kernel_ms": round(spent, 3), "bytes": size_of(message)}
            while self._wishes or self._steps_asked:
                self._answer()

    def _answer(self) -> None:
        """Send what a page has asked for; where that fails, that there is none, so that it doesn't wait."""
        told: list[history.History] = []
        blocks: dict[str, Block] = {}
        if self._wishes:
            wishes = self._wishes.popleft()
            found = self.isolated("history", lambda: self.feed.histories(wishes))
            told = [history.missing(one) for one in wishes] if found is None else found
        else:
            step = self._steps_asked.popleft()
            blocks = self.isolated("history", lambda: self.feed.rows_of(step)) or {}
        past = self._sender.past(told, blocks, self.feed.tables)
        self.isolated("send", lambda: self._send(past))

    def _message(self) -> Message | None:
        if not self.feed.opened:  # it failed until now: the browser has nothing
            self.feed.open()
            self.succeeded("run")
            self._whole_asked = True
        if self._whole_asked:
            self._whole_asked = False
            return self._sender.keyframe(self.feed.tables, self.state())
        if self._sender.keyframe_is_due:
            return self._sender.keyframe(self.feed.sketches, self.state())
        rebuilt = self.feed.rebuilt
        while self._attempts_asked:
            self.feed.show(self._attempts_asked.popleft())
        blocks = self.feed.update()
        if self.feed.rebuilt != rebuilt:  # what the browser has is of an attempt that isn't shown any more
            return self._sender.keyframe(self.feed.tables, self.state(), anew=True)
        if blocks and self._looked_for_end:
            self._finished = False
        else:
            self._look_for_end()
        self.succeeded("run")
        state = self.state()
        if not blocks and not self._sender.is_news(state):
            return None
        return self._sender.delta(blocks, self.feed.tables, state)

    def _send(self, message: Message) -> None:
        self._told_at = time.monotonic()
        if self.deliver is not None:
            self.deliver(*message)
        self.succeeded("send")

    def _look_for_end(self) -> None:
        now = time.monotonic()
        if now - self._looked_for_end >= FINISHED_S or self._stop.is_set():
            self._looked_for_end = now
            self._finished = self.feed.finished()

    def isolated(self, where: str, action: Callable[[], Any]) -> Any:
        """What ``action`` gives; None where it fails, which is kept and shown."""
        guard = self._guards.get(where)
        if guard is None:
            failed = f"the live panel of {self.feed.path} failed in {where}"
            guard = Guard(where, failed, kind="panel", tell=self._tell_failed, most=None, log=_log, level=logging.DEBUG)
            self._guards[where] = guard
        return guard.call(lambda: self._readable(where, action))

    def _readable(self, where: str, action: Callable[[], Any]) -> Any:
        """As :meth:`isolated`, for what is no fault of ours: a store doesn't answer just now, or there is no run."""
        try:
            return action()
        except ProbeError as error:
            self.fail(where, error)
            return None

    def _tell_failed(self, _kind: str, where: str, _message: str, error: BaseException | None, *_: object) -> None:
        if error is not None:
            self.fail(where, error)

    def fail(self, where: str, error: BaseException) -> None:
        """Keep a failure and show it in the panel."""
        message = f"{type(error).__name__}: {error}"
        if self._failed.get(where, {}).get("message") != message:
            _log.warning("the live panel of %s failed in %s: %s", self.feed.path, where, message)
            self.failures.append({"where": where, "message": message, "at": time.time()})
        self._failed[where] = {"where": where, "message": message}
        if where in _LOOKING:
            self._fails_in_a_row = min(self._fails_in_a_row + 1, 16)

    def succeeded(self, where: str) -> None:
        """What failed in ``where`` does so no more."""
        self._failed.pop(where, None)
        if where == "run":
            self._failed.pop("open", None)
        if not _LOOKING & self._failed.keys():
            self._fails_in_a_row = 0

    # -------------------------------------------------------------------------------------------- for the panel

    def _ended(self, writers: str) -> dict[str, str] | None:
        """How the run has ended; None while it goes on, and where its processes don't say."""
        try:
            found = self.feed.outcome() if self._finished or writers in ("gone", "ended") else None
        except ProbeError:  # the store doesn't answer just now
            return None
        return None if found is None else {"word": found.word, "short": found.short, "sentence": str(found)}

    def state(self) -> dict[str, Any]:
        """What the browser shows beside the tables."""
        feed = self.feed
        activity = feed.activity()
        return {
            "step": feed.step,
            "complete_step": feed.complete_step,
            "missing": feed.missing(),
            "repeated": feed.repeated,
            "memory": feed.memory,
            "attempts": [list(one) for one in feed.attempts],
            "attempt": feed.attempt,
            "finished": self._finished,
            "ended": self._ended(str(activity["writers"])),
            **activity,
            "live": not self._stop.is_set(),
            "dropped": feed.lost + feed.coalesced,
            "lost": feed.lost,
            "coalesced": feed.coalesced,
            "thinned": feed.left_out + sum(table.thinned for table in feed.tables.values()),
            "bad_lines": feed.bad_lines,
            "errors": [*self._failed.values(), *self._damage()],
            "cost": dict(self._cost),
            **self._also(),
            **self._here(),
        }

    def _damage(self) -> list[dict[str, Any]]:
        told = self.feed.damage
        return [{"where": "run", "message": told}] if told else []

    def _here(self) -> dict[str, Any]:
        """That we are there, and after how many seconds without a word we aren't any more."""
        return {"updated_at": round(time.time(), 3), "silence_s": math.ceil(SILENCE_S + 2 * self._took_s)}

    def snapshot(self) -> tuple[dict[str, Any], bytes]:
        """Head and buffers for a page that opens now; ({}, b"") where that fails."""
        with self._lock:
            found = self.isolated("snapshot", lambda: self._sender.snapshot(self.feed.tables, self.state()))
            return found or ({}, b"")

    def ask_for_all(self) -> None:
        """Let the next message be a keyframe with all that is kept."""
        self._whole_asked = True

    def ask_for_attempt(self, attempt: int | None) -> None:
        """Let all pages show another attempt from the next message on; see :meth:`probe.live.feed.Feed.show`."""
        self._attempts_asked.append(attempt)
        self._wake.set()

    def ask_for_past(self, wishes: Sequence[history.Wish]) -> None:
        """Let the next messages say what all steps say: see :mod:`probe.live.history`."""
        if wishes:
            self._wishes.append(wishes)
            self._wake.set()

    def ask_for_step(self, step: int) -> None:
        """Let one of the next messages bring all rows of a step."""
        self._steps_asked.append(step)
        self._wake.set()

    def read(self, reader: Callable[[Feed], Any]) -> Any:
        """What ``reader`` makes of the feed, while nobody changes it."""
        with self._lock:
            return reader(self.feed)
