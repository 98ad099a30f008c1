"""What went wrong with the observing itself, and what was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pandas as pd

from probe.sql import Sql, sql

if TYPE_CHECKING:
    from probe.runs.reader import Run

# A listener's row says for which time it failed, and there is one for each; other rows say how many they
# stand for.
_COUNT: Final = Sql("sum(case when kind = 'listener' then 1 else count end)::bigint")


def table(run: Run) -> pd.DataFrame:
    """Incidents, equal ones folded into one row, the most frequent first.

    Returns:
        Kind, where, message, count (sum of their counts), processes (how many had it), first_step, last_step,
        switched_off, first_ns and last_ns (wall clock).
    """
    return run.sql(
        sql(
            """
        select kind, "where", message, {count} as count, count(distinct process) as processes,
               min(step) as first_step, max(step) as last_step, bool_or(switched_off) as switched_off,
               min(wall_ns) as first_ns, max(wall_ns) as last_ns
        from incidents group by kind, "where", message order by count desc, kind, "where", message
        """,
            count=_COUNT,
        )
    )


def over_time(run: Run) -> pd.DataFrame:
    """Incidents by step and kind: step, kind, count; those outside steps have step None."""
    return run.sql(
        sql("select step, kind, {count} as count from incidents group by all order by step, kind", count=_COUNT)
    )


def dropped(run: Run) -> pd.DataFrame:
    """Rows that a full queue dropped: where (the table), count, processes; empty when nothing is missing."""
    return run.sql(
        """
        select "where", sum(count)::bigint as count, count(distinct process) as processes from incidents
        where kind = 'dropped_rows' group by "where" order by count desc, "where"
        """
    )
