"""Puts SQL together: the one place where a text becomes part of a query.

A query is a text with holes, ``{name}``. A piece of SQL, a number or a list of pieces fills a hole. Plain text doesn't,
so that nobody's name or phase becomes part of a query by mistake: :func:`literal` quotes what a user or a run gave, and
:func:`identifier` quotes a name of a table or column that isn't in our own source.

>>> sql("select {what} from {table} where step > {step}", what=[Sql("step"), Sql("phase")], table=Sql("memory"), step=3)
'select step, phase from memory where step > 3'
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, Final

from probe.errors import InputError, InputTypeError


class Sql(str):
    """A piece of SQL that may stand in a query as it is: out of our source, or made by a function of this module.

    ``Sql(text)`` is never called with a text that a user, a file or a run gave.
    """

    __slots__ = ()


Part = Sql | int | float | None | Iterable[Sql]

_HOLE: Final = re.compile(r"\{([a-z_][a-z_0-9]*)\}")


def sql(text: str, /, **parts: Part) -> Sql:
    """A query, or a piece of one.

    Args:
        text: With a hole ``{name}`` for each part; other braces stay what they are.
        **parts: What fills the holes, by name. A list is joined by commas.

    Raises:
        InputError: A hole has no part, a part has no hole, or a number isn't finite.
        InputTypeError: A part is plain text, or nothing that SQL has.
    """
    words = list(_parsed(text))
    for at in range(1, len(words), 2):
        name = words[at]
        if name not in parts:
            raise InputError(f"text: nothing was given for {{{name}}} in {text!r:.200}")
        words[at] = _filling(name, parts[name])
    if not parts.keys() <= _holes(text):
        unused = sorted(parts.keys() - _holes(text))
        raise InputError(f"parts: got {unused}, which have no place in {text!r:.200}")
    return Sql("".join(words))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[str, ...]:
    """What stands between the holes, and in between the name of each hole."""
    return tuple(_HOLE.split(text))


@lru_cache(maxsize=4096)
def _holes(text: str) -> frozenset[str]:
    return frozenset(_parsed(text)[1::2])


def _filling(name: str, part: Any) -> str:
    if isinstance(part, Sql):
        return part
    if part is None or isinstance(part, Real):
        return literal(part)
    if isinstance(part, str) or not isinstance(part, Iterable):
        raise InputTypeError(f"{name}: got {type(part).__name__} {part!r:.80}, expected Sql, a number or a list of Sql")
    return joined(part)


def joined(pieces: Iterable[Sql], by: str = ", ") -> Sql:
    """Pieces in a row.

    Args:
        pieces: Each is SQL.
        by: What stands between them, such as ``" and "``.

    Raises:
        InputTypeError: A piece is plain text.
    """
    made = list(pieces)
    for one in made:
        if not isinstance(one, Sql):
            raise InputTypeError(f"pieces: got {type(one).__name__} {one!r:.80}, expected Sql")
    return Sql(by.join(made))


def literal(value: Any) -> Sql:
    """A value as SQL; text is quoted, so that a name from a user stays a name.

    >>> literal("it's"), literal(3), literal(0.5), literal(True), literal(None)
    ("'it''s'", '3', '0.5', 'true', 'null')

    Args:
        value: Text, a finite number (Python's or NumPy's), a truth value or None.

    Raises:
        InputError: A number isn't finite.
    """
    if value is None:
        return Sql("null")
    if isinstance(value, str):
        return Sql("'" + value.replace("'", "''") + "'")
    if isinstance(value, bool):
        return Sql("true" if value else "false")
    if isinstance(value, Integral):
        return Sql(int(value))
    number = float(value)
    if not math.isfinite(number):
        raise InputError(f"value: got {value!r}, expected a finite number")
    return Sql(repr(number))


def identifier(text: str) -> Sql:
    """A name of a table or a column, in the double quotes that let it be any text.

    >>> print(identifier("a name"))
    "a name"

    Args:
        text: The name.
    """
    return Sql('"' + text.replace('"', '""') + '"')
