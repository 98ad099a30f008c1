"""What went wrong with the tracking, told once a kind and counted from then on."""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections.abc import Callable

from probe.guard import Guard
from probe.records import Incident

_log = logging.getLogger("probe.tracking")


class Reports:
    """Warnings that don't flood: the first of each kind is logged and made an ``Incident``; more are counted.

    Args:
        on_incident: Is given each Incident, on whatever thread it happened; the first thing that it raises is logged.
    """

    def __init__(self, on_incident: Callable[[Incident], None] | None = None) -> None:
        self._on_incident = on_incident
        self._telling = Guard("on_incident", "on_incident failed; training goes on", tell=None, most=None, log=_log)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._counts: dict[tuple[str, str, str], int] = {}
        self._reported: dict[tuple[str, str, str], int] = {}

    def tell(
        self,
        kind: str,
        where: str,
        message: str,
        *,
        about: str = "",
        count: int = 1,
        error: BaseException | None = None,
    ) -> None:
        """Report something.

        Args:
            kind: One of "backend", "value", "name", "step" and "dropped_rows".
            where: The backend's name, or "tracking".
            message: What happened.
            about: Tells things of one kind and place apart, such as the metric's name.
            count: How often it has happened since the last report.
            error: The exception behind it, whose traceback is kept.
        """
        key = (kind, where, about)
        if os.getpid() != self._pid:  # forked, perhaps while another thread held the lock
            self._pid, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            seen = self._counts.get(key, 0)
            self._counts[key] = seen + count
            if seen:
                return
            self._reported[key] = count
        self._publish(kind, where, message, count, error)

    def guard(self, kind: str, failed: str, *, about: str) -> Guard:
        """A guard whose failures are reported here.

        Args:
            kind: As of :meth:`tell`.
            failed: What happened; the exception is added.
            about: As of :meth:`tell`.
        """

        def told(kind: str, where: str, message: str, error: BaseException | None, *_: object) -> None:
            self.tell(kind, where, message, about=about, error=error)

        # What is reported is logged here, too.
        return Guard("tracking", failed, kind=kind, tell=told, most=None, log=_log, level=logging.DEBUG)

    def count(self, kind: str, where: str, about: str = "") -> int:
        """How often that has happened so far."""
        return self._counts.get((kind, where, about), 0)

    def close(self) -> None:
        """Tell of everything that has happened more often than was told."""
        with self._lock:
            more = {key: count - self._reported[key] for key, count in self._counts.items()}
            self._reported = dict(self._counts)
        for (kind, where, about), count in more.items():
            if count:
                self._publish(kind, where, f"{about or kind}: {count} more since the first report", count, None)

    def _publish(self, kind: str, where: str, message: str, count: int, error: BaseException | None) -> None:
        _log.warning("%s: %s", where, message)
        if self._on_incident is None:
            return
        trace = None if error is None else "".join(traceback.format_exception(error))
        with self._telling:  # reporting a trouble must not make another
            self._on_incident(Incident(kind=kind, where=where, message=message, traceback=trace, count=count))
