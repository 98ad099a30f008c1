"""Telling listeners of a beginning and of an end, so that none of them reaches the caller."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from probe.hooks.listeners import Event, Listener, note_failure
from probe.hooks.own_time import spent_by_thread
from probe.hooks.silence import busy

_clock: Final = time.monotonic_ns
_thread_id: Final = threading.get_ident

#: Names of this module: CPython 3.11 takes longer to call a method of a name that was imported.
_busy: Final = busy
_spent_ns: Final = spent_by_thread


def enter(event: Event, thread: int) -> list[tuple[Listener, Any]]:
    """Tell the point's listeners of a beginning.

    Args:
        event: The event that begins.
        thread: The calling thread.

    Returns:
        Who heard of it, and what each returned: for :func:`leave`.
    """
    states: list[tuple[Listener, Any]] = []
    try:
        _busy.add(thread)  # whoever calls has seen that it is not
        for listener in event.point.listeners:
            try:
                states.append((listener, listener.enter(event)))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a listener never reaches training
                note_failure(listener, event, error)
    finally:
        _busy.discard(thread)
    return states


def leave(event: Event, states: list[tuple[Listener, Any]]) -> None:
    """Tell who heard of the beginning of the end, in the reverse order, and empty the event.

    Args:
        event: The event that has ended, at its ``end_ns``.
        states: What :func:`enter` returned.
    """
    thread = _thread_id()
    before = thread in _busy  # a scope may end where its beginner is silenced
    try:
        _busy.add(thread)
        states.reverse()
        for listener, state in states:
            try:
                listener.leave(event, state)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a listener never reaches training
                note_failure(listener, event, error)
    finally:
        if not before:
            _busy.discard(thread)
        event._empty()
        _spent_ns[thread] = _spent_ns.get(thread, 0) + _clock() - event.end_ns
