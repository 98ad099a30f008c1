"""Rows of a query by step with lists in them, as arrays: what judges of ranks, processes and phases look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from probe.runs.frames import narrowed

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow

Array = NDArray[np.float64]

#: Rows for which room is made behind others, at least.
_SPARE: Final = 64


@dataclass(frozen=True)
class Grid:
    """Rows in the order of their steps, and a column of numbers for each process or rank.

    Attributes:
        steps: Of the rows, int64, rising; several rows may be of one step.
        columns: What rows have besides lists, by name: arrays of the length of ``steps``.
        keys: What the lists are of, rising: names of processes, or ranks.
        values: By name, float arrays of the shape (rows, keys), NaN where a row lacks the key or its value.
        present: Which rows have which key, bool, of that shape.
        room: Where its arrays lie, with room for rows behind them; None where they have none.
    """

    steps: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]
    keys: list[Any]
    values: Mapping[str, Array]
    present: NDArray[np.bool_]
    room: _Room | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.steps)

    def between(self, first: int, last: int) -> Grid:
        """The rows of steps from ``first`` to ``last``, and the keys that these have."""
        begin, end = np.searchsorted(self.steps, [first, last + 1]).tolist()
        if begin == 0 and end == len(self.steps):
            return self
        part = slice(begin, end)
        has = self.present[part].any(0)
        rows: Any = part if has.all() else np.ix_(np.arange(begin, end), has)
        keys = [self.keys[at] for at in np.flatnonzero(has)]
        return Grid(
            self.steps[part],
            {name: column[part] for name, column in self.columns.items()},
            keys,
            {name: values[rows] for name, values in self.values.items()},
            self.present[rows],
            self.room if end == len(self.steps) and rows is part else None,
        )

    def chosen(self, rows: NDArray[np.bool_]) -> Grid:
        """Some of the rows, with all keys.

        Args:
            rows: Which, of the length of ``steps``.
        """
        if rows.all():
            return self
        columns = {name: column[rows] for name, column in self.columns.items()}
        values = {name: told[rows] for name, told in self.values.items()}
        return Grid(self.steps[rows], columns, self.keys, values, self.present[rows])

    def followed_by(self, later: Grid) -> Grid:
        """With the rows of later steps."""
        if not len(later):
            return self
        if not len(self):
            return later
        keys = self.keys if self.keys == later.keys else sorted({*self.keys, *later.keys})
        one, other = self._over(keys), later._over(keys)
        room = one.room if one.room is not None and one.room.takes(one, other) else _Room(one, other)
        return room.followed(one, other)

    def _over(self, keys: list[Any]) -> Grid:
        if keys == self.keys:
            return self
        place = np.searchsorted(np.array(keys, dtype=object), np.array(self.keys, dtype=object)).astype(np.int64)
        shape = (len(self.steps), len(keys))
        values = {}
        for name, told in self.values.items():
            values[name] = np.full(shape, np.nan)
            values[name][:, place] = told
        present = np.zeros(shape, dtype=bool)
        present[:, place] = self.present
        return Grid(self.steps, self.columns, keys, values, present)

    def _arrays(self) -> Iterator[NDArray[Any]]:
        """All that have a row for each of its rows."""
        yield from (self.steps, *self.columns.values(), *self.values.values(), self.present)


class _Room:
    """Arrays with room behind them: a row that is added to thousands is written there, and nothing else is copied.

    What was written once stays: a grid that ends before the last row isn't continued here.

    Args:
        first: The rows that stand in it at first.
        later: Such rows as will follow.
    """

    def __init__(self, first: Grid, later: Grid) -> None:
        self.used = len(first)
        size = len(first) + len(later) + max(_SPARE, len(first) // 4)
        self._arrays = []
        for one, other in zip(first._arrays(), later._arrays(), strict=True):
            array = np.empty((size, *one.shape[1:]), np.result_type(one, other))
            array[: len(first)] = one
            self._arrays.append(array)

    def takes(self, first: Grid, later: Grid) -> bool:
        """Whether these rows may follow, where the first stand at its end."""
        arrays = zip(self._arrays, first._arrays(), later._arrays(), strict=True)
        end = self._arrays[0][self.used - 1 : self.used]
        return (
            self.used + len(later) <= len(self._arrays[0])
            and end.ctypes.data == first.steps[-1:].ctypes.data
            and all(np.result_type(one, other) == array.dtype for array, one, other in arrays)
        )

    def followed(self, first: Grid, later: Grid) -> Grid:
        """The rows of the first, which stand at its end, and the later ones."""
        begin, self.used = self.used - len(first), self.used + len(later)
        for array, other in zip(self._arrays, later._arrays(), strict=True):
            array[self.used - len(later) : self.used] = other
        told = iter([array[begin : self.used] for array in self._arrays])
        return Grid(
            next(told),
            {name: next(told) for name in first.columns},
            first.keys,
            {name: next(told) for name in first.values},
            next(told),
            self,
        )


def grid_of(found: pyarrow.Table, keys: str = "", lists: Sequence[str] = ()) -> Grid:
    """As :func:`grid`, of an Arrow table, without the detour of a frame."""
    told = {name: narrowed(column) for name, column in zip(found.column_names, found.columns, strict=True)}
    count, steps = len(found), _plain(told["step"]).astype(np.int64)
    rest = {name: _plain(column) for name, column in told.items() if name not in (keys, "step", *lists)}
    names, lengths = _flat(told[keys]) if keys else (np.empty(0, dtype=object), np.zeros(count, dtype=np.int64))
    every, at = np.unique(names, return_inverse=True) if len(names) else (np.empty(0, dtype=object), np.empty(0, int))
    row = np.repeat(np.arange(count), lengths)
    present = np.zeros((count, len(every)), dtype=bool)
    present[row, at] = True
    values = {}
    for name in lists:
        values[name] = np.full((count, len(every)), np.nan)
        values[name][row, at] = _flat(told[name])[0].astype(np.float64)
    return Grid(steps, rest, every.tolist(), values, present)


def _plain(column: Any) -> NDArray[Any]:
    """A column of a table as :func:`_column` gives it."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or (pa.types.is_boolean(kind) and not column.null_count):
        found: NDArray[Any] = column.to_numpy()
        return found.astype(np.float64) if column.null_count else found
    found = np.empty(len(column), dtype=object)
    found[:] = column.to_pylist()
    return found


def _flat(column: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """What the lists of a column hold, one after the other, and how long each is."""
    import pyarrow.compute as pc

    held = narrowed(pc.list_flatten(column))
    return _plain(held), pc.list_value_length(column).to_numpy().astype(np.int64)


def grid(frame: pd.DataFrame | Mapping[str, Any], keys: str = "", lists: Sequence[str] = ()) -> Grid:
    """A grid of the rows of a query.

    Args:
        frame: Its columns by name: "step", and whatever it has.
        keys: The column with the lists of keys; "" where it has none.
        lists: The columns with lists of numbers in that order.

    Returns:
        The rows as they stand.

    >>> found = grid({"step": [3, 4], "ranks": [[0, 1], [1]], "s": [[0.5, 2], [3]]}, "ranks", ["s"])
    >>> found.keys, found.values["s"].tolist()
    ([0, 1], [[0.5, 2.0], [nan, 3.0]])
    """
    count = len(frame["step"])
    steps = np.asarray(frame["step"], dtype=np.int64)
    rest = {str(name): _column(frame[name]) for name in frame if name not in (keys, "step", *lists)}
    held: list[Any] = [list(one) for one in frame[keys]] if keys else []
    every = sorted({one for own in held for one in own})
    place = {one: at for at, one in enumerate(every)}
    at = np.fromiter((place[one] for own in held for one in own), dtype=np.int64)
    row = np.repeat(np.arange(count), [len(one) for one in held] if held else np.zeros(count, dtype=np.int64))
    present = np.zeros((count, len(every)), dtype=bool)
    present[row, at] = True
    values = {}
    for name in lists:
        values[name] = np.full((count, len(every)), np.nan)
        if len(row):
            values[name][row, at] = np.concatenate([np.asarray(one, dtype=np.float64) for one in frame[name]])
    return Grid(steps, rest, every, values, present)


def _column(told: Any) -> NDArray[Any]:
    """A column as an array; of integers or floats of which some are missing a float array."""
    kind = getattr(getattr(told, "dtype", None), "kind", "O")
    if kind in "iufb":
        missing = getattr(told, "hasnans", False)
        found: NDArray[Any] = told.to_numpy(np.float64, na_value=np.nan) if missing else np.asarray(told)
        return found
    found = np.empty(len(told), dtype=object)
    found[:] = list(told)
    return found
