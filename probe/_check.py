"""Checks of arguments that every package needs; each error names the argument, what was given and what was expected."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import re
from collections.abc import Callable
from numbers import Integral
from typing import Any, Final, ParamSpec, TypeVar

from probe.errors import ConflictError, InputError, InputTypeError, MissingDependencyError
from probe.redaction import without_secrets

#: What looking at a run needs and recording one doesn't: packages of the extra "views", by the module they bring.
VIEWS: Final = {
    "duckdb": "duckdb",
    "pandas": "pandas",
    "plotly": "plotly",
    "pyarrow": "pyarrow",
    "rich": "rich",
    "yaml": "pyyaml",
}

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

P = ParamSpec("P")
T = TypeVar("T")


def local_directory(argument: str, place: str | os.PathLike[str] | None, instead: str = "") -> None:
    """Refuse a URL where a directory is made: a path of that name would be a folder called ``s3:``.

    Args:
        argument: What it was given as.
        place: What was given; None passes.
        instead: What to do with a URL.

    Raises:
        InputError: It is a URL.

    >>> local_directory("root", "s3://bucket/runs")
    Traceback (most recent call last):
    probe.errors.InputError: root: got 's3://bucket/runs', expected a local directory
    """
    if place is not None and _URL.match(os.fspath(place)):
        given = without_secrets(os.fspath(place), True)
        raise InputError(f"{argument}: got {given!r}, expected a local directory{instead and f'; {instead}'}")


def also_named(**names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function take arguments under a second name too, by keyword, as a peer's callers write them.

    Args:
        **names: The second name of an argument, and the one that it has in the signature.

    Returns:
        A decorator. Whoever gives an argument under both of its names, with two values, gets a ConflictError; None is
        no value.

    >>> @also_named(seqlens="seqlen_list")
    ... def longest(seqlen_list):
    ...     return max(seqlen_list)
    >>> longest(seqlens=[3, 7]), longest([3, 7])
    (7, 7)
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        places = {name: place for place, name in enumerate(inspect.signature(function).parameters)}

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            placed: Any = args
            for second in names.keys() & kwargs.keys():
                value, first = kwargs.pop(second), names[second]
                given = placed[places[first]] if places[first] < len(placed) else kwargs.get(first)
                if given is None and value is not None:
                    if places[first] < len(placed):
                        placed = (*placed[: places[first]], value, *placed[places[first] + 1 :])
                    else:
                        kwargs[first] = value
                elif value is not None and value is not given:
                    raise ConflictError(f"{first} and {second}: both were given, expected one of them")
            return function(*placed, **kwargs)

        return call

    return decorate


def is_whole(given: object) -> bool:
    """Whether it is a whole number of Python's or numpy's; neither a boolean nor a tensor, which may be on a device.

    >>> is_whole(3), is_whole(True), is_whole(3.0), is_whole("3")
    (True, False, False, False)
    """
    return type(given) is int or (isinstance(given, Integral) and not isinstance(given, bool))


def whole_number(argument: str, given: Any, least: int | None = None, *, expected: str = "a whole number") -> int:
    """``given`` as an int.

    Args:
        argument: The name of the argument, for the errors.
        given: What was given for it.
        least: The smallest number that is taken; None takes all.
        expected: What the error says of another type.

    Returns:
        A Python int, also of a numpy number.

    Raises:
        InputTypeError: It isn't a whole number; booleans aren't, nor are tensors: reading one could wait for a device.
        InputError: It is smaller than ``least``.

    >>> whole_number("rows", 3, 1)
    3
    >>> whole_number("rows", 0, 1)
    Traceback (most recent call last):
    probe.errors.InputError: rows: got 0, expected at least 1
    """
    if not is_whole(given):
        raise InputTypeError(f"{argument}: got {given!r}, expected {expected}")
    if least is not None and given < least:
        raise InputError(f"{argument}: got {given}, expected at least {least}")
    return int(given)


def missing_view() -> str | None:
    """The first package of the extra "views" that isn't installed; None where all are. Nothing is imported."""
    return next((package for module, package in VIEWS.items() if importlib.util.find_spec(module) is None), None)


def needs_views(what: str) -> None:
    """Refuse what can't be done with the packages of the base installation, before anything of it was done.

    Args:
        what: What was asked for, as the error calls it.

    Raises:
        MissingDependencyError: A package of the extra "views" isn't installed.
    """
    package = missing_view()
    if package is not None:
        raise MissingDependencyError.of(what, package, "views")


def view_missing_in(error: ImportError, what: str) -> MissingDependencyError | None:
    """The error to raise in the place of a module's own, where a package of the extra "views" isn't there.

    Args:
        error: What importing a module raised.
        what: What was asked for, as the error calls it.
    """
    package = VIEWS.get((error.name or "").partition(".")[0])
    if package is None or isinstance(error, MissingDependencyError):
        return None
    return MissingDependencyError.of(what, package, "views")
