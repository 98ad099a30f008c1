"""JSON that may be large or damaged, piece by piece: a file's lines, or an object's members with one list item by item.

Never more than one piece is held.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import TextIOBase
from pathlib import Path
from typing import Any, Final

from probe.errors import InputError

#: Letters of one value, or of one item of the list.
LARGEST: Final = 1 << 20

_CHUNK: Final = 1 << 16

#: Digits of a whole number that is read as one: Python refuses thousands of them, and no row holds twenty.
_DIGITS: Final = 18

_SPACE: Final = " \t\n\r"


class Object(dict[str, Any]):
    """An object that knows how many of its keys were given again; of each the last counts."""

    again = 0


def _object(pairs: list[tuple[str, Any]]) -> Object:
    made = Object(pairs)
    made.again = len(pairs) - len(made)
    return made


def _whole(text: str) -> int | float:
    return int(text) if len(text) <= _DIGITS else float(text)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_int=_whole)


class MalformedError(InputError):
    """What a file holds is no such object."""


class TornError(MalformedError):
    """The file ends in the middle."""


def decoded(text: bytes) -> Any:
    """The value that is written, as the members of a large object are read.

    Args:
        text: JSON in UTF-8.

    Raises:
        MalformedError: It is none, or too deep.
    """
    try:
        return _DECODER.decode(text.decode("utf-8-sig").strip(_SPACE))
    except RecursionError as error:
        raise MalformedError("a value is nested too deeply") from error
    except ValueError as error:
        raise MalformedError("a value is no JSON, or no UTF-8") from error


def lines(path: Path, longest: int) -> Iterator[Object | None]:
    """The objects of a file, one a line; None for a line that holds none. Empty lines are passed over.

    Args:
        path: Of the file.
        longest: Bytes of a line; a longer one is passed over like one that holds no object, and never held.

    Raises:
        OSError: It can't be read.
    """
    with path.open("rb") as file:
        while line := file.readline(longest):
            if len(line) == longest and not line.endswith(b"\n"):
                yield None
                while (rest := file.readline(longest)) and not rest.endswith(b"\n"):
                    pass
            elif not line.isspace():
                yield _object_of(line)


def _object_of(line: bytes) -> Object | None:
    try:
        told = decoded(line)
    except MalformedError:
        return None
    return told if isinstance(told, Object) else None


def members(path: Path, streamed: str) -> Iterator[tuple[str, Any]]:
    """The members of the object that a file holds, in its order.

    Args:
        path: Of the file.
        streamed: The member whose list comes item by item, each under this name; before them once with None.

    Raises:
        TornError: The file ends in the middle.
        MalformedError: It holds something else, a key twice, or a value that is too large or too deep.
        OSError: It can't be read.
    """
    with path.open(encoding="utf-8-sig") as file:
        at = _Cursor(file)
        try:
            yield from _members(at, streamed)
        except RecursionError as error:
            raise MalformedError("a value is nested too deeply") from error
        except UnicodeDecodeError as error:
            raise MalformedError("it isn't UTF-8") from error


def _members(at: _Cursor, streamed: str) -> Iterator[tuple[str, Any]]:
    at.take("{")
    seen: set[str] = set()
    while at.peek() != "}":
        if seen:
            at.take(",")
        key = at.value()
        if not isinstance(key, str) or key in seen:
            raise MalformedError("a key is given twice" if isinstance(key, str) else "a key is no text")
        seen.add(key)
        at.take(":")
        if key != streamed:
            yield key, at.value()
            continue
        at.take("[")
        yield key, None
        for one in _items(at):
            yield key, one
    at.take("}")
    if at.peek():
        raise MalformedError("something follows the object")


def _items(at: _Cursor) -> Iterator[Any]:
    begun = False
    while at.peek() != "]":
        if begun:
            at.take(",")
        begun = True
        yield at.value()
    at.take("]")


class _Cursor:
    """A place in a text that is read on as it is needed."""

    def __init__(self, file: TextIOBase) -> None:
        self._file = file
        self._text, self._at = "", 0

    def peek(self) -> str:
        """The next letter that is no space; "" at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                return ""

    def take(self, letter: str) -> None:
        """Pass over the next letter, which has to be this one."""
        found = self.peek()
        if found != letter:
            raise _unlike(letter, found)
        self._at += 1

    def value(self) -> Any:
        """The next value."""
        if not self.peek():
            raise _unlike("a value", "")
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > LARGEST:
                    raise MalformedError(f"a value is no JSON, or longer than {LARGEST:,} letters") from error
                if not self._more():
                    raise TornError("it ends in the middle of a value, or a value is no JSON") from error
                continue
            if end < len(self._text) or not self._more():  # a number at the end of what was read may go on
                self._at = end
                return value

    def _more(self) -> bool:
        """Read on; False at the end of the file."""
        chunk = self._file.read(_CHUNK)
        if chunk:
            self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)


def _unlike(expected: str, found: str) -> MalformedError:
    if not found:
        return TornError("it ends in the middle")
    return MalformedError(f"it has {found!r} where {expected!r} was expected")
