"""Answers of at most so many bytes."""

from __future__ import annotations

import copy
import json
from typing import Any, Final

from probe.text import plain, visible_json

#: A list keeps as many items at least, and a text as many letters.
_FEWEST: Final = 1
_SHORTEST: Final = 80


def bounded(answer: dict[str, Any], most: int, head: dict[str, Any] | None = None) -> str:
    """An answer as JSON, on one line of letters that show. Where it is too long, its largest lists and texts are cut,
    and ``left_out`` says of each where it stands and how many items or letters are missing.

    Args:
        answer: Plain values.
        most: Bytes that it may have, at least 1,000.
        head: What stands before it, and is never cut.

    Returns:
        One line of JSON.

    >>> bounded({"rows": [1, 2]}, 1000)
    '{"rows":[1,2]}'
    """
    first = head or {}
    told = _line({**first, **answer})
    if len(told.encode()) <= most:
        return told
    cut: dict[str, Any] = copy.deepcopy(plain(answer))
    left_out: dict[str, int] = {}
    while True:
        told = _line({**first, **cut, "left_out": left_out})
        over = len(told.encode()) - most
        if over <= 0:
            return told
        if not _cut(cut, over, left_out):
            error = f"The answer has more than {most:,} bytes; ask for less."
            return _line({**first, "error": error, "left_out": left_out})


def _line(value: Any) -> str:
    return visible_json(json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False))


def _cut(answer: dict[str, Any], over: int, left_out: dict[str, int]) -> bool:
    """Shorten the largest list or text; False where nothing can be."""
    places = [(len(_line(value)), path, holder, key) for path, holder, key, value in _walk(answer, "")]
    places = [one for one in places if _can_shrink(one[2][one[3]])]
    if not places:
        return False
    # Of lists in lists the inner one goes first where it is nearly all of the outer one.
    largest = max(one[0] for one in places)
    size, path, holder, key = [one for one in places if one[0] >= 0.9 * largest][-1]
    value = holder[key]
    keep = max(_FEWEST if isinstance(value, list) else _SHORTEST, int(len(value) * max(0.0, 1 - over / size)) - 1)
    keep = min(keep, len(value) - 1)
    left_out[path] = left_out.get(path, 0) + len(value) - keep
    holder[key] = value[:keep]
    return True


def _can_shrink(value: Any) -> bool:
    return len(value) > (_FEWEST if isinstance(value, list) else _SHORTEST)


def _walk(value: Any, path: str) -> Any:
    """Every list and text in a value: where it stands, what holds it, and under which key."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in list(items):
        here = f"{path}[{key}]" if isinstance(value, list) else f"{path}.{key}" if path else str(key)
        if isinstance(one, list | str):
            yield here, value, key, one
        if isinstance(one, dict | list):
            yield from _walk(one, here)
