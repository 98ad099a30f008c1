"""The live tables: what columns each has, declared once.

A live table is a bounded, flat form of the rows of a run. Spec validation, the SQL over a run, the kernel's tables and
the messages to the browser read this declaration; the browser gets what it needs of it as data (see
:func:`as_data` and :mod:`probe.live.protocol`), so that nobody else has a list of columns.

Times are seconds since the run's start, memory is in bytes. A missing number is NaN, a missing whole one −1.

A table that isn't declared here belongs to a row type that a recorder brought: :func:`of_row_type` makes it of the
type's fields, under the fields' own names.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from probe.records import ROW_TYPES, Row
from probe.sql import Sql, identifier, joined, sql

#: A derived column's formula: a column's name, a number, or ``(operator, left, right)`` with one of "+", "-", "*", "/".
#: Where a side is missing the result is, and so it is where something is divided by 0.
Formula = str | float | tuple[str, Any, Any]

#: Units of columns. "id" is a number that names something, "word" the code of a text, "flag" 0 or 1 (``counted`` of
#: padding: 0, 1 or 2), "ns" nanoseconds.
UNITS: Final = ("s", "ns", "bytes", "tokens", "count", "ratio", "number", "id", "word", "flag")


class Column(NamedTuple):
    """One column of a live table.

    Attributes:
        dtype: "f8", "f4", "i4" or "u1", in memory and in the messages.
        unit: One of :data:`UNITS`.
        field: The field of the row type that it is a copy of; "" where it is made of several, or of other rows.
        sql: How SQL makes it of the row's table where it is no copy; "" where only a view of many rows can.
    """

    dtype: str
    unit: str
    field: str = ""
    sql: str = ""


class Derived(NamedTuple):
    """A column that is worked out from others of its row, and neither kept nor sent.

    Attributes:
        unit: One of :data:`UNITS`.
        formula: Of the columns' names.
    """

    unit: str
    formula: Formula


class Thinning(NamedTuple):
    """How a full table forgets.

    Attributes:
        scores: Columns whose extremes stay.
        group: Extremes are looked for within equal values of these columns.
        whole: Rows of a step (and of one ``group``) go together, so that sums over what is left stay exact.
    """

    scores: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    whole: bool = False


class Table(NamedTuple):
    """One live table.

    Attributes:
        rows: The table of rows that it is made of, by its name in SQL.
        columns: By name, in their order in memory and in messages.
        derived: By name.
        key: Rows with equal values here replace each other; a row of which the last of them is missing replaces none.
        thinning: How it forgets.
    """

    rows: str
    columns: Mapping[str, Column]
    derived: Mapping[str, Derived] = types.MappingProxyType({})
    key: tuple[str, ...] = ()
    thinning: Thinning = Thinning()

    @property
    def time(self) -> tuple[str, ...]:
        """The columns that say when a row was: begin and end, one moment, or none."""
        return ("begin", "end") if "begin" in self.columns else ("t",) if "t" in self.columns else ()

    @property
    def words(self) -> tuple[str, ...]:
        """The columns of texts."""
        return tuple(name for name, column in self.columns.items() if column.unit == "word")


def _word(field: str) -> Column:
    return Column("i4", "word", field)


def _seconds() -> Column:
    return Column("f8", "s", sql="(wall_ns - {start_ns}) / 1e9")


_STEP: Final = Column("i4", "id", "step")
_RANK: Final = Column("i4", "id", "rank")
_PROCESS: Final = _word("process")
#: What a process is shown as: "rank 3", or its name.
_WHO: Final = Column("i4", "word", sql="who(rank, process)")
_ROLE: Final = _word("role")
_PHASE: Final = _word("phase")
_MICRO_BATCH: Final = Column("i4", "id", "micro_batch")
#: Where a row comes from, and in which role and phase.
_STAMPED: Final = {"step": _STEP, "rank": _RANK, "process": _PROCESS, "who": _WHO}
_SCOPED: Final = {**_STAMPED, "role": _ROLE, "phase": _PHASE}

#: A span's level is "step", "phase", "micro_batch" or "inner"; ``maker`` says whether it made its own peak.
_SPANS: Final = Table(
    rows="memory",
    columns={
        **_SCOPED,
        "kind": _word("kind"),
        "level": _word(""),
        "name": _word("name"),
        "micro_batch": _MICRO_BATCH,
        "scope": Column("i4", "id", "scope_id"),
        "parent": Column("i4", "id", "parent_id"),
        "begin": Column("f8", "s"),
        "end": Column("f8", "s"),
        "peak": Column("f8", "bytes", "peak_allocated_bytes"),
        "reserved_peak": Column("f8", "bytes", "peak_reserved_bytes"),
        "at_begin": Column("f8", "bytes"),
        "at_end": Column("f8", "bytes"),
        "batch": Column("i4", "id"),
        "tokens": Column("i4", "tokens"),
        "slots": Column("i4", "tokens"),
        "peak_kind": _word("peak_kind"),
        "maker": Column("u1", "flag"),
    },
    derived={
        "duration": Derived("s", ("-", "end", "begin")),
        # What a micro-batch spends on padding if the model computes on all slots of its rectangle.
        "on_padding": Derived("s", ("*", "duration", ("-", 1, ("/", "tokens", "slots")))),
    },
    key=("process", "scope"),
    thinning=Thinning(("peak",), whole=True),
)

_MEMORY: Final = Table(
    rows="memory",
    columns={
        "t": _seconds(),
        "rank": _RANK,
        "process": _PROCESS,
        "who": _WHO,
        "role": _ROLE,
        "phase": _PHASE,
        "step": _STEP,
        "allocated": Column("f8", "bytes", "allocated_bytes"),
        "reserved": Column("f8", "bytes", "reserved_bytes"),
        "non_torch": Column("f8", "bytes", "non_torch_bytes"),
        "other_processes": Column("f8", "bytes", "other_processes_bytes"),
        "used": Column("f8", "bytes", "device_used_bytes"),
        "total": Column("f8", "bytes", "device_total_bytes"),
    },
    thinning=Thinning(("allocated", "reserved", "used"), ("process",)),
)

_MICRO: Final = Table(
    rows="micro_batches",
    columns={
        **_SCOPED,
        "batch": Column("i4", "id", "batch_id"),
        # The n-th batch of its process in its step and phase, from 1: ranks wait for each other in each of them.
        "round": Column("i4", "id"),
        # 1 in the phase of its process and step that cuts micro-batches first, where each token of a batch stands once.
        "once": Column("u1", "flag"),
        "micro_batch": _MICRO_BATCH,
        "tokens": Column("i4", "tokens", "tokens"),
        "sequences": Column("i4", "count", "sequences"),
        "longest": Column("i4", "tokens", sql="coalesce(list_max(lengths), 0)"),
        "width": Column("i4", "tokens", "width_tokens"),
        "cap": Column("i4", "tokens", "cap_tokens"),
        "workload": Column("f4", "number", "workload"),
        "over": Column("u1", "flag", "over_cap"),
    },
    derived={
        "padding": Derived("tokens", ("-", ("*", "sequences", "width"), "tokens")),
        "use": Derived("ratio", ("/", "tokens", "cap")),
    },
    key=("process", "batch", "micro_batch"),
    thinning=Thinning(("tokens",), whole=True),
)

#: ``counted`` says which rows make up a step's padding tax: see :mod:`probe.live.padding_ledger`.
_PADDING: Final = Table(
    rows="padding",
    columns={
        **_STAMPED,
        "source": _word("source"),
        "field": _word("field"),
        "cause": _word("cause"),
        "counted": Column("u1", "flag"),
        "tokens": Column("f8", "tokens"),
        "bytes": Column("f8", "bytes"),
        "rectangle": Column("f8", "tokens"),
        "valid": Column("f8", "tokens"),
    },
    key=("step", "process", "source", "field", "cause", "counted"),
    thinning=Thinning(("tokens",), whole=True),
)

#: What became of sampled tokens; those of a batch, ``of``, stand on the row "carried", which each batch has.
_FATES: Final = Table(
    rows="token_fates",
    columns={
        **_STAMPED,
        "fate": _word("fate"),
        "tokens": Column("f8", "tokens", "tokens"),
        "of": Column("f8", "tokens", sql="case when fate = 'carried' then batch_tokens else 0 end"),
        "samples": Column("i4", "count", "samples"),
        "complete": Column("u1", "flag", "complete"),
        "reached": Column("u1", "flag", sql="coalesce(reach_known, complete)"),
    },
    thinning=Thinning(("tokens",), whole=True),
)

_SCALARS: Final = Table(
    rows="scalars",
    columns={
        "t": _seconds(),
        **_STAMPED,
        "key": _word("key"),
        "value": Column("f8", "number", "value"),
        "own": Column("u1", "flag", sql="source = 'probe'"),
    },
    thinning=Thinning(("value",), ("key",), whole=True),
)

_REDUCTIONS: Final = Table(
    rows="reductions",
    columns={
        **_STAMPED,
        "key": _word("key"),
        "reducer": _word("reducer"),
        "chosen_by": _word("chosen_by"),
        "count": Column("i4", "count", "count"),
        "smallest": Column("f8", "number", "smallest"),
        "largest": Column("f8", "number", "largest"),
        "nan": Column("i4", "count", "nan_count"),
        "value": Column("f8", "number", "value"),
        "by_token": Column("f8", "number", "token_mean"),
        "by_sequence": Column("f8", "number", "sequence_mean"),
    },
    thinning=Thinning(("value",), ("key",), whole=True),
)

_CALLS: Final = Table(
    rows="calls",
    columns={
        "t": _seconds(),
        **_SCOPED,
        "point": _word("point"),
        "name": _word("name"),
        "duration": Column("f8", "s", sql="duration_ns / 1e9"),
        "rows_in": Column("i4", "count", "rows_in"),
        "rows_out": Column("i4", "count", "rows_out"),
        "bytes_in": Column("f8", "bytes", "bytes_in"),
        "bytes_out": Column("f8", "bytes", "bytes_out"),
        "added": Column("i4", "word", sql="nullif(array_to_string(keys_added, ', '), '')"),
        "removed": Column("i4", "word", sql="nullif(array_to_string(keys_removed, ', '), '')"),
        "error": _word("error"),
    },
    thinning=Thinning(("duration", "bytes_out"), ("point",)),
)

_EVENTS: Final = Table(
    rows="incidents",
    columns={
        "t": _seconds(),
        **_STAMPED,
        "kind": _word("kind"),
        "where": _word("where"),
        "message": _word("message"),
        # A listener's row says for which time it failed, and there is one for each.
        "count": Column("i4", "count", sql="case when kind = 'listener' then 1 else count end"),
        "off": Column("u1", "flag", "switched_off"),
    },
    thinning=Thinning(("count",)),
)

#: The declared tables by name.
LIVE: Final[Mapping[str, Table]] = {
    "spans": _SPANS,
    "memory": _MEMORY,
    "micro": _MICRO,
    "padding": _PADDING,
    "fates": _FATES,
    "scalars": _SCALARS,
    "reductions": _REDUCTIONS,
    "calls": _CALLS,
    "events": _EVENTS,
}

#: Calls of scopes are spans, and stand in no other table.
WHERE: Final[Mapping[str, Sql]] = {"calls": Sql("not starts_with(point, 'scope.')")}

_SUFFIXES: Final = {"_bytes": "bytes", "_tokens": "tokens", "_ns": "ns", "_ratio": "ratio", "_s": "s"}


def of_row_type(kind: type[Row]) -> Table:
    """The live table of a row type that a recorder brought.

    Its columns are ``t``, the stamp, and the type's own fields under their names: numbers as floats, texts (and lists
    of texts, joined) as words. Fields that are something else are left out.

    Args:
        kind: The row type.

    Returns:
        The table.

    >>> class Pause(Row, kw_only=True, tag="pauses"):
    ...     generation: int
    ...     pause_ns: int | None = None
    ...     reason: str = ""
    >>> {name: column.unit for name, column in list(of_row_type(Pause).columns.items())[-3:]}
    {'generation': 'number', 'pause_ns': 'ns', 'reason': 'word'}
    """
    columns = {"t": _seconds(), **_SCOPED, "micro_batch": _MICRO_BATCH}
    hints = typing.get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        if field.name not in Row.__struct_fields__ and field.name not in columns:
            made = _generic(field.name, hints[field.name])
            if made is not None:
                columns[field.name] = made
    scores = tuple(name for name, column in columns.items() if column.dtype == "f8" and column.field)
    return Table(str(kind.__struct_config__.tag), columns, thinning=Thinning(scores[:4], ("process",)))


def _generic(name: str, hint: Any) -> Column | None:
    inner = [one for one in (typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)) if one]
    inner = [one for one in inner if one is not type(None)]
    if inner in ([str], [list[str]]):
        joined = "" if inner == [str] else f"nullif(array_to_string(\"{name}\", ', '), '')"
        return Column("i4", "word", name, joined)
    if len(inner) != 1 or inner[0] not in (int, float, bool):
        return None
    unit = next((unit for suffix, unit in _SUFFIXES.items() if name.endswith(suffix)), "number")
    return Column("f8", "flag" if inner == [bool] else unit, name)


def name_of(kind: type[Row]) -> str:
    """The name of the live table of a row type that a recorder brought: that of its table in SQL, unless a declared
    live table has it.

    >>> class Happening(Row, kw_only=True, tag="events"):
    ...     count: int
    >>> name_of(Happening)
    'events_rows'
    """
    name = str(kind.__struct_config__.tag)
    return f"{name}_rows" if name in LIVE else name


def of_unknown(kinds: Iterable[type[Row]]) -> dict[str, Table]:
    """The tables of those of ``kinds`` that a recorder brought, by name."""
    return {name_of(kind): of_row_type(kind) for kind in kinds if kind not in ROW_TYPES}


def select_list(table: Table, start_ns: int = 0) -> Sql:
    """What SQL selects of ``table.rows`` for the columns that are made of one row.

    Args:
        table: A live table.
        start_ns: Wall-clock time of second 0, nanoseconds since the epoch.

    Returns:
        Expressions with their names; columns that only a view of many rows has are left out.

    >>> select_list(LIVE["scalars"]._replace(columns={"key": _word("key"), "t": _seconds()}), 5)
    '"key" as "key", (wall_ns - 5) / 1e9 as "t"'
    """
    made = []
    for name, column in table.columns.items():
        source = column.sql.replace("{start_ns}", str(start_ns)) or (identifier(column.field) if column.field else "")
        if source:
            made.append(sql("{source} as {name}", source=Sql(source), name=identifier(name)))
    return joined(made)


def as_data(tables: Mapping[str, Table]) -> dict[str, Any]:
    """``tables`` as JSON can say them: what the browser must know; :mod:`probe.live.protocol` says of what form."""
    return {
        name: {
            "columns": {column: [one.dtype, one.unit] for column, one in table.columns.items()},
            "derived": {column: [one.unit, _listed(one.formula)] for column, one in table.derived.items()},
            "key": list(table.key),
            "thin": {
                "scores": list(table.thinning.scores),
                "group": list(table.thinning.group),
                "whole": table.thinning.whole,
            },
            "time": list(table.time),
        }
        for name, table in tables.items()
    }


def _listed(formula: Formula) -> Any:
    return (
        [_listed(one) if index else one for index, one in enumerate(formula)] if isinstance(formula, tuple) else formula
    )
