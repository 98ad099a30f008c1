"""Functions that are points: the decorator ``observed``."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from typing import Any, Final, ParamSpec, TypeVar, cast

from probe.hooks.calls import NO_BODY, Body
from probe.hooks.listeners import Point, point
from probe.hooks.telling import told_call
from probe.hooks.wrappers import async_generator, bare, driven, kind_of

P = ParamSpec("P")
R = TypeVar("R")


def observed(name: str, about: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function a point: its calls can be listened to.

    A call of a coroutine function lasts as long as its body, and so does one of a generator: what its consumer does
    meanwhile doesn't count. It can be pickled as the function can; in another process it is a point of that one.

    Args:
        name: The point's name, such as ``"data_proto.concat"``.
        about: When it fires, and what it carries.

    >>> from probe.hooks import Listener, subscribe
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
        made = _TOLD[kind_of(function)](where, function)
        return functools.wraps(function)(cast("Callable[P, R]", bare(made)))

    return decorate


def _told(where: Point, function: Callable[..., Any]) -> Callable[..., Any]:
    told = functools.partial(told_call, where, function)  # dill follows a function's own names, and no partial's

    def call(*args: Any, **kwargs: Any) -> Any:
        if not where.listeners:
            return function(*args, **kwargs)
        return told(args, kwargs)

    return call


def _told_async(where: Point, function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    begun = Body

    async def call(*args: Any, **kwargs: Any) -> Any:
        if not where.listeners:
            return await function(*args, **kwargs)
        with begun(where, function, args, kwargs) as body:
            body.result = await function(*args, **kwargs)
        return body.result

    return call


def _told_generator(where: Point, function: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
    drive, begun = driven, Body

    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        if not where.listeners:
            return (yield from function(*args, **kwargs))
        return (yield from drive(function(*args, **kwargs), begun(where, function, args, kwargs)))

    return call


def _told_async_generator(where: Point, function: Callable[..., AsyncGenerator[Any, Any]]) -> Callable[..., Any]:
    begun, plain = Body, NO_BODY

    def make(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return begun(where, function, args, kwargs) if where.listeners else plain

    return async_generator(function, bare(make))


_TOLD: Final[dict[str, Callable[[Point, Callable[..., Any]], Callable[..., Any]]]] = {
    "": _told,
    "async": _told_async,
    "generator": _told_generator,
    "async generator": _told_async_generator,
}
