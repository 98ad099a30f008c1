"""Waterfalls as a piece of HTML that stands in a notebook's cell: a bar for each cause, with its number."""

from __future__ import annotations

from html import escape
from typing import Final

from probe.analysis.difference.parts import CAUSES, Difference, Waterfall

_CELL: Final = "padding:3px 12px 3px 0;vertical-align:top;text-align:left"
_RIGHT: Final = f"{_CELL};text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
_BAR: Final = "position:absolute;top:2px;bottom:2px;border-radius:2px;background:{}"
_MORE: Final = "#7d8896"
_LESS: Final = "repeating-linear-gradient(-45deg,#7d8896 0 2px,transparent 2px 5px)"
_ENDS: Final = "rgba(128,139,153,.45)"


def markup(difference: Difference) -> str:
    """All waterfalls, one below the other, and why others aren't there.

    Args:
        difference: Of two runs.
    """
    told = [_waterfall(one) for one in difference.waterfalls]
    return "".join([*told, *(f"<p>{escape(one)}</p>" for one in difference.missing)])


def _waterfall(of: Waterfall) -> str:
    level, levels = of.before, [of.before]
    for value in of.by_cause.values():
        level += value
        levels.append(level)
    low, high = min(0.0, *levels), max(*levels, of.after, 1e-300)
    lines = [_line("First run", of.spelled(of.before), (0.0, of.before), _ENDS, (low, high), "")]
    level = of.before
    for cause, value in of.by_cause.items():
        if not value:
            continue
        colour = _MORE if value > 0 else _LESS
        about = [one for one in of.parts if one.cause == cause and one.value]
        about.sort(key=lambda one: -abs(one.value))
        told = "; ".join(" · ".join(filter(None, [one.phase, one.about])) for one in about[:3])
        ends = (level, level + value)
        lines.append(_line(CAUSES[cause], of.spelled(value, signed=True), ends, colour, (low, high), told))
        level += value
    lines.append(_line("Second run", of.spelled(of.after), (0.0, of.after), _ENDS, (low, high), ""))
    notes = "".join(f"<p style='font-size:12px;margin:4px 0'>{escape(one)}</p>" for one in of.notes)
    table = f'<table style="border-collapse:collapse;width:100%">{"".join(lines)}</table>'
    return f'<p style="font-weight:600;margin:12px 0 4px">{escape(of.sentence())}</p>{table}{notes}'


def _line(
    title: str, number: str, ends: tuple[float, float], colour: str, scale: tuple[float, float], about: str
) -> str:
    left, right = (100 * (one - scale[0]) / (scale[1] - scale[0]) for one in sorted(ends))
    place = f"left:{left:.2f}%;width:{max(right - left, 0.2):.2f}%;{_BAR.format(colour)}"
    bar = f'<div style="position:relative;height:18px;min-width:120px"><div style="{place}"></div></div>'
    small = f'<span style="display:block;font-size:12px;opacity:.8">{escape(about)}</span>' if about else ""
    return (
        f'<tr><td style="{_CELL}">{escape(title)}{small}</td><td style="{_RIGHT}">{escape(number)}</td>'
        f'<td style="{_CELL};width:45%">{bar}</td></tr>'
    )
