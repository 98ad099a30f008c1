"""Checks of arguments that every package needs; each error names the argument, what was given and what was expected."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from probe.errors import InputError, InputTypeError


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
