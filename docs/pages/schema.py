"""The page of the row types, from ``probe/records/`` and the columns that the reader makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from pages.comments import comments
from pages.markdown import markdown, plain
from probe import records
from probe.runs.columns import columns
from probe.runs.reader import NAMES

_UNITS: Final = {"bytes": "bytes", "ns": "nanoseconds", "tokens": "tokens", "ratio": "1"}

HEAD: Final = """# Tables and columns

What a run holds: one table for each row type of `probe.records`. The same columns are in the Parquet parts, in
`run.memory` and the other frames, and in `run.sql`. Units are in the names. Where
*missing* says “may be”, a row may not know it: no number is invented. GiB means 1024³ bytes.

This page is made from `probe/records/`. The schema's version is {version}.

## Columns of every table {{ #stamp }}

{stamp}

`wall_ns` is added by the reader and by the Parquet parts: the wall-clock time (nanoseconds since 1970, UTC) that
belongs to `time_ns`, by the `process` row of the same file; missing where the process never said. The parts also have
`line`, the number of the row's line in its JSONL segment.
"""


def page() -> str:
    """The text of the page."""
    said: dict[str, str] = {}
    for path in Path(str(records.__file__)).parent.glob("*.py"):
        said |= comments(path)
    text = HEAD.format(
        version=records.SCHEMA_VERSION, stamp="\n".join(_table("process", records.Row, said, only=_stamp()))
    )
    made = [text]
    called = {table: name for name, table in NAMES.items()}
    for table, kind in records.TABLES.items():
        made.append(f"\n## `{called[table]}` {{ #{table} }}\n\n{markdown(kind.__doc__ or '')}\n")
        if kind.sampled:
            made.append("A sampled table: when the writer's queue is full, its oldest rows are dropped first.\n")
        own = [name for name in kind.__struct_fields__ if name not in _stamp()]
        made.append("\n".join(_table(table, kind, said, only=own)) + "\n")
    return "\n".join(made)


def _stamp() -> list[str]:
    return list(records.Row.__struct_fields__)


def _table(table: str, kind: type[Any], said: dict[str, str], *, only: list[str]) -> list[str]:
    types = {column.name: column for column in columns(table)}
    defaults = {field.name: field for field in msgspec.structs.fields(kind)}
    lines = ["| column | type | unit | missing | |", "|---|---|---|---|---|"]
    for name in only:
        column = types[name]
        about = plain(said.get(f"{kind.__name__}.{name}", "")).replace("|", "\\|")
        unit = "" if "string" in column.type else _UNITS.get(name.rpartition("_")[2], "")
        missing = "may be" if column.optional else ""
        default = _default(defaults[name])
        lines.append(f"| `{name}` | `{column.type}` | {unit} | {missing} | {about}{default} |")
    return lines


def _default(field: Any) -> str:
    """A default that says something: not the empty ones, which stand for nothing known."""
    value = field.default
    if value is msgspec.NODEFAULT or value in (None, "", 0, False):
        return ""
    return f" (`{value!r}` if not said)"
