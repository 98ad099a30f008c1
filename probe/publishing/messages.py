"""What the publisher says to the session: one JSON object a line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

#: What the session says to the publisher: make the last edition, and end.
FINAL: Final = b"final\n"
#: Likewise: go on alone, and give the last edition to the backends when the session has let go of them.
LAST: Final = b"last\n"


class Numbers(msgspec.Struct, tag="numbers"):
    """Numbers of one step; each (key, step) comes once. Numbers that JSON hasn't are texts, as ``float`` reads them."""

    step: int
    values: dict[str, float | str]

    @classmethod
    def from_floats(cls, step: int, values: Mapping[str, float]) -> Numbers:
        """From floats.

        >>> Numbers.from_floats(3, {"a": 0.5, "b": float("nan")})
        Numbers(step=3, values={'a': 0.5, 'b': 'nan'})
        """
        return cls(step, {key: value if math.isfinite(value) else str(value) for key, value in values.items()})

    def floats(self) -> dict[str, float]:
        """As they were."""
        return {key: float(value) for key, value in self.values.items()}


class Shown(msgspec.Struct, tag="shown"):
    """A histogram, a table, a figure …: ``medium`` is what ``Medium.plain`` gives.

    Attributes:
        newest: It shows how the run stands, rather than that one step; its step may be made a later one.
    """

    name: str
    step: int
    medium: dict[str, Any]
    newest: bool = True


class Described(msgspec.Struct, tag="described"):
    """The run in words."""

    markdown: str


class Tagged(msgspec.Struct, tag="tagged"):
    """Labels of the run."""

    tags: dict[str, str]


class Arranged(msgspec.Struct, tag="arranged"):
    """How charts are arranged, as ``Tracking.layout`` takes it."""

    charts: dict[str, dict[str, dict[str, Any]]]


class Trouble(msgspec.Struct, tag="trouble"):
    """Something couldn't be made; the rest goes on."""

    what: str
    message: str
    traceback: str = ""


class Done(msgspec.Struct, tag="done"):
    """An edition is complete. ``steps``: the steps whose numbers have been said so far, as [first, last] pairs.
    ``names``: of these numbers, as far as they weren't told before.
    """

    final: bool
    steps: list[tuple[int, int]] = []
    names: list[str] = []


Message = Numbers | Shown | Described | Tagged | Arranged | Trouble | Done

_decoder: Final = msgspec.json.Decoder(Message)


def encode(message: Message) -> bytes:
    """One line, with its end."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """What :func:`encode` wrote.

    Raises:
        msgspec.MsgspecError: It is something else.

    >>> decode(encode(Numbers.from_floats(1, {"a": float("-inf")}))).floats()
    {'a': -inf}
    """
    found: Message = _decoder.decode(line)
    return found


class Steps:
    """A set of steps, kept as ranges: a run has many, and mostly one after the other.

    >>> steps = Steps([(0, 2)])
    >>> steps.add(3), 3 in steps, 4 in steps, steps.ranges()
    (None, True, False, [(0, 3)])
    """

    def __init__(self, ranges: Any = ()) -> None:
        self._ranges: list[tuple[int, int]] = sorted((int(first), int(last)) for first, last in ranges)

    def __contains__(self, step: int) -> bool:
        return any(first <= step <= last for first, last in self._ranges)

    def add(self, step: int) -> None:
        """Take ``step`` in."""
        if step in self:
            return
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*self._ranges, (step, step)]):
            if merged and first == merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], last)
            else:
                merged.append((first, last))
        self._ranges = merged

    def ranges(self) -> list[tuple[int, int]]:
        """As [first, last] pairs, in order."""
        return list(self._ranges)
