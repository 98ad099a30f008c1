"""Functions that run others of any kind inside something: plain functions, coroutines, generators, async generators."""

from __future__ import annotations

import builtins
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from types import FunctionType, TracebackType
from typing import Any, Final, Protocol, cast

from probe.hooks.calls import Body


class Around(Protocol):
    """What a function runs in: a block, or a call that is told of. A generator's consumer stays outside."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def suspend(self) -> None:
        """The generator gives control back to its consumer."""

    def resume(self) -> None:
        """The generator goes on."""


def kind_of(function: Callable[..., Any]) -> str:
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
        found.append(type(inner).__call__)
    return next((kind for kind, test in tests.items() if any(map(test, found))), "")


#: The globals of wrappers. Those of this module can't be pickled, and dill pickles all globals of a function that it
#: takes apart, which is each one of a script or a notebook.
_BARE: Final[dict[str, Any]] = {"__name__": __name__, "__builtins__": builtins}


def bare(made: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose names all come from its closure or are Python's own."""
    function = cast("FunctionType", made)
    return FunctionType(function.__code__, _BARE, function.__name__, function.__defaults__, function.__closure__)


def wrapper(function: Callable[..., Any], make: Callable[[], Around], within: Callable[[], bool]) -> Callable[..., Any]:
    """A function of the same kind, each call of which runs inside a new block.

    Args:
        function: What is called.
        make: Makes the block of one call.
        within: Whether ``torch.compile`` traces a plain call, which then has no block.

    Returns:
        The function, without the name and doc of the other one.
    """
    kind, drive = kind_of(function), driven
    if kind == "async":

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with make():
                return await function(*args, **kwargs)

        return run_async
    if kind == "async generator":

        def make_each(*_: Any) -> Around:
            return make()

        return async_generator(function, bare(make_each))
    if kind == "generator":

        def run_generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            return (yield from drive(function(*args, **kwargs), make()))

        return run_generator

    def run(*args: Any, **kwargs: Any) -> Any:
        if within():
            return function(*args, **kwargs)
        with make():
            return function(*args, **kwargs)

    return run


def driven(generator: Generator[Any, Any, Any], around: Around) -> Generator[Any, Any, Any]:
    """Run ``generator`` with its body inside the scope, or counted, and its consumer outside.

    Args:
        generator: What runs.
        around: What its body is inside of; a :class:`Body` is given what it returns.
    """
    with around:
        resume: Callable[[Any], Any] = generator.send
        given: Any = None
        while True:
            try:
                item = resume(given)
            except StopIteration as stop:
                if isinstance(around, Body):
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


def async_generator(
    function: Callable[..., AsyncGenerator[Any, Any]],
    make: Callable[[tuple[Any, ...], Mapping[str, Any]], Around],
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """What :func:`driven` does, of an async generator function.

    Args:
        function: What makes the async generators.
        make: Makes what the body of one call is inside of, from its arguments.

    Returns:
        An async generator function, without the name and doc of the other one.
    """

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
