"""A post-mortem as a piece of HTML that stands in a notebook's cell and in the report. It brings its own few colours,
which show on light and on dark, and all that others wrote is escaped.
"""

from __future__ import annotations

import html
from typing import Final

from probe.analysis.post_mortem.wording import Part, Shown, parts

_SIGNS: Final = {
    "failed": ("▲", "Failed", "#d0393b"),
    "killed": ("▲", "Killed", "#d0393b"),
    "hangs": ("▲", "Hangs", "#d0393b"),
    "interrupted": ("◐", "Interrupted", "#a8740a"),
    "exited": ("◐", "Exited", "#a8740a"),
    "ended": ("✓", "Finished", "#2b8a56"),
    "runs": ("✓", "Runs", "#2b8a56"),
    "unknown": ("◌", "Not known", "inherit"),
}

_BOX: Final = "max-width:60em;line-height:1.45;text-align:left"
_HEAD: Final = "margin:0 0 4px;font-size:16px;font-weight:600;overflow-wrap:anywhere"
_SMALL: Final = "margin:12px 0 4px;font-size:13px;font-weight:600"
_CELL: Final = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;font-variant-numeric:tabular-nums"
_CODE: Final = "margin:4px 0 0;padding:8px;overflow:auto;max-height:24em;font-size:12px;white-space:pre;opacity:.9"


def html_of(told: Shown) -> str:
    """It as one element."""
    sign, label, colour = _SIGNS[told.state]
    mark = f'<b style="color:{colour}"><span aria-hidden="true">{sign}</span> {label}</b>'
    why = f'<p style="margin:0 0 4px;opacity:.8">{_text(told.why)}</p>' if told.why else ""
    body = "".join(map(_part, parts(told)))
    sentence = f'<p style="{_HEAD}">{_text(told.sentence)}</p>'
    return f'<div class="probe-post-mortem" style="{_BOX}">{mark}{sentence}{why}{body}</div>'


def _part(part: Part) -> str:
    lines = "".join(f'<p style="margin:0 0 4px;overflow-wrap:anywhere">{_text(one)}</p>' for one in part.lines)
    table, code = _table(part), f'<pre style="{_CODE}">{_text(part.text)}</pre>' if part.text else ""
    if part.long and not part.text:
        return f'<details><summary style="{_SMALL}">{_text(part.title)}</summary>{lines}{table}</details>'
    if code:
        label = "Traceback" if part.title == "Exception" else "Stack"
        code = f"<details><summary>{label}</summary>{code}</details>"
    return f'<p style="{_SMALL}">{_text(part.title)}</p>{lines}{table}{code}'


def _table(part: Part) -> str:
    if not part.rows:
        return ""
    head = "".join(f'<th scope="col" style="{_CELL};opacity:.8">{_text(one)}</th>' for one in part.head)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{_text(cell)}</td>' for cell in row) + "</tr>" for row in part.rows
    )
    return (
        f'<div tabindex="0" role="region" aria-label="{_text(part.title)}" style="overflow-x:auto;max-width:100%">'
        f'<table style="border-collapse:collapse;font-size:12px"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _text(told: str) -> str:
    return html.escape(told, quote=True)
