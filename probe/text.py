"""Numbers and places as a person says them: the one spelling that findings, figures and the report share."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd

#: What memory means for each ``source`` of a memory row.
SOURCES: Final = {
    "cuda": "GPU memory",
    "accelerator": "accelerator memory",
    "process_rss": "process memory (RSS)",
    "fake": "memory of the fake device",
}
UNKNOWN: Final = "–"

_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")

#: What pandas has in the place of a missing number or time.
_NO_VALUE: Final = ("NAType", "NaTType")


def visible(text: str, *, lines: bool = True) -> str:
    r"""``text`` for a terminal: characters that steer one are written out, such as those that clear it, give it a title
    or turn the direction of writing. Tabs stay, and so do line ends.

    Args:
        text: Anybody's.
        lines: Whether line ends stay.

    >>> print(visible("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else "\t"
    return "".join(one if one.isprintable() or one in kept or _is_harmless(one) else _escaped(one) for one in text)


def _is_harmless(letter: str) -> bool:
    """Spaces of other widths, and what joins the parts of one picture or letter."""
    return letter in "\u200c\u200d" or unicodedata.category(letter) == "Zs"


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def visible_json(line: str) -> str:
    r"""The same for a line of JSON, which says the same afterwards.

    >>> print(visible_json('{"a": "\u202eb"}'))
    {"a": "\u202eb"}
    """
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() or _is_harmless(one) else json.dumps(one)[1:-1] for one in line)


def missing(value: Any) -> bool:
    """Whether there is no number or name. NaN read back from a frame counts as missing.

    >>> missing(None), missing(float("nan")), missing(0), missing("")
    (True, True, False, False)
    """
    return value is None or type(value).__name__ in _NO_VALUE or bool(value != value)  # noqa: PLR0124  (NaN, of whatever type)


def size(value: float | None) -> str:
    """Bytes with a fitting binary unit and three digits.

    >>> size(1536), size(3.5 * 1024**3), size(0), size(None)
    ('1.50 KiB', '3.50 GiB', '0 B', '–')
    """
    if missing(value):
        return UNKNOWN
    number = float(value or 0)
    divisor, unit = byte_unit(number)
    return f"{number:.0f} {unit}" if unit == "B" else f"{_digits(number / divisor)} {unit}"


def size_within(value: float, error: float) -> str:
    """Bytes with their standard error, both in one unit.

    >>> size_within(-336_000, 31_500), size_within(1.2 * 1024**3, 2e7), size_within(3e6, 0)
    ('−328 ± 31 KiB', '1.20 ± 0.019 GiB', '2.86 ± 0 MiB')
    """
    divisor, unit = byte_unit(max(abs(value), error))
    said = f"{_digits(abs(value) / divisor)} ± {float(f'{error / divisor:.2g}'):g} {unit}"
    return f"−{said}" if value < 0 else said


def byte_unit(largest: float) -> tuple[float, str]:
    """Divisor and name of the unit in which so many bytes have at most three digits before the point.

    >>> byte_unit(3 * 1024**3), byte_unit(2048), byte_unit(1000)
    ((1073741824.0, 'GiB'), (1024.0, 'KiB'), (1024.0, 'KiB'))
    """
    divisor = 1.0
    for unit in _BYTE_UNITS[:-1]:
        if abs(largest) < 1000 * divisor:
            return divisor, unit
        divisor *= 1024
    return divisor, _BYTE_UNITS[-1]


def _digits(number: float) -> str:
    magnitude = abs(number)
    return f"{number:.0f}" if magnitude >= 100 else f"{number:.1f}" if magnitude >= 10 else f"{number:.2f}"


def count(value: float | None) -> str:
    """A whole number with thousands separated; large ones shortened.

    >>> count(1234), count(12_345_678), count(None)
    ('1,234', '12.3 M', '–')
    """
    if missing(value):
        return UNKNOWN
    number = float(value or 0)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(number) >= 10 * limit or (unit != "M" and abs(number) >= limit):
            return f"{_digits(number / limit)} {unit}"
    return f"{number:,.0f}"


def percent(ratio: float | None) -> str:
    """A share of one as per cent, small ones with more digits.

    >>> percent(0.4567), percent(0.0013), percent(0.061), percent(None)
    ('46 %', '0.13 %', '6.1 %', '–')
    """
    if missing(ratio):
        return UNKNOWN
    value = 100 * float(ratio or 0)
    return f"{value:.0f} %" if abs(value) >= 10 else f"{value:.1f} %" if abs(value) >= 1 else f"{value:.2g} %"


def seconds(value: float | None) -> str:
    """A duration.

    >>> seconds(0.0123), seconds(2.5), seconds(75), seconds(7300), seconds(None)
    ('12.3 ms', '2.50 s', '1 min 15 s', '2 h 1 min', '–')
    >>> seconds(0.0000012), seconds(0)
    ('1.20 µs', '0 s')
    """
    if missing(value):
        return UNKNOWN
    number = float(value or 0)
    if number == 0:
        return "0 s"
    if abs(number) < 1e-5:  # of which a millisecond's two decimals would leave nothing
        return f"{_digits(number * 1e6)} µs"
    if number < 1:
        return f"{_digits(number * 1e3)} ms"
    if number < 60:
        return f"{_digits(number)} s"
    minutes, rest = divmod(round(number), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def number(value: Any) -> str:
    """Any other number, four significant digits; NaN is a number here.

    >>> number(0.123456), number(1500.0), number(float("nan")), number(None)
    ('0.1235', '1500', 'NaN', '–')
    """
    if value is None or type(value).__name__ in _NO_VALUE:
        return UNKNOWN
    return "NaN" if math.isnan(value) else f"{float(value):.4g}"


def ratio(value: float | None) -> str:
    """A quotient such as an imbalance.

    >>> ratio(1.234), ratio(None)
    ('1.23×', '–')
    """
    return UNKNOWN if missing(value) else f"{float(value or 0):.2f}×"


def whole(value: Any) -> int | None:
    """A nullable whole number out of a frame, where it may have become a float.

    >>> whole(3.0), whole(float("nan"))
    (3, None)
    """
    return None if missing(value) else int(value)


def name(value: Any, otherwise: str = "no role") -> str:
    """A user's name, or words for its absence."""
    return otherwise if missing(value) or value == "" else str(value)


def short(text: Any, length: int = 120) -> str:
    """A text on one line without a full stop, cut after so many characters.

    >>> short("one\\ntwo."), short("abcdef", 4)
    ('one two', 'abc…')
    """
    line = " ".join(str(text).split()).rstrip(".")
    return line if len(line) <= length else line[: length - 1] + "…"


def stop(text: str) -> str:
    """A text that ends as a sentence does.

    >>> stop("one"), stop("a text that was c…")
    ('one.', 'a text that was c…')
    """
    return text if text.endswith((".", "…", "!", "?")) else f"{text}."


#: Folders of Python's own files and of what is installed.
_INSTALLED: Final = re.compile(r"[/\\](site-packages|dist-packages|python3\.\d+)[/\\]|^<")


def own_line(stack: str) -> str:
    """The innermost line of a stack or traceback that is of the user's own code, where it isn't the innermost of all.

    Args:
        stack: As :mod:`traceback` formats it, the innermost line last.

    Returns:
        "file, line n, in function"; "" where all lines are of installed packages, or the last one isn't.

    >>> own_line('  File "/a/train.py", line 3, in step\\n    x()\\n  File "/v/site-packages/t.py", line 9, in x\\n')
    '"/a/train.py", line 3, in step'
    """
    lines = [one.strip()[5:] for one in stack.splitlines() if one.strip().startswith("File ")]
    own = [one for one in lines if not _INSTALLED.search(one.split('"')[1] if one.count('"') >= 2 else one)]
    return own[-1] if own and own[-1] != lines[-1] else ""


def sizes(low: float, high: float) -> str:
    """Two numbers of bytes, one where they are written alike.

    >>> sizes(2**30, 3 * 2**30), sizes(2**27, 2**27 + 1)
    ('1.00 GiB to 3.00 GiB', '128 MiB')
    """
    ends = (size(low), size(high))
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def place(row: Mapping[str, Any], *, rank: bool = True) -> str:
    """Where a row happened, from the outside in; what it doesn't have is left out.

    >>> place({"step": 3.0, "role": "actor", "phase": "update", "micro_batch": 0, "rank": 1})
    'actor · update · micro-batch 0 · step 3 · rank 1'
    """
    get = row.get
    # A role that is named like its phase is said once.
    parts = list(dict.fromkeys(str(get(key)) for key in ("role", "phase") if not missing(get(key)) and get(key) != ""))
    if not parts and not missing(get("name")) and get("name"):
        parts = [str(get("name"))]
    for key, label in (("micro_batch", "micro-batch"), ("step", "step"), ("rank", "rank")):
        if not missing(get(key)) and (rank or key != "rank"):
            parts.append(f"{label} {whole(get(key))}")
    if rank and missing(get("rank")) and not missing(get("who")):
        parts.append(str(get("who")))
    return " · ".join(parts)


def writers(ranks: int, others: int) -> str:
    """How many ranks, and processes without a rank, have written.

    >>> writers(8, 0), writers(1, 2), writers(0, 1), writers(0, 0)
    ('8 ranks', '1 rank and 2 other processes', '1 process', '0 ranks')
    """
    told = [f"{ranks:,} {'rank' if ranks == 1 else 'ranks'}"] if ranks or not others else []
    if others:
        told.append(f"{others:,} {'other ' if ranks else ''}{'process' if others == 1 else 'processes'}")
    return " and ".join(told)


def several(noun: str) -> str:
    """The plural of a noun.

    >>> several("rank"), several("process"), several("micro-batch")
    ('ranks', 'processes', 'micro-batches')
    """
    return f"{noun}es" if noun.endswith(("s", "ch", "x")) else f"{noun}s"


def in_order(name: Any) -> tuple[tuple[str, int], ...]:
    """What texts are sorted by in which numbers count as numbers.

    >>> sorted(["rank 10", "driver", "rank 2"], key=in_order)
    ['driver', 'rank 2', 'rank 10']
    """
    parts = re.findall(r"(\D*)(\d*)", str(name))
    return tuple((text, int(number or -1)) for text, number in parts if text or number)


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it. A missing value is null; NaN and the infinities are the texts that the run's own
    files have for them, so that nothing is taken for missing that was a number.

    >>> plain({"a": float("nan"), "b": [None, -math.inf, 0.5]})
    {'a': 'NaN', 'b': [None, '-Infinity', 0.5]}
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _not_finite(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "item"):  # numpy's scalars
        return plain(value.item())
    return str(value)


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame, to be said one by one."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def memory(source: Any) -> str:
    """What is meant by memory where a row's ``source`` is this."""
    return SOURCES.get(str(source), "memory") if not missing(source) else "memory"


def at(peak_kind: Any) -> str:
    """How sure a peak is, as a word to put before it; empty when it is exact.

    >>> at("at_least"), at("exact")
    ('at least ', '')
    """
    return {"at_least": "at least ", "at_most": "at most "}.get(str(peak_kind), "")
