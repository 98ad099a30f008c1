"""The ground floor: named points in the code, and the scope that the program is in.

Three things happen here and nothing else:

* :func:`observed` marks a function as a point, :func:`emit` tells of a moment inside one, and a :class:`Listener`
  that was given to :func:`subscribe` hears of both. With no listener a point costs one attribute test and the call.
* :class:`Scope` says where the program is (step, role, phase, micro-batch). It is a context variable, so threads and
  asyncio tasks each have their own. Entering and leaving one is itself a point, :data:`SCOPE`. An interrupt between
  two bytecodes can leave one behind that nobody leaves; :class:`scope` says how that is repaired.
* A listener never harms the caller: what it raises is counted, logged once with its traceback, told to the
  listener's own :meth:`Listener.failed`, and after :data:`MAX_FAILURES` the listener is switched off.

Standard library only, so that a training worker can carry it for free.
"""

from __future__ import annotations

import builtins
import fnmatch
import functools
import inspect
import itertools
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping
from contextvars import ContextVar
from types import FrameType, FunctionType, MappingProxyType, TracebackType
from typing import Any, Final, ParamSpec, TypeVar, cast

from probe.errors import InputError, InputTypeError

P = ParamSpec("P")
R = TypeVar("R")

#: The environment variable that switches probe off: ``PROBE=off``.
SWITCH: Final = "PROBE"

#: What is said to who wants to see what nobody recorded.
OFF: Final = f"{SWITCH}=off in the environment: nothing is recorded, so there is no run to show; unset it to record"

_OFF: Final = frozenset({"off", "0", "false", "no", "disabled"})
_ON: Final = frozenset({"", "on", "1", "true", "yes", "enabled"})

#: Failures of one listener after which it is switched off.
MAX_FAILURES: Final = 3

_log = logging.getLogger("probe.hooks")

_clock: Final = time.monotonic_ns
_thread_id: Final = threading.get_ident

#: What hooks have taken, by thread: each key has one writer, so that no update is lost.
_spent_ns: Final[dict[int, int]] = {}


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


def is_off() -> bool:
    """Whether the environment says ``PROBE=off``: nobody then hears of anything, and a session records nothing.

    It is asked when a listener subscribes and when a session starts, never at a point.

    Raises:
        InputError: The variable has another value than off, 0, false, no, disabled, or on, 1, true, yes, enabled.
    """
    value = os.environ.get(SWITCH, "").strip().lower()
    if value not in _OFF | _ON:
        raise InputError(f"{SWITCH}: the environment says {value!r}, expected 'off' or 'on'")
    return value in _OFF


def spent_ns() -> int:
    """Time that points with listeners have taken so far, on all threads, nanoseconds.

    It counts from before the first listener hears of a beginning (or of an end) until after the last one has, so that
    what happens in between counts as well: a collection of garbage that a listener's rows set off, or waiting for the
    interpreter's lock. The observed call itself, and the block of a scope, are not in it.
    """
    return sum(_spent_ns.values())


def _spend(begin_ns: int) -> None:
    thread = _thread_id()
    _spent_ns[thread] = _spent_ns.get(thread, 0) + _clock() - begin_ns


class spending:  # noqa: N801  (reads as a word at the point of use: `with spending():`)
    """The block's time is probe's own: it counts in :func:`spent_ns`, what hooks in it take not twice.

    For what stands before a point, such as the reading of lengths that it is to carry.
    """

    __slots__ = ("_before_ns", "_begin_ns")

    def __enter__(self) -> None:
        self._begin_ns = _clock()
        self._before_ns = _spent_ns.get(_thread_id(), 0)

    def __exit__(self, *_: object) -> None:
        _spent_ns[_thread_id()] = self._before_ns + _clock() - self._begin_ns


# ---------------------------------------------------------------------------------------------------------- scopes


class Scope:
    """Where the program is. Immutable by convention; a child inherits what it doesn't set.

    Args:
        kind: One of ``"process"``, ``"step"``, ``"phase"``, ``"watch"``, ``"micro_batch"``, or a user's own word.
        name: What a person calls it, such as the phase's name.
        parent: The enclosing scope; None for the process.
        step: The trainer's global step; None inherits.
        role: Who works, such as ``"actor"``; None inherits.
        phase: What is done, such as ``"old_log_prob"``; None inherits.
        micro_batch: Index of the micro-batch within its batch, from 0; None inherits.

    Attributes:
        id: Unique in the process, 0 for the process itself.
        parent: The enclosing scope, None for the process.
        kind: One of ``"process"``, ``"step"``, ``"phase"``, ``"watch"``, ``"micro_batch"``, or a user's own word.
        name: What a person calls it, such as the phase's name.
        step: The trainer's global step.
        role: Who works, such as ``"actor"``.
        phase: What is done, such as ``"old_log_prob"``.
        micro_batch: Index of the micro-batch within its batch, from 0.
    """

    __slots__ = ("_begun_ns", "_block", "_path", "id", "kind", "micro_batch", "name", "parent", "phase", "role", "step")

    def __init__(
        self,
        kind: str,
        name: str,
        parent: Scope | None = None,
        *,
        step: int | None = None,
        role: str | None = None,
        phase: str | None = None,
        micro_batch: int | None = None,
    ) -> None:
        self.id = next(_scope_ids)
        self._block: weakref.ref[scope] | None = None  # what opened it and has not left it yet
        self._path: str | None = None
        self._begun_ns = 0  # as of whoever follows the scopes; 0 where nobody does
        self.kind = kind
        self.name = name
        self.parent = parent
        if parent is not None:
            step = parent.step if step is None else step
            role = parent.role if role is None else role
            phase = parent.phase if phase is None else phase
            micro_batch = parent.micro_batch if micro_batch is None else micro_batch
        self.step: int | None = step
        self.role: str | None = role
        self.phase: str | None = phase
        self.micro_batch: int | None = micro_batch

    def __repr__(self) -> str:
        return f"Scope({self.path!r}, step={self.step}, role={self.role!r}, micro_batch={self.micro_batch})"

    @property
    def path(self) -> str:
        """Names from the outermost scope inward, joined by ``/``; empty for the process."""
        if self._path is None:  # asked for by every row of the scope
            names = [scope.name for scope in self.ancestors() if scope.parent is not None]
            self._path = "/".join(reversed(names))
        return self._path

    @property
    def values(self) -> Mapping[str, Any]:
        """What :class:`scope` was given of it, such as the tokens of a micro-batch; nothing once its block is gone."""
        block = None if self._block is None else self._block()
        return _NOTHING if block is None else block.values

    def ancestors(self) -> Iterator[Scope]:
        """This scope, its parent, and so on outward."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def _is_left_behind(self) -> bool:
        """Whether its block is gone and never left it: an interrupt came before the block began, or as it ended."""
        return self._block is not None and self._block() is None

    def _is_around(self, scope: Scope) -> bool:
        return any(one is self for one in scope.ancestors())


def _inherited(
    kind: str,
    name: str,
    parent: Scope,
    step: int | None,
    role: str | None,
    phase: str | None,
    micro_batch: int | None,
) -> Scope:
    """``Scope(…)`` with a parent, at half its cost: it is made at the beginning of each block."""
    made = _new_scope(Scope)
    made.id = next(_scope_ids)
    made._block = made._path = None
    made._begun_ns = 0
    made.kind = kind
    made.name = name
    made.parent = parent
    made.step = parent.step if step is None else step
    made.role = parent.role if role is None else role
    made.phase = parent.phase if phase is None else phase
    made.micro_batch = parent.micro_batch if micro_batch is None else micro_batch
    return made


_new_scope: Final = object.__new__
_reference: Final = weakref.ref
_scope_ids = itertools.count()
_PROCESS: Final = Scope("process", "process")
_current: ContextVar[Scope] = ContextVar("probe_scope", default=_PROCESS)


def current_scope() -> Scope:
    """The scope that the calling thread or task is in."""
    return _current.get()


def begin_at_root() -> None:
    """Forget what the calling thread or task is in: a session begins, or a cell of a notebook."""
    _current.set(_PROCESS)
    _busy.discard(_thread_id())  # a block of :class:`silenced` can be left behind, too


def _open_around(found: Scope) -> Scope:
    """The innermost scope from ``found`` outward that nobody left behind."""
    while found._is_left_behind() and found.parent is not None:
        found = found.parent
    return found


class scope:  # noqa: N801  (reads as a verb at the point of use: `with scope("phase", "update")`)
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
        self._outer: Scope = _PROCESS

    def __enter__(self) -> scope:
        if _in_graph():
            return self
        found = _current.get()
        if found._block is not None and found._block() is None:
            found = _open_around(found)
        self._outer = found
        step, role, phase, micro_batch = self._changes
        if self.kind == "step":
            if found.step is None:
                role, phase = role or found.role, phase or found.phase
            around = _PROCESS
        else:
            around = found
        opened = self.scope = _inherited(self.kind, self.name, around, step, role, phase, micro_batch)
        opened._block = _reference(self)
        try:
            _current.set(opened)
            thread = _thread_id()
            begin_ns = _clock()
            if _entered is not None:
                _entered(opened, thread, begin_ns)
            if SCOPE.listeners and thread not in _busy:
                event = Event(SCOPE, None, (), _NOTHING, self.values, opened)
                self._notice = (event, _enter(event, thread))
                event.begin_ns = now = _clock()
                _spent_ns[thread] = _spent_ns.get(thread, 0) + now - begin_ns
        except BaseException:  # Ctrl-C: the block won't run
            _current.set(found)
            if _left is not None:
                _left(opened, found, _thread_id())
            raise
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
                _leave(event, states)
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


# ------------------------------------------------------------------------------------------------ following scopes

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


# ---------------------------------------------------------------------------------------------- points and listeners


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
            self.function, self.args, self.kwargs = None, (), _NOTHING
        self.values = _NOTHING
        self.result = self.error = self._shared = None


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


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


#: Threads that are inside a listener, or silenced: what they call in turn is not observed. A set, since a thread's own
#: variables cost three times as much to read and write.
_busy: Final[set[int]] = set()
if hasattr(os, "register_at_fork"):  # the child's threads may get the numbers of the parent's
    os.register_at_fork(after_in_child=_busy.clear)

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


#: Entering and leaving a :class:`scope`. Carries the scope itself and its ``values``.
SCOPE: Final = point("scope", "a scope (step, phase, watch, micro-batch) is entered and left; carries its values")


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


class silenced:  # noqa: N801  (reads as an adjective at the point of use: `with silenced():`)
    """What the calling thread does inside the block is not observed."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _thread_id() in _busy
        _busy.add(_thread_id())

    def __exit__(self, *_: object) -> None:
        if not self._before:
            _busy.discard(_thread_id())


# ----------------------------------------------------------------------------------------------------- telling them


def observed(name: str, about: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function a point: its calls can be listened to.

    A call of a coroutine function lasts as long as its body, and so does one of a generator: what its consumer does
    meanwhile doesn't count. It can be pickled as the function can; in another process it is a point of that one.

    Args:
        name: The point's name, such as ``"data_proto.concat"``.
        about: When it fires, and what it carries.

    >>> @observed("doctest.double", "a number is doubled")
    ... def double(x): return 2 * x
    >>> class Print(Listener):
    ...     def leave(self, event, state): print(event.point.name, event.argument("x"), "->", event.result)
    >>> with subscribe(Print(), "doctest.*"):
    ...     double(4)
    doctest.double 4 -> 8
    8
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        where = point(name, about)
        made = _TOLD[_kind(function)](where, function)
        return functools.wraps(function)(cast("Callable[P, R]", _bare(made)))

    return decorate


def _told(where: Point, function: Callable[..., Any]) -> Callable[..., Any]:
    told = functools.partial(_call, where, function)  # dill follows a function's own names, and no partial's

    def call(*args: Any, **kwargs: Any) -> Any:
        if not where.listeners:
            return function(*args, **kwargs)
        return told(args, kwargs)

    return call


def _told_async(where: Point, function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    begun = _Body

    async def call(*args: Any, **kwargs: Any) -> Any:
        if not where.listeners:
            return await function(*args, **kwargs)
        with begun(where, function, args, kwargs) as body:
            body.result = await function(*args, **kwargs)
        return body.result

    return call


def _told_generator(where: Point, function: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
    drive, begun = _drive, _Body

    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        if not where.listeners:
            return (yield from function(*args, **kwargs))
        return (yield from drive(function(*args, **kwargs), begun(where, function, args, kwargs)))

    return call


def _told_async_generator(where: Point, function: Callable[..., AsyncGenerator[Any, Any]]) -> Callable[..., Any]:
    begun, plain = _Body, _NO_BODY

    def make(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return begun(where, function, args, kwargs) if where.listeners else plain

    return _async_generator(function, _bare(make))


_TOLD: Final[dict[str, Callable[[Point, Callable[..., Any]], Callable[..., Any]]]] = {
    "": _told,
    "async": _told_async,
    "generator": _told_generator,
    "async generator": _told_async_generator,
}


def _kind(function: Callable[..., Any]) -> str:
    """What a call of it makes: "async" a coroutine, "generator" or "async generator", or "" what it returns."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    tests = {
        "async": inspect.iscoroutinefunction,
        "async generator": inspect.isasyncgenfunction,
        "generator": inspect.isgeneratorfunction,
    }
    found = [inner]
    if not inspect.isroutine(inner) and not inspect.isclass(inner):  # an object: its class says how it is called
        found.append(getattr(type(inner), "__call__", None))  # noqa: B004  (as what, and not whether)
    return next((kind for kind, test in tests.items() if any(map(test, found))), "")


#: The globals of wrappers. Those of this module can't be pickled, and dill pickles all globals of a function that it
#: takes apart, which is each one of a script or a notebook.
_BARE: Final[dict[str, Any]] = {"__name__": __name__, "__builtins__": builtins}


def _bare(made: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose names all come from its closure or are Python's own."""
    function = cast("FunctionType", made)
    return FunctionType(function.__code__, _BARE, function.__name__, function.__defaults__, function.__closure__)


def _call(where: Point, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if _in_graph():
        return function(*args, **kwargs)
    thread = _thread_id()
    if thread in _busy:
        return function(*args, **kwargs)
    begin_ns = _clock()
    event = Event(where, function, args, kwargs, _NOTHING, _current.get())
    states = _enter(event, thread)
    event.begin_ns = now = _clock()
    _spent_ns[thread] = _spent_ns.get(thread, 0) + now - begin_ns
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        event.end_ns = _clock()
        event.error = error
        _leave(event, states)
        raise
    event.end_ns = _clock()
    event.result = result
    _leave(event, states)
    return result


class _Body:
    """A call that is told of and whose body may stop in between, as a generator's: that time isn't its own.

    ``result`` is what it has returned, where it has.
    """

    __slots__ = ("_event", "_since_ns", "_states", "_took_ns", "result")

    def __init__(
        self, where: Point, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._event = Event(where, function, args, kwargs, _NOTHING, _current.get())
        self._states: list[tuple[Listener, Any]] | None = None
        self._since_ns = self._took_ns = 0
        self.result: Any = None

    def __enter__(self) -> _Body:
        thread = _thread_id()
        if thread not in _busy:
            begin_ns = _clock()
            self._states = _enter(self._event, thread)
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
        _leave(event, states)

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


_NO_BODY: Final = _NoBody()


def emit(where: Point, **values: Any) -> None:
    """Tell the listeners of ``where`` of a moment. On a hot path, test ``where.listeners`` first.

    Args:
        where: The point that fires.
        **values: What the event carries, by name.
    """
    if not where.listeners or _in_graph() or (thread := _thread_id()) in _busy:
        return
    event = Event(where, None, (), _NOTHING, values, _current.get())
    event.begin_ns = event.end_ns = _clock()
    try:
        _busy.add(thread)
        for listener in where.listeners:
            try:
                listener.fire(event)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a listener never reaches training
                _failed(listener, event, error)
    finally:
        _busy.discard(thread)
        event._empty()
        _spend(event.begin_ns)


def _enter(event: Event, thread: int) -> list[tuple[Listener, Any]]:
    states: list[tuple[Listener, Any]] = []
    try:
        _busy.add(thread)  # whoever calls has seen that it is not
        for listener in event.point.listeners:
            try:
                states.append((listener, listener.enter(event)))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a listener never reaches training
                _failed(listener, event, error)
    finally:
        _busy.discard(thread)
    return states


def _leave(event: Event, states: list[tuple[Listener, Any]]) -> None:
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
                _failed(listener, event, error)
    finally:
        if not before:
            _busy.discard(thread)
        event._empty()
        _spent_ns[thread] = _spent_ns.get(thread, 0) + _clock() - event.end_ns


def _failed(listener: Listener, event: Event, error: BaseException) -> None:
    with _lock:
        count = _failures[id(listener)] = _failures.get(id(listener), 0) + 1
    switched_off = count >= MAX_FAILURES
    if count == 1:
        _log.error("%r failed at %s; training goes on", listener, event.point.name, exc_info=error)
    if switched_off:
        _log.error("%r failed %d times and is switched off", listener, count)
        unsubscribe(listener)
    try:
        listener.failed(event, error, count, switched_off)
    except Exception:
        _log.exception("%r failed while it was told of its failure", listener)


# ----------------------------------------------------------------------------------------------------------- watch


class watch:  # noqa: N801  (a decorator and a context manager, like contextlib's)
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
        return functools.wraps(function)(cast("Callable[P, R]", _bare(_wrapper(function, make))))


class phase(watch):  # noqa: N801  (a decorator and a context manager, like contextlib's)
    """A named stretch of a step: ``with phase("old_log_prob"):``, or a decorator like :class:`watch`.

    Args:
        name: What is done.
        role: Who works; None inherits.
    """

    def __init__(self, name: str, *, role: str | None = None) -> None:
        super().__init__(role, phase=name, name=name)

    def _scope(self, name: str) -> scope:
        return scope("phase", name, role=self.role, phase=self.phase)


def _wrapper(function: Callable[..., Any], make: Callable[[], scope]) -> Callable[..., Any]:
    kind, drive = _kind(function), _drive
    if kind == "async":

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with make():
                return await function(*args, **kwargs)

        return run_async
    if kind == "async generator":

        def make_each(*_: Any) -> scope:
            return make()

        return _async_generator(function, _bare(make_each))
    if kind == "generator":

        def run_generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            return (yield from drive(function(*args, **kwargs), make()))

        return run_generator

    within = in_graph

    def run(*args: Any, **kwargs: Any) -> Any:
        if within():
            return function(*args, **kwargs)
        with make():
            return function(*args, **kwargs)

    return run


def _drive(generator: Generator[Any, Any, Any], around: scope | _Body) -> Generator[Any, Any, Any]:
    """Run ``generator`` with its body inside the scope, or counted, and its consumer outside."""
    with around:
        resume: Callable[[Any], Any] = generator.send
        given: Any = None
        while True:
            try:
                item = resume(given)
            except StopIteration as stop:
                if isinstance(around, _Body):
                    around.result = stop.value
                return stop.value
            around.suspend()
            try:
                given = yield item
                resume = generator.send
            except GeneratorExit:
                around.resume()
                generator.close()
                raise
            except BaseException as error:  # handed to the generator, as Python itself would
                given, resume = error, generator.throw
            around.resume()


def _async_generator(
    function: Callable[..., AsyncGenerator[Any, Any]],
    make: Callable[[tuple[Any, ...], Mapping[str, Any]], scope | _Body],
) -> Callable[..., AsyncGenerator[Any, Any]]:
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        with make(args, kwargs) as around:
            resume: Callable[[Any], Any] = generator.asend
            given: Any = None
            while True:
                try:
                    item = await resume(given)
                except StopAsyncIteration:
                    return
                around.suspend()
                try:
                    given = yield item
                    resume = generator.asend
                except GeneratorExit:
                    around.resume()
                    await generator.aclose()
                    raise
                except BaseException as error:  # handed to the generator, as Python itself would
                    given, resume = error, generator.athrow
                around.resume()

    return run


# --------------------------------------------------------------------------------------------- calls of other code


class call_of:  # noqa: N801  (reads as a noun at the point of use: `with call_of(point, function, args, kwargs):`)
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
        event = self._event = Event(self._where, self._function, self._args, self._kwargs, _NOTHING, _current.get())
        self._states = _enter(event, _thread_id())
        _spend(begin_ns)
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
            _leave(event, self._states)
