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

from probe.hooks import spending

#: Failures of one seam after which it tells nothing any more.
MAX_FAILURES: Final = 3

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
    """A seam that was put on: counts what fails, and can be switched off.

    Args:
        seam: What it is.
        ready: Whether anybody listens; asked at the begin of each call. Given whether the call is reason to begin.
        failed: Called with the seam, the error, how often it has failed and whether it is switched off now.

    Attributes:
        seam: What it is.
        off: Whether calls are told no more.
        failures: How often telling has failed.
    """

    def __init__(
        self,
        seam: Seam,
        ready: Callable[[bool], bool],
        failed: Callable[[Seam, BaseException, int, bool], None],
    ) -> None:
        self.seam = seam
        self.off = False
        self.failures = 0
        self._ready = ready
        self._told_failed = failed
        self._around = inspect.isgeneratorfunction(seam.tell)

    def begin(self, call: Call) -> Generator[None, None, None] | None:
        """Tell that a call begins. Never raises, but for Ctrl-C.

        Returns:
            What is to be given to :meth:`end`.
        """
        try:
            if not self._around or not self._is_ready():
                return None
            with spending():
                told = self.seam.tell(call)
                if told is not None:
                    next(told)
        except StopIteration:  # it has nothing to tell of this one
            return None
        except Exception as error:
            self._failed(error)
            return None
        return told

    def end(self, call: Call, told: Generator[None, None, None] | None) -> None:
        """Tell that a call has ended. Never raises, but for Ctrl-C.

        Args:
            call: With its result, or its error.
            told: What :meth:`begin` gave.
        """
        try:
            if told is not None:
                with spending():
                    _finish(told, call.error)
            elif not self._around and call.error is None and self._is_ready():
                with spending():
                    self.seam.tell(call)
        except Exception as error:
            if error is not call.error:
                self._failed(error)

    def _is_ready(self) -> bool:
        return self.seam.always or self._ready(self.seam.begins)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.off = self.failures >= MAX_FAILURES
        if self.failures == 1 or self.off:
            what = "is switched off" if self.off else "training goes on"
            _log.error("probe failed at %s.%s; %s", self.seam.module, self.seam.name, what, exc_info=error)
        try:
            self._told_failed(self.seam, error, self.failures, self.off)
        except Exception:
            _log.exception("probe failed while it told of a failure")


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
    except BaseException as raised:
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
            call = Call(function, args, kwargs)
            told = armed.begin(call)
            try:
                call.result = result = await function(*args, **kwargs)
            except BaseException as error:
                call.error = error
                armed.end(call, told)
                raise
            armed.end(call, told)
            return result

        return run_async
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def run_generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            if armed.off:
                return (yield from function(*args, **kwargs))
            call = Call(function, args, kwargs)
            told = armed.begin(call)
            try:
                call.result = result = yield from function(*args, **kwargs)
            except BaseException as error:
                call.error = error
                armed.end(call, told)
                raise
            armed.end(call, told)
            return result

        return run_generator

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if armed.off:
            return function(*args, **kwargs)
        call = Call(function, args, kwargs)
        told = armed.begin(call)
        try:
            call.result = result = function(*args, **kwargs)
        except BaseException as error:
            call.error = error
            armed.end(call, told)
            raise
        armed.end(call, told)
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
        failed: See :class:`Armed`.
    """

    def __init__(
        self,
        ready: Callable[[bool], bool],
        failed: Callable[[Seam, BaseException, int, bool], None],
    ) -> None:
        self._ready = ready
        self._failed = failed
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
        armed = Armed(seam, self._ready, self._failed)
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
