"""Columns of the live tables as arrays, and how each is made of the fields of a row."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from probe.dashboards.columns import LIVE, Table
from probe.live.thinning import Block

_NONE: Final = np.empty(0)
#: What four bytes hold.
_LEAST: Final = -(2**31)
_MOST: Final = 2**31 - 1

#: Columns that are made of several fields of one row; SQL has the same in ``Column.sql``.
_MADE: Final[Mapping[tuple[str, str], Callable[[Any], Any]]] = {
    ("micro", "longest"): lambda row: max(row.lengths, default=0),
    ("fates", "of"): lambda row: row.batch_tokens if row.fate == "carried" else 0,
    ("fates", "reached"): lambda row: row.complete if row.reach_known is None else row.reach_known,
    ("scalars", "own"): lambda row: row.source == "probe",
    ("calls", "duration"): lambda row: row.duration_ns / 1e9,
    ("calls", "added"): lambda row: ", ".join(row.keys_added) or None,
    ("calls", "removed"): lambda row: ", ".join(row.keys_removed) or None,
    ("events", "count"): lambda row: 1 if row.kind == "listener" else row.count,
}


class Plan:
    """How the columns of a live table are made, worked out once: it is followed several times a second.

    Args:
        name: Of the live table.
        table: What its columns are.
    """

    def __init__(self, name: str, table: Table) -> None:
        self.by_dtype: dict[str, list[str]] = {}  # an array for each dtype is made faster than one for each column
        for one, column in table.columns.items():
            self.by_dtype.setdefault(column.dtype, []).append(one)
        copied = {one: column for one, column in table.columns.items() if column.field and (name, one) not in _MADE}
        self.copied = list(copied.items())
        fields = [column.field for column in copied.values()]
        #: The copied fields of a row as a tuple.
        self.fields: Callable[[Any], Sequence[Any]] = attrgetter(*fields) if len(fields) > 1 else _lacking(fields)
        if name not in LIVE:  # written by who knows which version of a recorder
            self.fields = _lacking(fields)
        #: The columns that are made of several fields.
        self.made = [(one, column, _MADE[name, one]) for one, column in table.columns.items() if (name, one) in _MADE]


def _lacking(fields: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    return lambda row: [_one_text(getattr(row, one, None)) for one in fields]


def _one_text(value: Any) -> Any:
    return (", ".join(value) or None) if isinstance(value, list) else value


def block_of(table: Table, values: Mapping[str, Sequence[Any]]) -> Block:
    """Columns of one length as arrays. Whole numbers that don't fit four bytes become the nearest that does.

    Args:
        table: What the columns are.
        values: By column; None is a missing number.

    Returns:
        The arrays, in the order of the table's columns.
    """
    return block_by(table, Plan("", table), values)


def block_by(table: Table, plan: Plan, values: Mapping[str, Sequence[Any]]) -> Block:
    """As :func:`block_of`, by a plan that was worked out before.

    Args:
        table: What the columns are.
        plan: Of the table.
        values: By column; None is a missing number.

    Returns:
        The arrays, in the order of the table's columns.
    """
    found: Block = dict.fromkeys(table.columns, _NONE)
    for code, names in plan.by_dtype.items():
        chosen = [values[name] for name in names]
        made = _whole_numbers(chosen) if code == "i4" else np.array(chosen, dtype=code)  # None becomes NaN
        found.update(zip(names, made, strict=True))
    return found


def _whole_numbers(columns: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Several columns of one length as the rows of one array."""
    shape = len(columns), len(columns[0])
    values = itertools.chain.from_iterable(columns)
    try:
        return np.frombuffer(struct.pack(f"={shape[0] * shape[1]}i", *values), np.int32).reshape(shape)
    except struct.error:
        return np.array([[fit(one) for one in column] for column in columns], dtype=np.int32)


def whole(value: int | None) -> int:
    """A whole number for a column, −1 for none.

    >>> whole(3), whole(None)
    (3, -1)
    """
    return -1 if value is None else value


def fit(value: int) -> int:
    """The nearest whole number that a column can hold.

    >>> fit(7), fit(2**40)
    (7, 2147483647)
    """
    return min(max(value, _LEAST), _MOST)


def limits_of(dtype: str) -> tuple[int, int]:
    """What a column of whole numbers can hold."""
    return (0, 255) if dtype == "u1" else (_LEAST, _MOST)
