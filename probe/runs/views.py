"""The views of ``views.sql``: SQL text that works on the tables of a run, or on some of their rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Final

from probe.records import APART_SOURCES, PLANNED_SOURCES
from probe.sql import Sql, literal, sql

_VIEW: Final = re.compile(r"^-- view (\w+)$", re.MULTILINE)
_PLACE: Final = re.compile(r"\{(\w+)(?: from (\w+))?\}")

#: The tables that views are made of.
SOURCES: Final = ("memory", "scope_calls", "micro_batches", "padding")


@lru_cache(maxsize=1)
def texts() -> Mapping[str, str]:
    """The text of each view as it stands in the file, in its order.

    Returns:
        By name, with places such as ``{memory}``.
    """
    whole = (resources.files("probe.runs") / "views.sql").read_text(encoding="utf-8")
    _, *parts = _VIEW.split(whole)
    return {name: _bare(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _bare(text: str) -> str:
    lines = (line for line in text.splitlines() if not line.startswith("--"))
    return "\n".join(line for line in lines if line).rstrip().removesuffix(";")


def query(name: str, sources: Mapping[str, str] | None = None, start_ns: int | str = 0) -> Sql:
    """The query that gives the rows of a view, over some of the rows of its tables.

    Args:
        name: Of the view.
        sources: SQL for the rows of a table, such as ``{"memory": "(select * from memory where step = 3)"}``; tables
            that aren't named are taken whole.
        start_ns: Wall-clock time of second 0, nanoseconds since the epoch, or SQL for it.

    Returns:
        A query, which may stand in brackets.

    >>> query("steps", {"scopes": "told"}).splitlines()[-1]
    "from told where kind = 'step' and step is not null group by step"
    """
    return _whole(name, start_ns) if sources is None else _filled(name, sources, start_ns)


@lru_cache(maxsize=256)
def _whole(name: str, start_ns: int | str) -> Sql:
    return _filled(name, {}, start_ns)


def _filled(name: str, known: Mapping[str, str], start_ns: int | str) -> Sql:
    def filled(place: re.Match[str]) -> str:
        found, told = place[1], place[2]
        if found in known:
            return known[found]
        if told is not None:
            return query(found, {**known, "scopes_nested": told}, start_ns)
        if found in SOURCES:
            return found
        return f"({query(found, known, start_ns)})" if found in texts() else _constants(start_ns)[found]

    return Sql(_PLACE.sub(filled, texts()[name]))


def _constants(start_ns: int | str) -> Mapping[str, str]:
    listed = {"planned": PLANNED_SOURCES, "apart": APART_SOURCES}
    found = {name: sql("({texts})", texts=map(literal, sources)) for name, sources in listed.items()}
    return {**found, "start_ns": str(start_ns)}


@lru_cache(maxsize=256)
def named(text: str) -> tuple[str, ...]:
    """The views that a query may ask for, in the order in which they are made: those that its text names, and what
    these are made of. It may put a name together, for ``query()``.

    >>> named("select * from spans where level = 'phase'")
    ('scope_calls', 'spans')
    """
    lower = text.lower()
    found = [name for name in texts() if name in lower or "query" in lower]
    whole = "\n".join([lower, *map(query, found)])
    return tuple(name for name in texts() if name in found or (name in SOURCES and name in whole))
