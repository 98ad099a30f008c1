"""Callbacks of others that a thread calls, and that may fail without ending it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

_log = logging.getLogger("probe.runs")

#: Failures of a callback after which it isn't called any more.
MAX_FAILURES: Final = 3


class Guarded:
    """A callback that may fail: told each time, and switched off after :data:`MAX_FAILURES`.

    Args:
        name: What the callback is called when its failure is told.
        callback: None does nothing.
        report: Is told of each failure: kind, where, message, the error, how many there were and whether that was the
            last.
    """

    def __init__(self, name: str, callback: Callable[..., Any] | None, report: Callable[..., None]) -> None:
        self._name = name
        self._callback = callback
        self._report = report
        self._failures = 0

    def __call__(self, *args: Any) -> Any:
        if self._callback is None:
            return None
        try:
            return self._callback(*args)
        except Exception as error:  # the session's code never ends the writer's thread
            self._failures += 1
            off = self._failures >= MAX_FAILURES
            if self._failures == 1:
                _log.exception("%s of the run writer failed; the run goes on", self._name)
            if off:
                self._callback = None
            message = f"{self._name} failed: {error!r}"
            self._report("writer", self._name, message, error, count=self._failures, switched_off=off)
            return None
