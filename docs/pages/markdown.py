"""Docstrings as Markdown: doctests as code, Sphinx roles as plain names; sections stay what griffe reads."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Final

_ROLE: Final = re.compile(r":(?:class|func|meth|attr|data|mod|exc):`~?([^`]*)`")
#: What Markdown would take for a link, for HTML or for emphasis.
_ESCAPED: Final = re.compile(r"[\[\]]|\*(?!\s)|(?<!\w)_|_(?!\w)")
_HEAD: Final = re.compile(r"(Args|Attributes|Returns|Yields|Raises):\s*$")
#: What stands before the words of an entry, and isn't words itself.
_ENTRY: Final = re.compile(r"(\*{0,2}[\w.]+): (.*)", re.DOTALL)


def plain(text: str) -> str:
    """``text`` without roles and double backquotes: both become code.

    >>> plain("See :func:`~probe.hooks.emit` and ``x[0]``, not [this].")
    'See `emit` and `x[0]`, not \\\\[this\\\\].'
    """

    def name(found: re.Match[str]) -> str:
        said = found[1]
        return f"`{said.rpartition('.')[2] if found[0].split('`')[1].startswith('~') else said}`"

    text = re.sub(r"``([^`]+)``", r"`\1`", _ROLE.sub(name, text))
    code_apart = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _escaped(part) for part in code_apart)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(r"\\\g<0>", text.replace("<", "&lt;"))


def first_line(documented: object) -> str:
    """The first sentence of a docstring, on one line."""
    text = plain(" ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split()))
    end = re.search(r"(?<=[a-z0-9)`”])[.](?=\s[A-Z`]|$)", text)
    return text[: end.start()].rstrip() + "." if end else text


def markdown(docstring: str) -> str:
    """A docstring as Markdown that griffe's Google style still finds the sections in."""
    lines = inspect.cleandoc(docstring).splitlines()
    made: list[str] = []
    place = 0
    while place < len(lines):
        line = lines[place]
        head = _HEAD.match(line)
        if head:
            body, place = _indented(lines, place + 1)
            made += ["", *_section(head[1], body), ""]
        elif line.startswith(">>> "):
            code, place = _until_blank(lines, place)
            made += ["", "```pycon", *code, "```", ""]
        elif line.rstrip().endswith("::"):
            body, place = _indented(lines, place + 1)
            said = line.rstrip()[:-1].rstrip(":").rstrip()
            made += [
                plain(said) + ":" if said else "",
                "",
                "```text",
                *inspect.cleandoc("\n".join(body)).splitlines(),
                "```",
                "",
            ]
        else:
            made.append(plain(line))
            place += 1
    return re.sub(r"\n{3,}", "\n\n", "\n".join(made)).strip()


def _indented(lines: list[str], place: int) -> tuple[list[str], int]:
    body = []
    while place < len(lines) and (not lines[place].strip() or lines[place].startswith(" ")):
        body.append(lines[place])
        place += 1
    while body and not body[-1].strip():
        body.pop()
    return body, place


def _until_blank(lines: list[str], place: int) -> tuple[list[str], int]:
    first = place
    while place < len(lines) and lines[place].strip():
        place += 1
    return lines[first:place], place


def _section(name: str, body: list[str]) -> list[str]:
    """A section with one line for each entry, so that code that was wrapped is whole again."""
    entries: list[str] = []
    for line in textwrap.dedent("\n".join(body)).splitlines():
        if entries and (line.startswith(" ") or name in {"Returns", "Yields"}):
            entries[-1] += f" {line.strip()}"
        elif line:
            entries.append(line)
    return [f"{name}:", *(f"    {_entry(one)}" for one in entries)]


def _entry(text: str) -> str:
    found = _ENTRY.fullmatch(text)
    return f"{found[1]}: {plain(found[2])}" if found else plain(text)
