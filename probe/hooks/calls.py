"""Calls that are told of from their beginning to their end: of other code, and of bodies that stop in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

from probe.hooks.guard import enter, leave
from probe.hooks.listeners import Event, Listener, Point
from probe.hooks.own_time import spend, spent_by_thread
from probe.hooks.scopes import NOTHING, current
from probe.hooks.silence import busy

_clock: Final = time.monotonic_ns
_thread_id: Final = threading.get_ident

#: Names of this module: CPython 3.11 takes longer to call a method of a name that was imported.
_busy: Final = busy
_current: Final = current
_spent_ns: Final = spent_by_thread


class call_of:  # reads as a noun at the point of use: `with call_of(point, function, args, kwargs):`
    """Context manager: the block is the call of a function that somebody else made a point, such as a framework's.

    Args:
        where: The point that fires, as it would for a function of our own under :func:`observed`.
        function: The function that is called in the block.
        args: Positional arguments as the caller gave them.
        kwargs: Keyword arguments as the caller gave them.

    Attributes:
        result: To be set inside the block: what the function returned.
    """

    __slots__ = ("_args", "_event", "_function", "_kwargs", "_states", "_where", "result")

    def __init__(
        self, where: Point, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._where, self._function, self._args, self._kwargs = where, function, args, kwargs
        self._event: Event | None = None
        self._states: list[tuple[Listener, Any]] = []
        self.result: Any = None

    def __enter__(self) -> call_of:
        if not self._where.listeners or _thread_id() in _busy:
            return self
        begin_ns = _clock()
        event = self._event = Event(self._where, self._function, self._args, self._kwargs, NOTHING, _current.get())
        self._states = enter(event, _thread_id())
        spend(begin_ns)
        event.begin_ns = _clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        event, self._event = self._event, None
        if event is not None:
            event.end_ns = _clock()
            event.error = error
            event.result = self.result
            leave(event, self._states)


class Body:
    """A call that is told of and whose body may stop in between, as a generator's: that time isn't its own.

    ``result`` is what it has returned, where it has.
    """

    __slots__ = ("_event", "_since_ns", "_states", "_took_ns", "result")

    def __init__(
        self, where: Point, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._event = Event(where, function, args, kwargs, NOTHING, _current.get())
        self._states: list[tuple[Listener, Any]] | None = None
        self._since_ns = self._took_ns = 0
        self.result: Any = None

    def __enter__(self) -> Body:
        thread = _thread_id()
        if thread not in _busy:
            begin_ns = _clock()
            self._states = enter(self._event, thread)
            self._event.begin_ns = now = _clock()
            _spent_ns[thread] = _spent_ns.get(thread, 0) + now - begin_ns
        self._since_ns = _clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.suspend()
        if self._states is None:
            return
        event, states, self._states = self._event, self._states, None
        event.end_ns = event.begin_ns + self._took_ns
        event.error = None if isinstance(error, GeneratorExit) else error
        event.result = self.result
        leave(event, states)

    def suspend(self) -> None:
        """Its consumer, or the loop, goes on."""
        self._took_ns += _clock() - self._since_ns

    def resume(self) -> None:
        """It goes on itself."""
        self._since_ns = _clock()


class _NoBody:
    """Stands for a call that nobody is told of."""

    def __enter__(self) -> _NoBody:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def suspend(self) -> None:
        return

    def resume(self) -> None:
        return


NO_BODY: Final = _NoBody()
