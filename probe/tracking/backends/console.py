"""Metrics as text on standard output."""

from __future__ import annotations

import math
import shutil
import sys
from typing import cast

from probe.text import visible
from probe.tracking.backends.base import Backend, Setup
from probe.tracking.media import Medium, Table, Text

_VALUE_WIDTH = 11
_GAP = "   "


class Console(Backend):
    """One line a step where it fits, else a block of aligned columns.

    Standard output is looked up at each write: notebooks, progress bars and test runners replace it. A
    step is one write, so that its lines stay together.
    """

    location = "standard output"
    reopens = True  # nothing of an edition is shown there
    lasting = False  # what was on a screen that's gone isn't shown on another
    shows = frozenset({"text", "table"})

    def __init__(self, setup: Setup) -> None:
        """``setup`` isn't needed; standard output is always there."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Write the numbers of one step."""
        _write(render(values, step, shutil.get_terminal_size((120, 24)).columns))

    def show(self, name: str, medium: Medium, step: int, wall_ns: int) -> None:
        """Write a text, or a table as markdown, under its name."""
        del wall_ns  # a line tells no time
        body = visible(medium.text if isinstance(medium, Text) else cast("Table", medium).markdown())
        _write(f"step {step} | {visible(name, lines=False)}:" + ("\n" if "\n" in body else " ") + body)

    def close(self, exit_code: int) -> None:
        """Standard output isn't ours to close."""


def _write(text: str) -> None:
    out = sys.stdout
    if out is not None:  # under pythonw there is none
        out.write(_writable(text, getattr(out, "encoding", None)) + "\n")
        out.flush()


def _writable(text: str, encoding: str | None) -> str:
    """With escapes for what an encoding hasn't got.

    >>> _writable("奖励 0.5", "cp1252"), _writable("奖励 0.5", "utf-8")
    ('\\\\u5956\\\\u52b1 0.5', '奖励 0.5')
    """
    if not encoding or text.isascii():
        return text
    try:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:  # a stream of somebody's own, which calls it by a name of its own
        return text


def render(values: dict[str, float], step: int, width: int = 120) -> str:
    """The text of one step, in lines of at most ``width`` characters where names allow.

    >>> print(render({"actor/loss": 0.123456789, "tokens": 4096.0}, 3))
    step 3 | actor/loss 0.123457    | tokens 4096
    >>> print(render({"actor/loss": 0.5, "actor/lr": 1e-6, "tokens": 40960.0}, 3, width=36))
    step 3
      actor/loss  0.5
      actor/lr    1e-06
      tokens      40960
    """
    texts = {visible(name, lines=False): number_text(value) for name, value in values.items()}
    line = " | ".join([f"step {step}", *(f"{name} {text:<{_VALUE_WIDTH}}" for name, text in texts.items())]).rstrip()
    return line if len(line) <= width else "\n".join([f"step {step}", *_columns(texts, width)])


def _columns(texts: dict[str, str], width: int) -> list[str]:
    longest = max(map(len, texts))
    cells = [f"{name:<{longest}}  {text:<{_VALUE_WIDTH}}" for name, text in texts.items()]
    count = max(1, (width - 2 + len(_GAP)) // (len(cells[0]) + len(_GAP)))
    rows = math.ceil(len(cells) / count)
    return ["  " + _GAP.join(cells[row::rows]).rstrip() for row in range(rows)]


def number_text(value: float) -> str:
    """Six digits, and whole numbers in full up to where a float holds each of them.

    >>> number_text(1234567.0), number_text(0.1 + 0.2), number_text(float("nan")), number_text(-0.00001234)
    ('1234567', '0.3', 'nan', '-1.234e-05')
    """
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else f"{value:.6g}"
