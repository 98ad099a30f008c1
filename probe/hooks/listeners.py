"""Points, the listeners that hear of them, and what they are told: an event.

A listener never harms the caller: what it raises is counted, logged once with its traceback, told to the listener's own
:meth:`Listener.failed`, and after :data:`MAX_FAILURES` the listener is switched off.
"""

from __future__ import annotations

import fnmatch
import functools
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from probe.guard import Guard, is_strict
from probe.hooks.scopes import NOTHING, Scope
from probe.hooks.switch import is_off

#: Failures of one listener after which it is switched off.
MAX_FAILURES: Final = 3

_log = logging.getLogger("probe.hooks")


class Event:
    """One call of an observed function, one scope, or one moment told by :func:`emit`.

    It is emptied as soon as its listeners have returned, so that it never keeps a tensor or a traceback alive: a
    listener takes what it needs and does not keep the event.

    Args:
        point: The point that fired.
        function: The observed function, None for scopes and moments.
        args: Positional arguments as the caller gave them.
        kwargs: Keyword arguments as the caller gave them.
        values: What :func:`emit` or :class:`scope` was given.
        scope: The scope around it (for :data:`SCOPE` the scope itself).

    Attributes:
        point: The point that fired.
        function: The observed function, None for scopes and moments.
        args: Positional arguments as the caller gave them.
        kwargs: Keyword arguments as the caller gave them.
        values: What :func:`emit` or :class:`scope` was given.
        result: What the function returned.
        error: What it, or the scope's body, raised.
        scope: The scope around it (for :data:`SCOPE` the scope itself).
        begin_ns: ``time.monotonic_ns()`` right before the call itself, listeners excluded.
        end_ns: ``time.monotonic_ns()`` right after the call itself, listeners excluded.
    """

    __slots__ = (
        "_shared",
        "args",
        "begin_ns",
        "end_ns",
        "error",
        "function",
        "kwargs",
        "point",
        "result",
        "scope",
        "values",
    )

    def __init__(
        self,
        point: Point,
        function: Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        values: Mapping[str, Any],
        scope: Scope,
    ) -> None:
        self.point = point
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.values = values
        self.scope = scope
        self.result: Any = None
        self.error: BaseException | None = None
        self.begin_ns = 0
        self.end_ns = 0
        self._shared: dict[str, Any] | None = None

    @property
    def shared(self) -> dict[str, Any]:
        """What one listener has worked out for the others, by a name that they know; it goes with the event."""
        found = self._shared
        if found is None:
            found = self._shared = {}
        return found

    def argument(self, name: str, default: Any = None) -> Any:
        """The value that parameter ``name`` has in this call, its own default included; else ``default``.

        Args:
            name: The parameter's name in the observed function's signature.
            default: What comes back where the function has no such parameter.
        """
        if name in self.kwargs:
            return self.kwargs[name]
        if self.function is None:
            return default
        position, fallback = _parameters(self.function).get(name, (sys.maxsize, inspect.Parameter.empty))
        if position < len(self.args):
            return self.args[position]
        return default if fallback is inspect.Parameter.empty else fallback

    def _empty(self) -> None:
        if self.function is not None:  # else there are no arguments either
            self.function, self.args, self.kwargs = None, (), NOTHING
        self.values = NOTHING
        self.result = self.error = self._shared = None


@functools.lru_cache(maxsize=1024)
def _parameters(function: Callable[..., Any]) -> dict[str, tuple[int, Any]]:
    parameters = inspect.signature(function).parameters
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {
        name: (position if one.kind in by_position else sys.maxsize, one.default)
        for position, (name, one) in enumerate(parameters.items())
    }


class Listener:
    """What hears of events. Override what is needed; the rest does nothing.

    What :meth:`enter` returns comes back as ``state`` in :meth:`leave` of the same event.
    """

    def enter(self, event: Event) -> Any:
        """An observed call or a scope begins. ``event.begin_ns`` isn't set yet."""

    def leave(self, event: Event, state: Any) -> None:
        """The call or scope ended; ``event.result`` or ``event.error`` is set.

        Args:
            event: The event that ``enter`` was given.
            state: What ``enter`` returned.
        """

    def fire(self, event: Event) -> None:
        """A moment told by :func:`emit`; ``event.values`` holds what was told."""

    def failed(self, event: Event, error: BaseException, count: int, switched_off: bool) -> None:
        """One of the methods above raised ``error``, for the ``count``-th time.

        Args:
            event: The event that was told.
            error: What was raised.
            count: How often this listener has failed by now.
            switched_off: Whether it is told of nothing from now on.
        """


class Point:
    """A place in the code that can be listened to. Made by :func:`point`, one for each name.

    Args:
        name: The point's name, such as ``"data_proto.concat"``.
        about: When it fires, and what it carries.
    """

    __slots__ = ("about", "listeners", "name")

    def __init__(self, name: str, about: str = "") -> None:
        self.name = name
        self.about = about
        self.listeners: tuple[Listener, ...] = ()

    def __repr__(self) -> str:
        return f"Point({self.name!r}, {len(self.listeners)} listeners)"

    def __reduce__(self) -> Any:
        """In another process it is the point of that name there: who listens stays here."""
        return point, (self.name, self.about)


_lock = threading.RLock()
_points: dict[str, Point] = {}
_subscriptions: list[tuple[str, Listener]] = []
_failures: dict[int, int] = {}


def _unlock_in_child() -> None:
    """A thread that a forked child hasn't got may have held it."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


def point(name: str, about: str = "") -> Point:
    """The point called ``name``, made on first use. ``about`` says when it fires and what it carries.

    Args:
        name: The point's name, such as ``"data_proto.concat"``.
        about: When it fires, and what it carries.
    """
    with _lock:
        found = _points.get(name)
        if found is None:
            found = _points[name] = Point(name, about)
            _attach(found)
        elif about and not found.about:
            found.about = about
        return found


def points() -> dict[str, Point]:
    """All points made so far, by name. Importing a module makes its points."""
    with _lock:
        return dict(sorted(_points.items()))


def _attach(where: Point) -> None:
    wanted = (listener for pattern, listener in _subscriptions if fnmatch.fnmatchcase(where.name, pattern))
    where.listeners = tuple(dict.fromkeys(wanted))


class Subscription:
    """What :func:`subscribe` returns; ``close()`` ends it, as does leaving it as a context manager."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def close(self) -> None:
        """The listener hears no more. Safe to call twice."""
        unsubscribe(self._listener)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def subscribe(listener: Listener, *patterns: str) -> Subscription:
    """Let ``listener`` hear of all points whose names match one of ``patterns``, those made later included.

    Args:
        listener: What is told; several are told in the order of subscription when a call begins, and in the reverse
            order when it ends.
        *patterns: Names of points, or shell patterns such as ``"data_proto.*"``.

    Where the environment says ``PROBE=off`` nothing is told.

    Raises:
        InputError: The environment's ``PROBE`` is neither on nor off.
    """
    if is_off():
        return Subscription(listener)
    with _lock:
        _subscriptions.extend((pattern, listener) for pattern in patterns)
        for where in _points.values():
            _attach(where)
    return Subscription(listener)


def unsubscribe(listener: Listener) -> None:
    """End every subscription of ``listener``."""
    with _lock:
        _subscriptions[:] = [pair for pair in _subscriptions if pair[1] is not listener]
        _failures.pop(id(listener), None)
        for where in _points.values():
            _attach(where)


def note_failure(listener: Listener, event: Event, error: BaseException) -> None:
    """Count a failure of a listener, log the first one, tell the listener, and switch it off after the last.

    Args:
        listener: Which failed.
        event: Of which it heard.
        error: What it raised.

    Raises:
        BaseException: ``error``, where that is asked for (:func:`~probe.guard.is_strict`).
    """
    with _lock:
        count = _failures[id(listener)] = _failures.get(id(listener), 0) + 1
    switched_off = count >= MAX_FAILURES
    if count == 1:
        _log.error("%r failed at %s; training goes on", listener, event.point.name, exc_info=error)
    if switched_off:
        _log.error("%r failed %d times and is switched off", listener, count)
        unsubscribe(listener)
    said = f"{type(listener).__name__} failed while it was told of its failure"
    with Guard(event.point.name, said, tell=None, log=_log):
        listener.failed(event, error, count, switched_off)
    if is_strict():
        raise error
