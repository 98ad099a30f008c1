"""Any value as one short line of text, whatever its own ``__repr__`` does."""

from __future__ import annotations

import reprlib
from typing import Any, Final

import numpy as np
import torch

from probe.core.columns.equality import shape_text
from probe.guard import attempt

#: Entries of a container, and levels of containers, that are written out.
_ENTRIES: Final = 6
_LEVELS: Final = 3


class _Short(reprlib.Repr):
    """Containers are cut before they are written: a list of a million entries costs as much as one of six."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.maxlevel = _LEVELS
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = self.maxarray = _ENTRIES
        self.maxdict = _ENTRIES
        self.maxstring = self.maxlong = self.maxother = max(limit, 12)

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, torch.Tensor | np.ndarray):
            return _array_text(x)
        if isinstance(x, np.generic) and not x.dtype.names:
            x = x.item()  # 0.5 says it better than np.float64(0.5)
        if isinstance(x, bytes | bytearray) and len(x) > self.maxstring:
            return f"{type(x).__name__} of {len(x):,} bytes"
        return super().repr1(x, level)


def _array_text(value: Any) -> str:
    """A tensor or array by shape and dtype. One value of the CPU is shown; none travels from a device."""
    dtype = str(value.dtype).removeprefix("torch.")
    if isinstance(value, torch.Tensor):
        if not value.is_nested and value.numel() == 1 and value.device.type == "cpu" and value.layout is torch.strided:
            return f"tensor({value.detach().tolist()!r}, {dtype})"
        where = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"tensor {dtype}{shape_text(value)}{where}"
    return f"array {dtype}{value.shape}"


def plain(value: Any, limit: int = 80) -> str:
    """``value`` in at most ``limit`` characters, on one line. Never raises, and never waits for a device.

    A ``__repr__`` that raises becomes the name of the type. Lone surrogates, which no file can hold, are replaced.

    >>> plain({"prompt": "hi", "turns": list(range(100))})
    "{'prompt': 'hi', 'turns': [0, 1, 2, 3, 4, 5, ...]}"
    >>> plain(torch.zeros(4, 7)), plain(float("nan"))
    ('tensor float32(4, 7)', 'nan')
    """
    # A foreign class may raise anything from its repr, its length or even its name.
    text = attempt(lambda: _Short(limit).repr(value), lambda _: _kind(value))
    return cut(" ".join(text.split()), limit)


def _kind(value: Any) -> str:
    return f"<{type(value).__name__}>"


def one_line(text: Any, limit: int = 200) -> str:
    """``str(text)`` on one line of at most ``limit`` characters, for messages. Never raises.

    >>> one_line(ValueError("two\\nlines"))
    'two lines'
    """
    said = attempt(lambda: str(text), lambda _: _kind(text))  # a foreign exception may have any __str__
    return cut(" ".join(said.split()), limit)


def cut(text: str, limit: int) -> str:
    """``text`` with at most ``limit`` characters, all of which a file can hold.

    >>> cut("abcdef", 4), cut("a\\ud800", 9)
    ('abc…', 'a?')
    """
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return short.encode("utf-8", "replace").decode("utf-8")
