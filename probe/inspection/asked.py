"""What text, HTML and the widget ask of an inspection, so that none of them needs to know how it answers."""

from __future__ import annotations

from typing import Any, Protocol

from probe.inspection.contents import Schema
from probe.inspection.token_map import TokenMap
from probe.inspection.values import RowText


class Asked(Protocol):
    """An inspection as those see it who show it; see :class:`probe.inspection.inspector.Inspection`."""

    schema: Schema
    start: int
    stop: int
    closed: bool

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the columns."""
        ...

    @property
    def can_decode(self) -> bool:
        """Whether there is a tokenizer."""
        ...

    def values(self, key: str, rows: Any = None, positions: Any = None) -> list[Any]:
        """Values of one column, one entry for each row.

        Args:
            key: The column.
            rows: Which rows; None means those of the inspection.
            positions: Which entries of each row; None means all of them.
        """
        ...

    def token_map(self, rows: Any = None) -> TokenMap:
        """What each position is: padding, prompt, response."""
        ...

    def lengths(self) -> dict[str, list[int]]:
        """Tokens of every row of the batch, and of its response where its place is known."""
        ...

    def texts(self, rows: Any = None) -> list[RowText]:
        """Decoded prompt and response of some rows."""
        ...
