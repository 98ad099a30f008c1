"""Overrides of Hydra's, ``key=value``, in the text of a script that starts a training."""

from __future__ import annotations

import re
import shlex
from typing import Final

#: An override as a word of its own, perhaps in quotation marks: with a dotted key, as no variable of a shell has one.
_OVERRIDE: Final = re.compile(r"(?<!\S)[\"']?\+{0,2}(?P<key>[A-Za-z_][\w/@-]*(?:\.[\w/@-]+)+)=")

#: The beginning of a list of words in a shell, up to the end of the text: it isn't closed again.
_LIST: Final = re.compile(r"=\([^()]*\Z")


def with_override(text: str, key: str, value: str) -> tuple[str, str]:
    """The text with an override set, or put beside its nearest neighbour where it is lacking.

    Args:
        text: Of the script.
        key: Dotted.
        value: As Hydra reads it.

    Returns:
        The text, and why it wasn't changed, in words; "" where it was.
    """
    pattern = re.compile(rf"(?<![\w.])(\+{{0,2}}{re.escape(key)}=)(\"[^\"\n]*\"|'[^'\n]*'|[^\s\\\"';#]+)")
    found = [one for one in pattern.finditer(text) if not _is_comment(text, one.start())]
    if len(found) > 1:
        return text, "appears more than once"
    if found:
        return text[: found[0].start(2)] + value + text[found[0].end(2) :], ""
    place = _beside(text, key)
    if place is None:
        return text, "isn't"
    word = f"{key}={value}"
    made = _put(text, place, word)
    words, wanted = _words(made), _words(text)
    return (made, "") if words and wanted is not None and words == sorted([*wanted, word]) else (text, "isn't")


def _beside(text: str, key: str) -> int | None:
    """Where the override begins that a new one goes before; None where none is akin, or those of several commands."""
    known = [(one.start(), one["key"]) for one in _OVERRIDE.finditer(text) if not _is_comment(text, one.start())]
    nearest = max((_in_common(key, own) for _, own in known), default=0)
    near = [at for at, own in known if _in_common(key, own) == nearest]
    return near[-1] if nearest and len({_command(text, at) for at in near}) == 1 else None


def _in_common(key: str, other: str) -> int:
    """How many parts two dotted keys share from the first on."""
    parts = list(zip(key.split("."), other.split("."), strict=False))
    return next((at for at, (a, b) in enumerate(parts) if a != b), len(parts))


def _put(text: str, at: int, word: str) -> str:
    """The text with a word more: on a line of its own where the word behind it begins one, else on the same line."""
    begin = text.rfind("\n", 0, at) + 1
    before, indent = text[:begin], text[begin:at]
    end = "\r\n" if before.endswith("\r\n") else "\n"
    continued = before.rstrip("\r\n").endswith("\\")
    if indent.strip() or not (continued or _LIST.search(before)):
        return f"{text[:at]}{word} {text[at:]}"
    return f"{text[:at]}{word}{' ' + chr(92) if continued else ''}{end}{indent}{text[at:]}"


def _command(text: str, at: int) -> int:
    """Where the command begins, or the list of words, that a place belongs to."""
    opened = _LIST.search(text[:at])
    if opened:
        return opened.start()
    begin = text.rfind("\n", 0, at)
    while begin >= 0 and text[:begin].rstrip("\r").endswith("\\"):
        begin = text.rfind("\n", 0, begin)
    return begin


def _is_comment(text: str, at: int) -> bool:
    """Whether a place stands behind a ``#`` on its line."""
    return re.search(r"(?:^|\s)#", text[text.rfind("\n", 0, at) + 1 : at]) is not None


def _words(text: str) -> list[str] | None:
    """The words of a script as a shell reads them, sorted; None where they can't be told."""
    try:
        return sorted(shlex.split(re.sub(r"\\\r?\n", " ", text), comments=True))
    except ValueError:
        return None
