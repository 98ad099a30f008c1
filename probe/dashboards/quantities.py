"""The quantities of a run, each defined once in ``dashboards/quantities.yaml``.

A quantity is a series spec with words and limits. It compiles to SQL (:mod:`probe.dashboards.compile`: report,
findings, tracking backends) and is read by the live reducers (kernel and browser) as it is; so that whoever changes it
there finds it changed everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from probe.dashboards import files
from probe.dashboards.spec import SERIES, check_tiles, check_window
from probe.errors import InputError, UnknownNameError

#: What stands behind the name of a quantity, by its unit.
_SUFFIXES: Final = {"s": "_s", "bytes": "_bytes", "ratio": "_ratio", "percent": "_ratio"}


@lru_cache(maxsize=1)
def quantities() -> Mapping[str, Mapping[str, Any]]:
    """All quantities by their name, in the order of the file.

    Returns:
        Of each a series spec with ``id``, ``title``, ``unit``, ``better``, ``missing``, ``means`` and maybe ``warn``,
        ``alarm``, ``capacity`` and ``total``.

    Raises:
        InputError: The file says something that can't be used; the message names quantity and field.
    """
    data = _read()
    found: dict[str, Mapping[str, Any]] = {}
    for one in data["quantities"] if isinstance(data["quantities"], list) else ():
        whole = resolved(one, found)
        found[str(whole.get("id") if isinstance(whole, dict) else whole)] = whole
    check_tiles(list(found.values()), "quantities")
    return found


def _read() -> dict[str, Any]:
    data = files.loaded(files.text("quantities"), "quantities")
    if not isinstance(data, dict) or set(data) != {"quantities", "window_steps"}:
        raise InputError(f"quantities: got {data!r}, expected a list under 'quantities', and 'window_steps'")
    return data


@lru_cache(maxsize=1)
def window_steps() -> int:
    """Of how many last steps a tile shows the median, where the tile doesn't say another number.

    Returns:
        ``window_steps`` of ``dashboards/quantities.yaml``.

    Raises:
        InputError: It is no whole number from 1 on.
    """
    steps = _read()["window_steps"]
    check_window(steps, "quantities: window_steps")
    return int(steps)


def quantity(name: str) -> Mapping[str, Any]:
    """The quantity called ``name``.

    Args:
        name: Such as "rank_imbalance".

    Returns:
        Its series spec with words and limits.

    Raises:
        UnknownNameError: There is none; the message lists what there is.
    """
    known = quantities()
    if name not in known:
        raise UnknownNameError.of("quantity", name, known)
    return known[name]


def series_of(name: str) -> dict[str, Any]:
    """The quantity called ``name`` as a series spec alone, without words and limits.

    Args:
        name: Such as "rank_imbalance".

    Returns:
        The fields of a series spec.

    Raises:
        UnknownNameError: There is none; the message lists what there is.
    """
    return _series_of(name, quantities())


def _series_of(name: str, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    if name not in known:
        raise UnknownNameError.of("quantity", name, known)
    return {field: value for field, value in known[name].items() if field in SERIES}


def resolved(block: Any, known: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
    """A ``live:`` block, or part of one, in which each ``quantity: name`` has become the fields of that quantity.

    Fields beside the name win. A tile (something in a list ``tiles``) gets words and limits too; anything else gets the
    series alone.

    Args:
        block: As YAML gave it.
        known: The quantities that may be named; None is all there are.

    Returns:
        The same with plain fields.

    Raises:
        UnknownNameError: There is no such quantity.

    >>> resolved({"mark": "line", "x": "step", "quantity": "peak_memory"})["y"]
    'peak'
    """
    if isinstance(block, list):
        return [resolved(one, known) for one in block]
    if not isinstance(block, dict):
        return block
    found = {
        name: [_tile(one, known) for one in value]
        if name == "tiles" and isinstance(value, list)
        else resolved(value, known)
        for name, value in block.items()
    }
    if "quantity" not in found:
        return found
    return {**_series_of(str(found.pop("quantity")), quantities() if known is None else known), **found}


def _tile(tile: Any, known: Mapping[str, Mapping[str, Any]] | None) -> Any:
    if not isinstance(tile, dict):
        return tile
    words = quantity(str(tile["quantity"])) if "quantity" in tile else {}
    return {"window": window_steps(), **words, **resolved(tile, known)}


def field_of(spec: Mapping[str, Any]) -> str:
    """The name of a quantity with its unit, as it stands in frames, in JSON and in metric keys.

    >>> field_of({"id": "step_time", "unit": "s"}), field_of({"id": "alerts", "unit": "count"})
    ('step_time_s', 'alerts')
    """
    return str(spec["id"]) + _SUFFIXES.get(str(spec.get("unit")), "")
