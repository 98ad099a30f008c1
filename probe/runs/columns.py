"""Row types as columns: what Arrow and SQL have for each field of a row.

The types of the columns come from the row types in ``probe.records``, never from the data. Two columns are
added: ``wall_ns``, the wall-clock time that belongs to ``time_ns`` by the segment's Process row, and
``line``, the number of the line in its segment, by which a reader that has followed the JSONL file finds its
place again.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from probe.errors import UnknownNameError
from probe.records import SCHEMA_VERSION, TABLES, Row
from probe.runs import row_types, version_1

if TYPE_CHECKING:
    import pyarrow

WALL: Final = "wall_ns"
LINE: Final = "line"


class Column(typing.NamedTuple):
    """One field of a row type as a column."""

    name: str
    type: str  #: "int64", "double", "bool", "string", "list<int64>" or "list<string>"
    optional: bool  #: None is a value of it
    default: Any  #: for rows of an older probe that hadn't the field; msgspec.NODEFAULT where there's none


_TYPES: Final = {
    int: "int64",
    float: "double",
    bool: "bool",
    str: "string",
    list[int]: "list<int64>",
    list[str]: "list<string>",
}


@functools.cache
def columns(table: str) -> tuple[Column, ...]:
    """The columns of ``table``: the fields of its row type, then ``wall_ns``."""
    kind = _row_type(table)
    hints = typing.get_type_hints(kind)
    found = [_column(field, hints[field.name]) for field in msgspec.structs.fields(kind)]
    if all(column.name != WALL for column in found):  # Process has one of its own, which is the same moment
        found.append(Column(WALL, "int64", True, None))
    return tuple(found)


def _row_type(table: str) -> type[Row]:
    found = row_types.row_type(table)
    if found is None:
        raise UnknownNameError.of("table", table, TABLES)
    return found


def _column(field: Any, hint: Any) -> Column:
    optional = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    inner = next(one for one in typing.get_args(hint) if one is not type(None)) if optional else hint
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if optional and default is msgspec.NODEFAULT:  # it must be said when a row is made, and may be None
        default = None
    return Column(field.name, _TYPES[inner], optional, default)


def _arrow_type(name: str) -> Any:
    import pyarrow as pa

    if name.startswith("list<"):
        return pa.list_(_arrow_type(name[5:-1]))
    return pa.type_for_alias(name)


@functools.cache
def schema(table: str) -> pyarrow.Schema:
    """The Arrow schema of ``table``, ``line`` included. All columns may be null: an older part lacks some."""
    import pyarrow as pa

    fields = [pa.field(column.name, _arrow_type(column.type)) for column in columns(table)]
    metadata = {"probe_schema_version": str(SCHEMA_VERSION), "probe_table": table}
    return pa.schema([*fields, pa.field(LINE, pa.int64())], metadata=metadata)


def conformed(table: str, found: pyarrow.Table) -> pyarrow.Table:
    """``found`` with exactly the columns of :func:`schema`: under today's names, and what an older probe hadn't yet is
    null.
    """
    import pyarrow as pa

    wanted = schema(table)
    if _of_version_1(found):
        found = version_1.upgraded(table, found)
    if found.schema.equals(wanted):
        return found.replace_schema_metadata(wanted.metadata)
    arrays = [found[one.name] if one.name in found.column_names else pa.nulls(len(found), one.type) for one in wanted]
    return pa.Table.from_arrays(arrays, names=wanted.names).cast(wanted)


def _of_version_1(found: pyarrow.Table) -> bool:
    return "process" not in found.column_names or found["process"].null_count > 0


@functools.cache
def either_schema(table: str) -> pyarrow.Schema:
    """:func:`schema` with the old names of columns beside today's: what a file of either version is read by."""
    found = schema(table)
    for old, new in version_1.old_columns(table).items():
        found = found.append(found.field(new).with_name(old))
    return found


def stored(table: str) -> tuple[Column, ...]:
    """The columns that a row of ``table`` says itself."""
    return tuple(column for column in columns(table) if column.name in _row_type(table).__struct_fields__)


for _cached in (columns, schema, either_schema):
    row_types.when_changed(_cached.cache_clear)


def rows_of(table: str, found: pyarrow.Table) -> Iterator[tuple[int, Row]]:
    """The rows of an Arrow table of :func:`schema`, each with its line number."""
    kind = _row_type(table)
    known = set(kind.__struct_fields__)
    defaults = {one.name: one.default for one in columns(table)}
    for values in found.to_pylist():
        fields = {name: defaults[name] if value is None else value for name, value in values.items() if name in known}
        yield values[LINE], kind(**fields)
