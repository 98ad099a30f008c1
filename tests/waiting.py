"""Waiting for what another thread or process does: by its own sign, for as long as a loaded machine takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Much longer than anything here takes on a loaded machine, seconds: only what never comes isn't there by then.
PATIENCE_S = 300.0


def until(look: Callable[[], T], met: Callable[[T], object] = bool) -> T:
    """Look again and again, for a fifth of the time at most: looking must not hold up what is waited for.

    Args:
        look: What is looked at, such as a file or a server.
        met: Whether what it gives is as it must become; by default that it is true.

    Returns:
        What ``look`` gave when that was so. Where it never is, the failure says what was seen last.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        begin = time.monotonic()
        seen = look()
        if met(seen):
            return seen
        now = time.monotonic()
        assert now < deadline, f"not within {PATIENCE_S:g} s; what was seen last: {seen!r}"
        time.sleep(max(0.02, 4 * (now - begin)))
