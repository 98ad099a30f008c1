"""What two batches differ in: keys, types, shapes, dtypes, devices, and the first values that aren't the same.

NaN equals NaN. Large tensors are compared some rows at a time, so that comparing takes little memory beside them.
Nothing here raises for what the batches hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from probe.core.columns.equality import difference, same, shape_text
from probe.errors import InputTypeError
from probe.guard import attempt
from probe.inspection import tensor_difference
from probe.inspection.contents import Field, Members, Stacked, members
from probe.inspection.look import STYLE, escaped, table
from probe.inspection.plain_text import one_line, plain

#: Rows of an object column whose differences are counted; beyond it only the first one is looked for.
_COUNTED: Final = 10_000

#: Lines of the text form.
_LINES: Final = 60


@dataclass(frozen=True)
class Difference:
    """One thing in which a column differs.

    Attributes:
        where: The key, with the member of the DataProto before it.
        what: One of "only in a", "only in b", "type", "shape", "dtype", "device", "lengths" and "values".
        a: The first side as text; of values the one at ``index``.
        b: The second side as text; of values the one at ``index``.
        index: The first position that differs, in the order of rows; None where there is none.
        count: Values that differ, None where they weren't counted.
        of: How many were compared.
        max_abs: Largest absolute difference of floats, NaN left out; None for everything else.
        nan: Values that are NaN on one side alone.
    """

    where: str
    what: str
    a: str
    b: str
    index: tuple[int, ...] | None = None
    count: int | None = None
    of: int | None = None
    max_abs: float | None = None
    nan: int = 0

    def __str__(self) -> str:
        if self.what.startswith("only in"):
            return f"{self.what}: {self.a or self.b}"
        if self.what != "values":
            place = "" if self.index is None else f" first in row {self.index[0]}:"
            return f"{self.what}:{place} {self.a} and {self.b}"
        parts = [] if self.count is None else [f"{self.count:,} of {self.of:,} differ"]
        place = "" if self.index is None or not self.index else f"first at {list(self.index)}: "
        parts.append(f"{place}{self.a} and {self.b}")
        if self.max_abs is not None:
            parts.append(f"largest difference {self.max_abs:.6g}")
        if self.nan:
            parts.append(f"{self.nan:,} are NaN on one side alone")
        return f"values: {'; '.join(parts)}"


class Comparison:
    """What :func:`compare` found. Its ``repr`` and its HTML say it.

    Args:
        differences: In the order of the columns; a column may have several.
        equal: The keys that are the same.
        kinds: The kinds of the two batches.
        rows: The numbers of rows of the two, None without a row dimension.

    Attributes:
        differences: In the order of the columns; a column may have several.
        equal: The keys that are the same.
        kinds: The kinds of the two batches.
        rows: The numbers of rows of the two, None without a row dimension.
    """

    def __init__(
        self,
        differences: list[Difference],
        equal: list[str],
        kinds: tuple[str, str],
        rows: tuple[int | None, int | None],
    ) -> None:
        self.differences = differences
        self.equal = equal
        self.kinds = kinds
        self.rows = rows

    @property
    def same(self) -> bool:
        """Whether nothing differs. Two classes that hold the same columns are the same."""
        return not self.differences

    @property
    def headline(self) -> str:
        """One sentence."""
        kinds = self.kinds[0] if self.kinds[0] == self.kinds[1] else " and ".join(self.kinds)
        keys = len(dict.fromkeys(one.where for one in self.differences))
        total = keys + len(self.equal)
        rows = _rows_text(self.rows)
        told = f"{total} keys are the same" if self.same else f"{keys} of {total} keys differ"
        return f"{kinds}{rows}: {told}"

    def __repr__(self) -> str:
        lines = [f"{one.where}: {one}" for one in self.differences[:_LINES]]
        if len(self.differences) > _LINES:
            lines.append(f"… {len(self.differences) - _LINES} more")
        if self.equal and not self.same:
            lines.append(f"the same: {', '.join(self.equal)}")
        return "\n".join([one_line(self.headline), *(f"  {one_line(line, 400)}" for line in lines)])

    def _repr_html_(self) -> str:
        rows = [
            (one.where, one.what, one.a, one.b, _index_text(one), _count_text(one), _amount_text(one))
            for one in self.differences
        ]
        titles = ("key", "what", "a", "b", "first at", "how many", "largest difference")
        body = table(titles, rows, caption=self.headline) if rows else f"<p>{escaped(self.headline)}.</p>"
        equal = f"<p>The same: {escaped(', '.join(self.equal))}</p>" if self.equal and rows else ""
        return f'{STYLE}<div class="probe-batch">{body}{equal}</div>'


def _rows_text(rows: tuple[int | None, int | None]) -> str:
    if rows[0] is None and rows[1] is None:
        return ""
    known = ["?" if one is None else str(one) for one in rows]
    return f", {known[0]} rows" if known[0] == known[1] else f", {known[0]} and {known[1]} rows"


def _index_text(one: Difference) -> str:
    return "" if not one.index else str(list(one.index))


def _count_text(one: Difference) -> str:
    return "" if one.count is None else f"{one.count:,} of {one.of:,}"


def _amount_text(one: Difference) -> str:
    parts = [] if one.max_abs is None else [f"{one.max_abs:.6g}"]
    return ", ".join([*parts, *([f"NaN on one side: {one.nan:,}"] if one.nan else [])])


# ------------------------------------------------------------------------------------------------------ comparing


def compare(a: Any, b: Any) -> Comparison:
    """What differs between two batches (DataProto, TensorDict, BatchedDataDict, a dict) or any two values.

    Keys are matched by their place; where the two are of different kinds, by their name alone. Values of different
    dtypes or devices are compared as well, in the wider dtype, on the device of ``a``. Never raises for odd content.

    Args:
        a: A batch or any other value.
        b: What it is compared with.

    >>> compare({"r": torch.tensor([0.0, 1.0])}, {"r": torch.tensor([0.0, 1.5]), "uid": ["x", "y"]})
    dict, 2 rows: 2 of 2 keys differ
      r: values: 1 of 2 differ; first at [1]: 1.0 and 1.5; largest difference 0.5
      uid: only in b: list(2,)
    """
    mine, theirs = _members(a), _members(b)
    placed = _sections(mine) == _sections(theirs)
    left, right = (_by_key(one, placed) for one in (mine, theirs))
    differences: list[Difference] = []
    equal: list[str] = []
    for key in dict.fromkeys([*left, *right]):
        found = list(_column_differences(key, left, right))
        differences += found
        if not found:
            equal.append(key)
    return Comparison(differences, equal, (mine.kind, theirs.kind), (mine.rows, theirs.rows))


def _members(value: Any) -> Members:
    """The batch taken apart; what isn't one is one column without a name."""

    def alone(error: Exception) -> Members:
        """A foreign batch may raise anything when its columns are asked for: then it has none."""
        fields = [Field("", "value", value)] if isinstance(error, InputTypeError) else []
        return Members(type(value).__name__, None, fields, {})

    return attempt(lambda: members(value), alone)


def _sections(found: Members) -> set[str]:
    return {"batch"} if any(field.section for field in found.fields) else {""}


def _by_key(found: Members, placed: bool) -> dict[str, Any]:
    columns = {
        f"{field.section}.{field.key}" if placed and field.section else field.key: field.value for field in found.fields
    }
    meta = {f"meta_info.{key if isinstance(key, str) else plain(key, 40)}": value for key, value in found.meta.items()}
    return columns | meta


def _column_differences(key: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[Difference]:
    if key not in right:
        yield Difference(key, "only in a", _about(left[key]), "")
    elif key not in left:
        yield Difference(key, "only in b", "", _about(right[key]))
    else:
        found: list[Difference] = []

        def incomparable(error: Exception) -> None:
            """Odd content may raise anything; that it can't be compared is said after what was found before."""
            said = f"{_about(left[key])} (can't be compared: {one_line(error) or type(error).__name__})"
            found.append(Difference(key, "values", said, _about(right[key])))

        attempt(lambda: found.extend(_differences(key, left[key], right[key])), incomparable)
        yield from found


def _about(value: Any) -> str:
    """A column in one word: dtype and shape, or the short form of what it is."""
    if isinstance(value, torch.Tensor):
        jagged = " jagged" if value.is_nested else ""
        return f"{str(value.dtype).removeprefix('torch.')}{jagged}{shape_text(value)}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}"
    if isinstance(value, Stacked):
        return f"{len(value)} stacked parts"
    return f"{type(value).__name__}({len(value)},)" if isinstance(value, list | tuple) else plain(value)


def _differences(key: str, one: Any, other: Any) -> Iterator[Difference]:
    if one is other:
        return
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        yield from _tensor_differences(key, one, other)
    elif _is_numeric(one) and _is_numeric(other):
        yield from _array_differences(key, one, other)
    elif _is_sequence(one) and _is_sequence(other):
        yield from _object_differences(key, one, other)
    elif not same(one, other):
        yield _value_or_type(key, one, other)


def _value_or_type(key: str, one: Any, other: Any) -> Difference:
    if type(one) is type(other):
        return Difference(key, "values", *_sides(one, other))
    mine, theirs = (f"{type(side).__name__} {_about(side)}" for side in (one, other))
    return Difference(key, "type", mine, theirs)


def _sides(one: Any, other: Any) -> tuple[str, str]:
    """Both as text; where they look alike when short, what differs inside."""
    mine, theirs = plain(one), plain(other)
    if mine == theirs or (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return plain(one, 60), f"{plain(other, 60)} ({one_line(difference(one, other), 160)})"
    return mine, theirs


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and not value.dtype.hasobject


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list | tuple | Stacked) or (isinstance(value, np.ndarray) and value.ndim > 0)


# --------------------------------------------------------------------------------------------- kinds of columns


def _tensor_differences(key: str, one: torch.Tensor, other: torch.Tensor) -> Iterator[Difference]:
    if one.is_nested != other.is_nested or one.layout != other.layout:
        yield Difference(key, "type", _layout(one), _layout(other))
        return
    if one.dtype != other.dtype:
        yield Difference(key, "dtype", _dtype(one), _dtype(other))
    if one.device != other.device:
        yield Difference(key, "device", str(one.device), str(other.device))
    if one.is_nested and one.size(0) == other.size(0) and one.ndim == other.ndim:
        yield from _nested_differences(key, one, other)
    elif one.is_nested or one.shape != other.shape:
        yield Difference(key, "shape", shape_text(one), shape_text(other))
    elif "meta" not in (one.device.type, other.device.type):
        yield from _value_difference(key, tensor_difference.difference_of_tensors(one.detach(), other.detach()))


def _layout(tensor: torch.Tensor) -> str:
    kind = "nested, " if tensor.is_nested and tensor.layout is torch.strided else ""
    return f"{kind}{str(tensor.layout).removeprefix('torch.')} {shape_text(tensor)}"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _nested_differences(key: str, one: Any, other: Any) -> Iterator[Difference]:
    lengths = tensor_difference.first_length(one, other)
    if lengths is not None:
        row, mine, theirs, count = lengths
        yield Difference(key, "lengths", str(mine), str(theirs), (row,), count, int(one.size(0)))
    yield from _value_difference(key, tensor_difference.difference_of_rows(one.detach(), other.detach()))


def _value_difference(key: str, found: tensor_difference.Values | None) -> Iterator[Difference]:
    if found is not None:
        yield Difference(key, "values", found.a, found.b, found.index, found.count, found.of, found.max_abs, found.nan)


def _array_differences(key: str, one: Any, other: Any) -> Iterator[Difference]:
    if one.dtype != other.dtype:
        yield Difference(key, "dtype", str(one.dtype), str(other.dtype))
    if one.shape != other.shape:
        yield Difference(key, "shape", str(one.shape), str(other.shape))
        return
    yield from _value_difference(key, tensor_difference.difference_of_arrays(one, other))


def _object_differences(key: str, one: Any, other: Any) -> Iterator[Difference]:
    """Lists, object arrays and parts of lazy stacks, entry by entry along the rows."""
    if type(one) is not type(other):
        yield Difference(key, "type", _about(one), _about(other))
    elif isinstance(one, np.ndarray) and one.dtype != other.dtype:  # one of them holds objects
        yield Difference(key, "dtype", str(one.dtype), str(other.dtype))
    if _shape(one) != _shape(other):
        yield Difference(key, "shape", _about(one), _about(other))
        return
    mine, theirs = _entries(one), _entries(other)
    first: int | None = None
    count, seen = 0, 0
    for seen, pair in enumerate(zip(mine, theirs, strict=True), start=1):
        if not same(*pair):
            count += 1
            first = seen - 1 if first is None else first
        if first is not None and seen >= _COUNTED:
            break
    if first is not None:
        counted = (count, seen) if seen == len(mine) else (None, None)
        yield Difference(key, "values", *_sides(mine[first], theirs[first]), _index(one, first), *counted)


def _shape(value: Any) -> tuple[int, ...]:
    return value.shape if isinstance(value, np.ndarray) else (len(value),)


def _entries(value: Any) -> list[Any]:
    if isinstance(value, Stacked):
        return value.parts
    if isinstance(value, np.ndarray):
        return list(value.ravel()) if value.dtype.hasobject else list(value.reshape(-1))
    return list(value)


def _index(value: Any, flat: int) -> tuple[int, ...]:
    if isinstance(value, np.ndarray):
        return tuple(int(one) for one in np.unravel_index(flat, value.shape))
    return (flat,)
