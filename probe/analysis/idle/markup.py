"""Both sides' time as a piece of HTML for a notebook's cell and the report: a bar for each, and what its parts are.

It brings its own few colours, which show on light and on dark.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Final, Protocol

from probe.analysis.idle.sides import Parts
from probe.analysis.idle.wording import MEANT, NAMES, table
from probe.text import percent

_HEAD: Final = "margin:0 0 6px;font-size:16px;line-height:1.5;font-weight:600"
_SMALL: Final = "margin:6px 0 0;font-size:12px;opacity:.8"
_LEFT: Final = "padding:4px 12px 4px 0;text-align:left;white-space:nowrap;font-weight:400"
_RIGHT: Final = (
    "padding:3px 0 3px 12px;text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums;"
    "border-top:1px solid rgba(128,139,153,.3)"
)

#: Replicas that are drawn.
_BARS: Final = 16

#: Of a side's own work, and of what it is idle for. Idle time is lighter, and hatched where the other side works.
_WORKS: Final = "#3d78c9"
_COLOURS: Final[Mapping[str, str]] = {
    "work": "repeating-linear-gradient(45deg,rgba(128,139,153,.75) 0 3px,rgba(128,139,153,.25) 3px 7px)",
    "weights": "#8a63c2",
    "answers": "#c1820b",
    "rest": "rgba(128,139,153,.3)",
}

#: What the key says of parts whose names say it of the trainer.
_KEY: Final[Mapping[str, str]] = {"work": "idle while the trainer works"}


class Shown(Protocol):
    """What is drawn, of an answer that has it."""

    @property
    def sentence(self) -> str:
        """What is to be said first."""

    @property
    def trainer(self) -> Parts:
        """Nanoseconds of the trainer, by part."""

    @property
    def replicas(self) -> Mapping[str, Parts]:
        """The same of each replica."""


def html_of(found: Shown) -> str:
    """It as one element.

    Args:
        found: What is told.
    """
    drawn = dict(list(found.replicas.items())[:_BARS])
    left_out = len(found.replicas) - len(drawn)
    bars = _bar("trainer", found.trainer, own="work") + "".join(
        _bar(name, parts, own="sampling") for name, parts in drawn.items()
    )
    more = f" The first {len(drawn)} of {len(found.replicas)} replicas." if left_out else ""
    return (
        '<div class="probe-idle" style="max-width:68em;line-height:1.45;text-align:left;font-size:13px">'
        f'<p style="{_HEAD}">{escape(found.sentence)}</p>'
        f'<table style="border-collapse:collapse;width:100%">{bars}</table>{_key()}'
        f'<p style="{_SMALL}">{escape(MEANT)}{more}</p>{_numbers(found)}</div>'
    )


def _bar(name: str, parts: Mapping[str, int], own: str) -> str:
    whole = sum(parts.values())
    pieces = "".join(
        f'<span title="{escape(_called(part, own))}: {percent(value / whole)}" style="display:inline-block;height:16px;'
        f'width:{100 * value / whole:.3f}%;background:{_WORKS if part == own else _COLOURS[part]}"></span>'
        for part, value in parts.items()
        if value
    )
    said = ", ".join(f"{_called(part, own)} {percent(value / whole)}" for part, value in parts.items() if value)
    return (
        f'<tr><th scope="row" style="{_LEFT}">{escape(name)}</th><td style="width:100%;padding:4px 0">'
        f'<div role="img" aria-label="{escape(name)}: {escape(said)}" style="display:flex">{pieces}</div></td></tr>'
    )


def _called(part: str, own: str) -> str:
    return "works" if part == own == "work" else NAMES[part]


def _key() -> str:
    told = [("works", _WORKS), *((_KEY.get(name, NAMES[name]), colour) for name, colour in _COLOURS.items())]
    return f'<p style="{_SMALL}">' + " &nbsp; ".join(
        f'<span style="display:inline-block;width:18px;height:10px;background:{colour}"></span> {escape(name)}'
        for name, colour in told
    ) + "</p>"  # fmt: skip


def _numbers(found: Shown) -> str:
    head, *lines = table(found.trainer, found.replicas)
    heads = "".join(f'<th scope="col" style="{_RIGHT}">{escape(one)}</th>' for one in head[1:])
    body = "".join(
        f'<tr><th scope="row" style="{_LEFT};border-top:1px solid rgba(128,139,153,.3)">{escape(name)}</th>'
        + "".join(f'<td style="{_RIGHT}">{escape(one)}</td>' for one in shares)
        + "</tr>"
        for name, *shares in lines[: _BARS + 1]
    )
    return (
        '<details style="margin-top:8px"><summary>Numbers</summary>'
        '<div tabindex="0" role="region" aria-label="Shares of the time" style="overflow-x:auto">'
        '<table style="border-collapse:collapse;font-size:13px"><thead><tr>'
        f'<th scope="col" style="{_LEFT}"></th>{heads}</tr></thead><tbody>{body}</tbody></table></div></details>'
    )
