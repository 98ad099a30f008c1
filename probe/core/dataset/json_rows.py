"""JSON and JSON Lines as an Arrow file that is read back value for value.

The readers of ``pyarrow`` and ``datasets`` are quick, but change data: a text such as ``"2024-01-02"`` becomes a date,
``NaN`` becomes None, numbers lose digits, and ``"12"`` beside other types becomes 12. Prompts and answers of a training
must be what the file says, so the standard library's parser reads them here.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from probe._io import written_aside
from probe.errors import InputError

#: Rows that are looked at together; few, because a row may hold pictures.
_CHUNK_ROWS: Final = 512
#: A part of the name of a stored file: goes up when the same JSON would be stored in another way.
_FORMAT: Final = 1

_BLANKS: Final = re.compile(r"[ \t\r\n]*")

Row = dict[str, Any]
Types = dict[str, Any]
Bar = Callable[[Iterable[Row]], Iterable[Row]]


def arrow_of_json(path: str, cache_dir: str, bar: Bar = iter) -> tuple[str, frozenset[str]]:
    """Store the rows of a file as an Arrow stream, once for the same content.

    A column has an Arrow type if all of its values keep their form in it; whole numbers beside fractions become
    float64. A column of other values (texts beside lists, objects of different keys, numbers beyond 64 bits) is stored
    as JSON text: an Arrow struct would fill the keys that an object doesn't have with None.

    Args:
        path: A local file: a list of objects, or objects one after the other, in UTF-8.
        cache_dir: The directory in whose folder ``json`` the stream lies, under a name made of the content.
        bar: Is put around the rows while they are written.

    Returns:
        The path of the stream, and the names of the columns that hold JSON text.

    Raises:
        InputError: Something isn't JSON, or no object; the message names line or row.
        OSError: The file can't be read or stored.
    """
    import pyarrow as pa

    with Path(path).open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    target = Path(cache_dir) / "json" / f"{digest}-{_FORMAT}.arrow"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        _store(path, target, bar)
    with pa.memory_map(str(target)) as stored, pa.ipc.open_stream(stored) as reader:
        texts = (reader.schema.metadata or {}).get(b"json_text", b"[]")
    return str(target), frozenset(json.loads(texts))


def _store(path: str, target: Path, bar: Bar) -> None:
    """Write aside and rename: other processes see the whole stream or none."""
    import pyarrow as pa

    types = column_types(_rows(path))
    names = json.dumps([name for name, kind in types.items() if kind is None])
    fields = [(name, pa.string() if kind is None else kind) for name, kind in types.items()]
    schema = pa.schema(fields, metadata={"json_text": names})
    with (
        written_aside(target, sync=False) as aside,
        aside.open("wb") as file,
        pa.ipc.new_stream(file, schema) as writer,
    ):
        for rows in _chunks(bar(_rows(path))):
            columns = [_array(name, kind, [row.get(name) for row in rows]) for name, kind in types.items()]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _array(name: str, kind: Any, values: list[Any]) -> Any:
    import pyarrow as pa

    if kind is None:
        return pa.array([None if value is None else json.dumps(value) for value in values], pa.string())
    try:
        return pa.array(values, kind)
    except pa.ArrowInvalid as error:  # whole numbers above 2**53, far from the fractions of their column
        raise InputError(f"the column {name!r} can't be stored as {kind}: {error}") from error


# --------------------------------------------------------------------------------------------------------------- types


def column_types(rows: Iterable[Row]) -> Types:
    """The Arrow type of each column, or None for one whose values don't keep their form in any.

    >>> {name: str(kind) for name, kind in column_types([{"n": 1, "s": "2024-01-02"}, {"n": 0.5, "s": None}]).items()}
    {'n': 'double', 's': 'string'}
    >>> column_types([{"content": "text"}, {"content": ["parts"]}])
    {'content': None}
    """
    import pyarrow as pa

    types: Types = {}
    for chunk in _chunks(rows):
        for name in dict.fromkeys(key for row in chunk for key in row):
            known = types.get(name, pa.null())
            if known is not None:
                types[name] = _joined(known, _type([row.get(name) for row in chunk]))
    return types


def _type(values: list[Any]) -> Any:
    import pyarrow as pa

    try:
        array = pa.array(values)
    # ArrowTypeError is a TypeError, ArrowInvalid and an impossible character are ValueErrors.
    except (TypeError, ValueError, OverflowError, pa.ArrowNotImplementedError):
        return None
    cut_short = "\0" in str(array.type)  # a file's schema ends the name of a field there
    return array.type if _same(array.to_pylist(), values) and not cut_short else None


def _same(stored: Any, given: Any) -> bool:
    """Equal, where NaN equals NaN and True isn't 1."""
    if isinstance(given, list):
        return len(stored) == len(given) and all(map(_same, stored, given))
    if isinstance(given, dict):
        return stored.keys() == given.keys() and all(_same(stored[key], value) for key, value in given.items())
    if isinstance(given, bool) or isinstance(stored, bool):
        return stored is given
    both_nan = isinstance(stored, float) and isinstance(given, float) and math.isnan(stored) and math.isnan(given)
    return both_nan or bool(stored == given)


def _joined(one: Any, other: Any) -> Any:
    """The type that holds the values of both unchanged, or None."""
    import pyarrow as pa

    if one is None or other is None:
        return None
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    return pa.float64() if {one, other} == {pa.int64(), pa.float64()} else _joined_inside(one, other)


def _joined_inside(one: Any, other: Any) -> Any:
    """Like :func:`_joined`, for lists and for structs with the same fields."""
    import pyarrow as pa

    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _joined(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if not (pa.types.is_struct(one) and pa.types.is_struct(other)) or {f.name for f in one} != {f.name for f in other}:
        return None
    fields = {field.name: _joined(field.type, other.field(field.name).type) for field in one}
    return None if any(kind is None for kind in fields.values()) else pa.struct(list(fields.items()))


# ---------------------------------------------------------------------------------------------------------------- rows


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    remaining = iter(rows)
    while chunk := list(itertools.islice(remaining, _CHUNK_ROWS)):
        yield chunk


def _rows(path: str) -> Iterator[Row]:
    for number, row in enumerate(_values(path)):
        if not isinstance(row, dict):
            raise InputError(f"row {number} is {str(row)[:60]!r}, expected a JSON object")
        yield row


def _values(path: str) -> Iterator[Any]:
    with Path(path).open(
        encoding="utf-8-sig", newline="\n"
    ) as file:  # the signature that Windows puts first is no JSON
        for number, line in enumerate(file):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except json.JSONDecodeError:
                value = None
            if not isinstance(value, dict):
                yield from _spread(path, number)
                return
            yield value


def _spread(path: str, lines: int) -> Iterator[Any]:
    """The values after the first ``lines``, where one spans several lines or is the list of all."""
    with Path(path).open(encoding="utf-8-sig", newline="\n") as file:
        text = "".join(itertools.islice(file, lines, None))
    decoder = json.JSONDecoder()
    place = _past_blanks(text, 0)
    while place < len(text):
        try:
            value, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise InputError(f"line {lines + error.lineno}, column {error.colno}: {error.msg}") from error
        yield from value if isinstance(value, list) else [value]
        place = _past_blanks(text, place)


def _past_blanks(text: str, place: int) -> int:
    found = _BLANKS.match(text, place)
    return found.end() if found else place
