"""One row as one line of JSON, exactly: what is read equals what was written, NaN and the infinities
included.

JSON has no word for a number that isn't finite. Such a float is written as the text ``"NaN"``,
``"Infinity"`` or ``"-Infinity"`` in a field that otherwise holds a number, so that it can't be taken for a
missing value (``null``) nor for a text. Everything else is msgspec's own JSON.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from typing import Any, Final, Union

import msgspec

from probe.records import ROW_TYPES, TABLES, Row


def _unwrap(value: Any) -> Any:
    """Numpy scalars and 0-d tensors as plain numbers."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"got {type(value).__name__} where a row holds a number, a text or a list of them")
    return item()


def _float_fields(kind: type[Row]) -> tuple[str, ...]:
    hints = typing.get_type_hints(kind)
    return tuple(name for name in kind.__struct_fields__ if float in (hints[name], *typing.get_args(hints[name])))


_FLOATS: Final = {kind: _float_fields(kind) for kind in ROW_TYPES}
_ENCODE: Final[Callable[[Any], bytes]] = msgspec.json.Encoder(enc_hook=_unwrap).encode
# Not strict: this is what reads the texts above back as floats. (A field of type text stays a text.)
_DECODE: Final = msgspec.json.Decoder(Union[ROW_TYPES], strict=False).decode  # noqa: UP007  (made from a tuple)

#: How the texts above end; a buffer with neither holds finite numbers only.
NON_FINITE: Final = (b'NaN"', b'Infinity"')


def table_of(row: Row) -> str:
    """Name of the table that ``row`` belongs to."""
    return str(type(row).__struct_config__.tag)


def encode(row: Row) -> bytes:
    """``row`` as a line, its newline included.

    Raises:
        TypeError: A field holds what JSON can't say.
        ValueError: A field holds what JSON can't say.
    """
    for name in _FLOATS[type(row)]:
        value = getattr(row, name)
        if value is not None and not math.isfinite(value):
            return _encode_slowly(row)
    try:
        return _ENCODE(row) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate
        return _encode_slowly(row)


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
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


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
        return _DECODE(line)  # type: ignore[no-any-return]  # the union is built from a tuple
    except msgspec.ValidationError:
        if msgspec.json.decode(line, type=_Tag).table in TABLES:
            raise
        return None
