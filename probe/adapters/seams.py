"""Put a function of a framework under observation, and take it off again as if nothing had been. Nothing of torch.

A :class:`Seam` names a function of a framework and says what is told of its calls; :class:`Patches` puts it on when
the function's module is there. Frameworks look closely at their functions, so that a patched one keeps name, signature,
attributes (``@register`` of verl), being a coroutine function, being static, and can be pickled by name.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Generator
from types import ModuleType, TracebackType
from typing import Any, Final, NamedTuple

from probe.guard import Guard, to_session
from probe.hooks import spending

_log = logging.getLogger("probe.adapters")

_MISSING: Final = object()


class Call:
    """One call of an observed function, from before it begins until after it has ended.

    Attributes:
        function: The framework's own function.
        args: Positional arguments as the caller gave them, ``self`` first for a method.
        kwargs: Keyword arguments as the caller gave them; the function gets these.
        result: What it returned; None until then.
        error: What it raised, None where it raised nothing.
    """

    __slots__ = ("args", "error", "function", "kwargs", "result")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.result: Any = None
        self.error: BaseException | None = None

    def argument(self, name: str, default: Any = None) -> Any:
        """The argument called ``name``, however the caller gave it; the function's own default, or ``default``.

        Args:
            name: Of a parameter of the function.
            default: Where the function has no such parameter, or it wasn't given and has no default.
        """
        if name in self.kwargs:
            return self.kwargs[name]
        names, defaults = _parameters(self.function)
        if name in names and names.index(name) < len(self.args):
            return self.args[names.index(name)]
        return defaults.get(name, default)

    def give(self, name: str, value: Any) -> None:
        """Let the function have another argument than its caller gave, by keyword, before it has begun.

        Nothing that trains is changed so: it is there for settings that only reach a framework through its arguments.

        Args:
            name: Of a parameter that can be given by keyword.
            value: What it gets.
        """
        self.kwargs[name] = value


@functools.cache
def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Names of the parameters that can be given by position, and the defaults of all."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return (), {}
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(one.name for one in parameters if one.kind in positional)
    return names, {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}


#: What is told of a call: a generator function that yields once, while the function runs, or a plain function that is
#: called after it, with :attr:`Call.result` set. It is called with nothing where the function raised.
Tell = Callable[[Call], Generator[None, None, None] | None]


class Seam(NamedTuple):
    """One function of a framework, and what is told of its calls.

    Several seams may have one ``point``: other places of the same thing in other versions. The point is found where one
    of them is.

    Attributes:
        module: The module that defines the function.
        name: Its name in there: ``"reduce_metrics"`` or ``"FSDPEngine.optimizer_step"``.
        point: What it is there for, in a word for people: ``"micro-batches"``.
        tell: See :data:`Tell`.
        begins: Whether a call is reason enough for the process to begin to record. A call that isn't tells of nothing
            until another one is.
        always: Whether it is told of in processes that don't record, too; it isn't reason to begin then.
    """

    module: str
    name: str
    point: str
    tell: Tell
    begins: bool = True
    always: bool = False


class Armed:
    """A seam that was put on, and can be switched off: what fails again and again is.

    Args:
        seam: What it is.
        ready: Whether anybody listens; asked at the begin of each call. Given whether the call is reason to begin.

    Attributes:
        seam: What it is.
        around: Whether calls are told of as they begin, too.
        off: Whether calls are told no more.
        guard: Keeps what telling raises from the framework.
    """

    def __init__(self, seam: Seam, ready: Callable[[bool], bool]) -> None:
        self.seam = seam
        self.around = inspect.isgeneratorfunction(seam.tell)
        self.off = False
        where = f"{seam.module}.{seam.name}"
        failed = f"probe can't record {seam.point} at {where}"
        self.guard = Guard(where, failed, kind="adapter", tell=self._failed, log=_log)
        self._ready = ready

    def is_ready(self) -> bool:
        """Whether a call that begins or has ended now is told of."""
        return self.seam.always or self._ready(self.seam.begins)

    def _failed(self, kind: str, where: str, message: str, error: BaseException | None, count: int, off: bool) -> None:
        self.off = self.off or off
        to_session(kind, where, message, error, count, off)


class ToldCall(Call):
    """A call, as a block in which its function runs: it is told of as it begins, and as it has ended, whichever way.

    Nothing that telling raises leaves it, but for Ctrl-C.

    Args:
        armed: Who tells.
        function: See :class:`Call`.
        args: See :class:`Call`.
        kwargs: See :class:`Call`.
    """

    __slots__ = ("_armed", "_told")

    def __init__(
        self, armed: Armed, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.result = None
        self.error = None
        self._armed = armed
        self._told: Generator[None, None, None] | None = None

    def __enter__(self) -> ToldCall:
        armed = self._armed
        try:
            if armed.around and armed.is_ready():
                with spending():
                    told = armed.seam.tell(self)
                    if told is not None:
                        next(told)
                self._told = told
        except StopIteration:  # it has nothing to tell of this one
            pass
        except Exception as error:  # the framework's call goes on; a guard's own block would cost more at each
            armed.guard.caught(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.error = error
        armed = self._armed
        told, self._told = self._told, None  # which holds this call
        try:
            if told is not None:
                with spending():
                    _finish(told, error)
            elif error is None and not armed.around and armed.is_ready():
                with spending():
                    armed.seam.tell(self)
        except Exception as raised:  # likewise
            armed.guard.caught(raised)


def _finish(told: Generator[None, None, None], error: BaseException | None) -> None:
    """Let a generator that stands at its only yield run to its end, where ``error``, if any, comes out of the yield."""
    if error is None:
        next(told, None)
        return
    trace: TracebackType | None = error.__traceback__
    try:
        told.throw(error)
    except StopIteration:
        pass
    except type(error) as raised:
        if raised is not error:
            raise
    finally:
        error.__traceback__ = trace  # the caller sees it as it was raised


def wrapped(function: Callable[..., Any], armed: Armed) -> Callable[..., Any]:
    """``function`` under observation: a function of the same kind.

    A generator function's call lasts from the first item that is asked of its generator until that is exhausted or
    closed, with what its consumer does in between: frameworks write context managers so.

    Args:
        function: A function, coroutine function or generator function.
        armed: What is told of its calls.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            if armed.off:
                return await function(*args, **kwargs)
            with ToldCall(armed, function, args, kwargs) as call:
                call.result = result = await function(*args, **kwargs)
            return result

        return run_async
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def run_generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            if armed.off:
                return (yield from function(*args, **kwargs))
            with ToldCall(armed, function, args, kwargs) as call:
                call.result = result = yield from function(*args, **kwargs)
            return result

        return run_generator

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if armed.off:
            return function(*args, **kwargs)
        with ToldCall(armed, function, args, kwargs) as call:
            call.result = result = function(*args, **kwargs)
        return result

    return run


class _Patch(NamedTuple):
    owner: Any  #: a module or a class
    name: str
    before: Any  #: what its ``__dict__`` held; _MISSING where it inherited
    after: Any  #: what it holds now
    armed: Armed


class Patches:
    """The functions that were replaced, and what they were.

    Args:
        ready: See :class:`Armed`.
    """

    def __init__(self, ready: Callable[[bool], bool]) -> None:
        self._ready = ready
        self._patches: list[_Patch] = []

    def put(self, seam: Seam, module: ModuleType) -> bool:
        """Replace the function that ``seam`` names, and every copy of it that another module has taken.

        Args:
            seam: What to observe.
            module: The module that it names, complete.

        Returns:
            Whether the function is there. False has changed nothing.
        """
        *outer, name = seam.name.split(".")
        owner: Any = module
        for part in outer:
            owner = getattr(owner, part, None)
        before = vars(owner).get(name, _MISSING) if owner is not None else _MISSING
        found = getattr(owner, name, _MISSING) if before is _MISSING else before
        inner = found.__func__ if isinstance(found, staticmethod | classmethod) else found
        if not callable(inner) or inspect.isclass(inner):
            return False
        armed = Armed(seam, self._ready)
        after: Any = wrapped(inner, armed)
        if isinstance(found, staticmethod | classmethod):
            after = type(found)(after)
        setattr(owner, name, after)
        self._patches.append(_Patch(owner, name, before, after, armed))
        if not outer:
            _rebind(found, after)
        return True

    def take_off(self) -> list[str]:
        """Put back all that was replaced; copies that modules have taken meanwhile, too.

        Returns:
            Names of those that somebody else has replaced since: they can't be put back, and tell nothing more.
        """
        kept = []
        for patch in reversed(self._patches):
            patch.armed.off = True
            if vars(patch.owner).get(patch.name) is not patch.after:
                kept.append(f"{patch.armed.seam.module}.{patch.armed.seam.name}")
            elif patch.before is _MISSING:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, patch.before)
            if isinstance(patch.owner, ModuleType):
                _rebind(patch.after, patch.before)
        self._patches.clear()
        return kept


def _rebind(old: Any, new: Any) -> None:
    """Let every module that holds ``old`` under whatever name (``from … import``) hold ``new``."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is not dict:
            continue
        for name, value in list(names.items()):
            if value is old:
                names[name] = new
