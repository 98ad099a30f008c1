"""The table ``last_seen`` of queries: where each process is, or was seen last, a row a process.

It is no table of the rows: what it says comes from the files of :mod:`probe.runs.now_file`, as ``run.now()`` has it, so
that a query can ask for the place of a process that was killed before its rows were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from probe.runs import now
from probe.runs.files import RunFiles
from probe.sql import Sql, identifier, literal, sql

NAME: Final = "last_seen"

#: Its columns, which are fields of :class:`probe.runs.now.Now`, and their types.
COLUMNS: Final[Mapping[str, str]] = {
    "process": "VARCHAR",
    "rank": "BIGINT",
    "attempt": "BIGINT",
    "step": "BIGINT",
    "role": "VARCHAR",
    "phase": "VARCHAR",
    "micro_batch": "BIGINT",
    "scope": "VARCHAR",
    "kind": "VARCHAR",
    "scope_id": "BIGINT",
    "begun_ns": "BIGINT",
    "left_ns": "BIGINT",
    "heartbeat_ns": "BIGINT",
    "ended_ns": "BIGINT",
    "alive": "BOOLEAN",
    "closed": "BOOLEAN",
    "failed": "BOOLEAN",
    "terminated": "BOOLEAN",
    "host": "VARCHAR",
    "pid": "BIGINT",
    "name": "VARCHAR",
}


def views(text: str, files: RunFiles, attempt: int | None) -> dict[str, Sql]:
    """What a query needs besides the tables of the rows.

    Args:
        text: The query.
        files: Of the run.
        attempt: The attempt that is shown; None is the newest.

    Returns:
        The query of ``last_seen`` by its name where the text has that; else nothing, and nothing is read.
    """
    return {NAME: _query(now.now(files, attempt))} if NAME in text.lower() else {}


def _query(told: Iterable[now.Now]) -> Sql:
    rows = [[getattr(one, name) for name in COLUMNS] for one in told]
    return sql(
        "select {typed} from (values {values}) told({names}) where process is not null",
        typed=[
            sql("{name}::{kind} as {name}", name=identifier(name), kind=Sql(kind)) for name, kind in COLUMNS.items()
        ],
        values=[sql("({row})", row=map(literal, one)) for one in rows or [[None] * len(COLUMNS)]],
        names=map(identifier, COLUMNS),
    )
