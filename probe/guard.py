"""What may fail without harming the training goes through here: the one place where probe swallows exceptions.

* :class:`Guard`, around what probe does beside the training: a failure is counted, logged once with its traceback,
  written as an incident, and what fails again and again is switched off. Such a failure is a defect of probe or of a
  user's callback: with ``PROBE_STRICT=1`` in the environment, as in probe's own tests, it is raised.
* :func:`attempt`, around code that isn't ours and may raise anything: a foreign ``__repr__``, a tokenizer, a store's
  client. Such a failure is an answer, and never raised.
* :class:`on_error`, which cleans up and lets the exception go on, and :class:`raised_as`, which makes an error of ours
  of any exception. Both swallow nothing.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, overload

from probe.current import CURRENT
from probe.errors import ProbeError

T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")

#: "1" lets a :class:`Guard` raise what it catches.
STRICT_VARIABLE: Final = "PROBE_STRICT"

#: Failures after which a :class:`Guard` switches off what it guards.
MAX_FAILURES: Final = 3

#: Writes the incident of a failure: kind, where, message, the error, how many there were and whether that was the last.
Tell = Callable[[str, str, str, BaseException | None, int, bool], object]

_log = logging.getLogger("probe")


def is_strict() -> bool:
    """Whether what a :class:`Guard` catches is raised: ``PROBE_STRICT=1``."""
    return os.environ.get(STRICT_VARIABLE) == "1"


def to_session(kind: str, where: str, message: str, error: BaseException | None, count: int, off: bool) -> None:
    """Write an incident into the run that this process records; without one nothing is written.

    Args:
        kind: What failed, such as ``"listener"`` or ``"adapter"``.
        where: Its place: a hook point, or a function.
        message: What a reader is told.
        error: The exception.
        count: How often it has happened; each row stands for one of them.
        off: Whether what failed is switched off now.
    """
    del count
    session = CURRENT.session or CURRENT.closing
    if session is not None:
        session.recording.incident(kind, where, message, error, 1, off)


class Guard:
    """Keeps the failures of one part of probe away from the training. A context manager, and a decorator.

    As a decorator, and by :meth:`call`, what is switched off isn't called any more. The body of a ``with`` runs each
    time: ask :attr:`off` before it.

    Args:
        where: The part's name in the incident: a hook point, or a function.
        failed: What a reader is told, such as ``"the snapshot can't be kept"``; the exception is added.
        kind: The incident's kind.
        tell: Writes the incident; None writes none.
        most: Failures after which it is switched off; None never does that.
        log: Where the first failure is logged, with its traceback, and that it is switched off.
        level: Of what is logged.
        catches: What is caught: never Ctrl-C, whatever is asked.

    Attributes:
        failures: How many there were.
        off: Whether what is guarded is switched off.
    """

    def __init__(
        self,
        where: str,
        failed: str,
        *,
        kind: str = "listener",
        tell: Tell | None = to_session,
        most: int | None = MAX_FAILURES,
        log: logging.Logger = _log,
        level: int = logging.ERROR,
        catches: type[BaseException] = Exception,
    ) -> None:
        self.failures = 0
        self.off = False
        self._where = where
        self._failed = failed
        self._kind = kind
        self._tell = tell
        self._most = most
        self._log = log
        self._level = level
        self._catches = catches

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or not isinstance(error, self._catches) or isinstance(error, KeyboardInterrupt):
            return False
        self.note(error)
        return not is_strict()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """``function`` under guard: None where it fails, and once it is switched off."""

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
            return self.call(lambda: function(*args, **kwargs))

        return guarded

    @overload
    def call(self, action: Callable[[], T]) -> T | None: ...

    @overload
    def call(self, action: Callable[[], T], otherwise: U) -> T | U: ...

    def call(self, action: Callable[[], Any], otherwise: Any = None) -> Any:
        """What ``action`` returns.

        Args:
            action: Called without arguments, unless it is switched off.
            otherwise: Returned where it fails or isn't called.
        """
        if self.off:
            return otherwise
        with self:
            return action()
        return otherwise

    def caught(self, error: BaseException) -> None:
        """Count and tell a failure, for a hot path that has an ``except`` of its own.

        Args:
            error: What was caught.

        Raises:
            BaseException: ``error``, where that is asked for (:func:`is_strict`).
        """
        self.note(error)
        if is_strict():
            raise error

    def note(self, error: BaseException) -> None:
        """Count a failure, log it, write the incident and switch off after the last. Raises nothing.

        Args:
            error: What was caught.
        """
        self.failures += 1
        self.off = self._most is not None and self.failures >= self._most
        if self.failures == 1:
            self._log.log(self._level, "%s", self._failed, exc_info=error)
        elif self.off:
            self._log.log(self._level, "%s: failed %d times and is switched off", self._where, self.failures)
        tell = self._tell
        if tell is not None:
            message = f"{self._failed}: {attempt(lambda: repr(error), _unprintable)}"
            attempt(lambda: tell(self._kind, self._where, message, error, self.failures, self.off), _untold)


def _unprintable(error: Exception) -> str:
    return f"an error whose repr raised {type(error).__name__}"


def _untold(error: Exception) -> None:
    _log.error("probe failed while it told of a failure", exc_info=error)
    if is_strict():
        raise error


def attempt(action: Callable[[], T], otherwise: Callable[[Exception], U]) -> T | U:
    """What ``action`` returns; where it raises, what ``otherwise`` makes of the exception.

    Args:
        action: Calls code that isn't ours.
        otherwise: Given the exception: never Ctrl-C, nor the end of the process.

    >>> attempt(lambda: 1 / 0, lambda error: type(error).__name__)
    'ZeroDivisionError'
    """
    try:
        return action()
    except Exception as error:  # code of others may raise anything: what that means is the caller's to say
        return otherwise(error)


class on_error:
    """A block after whose failure something is cleaned up; the exception goes on as it is.

    Args:
        action: Called with the exception, of whatever kind.

    >>> with on_error(lambda error: print("cleaned up after", error)):
    ...     raise KeyError("a")
    Traceback (most recent call last):
        ...
    KeyError: 'a'
    """

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[BaseException], object]) -> None:
        self._action = action

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._action(error)


class raised_as:
    """A block whose exceptions are raised as errors of ours. Ctrl-C and others that are no ``Exception`` go on.

    Args:
        make: Given the exception; what it returns is raised. None lets the exception go on.
        but: Exceptions that go on as they are.
        chained: Whether the exception is told as the cause; else it is hidden.

    >>> with raised_as(lambda error: ValueError(f"data.json can't be read: {error}")):
    ...     1 / 0
    Traceback (most recent call last):
        ...
    ValueError: data.json can't be read: division by zero
    """

    __slots__ = ("_but", "_chained", "_make")

    def __init__(
        self,
        make: Callable[[Exception], BaseException | None],
        but: type[BaseException] | tuple[type[BaseException], ...] = ProbeError,
        *,
        chained: bool = True,
    ) -> None:
        self._make = make
        self._but = but
        self._chained = chained

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, self._but):
            return
        made = self._make(error)
        if made is not None:
            try:
                raise made from (error if self._chained else None)
            finally:
                del made  # else it would hold this frame, which holds it: nothing in its frames would be let go
