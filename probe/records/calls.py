"""The row of a call of an observed function, or of a scope."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from probe.records.row import Row


class Call(Row, kw_only=True, tag="calls"):
    """One call of an observed function, or one scope (``point`` is then "scope.<kind>")."""

    sampled: ClassVar[bool] = True

    point: str
    name: str = ""
    begin_ns: int = 0
    duration_ns: int = 0  #: host time
    rows_in: int | None = None
    rows_out: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    keys_added: list[str] = field(default_factory=list)
    keys_removed: list[str] = field(default_factory=list)
    error: str | None = None  #: "ValueError: …" when it raised
