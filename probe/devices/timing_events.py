"""Timing events of torch: whether the device has come to one, and the time between two. Nobody waits for them."""

from __future__ import annotations

from typing import Any


def query(event: Any) -> bool:
    """Whether the device has come to the event, or will never come to it."""
    try:
        return bool(event.query())
    except RuntimeError:  # the device is in an error state: there is nothing more to wait for
        return True


def elapsed_ns(begin: Any, end: Any) -> int | None:
    """Device time between two events; None while one isn't done, and where it can't be known.

    Args:
        begin: The event before the work.
        end: The event after the work.
    """
    try:
        if not (begin.query() and end.query()):
            return None
        return round(float(begin.elapsed_time(end)) * 1e6)
    except RuntimeError:  # the device is in an error state, or one of the events was never recorded
        return None
