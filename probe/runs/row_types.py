"""The row types that this process knows: those of ``probe.records``, and those that recorders bring themselves.

A session describes the types that its recorders bring in its Process row, so that a reader in another process, which
hasn't their classes, makes a row type of the same fields from what the run says: :func:`learn`. A run shows the tables
that it has; the types behind them are kept once in a process, by table, and the description that came last wins.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Union

import msgspec

from probe.errors import InputError
from probe.records import ROW_TYPES, TABLES, Row

#: What a field of a row may hold, by the word for it; each of them also with "| None".
FIELD_TYPES: Final[dict[str, Any]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "list[int]": list[int],
    "list[str]": list[str],
}

_brought: dict[str, type[Row]] = {}
_lock = threading.Lock()


class Field(msgspec.Struct, frozen=True):
    """One field of a row type, beside the stamp that every row has."""

    name: str
    type: str  #: a word of :data:`FIELD_TYPES`
    optional: bool = False
    default: Any = None
    has_default: bool = False


class Description(msgspec.Struct, frozen=True):
    """A row type, as a run directory keeps it."""

    table: str
    fields: list[Field]
    sampled: bool = False


def table_name(kind: type[Row]) -> str:
    """Name of the table of a row type."""
    return str(kind.__struct_config__.tag)


def row_type(table: str) -> type[Row] | None:
    """The row type of ``table``; None where nobody has told of it."""
    return TABLES.get(table) or _brought.get(table)


def row_types() -> Iterator[type[Row]]:
    """All that are known."""
    yield from ROW_TYPES
    yield from tuple(_brought.values())


def bring(kinds: Iterable[type[Row]]) -> str:
    """Make row types known, and describe those that aren't probe's own.

    Args:
        kinds: What recorders bring; several may bring the same.

    Returns:
        What the Process row says of them; empty where there are none.

    Raises:
        InputError: A type isn't one of rows, has a field that no column holds, or the name of another table.
    """
    own = {table_name(_checked(kind)): kind for kind in kinds if kind not in ROW_TYPES}
    described = [_described(table, kind) for table, kind in own.items()]
    for table, kind in own.items():
        _keep(table, kind)
    return msgspec.json.encode(described).decode() if described else ""


def learn(told: str) -> list[str]:
    """Make known what a Process row says of the types that its process brings.

    Returns:
        The names of their tables. A description that this probe doesn't understand is left out.
    """
    names = []
    for one in _listed(told):
        with contextlib.suppress(msgspec.MsgspecError, KeyError):  # of a newer probe
            description = msgspec.convert(one, Description)
            if description.table not in TABLES:
                _learn(description)
                names.append(description.table)
    return names


def learn_all(processes: Any) -> list[str]:
    """:func:`learn`, of all rows of an Arrow table of processes."""
    texts = dict.fromkeys(text for text in processes["tables"].to_pylist() if text)
    return list(dict.fromkeys(name for text in texts for name in learn(text)))


def _listed(told: str) -> list[Any]:
    try:
        return msgspec.json.decode(told, type=list[Any]) if told else []
    except msgspec.MsgspecError:
        return []


def _learn(description: Description) -> None:
    known = _brought.get(description.table)
    if known is None or _described(description.table, known) != description:
        _keep(description.table, _made(description))


def _keep(table: str, kind: type[Row]) -> None:
    with _lock:
        _brought[table] = kind
    for forget in _FORGET:
        forget()


#: What depends on the types: called when one becomes known.
_FORGET: Final[list[Callable[[], None]]] = []


def when_changed(forget: Callable[[], None]) -> None:
    """Have ``forget`` called whenever a row type becomes known: what was derived from the old ones is stale then."""
    _FORGET.append(forget)


def union() -> Any:
    """All row types as one type, by which a line can be decoded."""
    return functools.reduce(operator.or_, row_types())


# ---------------------------------------------------------------------------------------------------- descriptions


def _checked(kind: Any) -> type[Row]:
    if not (isinstance(kind, type) and issubclass(kind, Row) and kind is not Row):
        raise InputError(f"rows: got {kind!r}, expected a subclass of probe.records.Row")
    table = table_name(kind)
    if table in TABLES:
        raise InputError(f"rows: the table {table!r} of {kind.__name__} is one of probe's own; give it another tag")
    if not (table.isidentifier() and table.isascii() and table == table.lower() and not any(map(str.isdigit, table))):
        raise InputError(
            f"rows: {kind.__name__} has the table {table!r}, expected lowercase letters and _, such as tag='pauses'"
        )
    return kind


def _described(table: str, kind: type[Row]) -> Description:
    stamp = Row.__struct_fields__
    hints = typing.get_type_hints(kind)
    fields = [_field(kind, one, hints[one.name]) for one in msgspec.structs.fields(kind) if one.name not in stamp]
    return Description(table, fields, kind.sampled)


def _field(kind: type[Row], field: Any, hint: Any) -> Field:
    optional = isinstance(hint, types.UnionType) or typing.get_origin(hint) is Union
    inner = [one for one in typing.get_args(hint) if one is not type(None)] if optional else [hint]
    words = [word for word, known in FIELD_TYPES.items() if inner == [known]]
    if not words:
        raise InputError(
            f"rows: {kind.__name__}.{field.name} has the type {hint}, expected one of {', '.join(FIELD_TYPES)}"
        )
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    known = default is not msgspec.NODEFAULT
    return Field(field.name, words[0], optional, default if known else None, known)


def _made(description: Description) -> type[Row]:
    """A row type of these fields, in a process that hasn't the class."""
    fields: list[Any] = []
    for one in description.fields:
        kind = FIELD_TYPES[one.type]
        default = one.default if one.has_default else msgspec.NODEFAULT
        if isinstance(default, list):
            default = msgspec.field(default_factory=default.copy)
        fields.append((one.name, kind | None if one.optional else kind, default))
    name = "".join(word.title() for word in description.table.split("_"))
    made = msgspec.defstruct(
        name, fields, bases=(Row,), kw_only=True, tag=description.table, module=__name__,
        namespace={"sampled": description.sampled},
    )  # fmt: skip
    return typing.cast("type[Row]", made)
