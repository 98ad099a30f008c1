"""The frame of what was found, which a notebook shows as a list of whole sentences."""

from __future__ import annotations

import html
import textwrap
from typing import Any, Final

import pandas as pd

from probe.text import rows

#: What each severity is called, with a sign and a colour that shows on light and on dark.
_SEVERITIES: Final = {
    "problem": ("▲", "Problem", "#d0393b"),
    "notice": ("◐", "Worth a look", "#a8740a"),
    "fine": ("✓", "In order", "#2b8a56"),
}

_COLUMNS: Final = frozenset({"severity", "finding", "advice"})

#: Characters of a line of text.
_WIDTH: Final = 100

_NOTHING: Final = "Nothing was recorded yet, so that nothing was found."


class Findings(pd.DataFrame):  # type: ignore[misc]  # pandas brings no types
    """A frame of findings: one row each, with severity, topic, finding and advice.

    It is a frame in everything; a notebook and a terminal show it as a list, in which no sentence is cut. Parts of it
    that have other columns are shown as frames.

    >>> Findings([("notice", "memory", "Ranks peak unequally.", "balance tokens")],
    ...          columns=["severity", "topic", "finding", "advice"])
    ◐ Worth a look: Ranks peak unequally.
      → Balance tokens.
    """

    @property
    def _constructor(self) -> type[Findings]:
        return Findings

    def __repr__(self) -> str:
        if not self._is_listed():
            return str(super().__repr__())
        return "\n".join(_lines(row) for row in rows(self)) or _NOTHING

    def _repr_html_(self) -> str | None:
        if not self._is_listed():
            found: str | None = super()._repr_html_()
            return found
        if self.empty:
            return f"<p>{_NOTHING}</p>"
        items = "".join(_item(row) for row in rows(self))
        return f'<ul class="probe-findings" style="list-style:none;padding:0;margin:0;max-width:60em">{items}</ul>'

    def _is_listed(self) -> bool:
        return set(self.columns) >= _COLUMNS


def _item(row: dict[str, Any]) -> str:
    sign, name, colour = _SEVERITIES[row["severity"]]
    mark = f'<b style="color:{colour}"><span aria-hidden="true">{sign}</span> {name}</b>'
    said, advice = html.escape(row["finding"]), html.escape(_sentence(row["advice"]))
    return (
        f'<li style="margin:0 0 10px;line-height:1.45;text-align:left">{mark}<br>{said}'
        f'<br><span style="opacity:.8">→ {advice}</span></li>'
    )


def _lines(row: dict[str, Any]) -> str:
    sign, name, _ = _SEVERITIES[row["severity"]]
    said = textwrap.fill(f"{sign} {name}: {row['finding']}", _WIDTH, subsequent_indent="  ")
    return said + "\n" + textwrap.fill(f"  → {_sentence(row['advice'])}", _WIDTH, subsequent_indent="    ")


def _sentence(advice: str) -> str:
    """Advice as a sentence.

    >>> _sentence("rename it"), _sentence("Why?")
    ('Rename it.', 'Why?')
    """
    text = advice[:1].upper() + advice[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."
