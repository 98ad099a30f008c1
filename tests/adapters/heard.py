"""What is heard of a framework: the values at its points, and the scopes that a session recorded."""

from __future__ import annotations

from typing import Any

import pandas as pd

from probe.hooks import Listener


class Told(Listener):
    """All that a point carries, as it is told."""

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []

    def fire(self, event: Any) -> None:
        self.values.append(dict(event.values))


def scopes(session: Any) -> list[tuple[Any, ...]]:
    session.flush()
    rows = session.run.sql("select step, kind, phase, micro_batch from memory where edge = 'leave' order by time_ns")
    return [tuple(None if pd.isna(one) else one for one in row) for row in rows.astype(object).itertuples(index=False)]
