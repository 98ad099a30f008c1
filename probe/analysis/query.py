"""Small SQL helpers that the analyses share. Frames come back with plain columns; nothing here draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from probe.sql import Sql, sql
from probe.sql import literal as as_literal

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run

#: Points of one line that are enough for a screen.
POINTS: Final = 2000


def literal(value: str | int | None) -> Sql:
    """``value`` as an SQL literal; text is quoted, so that a name from a user stays a name.

    >>> literal("it's"), literal(3), literal(None)
    ("'it''s'", '3', 'null')
    """
    return as_literal(value)


def same(column: str, value: str | int | None) -> Sql:
    """The SQL condition that ``column`` is ``value``, NULL included.

    >>> same("phase", None)
    'phase is not distinct from null'
    """
    return sql("{column} is not distinct from {value}", column=Sql(column), value=literal(value))


def bucket(time: str, begin_ns: int, end_ns: int, count: int) -> Sql:
    """SQL for the index, 0 to ``count − 1``, of the time slice that ``time`` falls into.

    >>> bucket("wall_ns", 0, 100, 10)
    'least(floor((wall_ns - 0) * 10.0 / 100), 9)'
    """
    return sql(
        "least(floor(({time} - {begin_ns}) * {count}.0 / {length}), {last})",
        time=Sql(time),
        begin_ns=begin_ns,
        count=count,
        length=max(end_ns - begin_ns, 1),
        last=count - 1,
    )


def extent(run: Run, table: str, where: str = "true") -> tuple[int, int, int]:
    """Rows of ``table`` under ``where``, and their first and last wall-clock time; (0, 0, 0) without any."""
    found = run.sql(
        sql(
            """select count(*) as n, coalesce(min(wall_ns), 0) as a, coalesce(max(wall_ns), 0) as b
        from {table} where {where}""",
            table=Sql(table),
            where=Sql(where),
        )
    )
    return int(found["n"][0]), int(found["a"][0]), int(found["b"][0])


def started_ns(run: Run) -> int:
    """Wall-clock nanoseconds at which the first process of the run began to record; 0 for an empty run."""
    processes = run.processes
    return 0 if processes.empty else int(processes["wall_ns"].min())


def empty(columns: Sequence[str]) -> pd.DataFrame:
    """A frame without rows: what an analysis gives where nothing was recorded."""
    import pandas as pd

    return pd.DataFrame({name: [] for name in columns})
