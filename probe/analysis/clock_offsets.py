"""How far the clocks of a run's machines are apart, by its rows: for times of different machines in one order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from probe.analysis import rank_times
from probe.text import rows, whole

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: The newest steps by which clocks are compared.
STEPS: Final = 64


@dataclass(frozen=True)
class Offsets:
    """What there is to be said of clocks.

    Attributes:
        of_process: Nanoseconds that a process's clock is ahead of the common one; processes that aren't in it have 0.
        error_s: By which times of different machines may still be wrong; 0 on one machine; None where nothing tells.
    """

    of_process: Mapping[str, int] = field(default_factory=dict)
    error_s: float | None = 0.0

    def aligned(self, process: str, wall_ns: int) -> int:
        """A time of a process by the common clock."""
        return wall_ns - self.of_process.get(process, 0)


def offsets(run: Run) -> Offsets:
    """How far clocks are apart. Processes of one machine share its clock; those of different machines are compared by
    the ends of a phase that all ranks leave together (see :func:`probe.analysis.rank_times.clocks`).

    Args:
        run: The run.
    """
    processes = rows(run.sql("select process, rank, host from processes"))
    if len({one["host"] for one in processes}) < 2:
        return Offsets()
    newest = whole(run.sql("select max(step) as last from steps")["last"][0])
    if newest is None:
        return Offsets(error_s=None)
    phases = rank_times.of_rows(run.sql(rank_times.query(newest - STEPS + 1, newest)))
    clock = rank_times.clocks(phases)
    if clock.error_s is None or clock.phase is None:
        return Offsets(error_s=None)
    known = {
        int(rank): float(np.nanmedian(ahead))
        for rank, ahead in zip(phases[clock.phase].ranks, clock.offsets.T, strict=True)
        if np.isfinite(ahead).any()
    }
    by_host: dict[str, list[float]] = defaultdict(list)
    for one in processes:
        rank = whole(one["rank"])
        if rank is not None and rank in known:
            by_host[one["host"]].append(known[rank])
    found = {one["process"]: int(1e9 * median(by_host[one["host"]])) for one in processes if one["host"] in by_host}
    return Offsets(found, clock.error_s)
