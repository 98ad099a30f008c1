"""Values and axes in the unit that a series spec names, and what its series are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from probe import text as words
from probe.dashboards.spec import listed
from probe.figures import colours
from probe.figures import theme as look
from probe.figures.colours import Theme

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_SPELLED: Final[Mapping[str, Callable[[Any], str]]] = {
    "bytes": words.size,
    "tokens": words.count,
    "ratio": words.ratio,
    "percent": words.percent,
    "s": words.seconds,
    "count": words.count,
}
_NAMES: Final = {"percent": "share", "s": "seconds", "ratio": "ratio", "number": "value"}


class Scale(NamedTuple):
    """What values are divided by for an axis, and what the unit is then called."""

    divisor: float
    name: str


def spell(spec: Mapping[str, Any], value: Any) -> str:
    """A value as a person says it.

    Args:
        spec: A series spec.
        value: One of its values.

    Returns:
        The text.

    >>> spell({"unit": "percent"}, 0.25)
    '25 %'
    """
    return _SPELLED.get(str(spec.get("unit")), words.number)(value)


def scale(spec: Mapping[str, Any], largest: float) -> Scale:
    """How an axis up to ``largest`` is divided.

    Args:
        spec: A series spec.
        largest: The largest value on the axis.

    Returns:
        The divisor and the unit's name.

    >>> scale({"unit": "bytes"}, 2.0**31)
    Scale(divisor=1073741824.0, name='GiB')
    """
    unit = str(spec.get("unit", "number"))
    return Scale(*words.byte_unit(largest)) if unit == "bytes" else Scale(1, _NAMES.get(unit, unit))


def of_memory(chosen: Scale, frame: pd.DataFrame) -> Scale:
    """The unit with the name of the memory that is meant, where the numbers say it.

    Args:
        chosen: How an axis is divided.
        frame: The numbers; ``source`` says of which memory they are.

    Returns:
        The same divisor, and maybe a longer name.
    """
    known = frame["source"].dropna().tolist() if "source" in frame else []
    return chosen._replace(name=f"{chosen.name} of {words.memory(known[0])}") if known else chosen


def said(spec: Mapping[str, Any], row: Mapping[str, Any], column: str = "value") -> str:
    """The value of a row as a person says it, and how sure it is where the row knows.

    >>> said({"unit": "bytes"}, {"value": 2048, "peak_kind": "at_least"})
    'at least 2.00 KiB'
    """
    return words.at(row.get("peak_kind")) + spell(spec, row[column])


def title(spec: Mapping[str, Any], chosen: Scale) -> str:
    """The title of the axis of values.

    Args:
        spec: A series spec.
        chosen: How the axis is divided.

    Returns:
        What stands there, its unit, and how it is reduced.

    >>> title({"unit": "s", "each": "rank", "reduce": "mean"}, Scale(1, "seconds"))
    'seconds, mean across ranks'
    """
    each = " and ".join(words.several(one.replace("_", "-")) for one in listed(spec.get("each")))
    parts = [spec.get("y_title"), chosen.name, f"{spec.get('reduce')} across {each}" if each else None]
    return ", ".join(str(one) for one in parts if one)


#: Format of an axis of values, by unit.
_TICKS: Final = {"percent": ".2~%", "tokens": ",d", "count": ",d"}


def axis(spec: Mapping[str, Any], chosen: Scale) -> dict[str, Any]:
    """The axis of values, as a figure's layout has it.

    Args:
        spec: A series spec.
        chosen: How the axis is divided.

    Returns:
        Its title and the format of its ticks.
    """
    ticks = _TICKS.get(str(spec.get("unit")))
    name = str(spec["y_title"]) if "y_title" in spec and chosen.divisor == 1 else title(spec, chosen)
    return {"title_text": name} | ({"tickformat": ticks} if ticks else {})


def name_of(column: str, value: Any) -> str:
    """What a value of ``by``, or of a category, is called.

    >>> name_of("rank", 3.0), name_of("role", None), name_of("cause", "longest_row")
    ('rank 3', 'no role', 'longest row')
    """
    shown = words.name(value, f"no {column.replace('_', '-')}")
    if column == "cause":  # probe's own words
        shown = shown.replace("_", " ")
    number = words.whole(value) if isinstance(value, int | float) and not words.missing(value) else None
    return shown if number is None else f"{column.replace('_', '-')} {number}"


def series_name(spec: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """What the series of a row is called: the values of ``by``, each once.

    >>> series_name({"by": ["role", "phase"]}, {"role": "rollout", "phase": "rollout"})
    'rollout'
    >>> series_name({"y": "tokens"}, {})
    'tokens'
    """
    found = [name_of(one, row[one]) for one in listed(spec.get("by"))]
    found = [str(spec.get("names", {}).get(one, one)) for one in found]
    return " · ".join(dict.fromkeys(found)) if found else str(listed(spec.get("y"))[0])


def columns(spec: Mapping[str, Any], name: str) -> list[str]:
    """The columns that stand in a field of a spec.

    >>> columns({"by": "role"}, "by"), columns({}, "by")
    (['role'], [])
    """
    return [str(one) for one in listed(spec.get(name))]


def told(spec: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    """What a row tells beside its value: the columns of ``tell``.

    >>> told({"tell": ["sequences", "longest"]}, {"sequences": 3.0, "longest": 12})
    'sequences 3, longest 12'
    """
    found = [f"{one.replace('_', ' ')} {words.count(row[one])}" for one in columns(spec, "tell")]
    return ", ".join(found) or None


def guides(figure: go.Figure, spec: Mapping[str, Any], chosen: Scale, theme: Theme) -> None:
    """Draw the ``lines`` of a block that have a fixed value.

    Args:
        figure: To draw on.
        spec: A ``live:`` block.
        chosen: How the axis of values is divided.
        theme: Of the figure.
    """
    red, text_red = colours.of_theme("alarm", theme), colours.of_theme("alarm_text", theme)
    for line in spec.get("lines", ()):
        if isinstance(line.get("value"), int | float):
            text = f"{look.label(line['title'])} {spell(spec, line['value'])}"
            figure.add_hline(
                y=line["value"] / chosen.divisor,
                line={"color": red, "width": 1, "dash": "dash"},
                annotation={"text": text, "font": {"color": text_red, "size": 11}},
                annotation_position="bottom right",
            )
