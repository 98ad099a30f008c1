"""Columns of a batch of any kind side by side: plain tensors, jagged tensors, lists and NumPy arrays.

:class:`probe.core.batched_data_dict.BatchedDataDict` is a mapping of such columns; here are the operations on its
rows. Tensors go through :mod:`probe.core.columns.rows`, so that jagged columns which share their offsets go on
sharing them.

Letters in shapes: N rows, S entries of the padded dimension, ``*`` anything.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from tensordict import TensorDict

from probe.core.columns import rows
from probe.core.columns.jagged import Shared, build_jagged, is_jagged, jagged_bounds, jagged_lengths, map_jagged
from probe.errors import InputError, InputTypeError, MissingKeyError, ShapeError

_EMPTY: Final = torch.Size([0])


def rows_of(data: Mapping[str, Any]) -> int:
    """N, 0 for a batch without columns.

    Raises:
        InputTypeError: A column of a kind that has no rows.
        ShapeError: Columns of different N; names both.

    >>> rows_of({"a": torch.zeros(2, 3), "b": ["x", "y"]})
    2
    """
    first: str | None = None
    count = 0
    for key, column in data.items():
        found = _rows(key, column)
        if first is None:
            first, count = key, found
        elif found != count:
            raise ShapeError(f"{key!r}: has {found} rows, but {first!r} has {count}; all columns need the same number")
    return count


def _rows(key: str, column: Any) -> int:
    if isinstance(column, torch.Tensor | np.ndarray):
        if column.ndim == 0:
            raise ShapeError(f"{key!r}: got a scalar, expected a column with a row dimension")
        if isinstance(column, torch.Tensor) and column.is_nested and not is_jagged(column):
            raise InputTypeError(f"{key!r}: got a nested tensor of layout {column.layout}, expected jagged")
        return int(column.shape[0])
    if isinstance(column, list):
        return len(column)
    raise InputTypeError(f"{key!r}: got {type(column).__name__}, expected a tensor, a list or a NumPy array")


def _table(tensors: Mapping[str, torch.Tensor], count: int) -> TensorDict:
    """The tensors as :mod:`probe.core.columns.rows` takes them."""
    return rows.rebuilt(TensorDict({}, batch_size=_EMPTY), dict(tensors), count)


def _apart(data: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors = {key: column for key, column in data.items() if isinstance(column, torch.Tensor)}
    return tensors, {key: column for key, column in data.items() if key not in tensors}


def _in_order(data: Mapping[str, Any], *found: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for one in found:
        known |= one
    return {key: known[key] for key in data}


def columns_at(data: Mapping[str, Any], index: torch.Tensor) -> dict[str, Any]:
    """Copies of the rows ``index`` (int64, from 0), in that order; objects themselves aren't copied."""
    tensors, others = _apart(data)
    taken = rows.columns(rows.rows_at(_table(tensors, rows_of(data)), index))
    chosen = index.tolist() if others else []
    return _in_order(data, taken, {key: _take_objects(column, chosen) for key, column in others.items()})


def _take_objects(column: Any, index: Sequence[int]) -> Any:
    if isinstance(column, np.ndarray):
        return column[np.array(index, dtype=np.int64)]
    return [column[row] for row in index]


def cut(data: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
    """Rows ``start`` to ``stop`` (within the batch); tensors and arrays as views."""
    tensors, others = _apart(data)
    views = rows.columns(rows.cut(_table(tensors, rows_of(data)), start, stop))
    return _in_order(data, views, {key: column[start:stop] for key, column in others.items()})


def mapped(data: Mapping[str, Any], change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """``change`` (a move or a copy) on every tensor, on values and offsets of the jagged ones."""
    shared = Shared()

    def one(column: Any) -> Any:
        if is_jagged(column):
            return map_jagged(column, change, shared)
        return change(column) if isinstance(column, torch.Tensor) else column

    return {key: one(column) for key, column in data.items()}


def cloned(data: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors and arrays copied, lists as new lists of the same objects."""
    copies = mapped(data, torch.Tensor.clone)
    return {key: column if isinstance(column, torch.Tensor) else column.copy() for key, column in copies.items()}


# ------------------------------------------------------------------------------------------------------- repeating


def repeated(data: Mapping[str, Any], times: int, share_media: bool = False) -> dict[str, Any]:
    """Every row ``times`` times in a row. Objects are deep copies, so that no two rows change together.

    Args:
        data: The columns by name.
        times: How often each row is there in the result.
        share_media: Whether tensors, arrays, bytes and images inside objects are shared rather than copied.
    """
    index = torch.arange(rows_of(data)).repeat_interleave(times)
    tensors, others = _apart(data)
    taken = columns_at(tensors, index)
    for key, column in others.items():
        if isinstance(column, np.ndarray) and not column.dtype.hasobject:
            taken[key] = column.repeat(times, axis=0)
            continue
        copies = [_copied(row, share_media) for row in column for _ in range(times)]
        taken[key] = _object_array(copies, column.shape[1:]) if isinstance(column, np.ndarray) else copies
    return _in_order(data, taken)


def _copied(value: Any, share_media: bool) -> Any:
    memo: dict[int, Any] = {}
    if share_media:
        memo = {id(one): one for one in _media(value)}
    return copy.deepcopy(value, memo)


def _media(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _media(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _media(one)
    elif isinstance(value, torch.Tensor | np.ndarray | bytes) or hasattr(value, "tobytes"):
        yield value


def _object_array(values: Sequence[Any], row_shape: tuple[int, ...] = ()) -> Any:
    made = np.empty((len(values), *row_shape), dtype=object)
    for number, value in enumerate(values):
        made[number] = value
    return made


# ------------------------------------------------------------------------------------------------------ truncating


def truncated(data: Mapping[str, Any], dim: int, length: int, keys: Iterable[str] | None = None) -> dict[str, Any]:
    """Tensors cut to at most ``length`` along ``dim``; jagged ones row by row where ``dim`` is their ragged one.

    Args:
        data: The columns by name.
        dim: The dimension to cut, from 1; columns with fewer dimensions stay.
        length: The most entries that stay along ``dim``.
        keys: The columns that it is about; None means all.
    """
    shared = Shared()
    chosen = set(data) if keys is None else set(keys)

    def one(column: Any) -> Any:
        if not isinstance(column, torch.Tensor) or column.ndim <= dim:
            return column
        if is_jagged(column):
            return _clipped(column, dim, length, shared)
        return column.narrow(dim, 0, min(length, column.shape[dim]))

    return {key: one(column) if key in chosen else column for key, column in data.items()}


def aligned_with(data: Mapping[str, Any], key: str | None, dim: int) -> list[str] | None:
    """The columns with an entry for each token of column ``key``: as wide along ``dim``, or jagged with the same rows.

    None, which means all, where ``key`` isn't a column.
    """
    tokens = data.get(key) if key is not None else None
    if not isinstance(tokens, torch.Tensor) or tokens.ndim <= dim:
        return None
    return [name for name, column in data.items() if _aligned(column, tokens, dim)]


def _aligned(column: Any, tokens: Any, dim: int) -> bool:
    if not isinstance(column, torch.Tensor) or column.ndim <= dim or is_jagged(column) != is_jagged(tokens):
        return False
    if not is_jagged(column):
        return bool(column.shape[dim] == tokens.shape[dim])
    nested: Any = column
    if nested._ragged_idx != dim:
        return False
    return nested.offsets() is tokens.offsets() or torch.equal(jagged_lengths(column), jagged_lengths(tokens))


def _clipped(column: Any, dim: int, length: int, shared: Shared) -> torch.Tensor:
    whole: torch.Tensor = column
    ragged: int = column._ragged_idx
    shortest, longest = jagged_bounds(column)
    if dim != ragged:
        values = column._values.narrow(dim - 1, 0, min(length, column._values.shape[dim - 1]))
        return build_jagged(values, column.offsets(), shortest, longest, lengths=column.lengths(), ragged_dim=ragged)
    if longest <= length:
        return whole

    def plan() -> tuple[torch.Tensor, torch.Tensor]:
        kept = jagged_lengths(column).clamp(max=length)
        offsets = torch.cat((kept.new_zeros(1), kept.cumsum(0)))
        source = torch.repeat_interleave(column.offsets()[:-1] - offsets[:-1], kept)
        return offsets, source + torch.arange(source.shape[0], device=source.device)

    offsets, source = shared.get((column.offsets(), column.lengths()), plan)
    values = column._values.index_select(ragged - 1, source)
    return build_jagged(values, offsets, min(shortest, length), length, ragged_dim=ragged)


# --------------------------------------------------------------------------------------------------------- joining


def joined(batches: Sequence[Mapping[str, Any]], pad_values: Mapping[str, float] | None = None) -> dict[str, Any]:
    """The rows of all ``batches`` one after the other.

    Plain tensors (N, S, *) of different S are padded to the widest at the right of dimension 1; where some batch
    has the column jagged, the result is jagged and nothing is padded. A batch without rows adds nothing, whatever its
    columns look like, and may have none.

    Args:
        batches: Columns by name, of each batch.
        pad_values: What a column is padded with, 0 where it has no entry; names of columns that aren't there don't
            matter.

    Raises:
        MissingKeyError: A column that some batch lacks.
        ShapeError: Sizes differ elsewhere than in N and S.
        InputTypeError: Kinds that don't mix.
        InputError: A pad value that the column can't hold.

    >>> joined([{"a": torch.tensor([[1, 2]])}, {"a": torch.tensor([[3]])}], {"a": 9})["a"].tolist()
    [[1, 2], [3, 9]]
    """
    if not batches:
        raise InputError("batches: got none, expected at least one")
    batches = [batch for batch in batches if batch] or batches[:1]  # without a column there is no row either
    _same_keys(batches)
    filled = [batch for batch in batches if rows_of(batch)] or batches[:1]
    ragged = {
        key: column._ragged_idx for batch in reversed(batches) for key, column in batch.items() if is_jagged(column)
    }
    done: dict[str, Any] = _join_jagged(filled, ragged) if ragged else {}
    for key in batches[0].keys() - ragged.keys():
        found = [batch[key] for batch in filled]
        if isinstance(found[0], torch.Tensor):
            done[key] = _join_tensors(key, found, (pad_values or {}).get(key, 0))
        else:
            done[key] = _join_objects(key, found)
    return _in_order(batches[0], done)


def _same_keys(batches: Sequence[Mapping[str, Any]]) -> None:
    expected = set(batches[0])
    for number, batch in enumerate(batches):
        if odd := sorted(expected ^ set(batch)):
            lacking = number if odd[0] in expected else 0
            raise MissingKeyError(f"batches[{lacking}]: has no column {odd[0]!r}, which another batch has")


def _join_jagged(batches: Sequence[Mapping[str, Any]], ragged: Mapping[str, int]) -> dict[str, Any]:
    """The columns that are jagged in some batch, and along which dimension."""
    tables: list[dict[str, Any]] = [{} for _ in batches]
    for key, dim in ragged.items():
        made = [as_jagged(key, batch[key], dim) for batch in batches]
        _check_alike(key, [(one.dtype, one.device, one._ragged_idx, _without(one._values, dim - 1)) for one in made])
        for table, one in zip(tables, made, strict=True):
            table[key] = one
    return rows.columns(rows.join([_table(table, rows_of(table)) for table in tables]))


def as_jagged(key: str, column: Any, ragged: int) -> Any:
    """A plain tensor (N, *) as a jagged one of equal rows along dimension ``ragged``; a jagged one as it is.

    Raises:
        InputTypeError: Not a tensor, or one without that dimension.
    """
    if is_jagged(column):
        return column
    if not isinstance(column, torch.Tensor) or column.ndim <= ragged:
        said = f"shape {tuple(column.shape)}" if isinstance(column, torch.Tensor) else type(column).__name__
        raise InputTypeError(f"{key!r}: got {said} in one batch, expected a jagged tensor as in another")
    count, width = column.shape[0], column.shape[ragged]
    values = column.movedim(0, ragged - 1).flatten(ragged - 1, ragged)
    offsets = torch.arange(count + 1, device=column.device) * width
    return build_jagged(values, offsets, width, width, ragged_dim=ragged)


def _without(tensor: torch.Tensor, dim: int) -> tuple[int, ...]:
    return tuple(size for number, size in enumerate(tensor.shape) if number != dim)


def _check_alike(key: str, facts: Sequence[Any]) -> None:
    for number, one in enumerate(facts):
        if one != facts[0]:
            raise ShapeError(
                f"{key!r}: batches[{number}] has (dtype, device, ragged dimension, other sizes) {one}, "
                f"batches[0] has {facts[0]}"
            )


def _join_tensors(key: str, parts: Sequence[Any], pad_value: float) -> torch.Tensor:
    for number, one in enumerate(parts):
        if not isinstance(one, torch.Tensor):
            raise InputTypeError(f"{key!r}: got a tensor in batches[0] and {type(one).__name__} in batches[{number}]")
        if one.ndim != parts[0].ndim or one.shape[2:] != parts[0].shape[2:] or one.device != parts[0].device:
            raise ShapeError(
                f"{key!r}: batches[{number}] has shape {tuple(one.shape)} on {one.device}, batches[0] has "
                f"{tuple(parts[0].shape)} on {parts[0].device}; only the first two sizes may differ"
            )
    dtype = common_dtype(key, [one.dtype for one in parts])
    if len({one.shape[1:] for one in parts}) == 1:
        same: torch.Tensor = torch.cat(list(parts))
        return same
    width = max(one.shape[1] for one in parts)
    count = sum(one.shape[0] for one in parts)
    check_pad_value(key, pad_value, dtype)
    made: torch.Tensor = parts[0].new_full((count, width, *parts[0].shape[2:]), pad_value, dtype=dtype)
    for (start, stop), one in zip(rows.spans_of([one.shape[0] for one in parts]), parts, strict=True):
        made[start:stop, : one.shape[1]] = one
    return made


def common_dtype(key: str, dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """What torch promotes ``dtypes`` to.

    Raises:
        InputTypeError: Integers would become floating point, which can't hold all of them.
    """
    common = dtypes[0]
    for one in dtypes[1:]:
        common = common if one == common else torch.promote_types(common, one)
    for one in dtypes:
        whole = one != torch.bool and not one.is_floating_point and not one.is_complex
        if whole and (common.is_floating_point or common.is_complex):
            raise InputTypeError(
                f"{key!r}: got {one} and {common} in different batches, expected integers in all or floats in all"
            )
    return common


def check_pad_value(key: str, value: float, dtype: torch.dtype) -> None:
    """Raise unless ``dtype`` holds ``value`` as it is, up to the rounding of floating point.

    Raises:
        InputError: Such as 1.5 for an int64 column, which torch would cut to 1.
    """
    if dtype.is_floating_point or dtype.is_complex:
        return
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if math.isfinite(value) and int(value) == value and low <= value <= high:
        return
    raise InputError(f"pad_value_dict[{key!r}]: got {value!r}, which {dtype} can't hold")


def _join_objects(key: str, parts: Sequence[Any]) -> Any:
    kinds = {type(one) for one in parts}
    if any(not isinstance(one, list | np.ndarray) for one in parts):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputTypeError(f"{key!r}: got {names} in different batches, expected lists or NumPy arrays in all")
    if all(isinstance(one, list) for one in parts):
        return [row for one in parts for row in one]
    if all(isinstance(one, np.ndarray) and not one.dtype.hasobject for one in parts):
        if len({one.shape[1:] for one in parts}) > 1:
            shapes = ", ".join(str(one.shape) for one in parts)
            raise ShapeError(f"{key!r}: got arrays of shapes {shapes}, which may differ in the first size only")
        return np.concatenate(parts)
    return _object_array([row for one in parts for row in one])
