"""The machine in the names that MLflow gives its system metrics, which its page for them looks for.

Accelerators are as the ranks' rows tell; the host's processor and memory are asked for. What isn't known is left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import psutil

from probe.publishing.across_ranks import segment

if TYPE_CHECKING:
    from probe.runs.reader import Run

PREFIX: Final = "system/"

#: MLflow counts in units of 10⁶.
MEGABYTE: Final = 1e6

#: As MLflow spells them. Those of other hosts have the host's name behind the prefix, as MLflow's have a node's.
KEYS: Final = (
    "system/cpu_utilization_percentage",
    "system/system_memory_usage_megabytes",
    "system/system_memory_usage_percentage",
    "system/gpu_{number}_memory_usage_megabytes",
    "system/gpu_{number}_memory_usage_percentage",
)


class System:
    """Looks at the machine from one call of :meth:`numbers` to the next.

    Args:
        host: The host that this process runs on.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._since_ns = 0
        psutil.cpu_percent()  # the first answer means nothing: use is counted from one call to the next

    def numbers(self, run: Run) -> dict[str, float]:
        """What is known now; of accelerators the last sample since the call before."""
        memory = psutil.virtual_memory()
        own = {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_megabytes": memory.used / MEGABYTE,
            "system/system_memory_usage_percentage": memory.used / memory.total * 100,
        }
        return own | self._accelerators(run)

    def _accelerators(self, run: Run) -> dict[str, float]:
        frame = run.sql(
            """
            with hosts as (select process, arg_max(host, wall_ns) as host from processes group by process)
            select host, device, count(distinct who(rank, process)) as processes,
                   arg_max(device_used_bytes, wall_ns) as used, arg_max(device_total_bytes, wall_ns) as total,
                   max(wall_ns) as newest
            from memory join hosts using (process)
            where edge = 'sample' and source <> 'process_rss' and device_used_bytes is not null and wall_ns > ?
            group by host, device
            """,
            [self._since_ns],
        )
        found: dict[str, float] = {}
        rows: list[dict[str, Any]] = frame.to_dict("records")
        for row in rows:
            number = re.search(r":(\d+)$", str(row["device"]))
            self._since_ns = max(self._since_ns, int(row["newest"]))
            # Processes of one host that name the same device may see one each: then nobody knows which is which.
            if number is not None and row["processes"] == 1:
                place = PREFIX if row["host"] == self._host else f"{PREFIX}{segment(str(row['host']))}/"
                found[f"{place}gpu_{number[1]}_memory_usage_megabytes"] = row["used"] / MEGABYTE
                if row["total"] is not None and row["total"] > 0:
                    found[f"{place}gpu_{number[1]}_memory_usage_percentage"] = row["used"] / row["total"] * 100
        return found
