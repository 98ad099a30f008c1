"""Docstrings as Markdown: sections as lists, doctests as code, Sphinx roles as plain names."""

from __future__ import annotations

import inspect
import re
from typing import Final

_SECTIONS: Final = {
    "Args": "Arguments",
    "Attributes": "Attributes",
    "Returns": "Returns",
    "Yields": "Yields",
    "Raises": "Raises",
}
_LISTED: Final = ("Args", "Attributes", "Raises")
_NAMES: Final = r"\*{0,2}[A-Za-z_]\w*(?:\.\w+)*(?:, \*{0,2}[A-Za-z_]\w*(?:\.\w+)*)*(?: \([^)]*\))?"
_ITEM: Final = re.compile(rf"({_NAMES}): (.*)")
_NEXT: Final = {
    "Args": re.compile(r"(?<=[.;]) (?=\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*: )"),
    "Attributes": re.compile(r"(?<=[.;]) (?=[a-z_]\w*(?:, [a-z_]\w*)*: )"),
    "Raises": re.compile(r"(?<=[.;]) (?=[A-Z]\w*(?:Error|Interrupt|Exit)(?:, [A-Z]\w*)*: )"),
}
_ROLE: Final = re.compile(r":(?:class|func|meth|attr|data|mod|exc):`~?([^`]*)`")
#: What Markdown would take for a link, for HTML or for emphasis.
_ESCAPED: Final = re.compile(r"[\[\]]|\*(?!\s)|(?<!\w)_|_(?!\w)")
_HEAD: Final = re.compile(r"(Args|Attributes|Returns|Yields|Raises):\s*$")


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
    """A docstring in this project's form, as Markdown."""
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
    text = inspect.cleandoc("\n".join(body))
    if name not in _LISTED:
        return [f"**{_SECTIONS[name]}:** " + plain(" ".join(text.split()))]
    items: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        if _ITEM.match(line) or not items:
            items.append(line)
        else:
            items[-1] += " " + line.strip()
    entries = [one for item in items for one in _NEXT[name].split(item)]
    return [f"**{_SECTIONS[name]}:**", "", *(_entry(one) for one in entries)]


def _entry(text: str) -> str:
    found = _ITEM.match(text)
    if not found:
        return f"* {plain(text)}"
    names = ", ".join(f"`{name}`" for name in found[1].split(", "))
    return f"* {names}: {plain(found[2])}"
