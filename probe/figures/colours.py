"""The one colour map: a phase, a role and a cause look the same in every view, in every backend and in every run.

What is defined stands in ``colours.json`` beside this file, which the live panel's script is built with, too: the
colours of both themes, the hues, and which name has which of them. A name that isn't listed has a hue and a texture
that follow from its letters alone, so nothing depends on sizes, on an order, or on what else is drawn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final, Literal, NamedTuple

Theme = Literal["light", "dark"]

#: What stands between the parts of a series' label.
_BETWEEN: Final = " · "

#: Start and factor of FNV-1a with 32 bits.
_FNV_START, _FNV_FACTOR = 0x811C9DC5, 0x01000193


class Style(NamedTuple):
    """How a series looks.

    Attributes:
        colour: Its colour, as ``#rrggbb``.
        pattern: The texture of its bars, as plotly calls it; "" for none.
        dash: The dashes of its lines, as plotly calls them.
        symbol: The shape of its dots, as plotly calls it.
    """

    colour: str
    pattern: str
    dash: str
    symbol: str


@cache
def defined() -> Mapping[str, Any]:
    """What ``colours.json`` says."""
    found: Mapping[str, Any] = json.loads((resources.files("probe.figures") / "colours.json").read_text("utf-8"))
    return found


def of_theme(name: str, theme: Theme = "light") -> str:
    """A colour that isn't of a series: of the surface, of texts, of verdicts.

    Args:
        name: Such as "ink" or "alarm".
        theme: Which of its values.

    Returns:
        The colour, as CSS has it.
    """
    return str(defined()["themes"][theme][name])


def hue(name: str, theme: Theme = "light") -> str:
    """The colour of a hue.

    Args:
        name: Of the hue.
        theme: Which of its values.

    Returns:
        The colour, as ``#rrggbb``.
    """
    return str(defined()["hues"][name][theme])


def style(columns: Sequence[str], label: str, theme: Theme = "light") -> Style:
    """How the series ``label`` of a chart looks that has a series for each value of ``columns``.

    Args:
        columns: The columns that tell the series apart, such as role and phase; of a phase's colour nothing else says
            anything, then a role's counts, then a cause's.
        label: What the series is called: the values of the columns.
        theme: Which of the colours' values.

    Returns:
        The look that this name has everywhere.

    >>> style(["phase"], "generate").colour == style(["role", "phase"], "rollout · generate").colour
    True
    >>> style(["cause"], "longest row") == style(["cause"], "longest_row")
    True
    """
    kind, name = _meant(columns, label)
    listed = defined()["names"].get(kind, {}).get(_plain(name))
    if listed is None:
        return _of_name(name, theme)
    return _style(listed, _texture_of(listed), theme)


def in_pipeline(columns: Sequence[str], labels: Iterable[str]) -> list[str]:
    """Series in the order in which a step has its phases, and after them by name.

    Args:
        columns: As for :func:`style`.
        labels: What the series are called.

    Returns:
        The labels, sorted.

    >>> in_pipeline(["phase"], ["update", "b", "generate", "a"])
    ['generate', 'update', 'a', 'b']
    """
    own = {hue(name) for name in defined()["own"]}
    places = {one["light"]: place for place, one in enumerate(defined()["hues"].values()) if one["light"] not in own}
    return sorted(labels, key=lambda one: (places.get(style(columns, one).colour, len(places) + len(own)), one))


def dark_of_light() -> dict[str, str]:
    """For a page that follows the person's theme: each colour of the light theme, and the same of the dark one."""
    themes = defined()["themes"]
    pairs = {str(one["light"]): str(one["dark"]) for one in defined()["hues"].values()}
    named = {str(value): themes["dark"][name] for name, value in themes["light"].items() if isinstance(value, str)}
    return named | pairs


def _meant(columns: Sequence[str], label: str) -> tuple[str, str]:
    """Which of the columns gives the colour, and its value in the label."""
    parts = label.split(_BETWEEN)
    kind = next((one for one in defined()["columns"] if one in columns), "series")
    if kind == "series" or len(columns) == 1:
        return kind, label
    # Equal values are said once: then there is one part for several columns.
    return kind, parts[-1] if columns[-1] == kind else parts[min(list(columns).index(kind), len(parts) - 1)]


def _of_name(name: str, theme: Theme) -> Style:
    if not name or name.startswith("no "):
        return _style("kind_1", 0, theme)
    own = defined()["own"]
    number = int(name.removeprefix("rank ")) if re.fullmatch(r"rank \d{1,9}", name) else _hash(name)
    return _style(own[number % len(own)], number // len(own) % len(defined()["patterns"]), theme)


def _style(name: str, texture: int, theme: Theme) -> Style:
    drawn = (str(defined()[one][texture]) for one in ("patterns", "dashes", "symbols"))
    return Style(hue(name, theme), *drawn)


def _texture_of(name: str) -> int:
    """Kinds are told apart by lightness and texture, phases by their hue alone."""
    return int(name.removeprefix("shade_")) % len(defined()["patterns"]) if name.startswith("shade_") else 0


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _hash(name: str) -> int:
    """FNV-1a, as the panel's script has it: the same in each process and each language."""
    found = _FNV_START
    whole = name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # as JavaScript writes half a character
    for byte in whole.encode("utf-8"):
        found = (found ^ byte) * _FNV_FACTOR & 0xFFFFFFFF
    return found
