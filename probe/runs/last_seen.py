"""The table ``last_seen`` of queries: where each process is, or was seen last, a row a process.

It is no table of the rows: what it says comes from the files of :mod:`probe.runs.now_file`, as ``run.now()`` has it, so
that a query can ask for the place of a process that was killed before its rows were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from probe.runs import now
from probe.runs.files import RunFiles
from probe.runs.version_1 import quoted

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


def views(text: str, files: RunFiles, attempt: int | None) -> dict[str, str]:
    """What a query needs besides the tables of the rows.

    Args:
        text: The query.
        files: Of the run.
        attempt: The attempt that is shown; None is the newest.

    Returns:
        The query of ``last_seen`` by its name where the text has that; else nothing, and nothing is read.
    """
    return {NAME: _query(now.now(files, attempt))} if NAME in text.lower() else {}


def _query(told: Iterable[now.Now]) -> str:
    rows = [", ".join(_literal(getattr(one, name)) for name in COLUMNS) for one in told]
    typed = ", ".join(f'"{name}"::{kind} as "{name}"' for name, kind in COLUMNS.items())
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    values = ", ".join(f"({one})" for one in rows or [", ".join(["null"] * len(COLUMNS))])
    return f"select {typed} from (values {values}) told({names}) where process is not null"  # noqa: S608  (our own names, and quoted texts)


def _literal(value: str | int | bool | None) -> str:
    if value is None:
        return "null"
    return quoted(value) if isinstance(value, str) else str(value).lower()
