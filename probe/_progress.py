"""How far a long piece of work is, for whoever waits for it: a line on a terminal, or a bar below a notebook's cell.

Nobody waits at a pipe or in a file: nothing is written there, and nothing is left behind where it was drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Final, TextIO

#: Pieces of a line's bar, and how often at most either is drawn anew from begin to end.
_PIECES: Final = 30
_DRAWN: Final = 100

Drawing = Callable[[int, int], None]


@contextmanager
def drawn(what: str, least: int = 0, stream: TextIO | None = None) -> Iterator[Drawing]:
    """A function that is told how much is done and how much there is, and draws it; gone at the end, whatever ended it.

    Args:
        what: What is counted, such as ``"Steps replayed"``.
        least: Where there is less than it, nothing is drawn.
        stream: Where a terminal's line is written; None is the error stream.
    """
    bar = _Bar(what) if _in_notebook() else _Line(what, stream or sys.stderr)
    last = -1

    def draw(done: int, total: int) -> None:
        nonlocal last
        part = done * _DRAWN // max(total, 1)
        if total >= least and part != last:
            last = part
            bar.draw(done, total)

    try:
        yield draw
    finally:
        bar.end()


class _Line:
    """A line on a terminal, which is written over; nothing on any other stream."""

    def __init__(self, what: str, stream: TextIO) -> None:
        self._what, self._stream, self._width = what, stream, 0
        self._shown = stream.isatty()

    def draw(self, done: int, total: int) -> None:
        if not self._shown:
            return
        pieces = _PIECES * done // max(total, 1)
        text = f"{self._what}: [{'#' * pieces}{'.' * (_PIECES - pieces)}] {done:,} of {total:,}, Ctrl-C ends it"
        self._stream.write(f"\r{text.ljust(self._width)}")
        self._stream.flush()
        self._width = len(text)

    def end(self) -> None:
        if self._width:
            self._stream.write(f"\r{' ' * self._width}\r")
            self._stream.flush()


class _Bar:
    """A bar below a cell, by the notebook's own display."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown: Any = None

    def draw(self, done: int, total: int) -> None:
        from IPython.display import HTML, display

        name = escape(self._what, quote=True)
        told = f"{name}: {done:,} of {total:,}. Interrupting the kernel ends it."
        page: Any = HTML(f'<progress aria-label="{name}" max="{total}" value="{done}"></progress> {told}')
        if self._shown is None:
            self._shown = display(page, display_id=True)
        else:
            self._shown.update(page)

    def end(self) -> None:
        if self._shown is not None:
            from IPython.display import HTML

            self._shown.update(HTML(""))


def _in_notebook() -> bool:
    """Whether this process is a notebook's kernel: one that nobody has loaded isn't."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None
