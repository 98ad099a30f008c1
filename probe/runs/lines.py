"""One row as one line of JSON, exactly: what is read equals what was written, NaN and the infinities
included.

JSON has no word for a number that isn't finite. Such a float is written as the text ``"NaN"``,
``"Infinity"`` or ``"-Infinity"`` in a field that otherwise holds a number, so that it can't be taken for a
missing value (``null``) nor for a text. Everything else is msgspec's own JSON.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from math import isfinite, isnan
from typing import Any, Final

import msgspec

from probe.records import Row
from probe.runs import row_types


def _unwrap(value: Any) -> Any:
    """Numpy scalars and 0-d tensors as plain numbers."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"got {type(value).__name__} where a row holds a number, a text or a list of them")
    return item()


def _float_fields(kind: type[Row]) -> tuple[str, ...]:
    hints = typing.get_type_hints(kind)
    return tuple(name for name in kind.__struct_fields__ if float in (hints[name], *typing.get_args(hints[name])))


_FLOATS: Final = {kind: _float_fields(kind) for kind in row_types.row_types()}
_ENCODER: Final = msgspec.json.Encoder(enc_hook=_unwrap)
_ENCODE: Final[Callable[[Any], bytes]] = _ENCODER.encode
# Not strict: this is what reads the texts above back as floats. (A field of type text stays a text.)
_decoder: msgspec.json.Decoder[Row] = msgspec.json.Decoder(row_types.union(), strict=False)


def _renew_decoder() -> None:
    global _decoder
    _decoder = msgspec.json.Decoder(row_types.union(), strict=False)


row_types.when_changed(_renew_decoder)


def table_of(row: Row) -> str:
    """Name of the table that ``row`` belongs to."""
    return row_types.table_name(type(row))


def _floats_of(kind: type[Row]) -> tuple[str, ...]:
    if kind not in _FLOATS:
        if row_types.row_type(row_types.table_name(kind)) is None:
            raise TypeError(
                f"row: got a {kind.__name__}, a row type that no recorder has; list it in the recorder's `rows`"
            )
        _FLOATS[kind] = _float_fields(kind)
    return _FLOATS[kind]


def encode(row: Row) -> bytes:
    """``row`` as a line, its newline included.

    Raises:
        TypeError: A field holds what JSON can't say, or nobody has told of the row's type.
        ValueError: A field holds what JSON can't say.
    """
    for name in _floats_of(type(row)):
        value = getattr(row, name)
        if value is not None and not isfinite(value):
            return _encode_slowly(row)
    try:
        return _ENCODE(row) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate
        return _encode_slowly(row)


def encode_all(rows: Sequence[Row]) -> bytes:
    """``rows`` as lines, as :func:`encode` makes them of each, at a third of its cost.

    Raises:
        TypeError: A field of one of them holds what JSON can't say, or nobody has told of its type.
        ValueError: A field of one of them holds what JSON can't say.
    """
    kind: type[Row] | None = None
    names: tuple[str, ...] = ()
    for row in rows:
        if type(row) is not kind:
            kind = type(row)
            names = _floats_of(kind)
        for name in names:
            value = getattr(row, name)
            if value is not None and not isfinite(value):
                return b"".join(map(encode, rows))
    try:
        return _ENCODER.encode_lines(rows)
    except UnicodeEncodeError:  # a lone surrogate
        return b"".join(map(encode, rows))


def _encode_slowly(row: Row) -> bytes:
    fields: dict[str, Any] = {"table": table_of(row)}
    fields.update((name, _exact(getattr(row, name))) for name in row.__struct_fields__)
    return _ENCODE(fields) + b"\n"


def _exact(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_exact(one) for one in value]
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, float) or isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


class _Tag(msgspec.Struct):
    table: str


def decode(line: bytes) -> Row | None:
    """The row that ``line`` holds; None for a table that this probe doesn't know. Fields it doesn't know are
    left out.

    Raises:
        msgspec.MsgspecError: The line isn't a row.
        UnicodeDecodeError: The line isn't a row.
    """
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError:
        table = msgspec.json.decode(line, type=_Tag).table
        if row_types.row_type(table) is not None:
            raise
        return None
