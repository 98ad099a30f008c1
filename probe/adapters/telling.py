"""What adapters say of a framework's calls, in words that recorders understand; nothing of torch is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, cast

from probe.adapters.seams import Call
from probe.current import CURRENT
from probe.hooks import call_of, current_scope, point

if TYPE_CHECKING:
    from probe.session import Session


def session() -> Session | None:
    """The session that this process records in, None where it doesn't."""
    return cast("Session | None", CURRENT.session)


@contextlib.contextmanager
def step(number: int) -> Generator[None, None, None]:
    """The block is the training step ``number``, unless the program is in one already.

    Args:
        number: The framework's own global step.
    """
    open_now = session()
    if open_now is None or current_scope().step is not None:
        yield
        return
    with open_now.step(number):
        yield


def follow_step(number: int) -> None:
    """The process works on step ``number`` from now on: the one before it ends.

    For processes that are told by a driver what to do, and learn its step in passing.

    Args:
        number: The framework's own global step.
    """
    open_now = session()
    if open_now is None or current_scope().step == number or _followed(open_now) == number:
        return
    end_step()
    open_now.begin_step(number)


def end_step() -> None:
    """The step that :func:`follow_step` began ends; without one nothing happens."""
    open_now = session()
    if open_now is not None and open_now.steps.begun is not None:
        open_now.end_step()


def drop_step() -> None:
    """The step that :func:`follow_step` began turns out not to be one: it ends without a trace."""
    open_now = session()
    if open_now is not None and open_now.steps.begun is not None:
        open_now.steps.drop()


def followed_step() -> int | None:
    """The number that :func:`follow_step` was last given, None where that step has ended."""
    open_now = session()
    return None if open_now is None else _followed(open_now)


def _followed(open_now: Session) -> int | None:
    begun = open_now.steps.begun
    return None if begun is None or begun.scope is None else begun.scope.step


@contextlib.contextmanager
def in_step() -> Generator[None, None, None]:
    """The block lies in the step that :func:`follow_step` began, in whatever thread or task it runs.

    An actor of Ray that has coroutine methods runs each call as a task of its own, which knows nothing of the others'.
    """
    open_now = session()
    begun = None if open_now is None else open_now.steps.begun
    if begun is None or current_scope().step is not None:
        yield
        return
    begun.resume()
    try:
        yield
    finally:
        begun.suspend()


def observing(name: str, about: str = "") -> Callable[[Call], Generator[None, None, None]]:
    """A :data:`~probe.adapters.seams.Tell` for a function that stands for one of our points.

    Args:
        name: The point's name, such as ``"metric.reduce_metrics"``.
        about: When it fires, and what it carries.
    """
    where = point(name, about)

    def tell(call: Call) -> Generator[None, None, None]:
        with call_of(where, call.function, call.args, call.kwargs) as told:
            yield
            told.result = call.result

    return tell
