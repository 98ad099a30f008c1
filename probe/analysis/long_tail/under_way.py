"""When replicas have requests under way, whichever step these are of, on the wall clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from probe.analysis.long_tail.tail import Requests, merged
from probe.text import rows, whole

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Rows whose requests reach into a stretch of the wall clock.
_ROLLOUTS: Final = """
with told as (select *, coalesce(wall_ns, time_ns) - time_ns as anchor_ns from rollouts)
select step, process, replica, together, begin_ns + anchor_ns as begin_ns, end_ns + anchor_ns as end_ns,
       time_ns + anchor_ns as told_ns, requests_begin_ns, requests_end_ns
from told where begin_ns is not null and end_ns is not null
  and begin_ns + anchor_ns < {last} and end_ns + anchor_ns > {first}
"""

_NEWEST: Final = "select max(coalesce(wall_ns, time_ns)) as told_ns from rollouts where end_ns is not null"


class Told(NamedTuple):
    """The requests of one row.

    Attributes:
        replica: Its name.
        step: That they are of, None where it isn't known.
        told_ns: When they were told.
        requests: When any of them was under way, merged.
    """

    replica: str
    step: int | None
    told_ns: int
    requests: Requests


def replica_of(row: Mapping[Any, Any]) -> str:
    """The name of a row's replica: the process where it has none of its own."""
    return str(row["replica"]) or str(row["process"])


def told(run: Run, first_ns: int, last_ns: int) -> list[Told]:
    """What was told of requests that reach into a stretch of time.

    Args:
        run: The run.
        first_ns: Where it begins, wall-clock nanoseconds.
        last_ns: Where it ends.
    """
    return list(_told(rows(run.sql(_ROLLOUTS.format(first=int(first_ns), last=int(last_ns))))))


def _told(found: Sequence[Mapping[Any, Any]]) -> Iterator[Told]:
    for row in found:
        begin = int(row["begin_ns"])
        if row["together"]:
            requests = merged([begin], [int(row["end_ns"])])
        else:
            asked = np.asarray(row["requests_begin_ns"], np.int64) + begin
            requests = merged(asked, np.asarray(row["requests_end_ns"], np.int64) + begin)
        yield Told(replica_of(row), whole(row["step"]), int(row["told_ns"]), requests)


def by_replica(found: Sequence[Told]) -> dict[str, Requests]:
    """When each replica had any request under way, by name in their order, merged."""
    parts: dict[str, list[Requests]] = defaultdict(list)
    for one in found:
        parts[one.replica].append(one.requests)
    return {
        name: merged(np.concatenate([one.begin_ns for one in each]), np.concatenate([one.end_ns for one in each]))
        for name, each in sorted(parts.items())
    }


def surely_told(run: Run, found: Sequence[Told]) -> int:
    """Up to when every request that was under way is told, wall-clock nanoseconds.

    Requests are told together, when the last of them has ended; so those that are under way have no row yet. They began
    no longer ago than it takes at most from the first request of a row until that is told.
    """
    newest = whole(run.sql(_NEWEST)["told_ns"].iloc[0]) or 0
    longest = (max(one.told_ns, int(one.requests.end_ns[-1])) - int(one.requests.begin_ns[0]) for one in found)
    return newest - max(longest, default=0)
