"""What listeners hear of: blocks (``scope``, ``phase``, ``watch``), moments (``emit``) and calls.

All that runs at each of them stands here, since all of it reads ``_in_graph``, which is bound anew once torch is there.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any, Final, ParamSpec, TypeVar, cast

from probe.errors import InputTypeError
from probe.hooks.guard import enter, leave
from probe.hooks.listeners import Event, Listener, Point, note_failure, point
from probe.hooks.own_time import spend, spent_by_thread
from probe.hooks.scopes import NOTHING, PROCESS, Scope, current, inherited, open_around
from probe.hooks.silence import busy
from probe.hooks.wrappers import bare, wrapper

P = ParamSpec("P")
R = TypeVar("R")

_clock: Final = time.monotonic_ns
_thread_id: Final = threading.get_ident
_reference: Final = weakref.ref

#: Names of this module: CPython 3.11 takes longer to call a method of a name that was imported.
_busy: Final = busy
_current: Final = current
_spent_ns: Final = spent_by_thread


def _in_graph_at_first() -> bool:
    """See :func:`in_graph`."""
    global _in_graph
    compiler: Any = getattr(sys.modules.get("torch"), "compiler", None)
    if compiler is None:
        return False
    _in_graph = compiler.is_dynamo_compiling
    return bool(_in_graph())


#: From torch's import on it is torch's own function, which costs least and which its tracer knows.
_in_graph: Callable[[], bool] = _in_graph_at_first


def in_graph() -> bool:
    """Whether ``torch.compile`` traces whoever asks. Nothing is told inside a graph, as Python runs nothing there
    later: scopes, points and timers are passed over, so that a function compiles as it would without them.
    """
    return _in_graph()


#: Entering and leaving a :class:`scope`. Carries the scope itself and its ``values``.
SCOPE: Final = point("scope", "a scope (step, phase, watch, micro-batch) is entered and left; carries its values")


class scope:  # reads as a verb at the point of use: `with scope("phase", "update")`
    """Context manager: the block runs in a new :class:`Scope`, and listeners of :data:`SCOPE` hear of both ends.

    Args:
        kind: See :class:`Scope`; what is None is inherited.
        name: See :class:`Scope`; what is None is inherited.
        step: See :class:`Scope`; what is None is inherited.
        role: See :class:`Scope`; what is None is inherited.
        phase: See :class:`Scope`; what is None is inherited.
        micro_batch: See :class:`Scope`; what is None is inherited.
        **values: Anything else that a listener may want to know, such as the tokens of a micro-batch.

    ``values`` may be added to inside the block (``as opened``: ``opened.values["tokens"] = 17``).

    Ctrl-C can come after a block has begun to end and before it has ended, and Python offers nothing against that. A
    scope that is left behind in this way is known by its block, which is gone, and the next scope begins outside it. A
    step always begins at the root; it takes role and phase from an open scope around it, unless that is in a step.
    """

    __slots__ = ("__weakref__", "_changes", "_notice", "_outer", "kind", "name", "scope", "values")

    def __init__(
        self,
        kind: str,
        name: str,
        *,
        step: int | None = None,
        role: str | None = None,
        phase: str | None = None,
        micro_batch: int | None = None,
        **values: Any,
    ) -> None:
        self.kind = kind
        self.name = name
        self.values = values
        self.scope: Scope | None = None
        self._changes = (step, role, phase, micro_batch)
        self._notice: tuple[Event, list[tuple[Listener, Any]]] | None = None
        self._outer: Scope = PROCESS

    def __enter__(self) -> scope:
        if _in_graph():
            return self
        found = _current.get()
        if found._block is not None and found._block() is None:
            found = open_around(found)
        self._outer = found
        step, role, phase, micro_batch = self._changes
        if self.kind == "step":
            if found.step is None:
                role, phase = role or found.role, phase or found.phase
            around = PROCESS
        else:
            around = found
        opened = self.scope = inherited(self.kind, self.name, around, step, role, phase, micro_batch)
        opened._block = _reference(self)
        begun = False
        try:
            _current.set(opened)
            thread = _thread_id()
            begin_ns = _clock()
            if _entered is not None:
                _entered(opened, thread, begin_ns)
            if SCOPE.listeners and thread not in _busy:
                event = Event(SCOPE, None, (), NOTHING, self.values, opened)
                self._notice = (event, enter(event, thread))
                event.begin_ns = now = _clock()
                _spent_ns[thread] = _spent_ns.get(thread, 0) + now - begin_ns
            begun = True
        finally:
            if not begun:  # Ctrl-C: the block won't run
                _current.set(found)
                if _left is not None:
                    _left(opened, found, _thread_id())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _in_graph():
            return
        try:
            if self._notice is not None:
                event, states = self._notice
                self._notice = None
                event.end_ns = _clock()
                event.error = error
                leave(event, states)
            if error is not None and _raised is not None:
                _raised(self, error)
        finally:  # Ctrl-C in a listener
            opened = cast("Scope", self.scope)
            # A scope inside may have been left open (a generator that nobody closed), and this scope may be closed
            # late by the garbage collector: restore only while we are inside it.
            now = _current.get()
            if now is opened or opened._is_around(now):
                _current.set(self._outer)
                if _left is not None:
                    _left(opened, self._outer, _thread_id())
            opened._block = None  # it ended; a task that it began stays in it

    def suspend(self) -> None:
        """Step out without ending: a generator gives control back to its consumer."""
        _current.set(self._outer)
        if _left is not None:
            _left(cast("Scope", self.scope), self._outer, _thread_id())

    def resume(self) -> None:
        """Step in again after :meth:`suspend`."""
        self._outer = _current.get()
        opened = cast("Scope", self.scope)
        _current.set(opened)
        if _entered is not None:
            _entered(opened, _thread_id(), opened._begun_ns or _clock())

    def abandon(self) -> None:
        """Of a generator that is closed inside the block, before it ends: whoever iterates over it has left its loop.
        By ``break`` or by an exception, which Python doesn't say; it says where, and who follows the scopes compares.
        """
        if _abandoned is not None:
            _abandoned(self, sys._getframe(1).f_back)


#: What is called at each change of the current scope, without the detour over points: it is to know each of them, those
#: of generators that step out and in among them, as soon as it happens.
_entered: Callable[[Scope, int, int], None] | None = None
_left: Callable[[Scope, Scope, int], None] | None = None
_raised: Callable[[scope, BaseException], None] | None = None
_abandoned: Callable[[scope, FrameType | None], None] | None = None


def follow(
    *,
    entered: Callable[[Scope, int, int], None] | None = None,
    left: Callable[[Scope, Scope, int], None] | None = None,
    raised: Callable[[scope, BaseException], None] | None = None,
    abandoned: Callable[[scope, FrameType | None], None] | None = None,
) -> None:
    """Follow the scopes of this process from now on, in the place of who did so before; with nothing nobody does.

    Forked children follow nothing. None of these may raise: nothing stands between them and training.

    Args:
        entered: Called with the scope that is entered, the thread and ``time.monotonic_ns()``, before listeners hear.
        left: Called with the scope that is left, the one that is current from now on and the thread.
        raised: Called with the block that an exception leaves and the exception, before the scope is left.
        abandoned: Called where a generator is closed inside its block, with the block and the frame that closes it.
    """
    global _entered, _left, _raised, _abandoned
    _entered, _left, _raised, _abandoned = entered, left, raised, abandoned


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=follow)


def emit(where: Point, **values: Any) -> None:
    """Tell the listeners of ``where`` of a moment. On a hot path, test ``where.listeners`` first.

    Args:
        where: The point that fires.
        **values: What the event carries, by name.
    """
    if not where.listeners or _in_graph() or (thread := _thread_id()) in _busy:
        return
    event = Event(where, None, (), NOTHING, values, _current.get())
    event.begin_ns = event.end_ns = _clock()
    try:
        _busy.add(thread)
        for listener in where.listeners:
            try:
                listener.fire(event)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a listener never reaches training
                note_failure(listener, event, error)
    finally:
        _busy.discard(thread)
        event._empty()
        spend(event.begin_ns)


def told_call(where: Point, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call ``function`` and let the listeners of ``where`` hear of it.

    Args:
        where: The point that fires.
        function: The observed function.
        args: Positional arguments as the caller gave them.
        kwargs: Keyword arguments as the caller gave them.

    Returns:
        What the function returns.
    """
    if _in_graph():
        return function(*args, **kwargs)
    thread = _thread_id()
    if thread in _busy:
        return function(*args, **kwargs)
    begin_ns = _clock()
    event = Event(where, function, args, kwargs, NOTHING, _current.get())
    states = enter(event, thread)
    event.begin_ns = now = _clock()
    _spent_ns[thread] = _spent_ns.get(thread, 0) + now - begin_ns
    try:
        result = function(*args, **kwargs)
    except BaseException as error:  # told of, and raised again: a block of its own would cost more at each call
        event.end_ns = _clock()
        event.error = error
        leave(event, states)
        raise
    event.end_ns = _clock()
    event.result = result
    leave(event, states)
    return result


class watch:  # a decorator and a context manager, like contextlib's
    """A scope around a function or a block, with a role: ``@watch(role="actor")`` or ``with watch(role="actor"):``.

    Works on functions, methods, coroutines, generators and async generators, on objects that are called like one of
    these and partials of them, and under or over ``staticmethod`` and ``classmethod``. The wrapped function keeps its
    name, doc, ``__wrapped__`` and every attribute that other decorators set on it, and can be pickled as before.

    Args:
        role: Who works, such as ``"actor"``; None inherits.
        phase: What is done. None means the phase around it, and where there is none the function's name.
        name: What the scope is called. None means the function's name, or the role for a block.

    Raises:
        InputTypeError: It decorates something that isn't a function.
    """

    def __init__(self, role: str | None = None, *, phase: str | None = None, name: str | None = None) -> None:
        self.role: str | None = role
        self.phase: str | None = phase
        self.name: str | None = name
        self._open: list[tuple[int, scope]] = []  # thread and block: one watch may serve many of them at once

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": []}  # blocks of this process

    def _scope(self, name: str) -> scope:
        inherited = self.phase is None and _current.get().phase is not None
        return scope("watch", name, role=self.role, phase=None if inherited else self.phase or name)

    def __enter__(self) -> scope:
        if _in_graph():
            return scope("watch", self.name or self.phase or self.role or "watch")
        opened = self._scope(self.name or self.phase or self.role or "watch")
        opened.__enter__()
        self._open.append((_thread_id(), opened))
        return opened

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mine = None if _in_graph() else self._innermost()
        if mine is not None:
            self._open.remove(mine)
            mine[1].__exit__(kind, error, trace)

    def _innermost(self) -> tuple[int, scope] | None:
        """The block to leave: the innermost that the thread or task is in, else the last that the thread began."""
        thread = _thread_id()
        if len(self._open) == 1 and self._open[0][0] == thread:
            return self._open[0]
        own = [one for one in reversed(self._open) if one[0] == thread]
        if len(own) > 1:
            around = list(_current.get().ancestors())
            own.sort(key=lambda one: around.index(one[1].scope) if one[1].scope in around else len(around))
        return own[0] if own else None

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if isinstance(function, staticmethod | classmethod):
            return cast("Callable[P, R]", type(function)(self(function.__func__)))
        if not callable(function) or inspect.isclass(function):
            raise InputTypeError(f"watch: got {function!r}, expected a function, method or coroutine function")
        name = cast("str", self.name or getattr(function, "__name__", type(function).__name__))
        make = functools.partial(self._scope, name)
        return functools.wraps(function)(cast("Callable[P, R]", bare(wrapper(function, make, in_graph))))


class phase(watch):  # a decorator and a context manager, like contextlib's
    """A named stretch of a step: ``with phase("old_log_prob"):``, or a decorator like :class:`watch`.

    Args:
        name: What is done.
        role: Who works; None inherits.
    """

    def __init__(self, name: str, *, role: str | None = None) -> None:
        super().__init__(role, phase=name, name=name)

    def _scope(self, name: str) -> scope:
        return scope("phase", name, role=self.role, phase=self.phase)
