"""The numbers in nested, even ragged lists, arrays and tensors, as one flat list of floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from probe.errors import InputTypeError

_FLOATS: Final = frozenset({float})


def flattened(values: Any, where: str) -> list[float]:
    """The numbers in ``values``, whatever their form.

    Args:
        values: A number, an array or tensor, or a list of those.
        where: What errors call the argument.

    Raises:
        InputTypeError: Something in it isn't a number.

    >>> flattened([1, (2.5, [True])], "values")
    [1.0, 2.5, 1.0]
    """
    numbers: list[float] = []
    _flatten(values, where, numbers)
    return numbers


def _flatten(value: Any, where: str, into: list[float]) -> None:
    if isinstance(value, list | tuple):
        if _FLOATS.issuperset(map(type, value)):
            into.extend(value)
            return
        for one in value:
            if type(one) is float:
                into.append(one)
            elif type(one) is int:
                into.append(_number(one, where))
            else:
                _flatten(one, where, into)
    elif not isinstance(value, float | int) and hasattr(value, "tolist"):  # numpy and torch alike
        plain = value.tolist()
        if type(plain) is type(value):
            raise InputTypeError(f"{where}: got {value!r}, expected numbers")
        _flatten(plain, where, into)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        _flatten(list(value), where, into)
    else:
        into.append(_number(value, where))


def _number(value: Any, where: str) -> float:
    if not isinstance(value, str | bytes) and hasattr(value, "__float__"):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputTypeError(f"{where}: got {value!r}, expected a number ({error})") from error
    raise InputTypeError(f"{where}: got {value!r:.80} ({type(value).__name__}), expected numbers")
