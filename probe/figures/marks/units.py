"""Values and axes in the unit that a series spec names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from probe import text as words
from probe.dashboards.spec import listed

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
    each = " and ".join(f"{one.replace('_', '-')}s" for one in listed(spec.get("each")))
    parts = [spec.get("y_title"), chosen.name, f"{spec.get('reduce')} across {each}" if each else None]
    return ", ".join(str(one) for one in parts if one)
