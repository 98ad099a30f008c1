"""The row of a process that writes, and what such a process is called."""

from __future__ import annotations

from typing import Final

from probe.records.row import Row

#: Raised when a field changes its meaning or goes away. New optional fields don't need it.
SCHEMA_VERSION: Final = 2


class Process(Row, kw_only=True, tag="process"):
    """The first row of each file: who writes, and which wall-clock time belongs to ``time_ns``."""

    schema_version: int = SCHEMA_VERSION
    revision: int = 0  #: the newest counts: each says all that its process knows of itself by then
    wall_ns: int = 0  #: ``time.time_ns()`` at ``time_ns``
    pid: int = 0
    host: str = ""
    world_size: int = 1
    device: str = ""  #: "cuda:0"; "cpu" means that memory is the process's RSS
    device_name: str = ""
    name: str = ""  #: what it is shown as while it has no rank: of an actor, a child process, a script
    node: str = ""  #: the machine as its launcher calls it; "" until known
    local_rank: int | None = None
    adapters: str = ""  #: the frameworks that are observed in it, and which of their points weren't found
    tables: str = ""  #: the row types that its recorders bring themselves, as probe/runs/row_types.py describes them


def place_of_process(process: str) -> str:
    """The place that a process has or had in its attempt: its name without the number of those who had it before.

    >>> place_of_process("rank-00003.1"), place_of_process("driver")
    ('rank-00003', 'driver')
    """
    return process.partition(".")[0]


def who(rank: int | None, process: str) -> str:
    """What a process is shown as.

    Args:
        rank: Of the process, None where it has none.
        process: What it is called in the run.

    Returns:
        Its rank; where it has none, the place that it has by its name.

    >>> who(3, "rank-00003.1"), who(None, "driver.1"), who(0, "driver")
    ('rank 3', 'driver', 'rank 0')
    """
    return place_of_process(process) if rank is None else f"rank {rank}"
