"""Notices from the writer's thread that the training thread stays in one scope, and writes down where in the code.

A thread that is stuck in C with the interpreter's lock held stops the writer's thread as well: then nothing is written
here, and the heartbeat of the process's :mod:`~probe.runs.now_file` stands still.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from typing import Any, Final

from probe.guard import attempt
from probe.hooks import Scope
from probe.records import Stack
from probe.runs.collectives import waited_in
from probe.runs.now_file import NowFile

_log = logging.getLogger("probe.runs")

#: A scope is overdue when it is open for longer than this, seconds; :data:`VARIABLE` in the environment says otherwise.
OVERDUE_S: Final = 60.0

#: And for longer than this many times the longest that one of its name took in this process, and this much more.
TIMES: Final = 3
MARGIN_S: Final = 1.0

VARIABLE: Final = "PROBE_OVERDUE_S"

#: Characters of a stack that are kept.
STACK: Final = 20_000


class Watchdog:
    """Looks at the scopes that are open, in each round of the writer's thread.

    Args:
        now: Where the process is.
    """

    def __init__(self, now: NowFile) -> None:
        self._now = now
        self._told: tuple[int, int] = (0, 0)  # the scope that was told of, and how long it was open then
        self._least_ns = int(overdue_s() * 1e9)

    def look(self) -> tuple[Stack, Scope] | None:
        """The row of the innermost scope that is overdue, at first and again when it is open for twice as long; and the
        scope. None where there is nothing to be told.
        """
        now_ns = time.monotonic_ns()
        for scope in self._now.at.ancestors():
            open_ns = now_ns - scope._begun_ns
            if scope.parent is None or not scope._begun_ns:
                return None
            if open_ns <= self._least_ns:
                continue
            longest_ns = self._now.longest_ns(scope)
            threshold_ns = max(self._least_ns, TIMES * longest_ns + int(MARGIN_S * 1e9) if longest_ns else 0)
            if open_ns <= threshold_ns:
                continue
            if self._told[0] == scope.id and open_ns < 2 * self._told[1]:
                return None
            self._told = (scope.id, open_ns)
            return self._row(scope, open_ns, threshold_ns, longest_ns), scope
        return None

    def _row(self, scope: Scope, open_ns: int, threshold_ns: int, longest_ns: int) -> Stack:
        thread = self._now.thread
        stack, innermost = stack_of(thread)
        names = [one.name for one in threading.enumerate() if one.ident == thread]
        collective = _collective()
        return Stack(
            open_ns=open_ns,
            threshold_ns=threshold_ns,
            longest_ns=longest_ns or None,
            kind=scope.kind,
            stack=stack,
            innermost=innermost,
            thread=names[0] if names else str(thread),
            seen=bool(stack),
            **collective,
        )


def _collective() -> dict[str, Any]:
    """The columns of the collective that the process waits in."""
    found = attempt(waited_in, _unreadable)
    if found is None:
        return {}
    return {
        "collective": found.name,
        "collective_group": found.group,
        "collective_number": found.number,
        "collective_sizes": found.sizes,
        "collective_ns": found.open_ns,
    }


def _unreadable(error: Exception) -> None:
    """PyTorch's recorder may tell whatever it likes: the stack is told all the same."""
    _log.warning("probe can't read PyTorch's flight recorder (%s: %s)", type(error).__name__, error)


def overdue_s() -> float:
    """:data:`OVERDUE_S`, or what the environment says where that is a positive number."""
    try:
        given = float(os.environ.get(VARIABLE, ""))
    except ValueError:
        return OVERDUE_S
    return given if given > 0 else OVERDUE_S


def stack_of(thread: int) -> tuple[str, str]:
    """The Python stack of a thread, and its innermost line; empty where there is no such thread.

    Args:
        thread: Its identifier.

    Returns:
        The stack as text with the innermost line last, the outer ones left out where it is long; and the innermost as
        "file:line function".
    """
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "", ""
    try:
        inner = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
        return "".join(traceback.format_stack(frame))[-STACK:], inner
    finally:
        del frame  # it holds the trainer's tensors
