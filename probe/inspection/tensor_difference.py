"""Where two tensors of one shape first differ, in how many values, and by how much; NaN equals NaN.

Rows are compared in blocks: beside the tensors it takes memory for one block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from probe.core.columns.jagged import is_jagged, jagged_lengths
from probe.core.columns.walking import differing, differing_entries, nested_rows
from probe.inspection.plain_text import plain

#: Elements that are compared at once.
BLOCK: Final = 1 << 20


@dataclass(frozen=True)
class Values:
    """Attributes: ``index`` of the first difference, ``a`` and ``b`` the values there, ``count`` of ``of`` elements
    differ, ``max_abs`` is None where there are no floats or NaN is all that differs, ``nan`` counts those that are NaN
    on one side alone."""

    index: tuple[int, ...]
    a: str
    b: str
    count: int
    of: int
    max_abs: float | None
    nan: int


def difference_of_tensors(one: torch.Tensor, other: torch.Tensor) -> Values | None:
    """The difference of two tensors of one shape, None where all values are equal. Dtypes and devices may differ.

    >>> difference_of_tensors(torch.tensor([[1.0, 2.0], [3.0, float("nan")]]), torch.tensor([[1.0, 2.5], [3.0, 1.0]]))
    Values(index=(0, 1), a='2.0', b='2.5', count=2, of=4, max_abs=0.5, nan=1)
    """
    found = _Sum(one.numel())
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    if not one.ndim:
        found.add((), one.reshape(1), other.reshape(1))
    elif one.numel():
        rows = max(1, BLOCK // max(1, one[0].numel()))
        for start in range(0, one.shape[0], rows):
            found.add((start,), one[start : start + rows], other[start : start + rows])
    return found.result()


def difference_of_rows(one: Any, other: Any) -> Values | None:
    """The difference of two nested tensors, row by row, as far as both rows go. ``index`` begins with the row."""
    found = _Sum(0)
    for row, pair in enumerate(zip(nested_rows(one), nested_rows(other), strict=True)):
        common = tuple(slice(0, min(sizes)) for sizes in zip(*(side.shape for side in pair), strict=True))
        mine, theirs = (side[common] for side in pair)
        found.of += mine.numel()
        if mine.numel():
            found.add((row, 0), mine, theirs)
    return found.result()


def first_length(one: Any, other: Any) -> tuple[int, str, str, int] | None:
    """(row, its length on both sides, rows that differ in length) of two nested tensors; None where all are equal."""
    if is_jagged(one):
        mine, theirs = (jagged_lengths(column).tolist() for column in (one, other))
    else:
        mine, theirs = ([tuple(row.shape) for row in column.unbind()] for column in (one, other))
    rows = [row for row, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1]]
    return (rows[0], str(mine[rows[0]]), str(theirs[rows[0]]), len(rows)) if rows else None


def difference_of_arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> Values | None:
    """The difference of two numeric, text or time arrays of one shape."""
    if all(array.dtype.kind in "biufc" and array.dtype.itemsize <= 16 for array in (one, other)):
        try:
            return difference_of_tensors(_tensor(one), _tensor(other))
        except (TypeError, ValueError):  # long doubles, which torch doesn't have
            pass
    differ = differing_entries(one, other)
    if differ is None:
        return None
    index = tuple(int(place[0]) for place in np.nonzero(differ)) if one.ndim else ()
    return Values(index, plain(one[index]), plain(other[index]), int(differ.sum()), int(one.size), None, 0)


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if not array.flags.writeable or not array.dtype.isnative or any(step < 0 for step in array.strides):
        array = np.array(array, dtype=array.dtype.newbyteorder("="))  # torch takes none of these as they are
    return torch.from_numpy(array)


class _Sum:
    """Differences found so far."""

    def __init__(self, of: int) -> None:
        self.of = of
        self._first: tuple[tuple[int, ...], str, str] | None = None
        self._count = 0
        self._nan = 0
        self._largest: float | None = None

    def result(self) -> Values | None:
        if self._first is None:
            return None
        index, mine, theirs = self._first
        return Values(index, mine, theirs, self._count, self.of, self._largest, self._nan)

    def add(self, begin: tuple[int, ...], one: torch.Tensor, other: torch.Tensor) -> None:
        """A block; ``begin`` is where it begins: nothing for a single value, (row,), or (row, 0) inside a row."""
        mine, theirs = _alike(one, other.to(one.device))
        differ = differing(mine, theirs)
        if differ is None:
            return
        self._count += int(differ.count_nonzero())
        if self._first is None:
            self._first = _first(begin, differ, one, other)
        if mine.dtype.is_floating_point or mine.dtype.is_complex:
            self._measure(mine, theirs, mine.isnan() ^ theirs.isnan(), differ)

    def _measure(self, mine: torch.Tensor, theirs: torch.Tensor, single: torch.Tensor, differ: torch.Tensor) -> None:
        self._nan += int(single.count_nonzero())
        amounts = (mine - theirs).abs()[differ & ~single]
        if amounts.numel():
            largest = float(amounts.max())
            if not math.isnan(largest):
                self._largest = largest if self._largest is None else max(self._largest, largest)


def _alike(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in one dtype in which they can be compared: floats in float64 (fp8 can do nothing itself), whole numbers
    in int64. Of a uint64 beside a signed dtype, floats: beyond 2**53 they may look equal."""
    dtypes = (one.dtype, other.dtype)
    if any(dtype.is_complex for dtype in dtypes):
        return one.to(torch.complex128), other.to(torch.complex128)
    if dtypes == (torch.uint64, torch.uint64):
        return one.view(torch.int64), other.view(torch.int64)
    if torch.uint64 in dtypes or any(dtype.is_floating_point for dtype in dtypes):
        return one.to(torch.float64), other.to(torch.float64)
    return (one, other) if one.dtype == other.dtype else (one.to(torch.int64), other.to(torch.int64))


def _first(
    begin: tuple[int, ...], differ: torch.Tensor, one: torch.Tensor, other: torch.Tensor
) -> tuple[tuple[int, ...], str, str]:
    inside = np.unravel_index(int(differ.reshape(-1).to(torch.uint8).argmax()), tuple(differ.shape))
    place = tuple(int(at) for at in inside)
    values = [plain(side[place].item()) for side in (one, other)]
    if not begin:
        return (), values[0], values[1]
    index = (place[0] + begin[0], *place[1:]) if len(begin) == 1 else (begin[0], *place)
    return index, values[0], values[1]
