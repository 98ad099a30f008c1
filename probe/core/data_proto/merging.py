"""How the members of several DataProtos become one: the rules of ``union`` and of ``concat``.

Everything here but the documented ``union_`` functions computes a plan or a new value and changes none of its
arguments, which is what makes both methods all or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor

from probe.core.columns.equality import brief, difference, same, shape_text
from probe.core.columns.jagged import is_jagged
from probe.core.columns.rows import join
from probe.core.data_proto.checks import Array
from probe.core.data_proto.members import M, like
from probe.core.metric import append_to_dict
from probe.errors import ConflictError, InputError, InputTypeError, MissingKeyError, ShapeError

#: Entry of ``meta_info`` that concat pools instead of comparing.
METRICS: Final = "metrics"
#: Entry of ``meta_info``: metric key to how many of the pooled batches lack it. Only keys that some lack.
METRICS_MISSING: Final = "metrics_missing"
#: Entry of ``meta_info``: how many of the last rows of a batch were added by ``chunk``.
PAD_ROWS: Final = "pad_rows"


# -------------------------------------------------------------------------------------------------- union


def plan_tensor_union(mine: TensorDictBase | None, theirs: TensorDictBase | None, count: int | None) -> dict[str, Any]:
    """The columns of ``theirs`` that ``mine`` lacks. ``count``: rows of the batch that they join, None for
    any.

    Raises:
        ConflictError: Another batch size, or a column in both that differs.
    """
    if theirs is None:
        return {}
    if mine is not None and mine.batch_size != theirs.batch_size:
        raise ConflictError(
            f"union: got batch sizes {tuple(mine.batch_size)} and {tuple(theirs.batch_size)}, expected the same"
        )
    if count is not None and count != theirs.batch_size[0]:
        raise ConflictError(f"union: got {count} rows and {theirs.batch_size[0]} rows, expected equally many")
    known = {} if mine is None else dict(mine.items())
    return _new_entries("batch", known, dict(theirs.items()))


def plan_array_union(
    mine: Mapping[str, Array], theirs: Mapping[str, Array], count: int | None = None, other_count: int = 0
) -> dict[str, Array]:
    """The same for ``non_tensor_batch``.

    Raises:
        ConflictError: Another number of rows (``count`` against ``other_count``), or an array in both that differs.
    """
    new = _new_entries("non_tensor_batch", mine, theirs)
    if new and count is not None and count != other_count:
        raise ConflictError(f"union: got {count} rows and {other_count} rows, expected equally many")
    return new


def union_tensor_dict(tensor_dict1: TensorDictBase, tensor_dict2: TensorDictBase) -> TensorDictBase:
    """Add the columns of the second TensorDict to the first, in place; what both have must be equal.

    Args:
        tensor_dict1: The TensorDict that gets the columns.
        tensor_dict2: The TensorDict whose columns are added; it stays as it is.

    Raises:
        ConflictError: The batch sizes differ, or a column does; nothing has changed then.

    >>> one, two = TensorDict({"a": torch.ones(2)}, [2]), TensorDict({"b": torch.zeros(2)}, [2])
    >>> sorted(union_tensor_dict(one, two).keys())
    ['a', 'b']
    """
    new = plan_tensor_union(tensor_dict1, tensor_dict2, tensor_dict1.batch_size[0])
    return tensor_dict1.update(new)


def union_numpy_dict(tensor_dict1: dict[str, Array], tensor_dict2: dict[str, Array]) -> dict[str, Array]:
    """Add the arrays of the second dict to the first, in place; what both have must be equal, NaN equal to NaN.

    Args:
        tensor_dict1: Name to array; it gets the arrays of the other.
        tensor_dict2: Name to array; it stays as it is.

    Raises:
        ConflictError: An array differs; nothing has changed then.

    >>> union_numpy_dict({"a": np.array([1.0])}, {"b": np.array([2.0])})
    {'a': array([1.]), 'b': array([2.])}
    """
    tensor_dict1.update(plan_array_union(tensor_dict1, tensor_dict2))
    return tensor_dict1


def union_two_dict(dict1: dict[Any, Any], dict2: Mapping[Any, Any]) -> dict[Any, Any]:
    """Add the entries of the second dict to the first, in place; what both have must be equal, NaN equal to NaN.

    Args:
        dict1: The dict that gets the entries.
        dict2: The dict whose entries are added; it stays as it is.

    Returns:
        ``dict1``.

    Raises:
        ConflictError: An entry differs; nothing has changed then.

    >>> union_two_dict({"step": 3}, {"step": 3, "temperature": 1.0})
    {'step': 3, 'temperature': 1.0}
    """
    dict1.update(_new_entries("dict1", dict1, dict2))
    return dict1


def list_of_dict_to_dict_of_list(list_of_dict: Sequence[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    """Dicts as one dict of lists: every value under its key, in the order of the dicts.

    Args:
        list_of_dict: The dicts; the first one says which keys there are. A later one may lack a key, whose list is then
            shorter than the others, as in verl.

    Returns:
        A list for each key of the first dict; no keys for no dicts.

    Raises:
        MissingKeyError: A later dict has a key that the first one hasn't.

    >>> list_of_dict_to_dict_of_list([{"loss": 0.5, "kl": 1}, {"loss": 0.7, "kl": 2}])
    {'loss': [0.5, 0.7], 'kl': [1, 2]}
    """
    lists: dict[Any, list[Any]] = {key: [] for key in (list_of_dict[0] if len(list_of_dict) else ())}
    for number, one in enumerate(list_of_dict):
        for key, value in one.items():
            if key not in lists:
                raise MissingKeyError(f"list_of_dict[{number}]: has {key!r}, which the first dict lacks")
            lists[key].append(value)
    return lists


def plan_meta_union(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """The same for ``meta_info``; what concat counted in either is in the outcome.

    Raises:
        ConflictError: An entry in both that differs.
    """
    if METRICS_MISSING not in mine or METRICS_MISSING not in theirs:
        return _new_entries("meta_info", mine, theirs)
    counted = {METRICS_MISSING: {**mine[METRICS_MISSING], **theirs[METRICS_MISSING]}}
    rest = {key: value for key, value in theirs.items() if key != METRICS_MISSING}
    return {**_new_entries("meta_info", mine, rest), **counted}


def _new_entries(section: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    new = {}
    for key, value in theirs.items():
        if key not in mine:
            new[key] = value
        elif not same(mine[key], value):
            raise ConflictError(f"union: {section}[{key!r}] differs: {difference(mine[key], value)}")
    return new


# ------------------------------------------------------------------------------------------------- concat


def concat(data: Sequence[M], kind: type[M]) -> M:
    """See :meth:`probe.core.protocol.DataProto.concat`.

    Args:
        data: The batches, which stay as they are.
        kind: The class that each of them must be of.
    """
    parts = list(data)
    if not parts:
        raise InputError("data: got an empty list, expected at least one DataProto")
    for number, part in enumerate(parts):
        if not isinstance(part, kind):
            raise InputTypeError(f"data[{number}]: got {type(part).__name__}, expected a DataProto")
    meta = join_meta([part.meta_info for part in parts])
    batch = join_batches([part.batch for part in parts])
    arrays = join_arrays([part.non_tensor_batch for part in parts])
    return like(parts[0], batch, arrays, meta)


def join_batches(batches: Sequence[TensorDictBase | None]) -> TensorDict | None:
    """All rows; None if no batch has tensors.

    Raises:
        MissingKeyError: A column that not all have.
        ShapeError: Columns that don't fit; who has what is named.
    """
    present = [batch for batch in batches if batch is not None]
    if not present:
        return None
    tables = [{} if batch is None else batch for batch in batches]
    _check_same_keys("batch", [table.keys() for table in tables])
    if any(is_non_tensor(column) for column in present[0].values()):
        _check_constants(present)
    try:
        return join(present)
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        # torch says that shapes differ but neither which column's nor whose; the search is made only now.
        _explain(present, error)
        raise


def _check_same_keys(section: str, keys: Sequence[Iterable[str]]) -> None:
    first = set(keys[0])
    for some in keys:
        if first.symmetric_difference(some):
            odd = next(key for key in [*keys[0], *some] if (key in first) != (key in set(some)))
            having = [position for position, one in enumerate(keys) if odd in set(one)]
            lacking = [position for position in range(len(keys)) if position not in having]
            raise MissingKeyError(f"concat: {section}[{odd!r}] is in {_who(having)} but not in {_who(lacking)}")


def _who(positions: Sequence[int], limit: int = 8) -> str:
    more = f" and {len(positions) - limit} more" if len(positions) > limit else ""
    return ", ".join(f"data[{position}]" for position in positions[:limit]) + more


def _check_constants(batches: Sequence[TensorDictBase]) -> None:
    """A value that stands for all rows of a batch can't become one that stands for some."""
    for key, column in batches[0].items():
        if is_non_tensor(column):
            values = [batch.get(key).tolist() if len(batch) else None for batch in batches]
            kinds = {type(batch.get(key)) for batch in batches}
            if len(kinds) > 1 or not hasattr(column, "tensordicts"):
                _check_constant(key, [batch.get(key) for batch in batches], values)


def _check_constant(key: str, columns: Sequence[Any], values: Sequence[Any]) -> None:
    for number, column in enumerate(columns):
        if type(column) is not type(columns[0]) or not same(column.data, columns[0].data):
            raise ConflictError(
                f"concat: batch[{key!r}] is one value for all rows, and differs: data[0] has "
                f"{brief(values[0])}, data[{number}] has {brief(values[number])}"
            )


def _explain(batches: Sequence[TensorDictBase], error: Exception) -> None:
    for key, first in batches[0].items():
        columns = [batch.get(key) for batch in batches]
        forms = [_form(column) for column in columns]
        for number, form in enumerate(forms):
            if form != forms[0]:
                raise ShapeError(
                    f"concat: batch[{key!r}] doesn't fit: {_described(first, 0)}, "
                    f"{_described(columns[number], number)}; shapes: {_shapes_by_position(columns)}"
                ) from error


def _form(column: Any) -> tuple[Any, ...]:
    """What columns must have in common to be joined."""
    if not isinstance(column, torch.Tensor):
        return (type(column), *sorted(column.keys() if isinstance(column, TensorDictBase) else ()))
    sizes: list[Any] = []
    if is_jagged(column) or not column.is_nested:
        along = (0, getattr(column, "_ragged_idx", 0))
        sizes = [None if dim in along else size for dim, size in enumerate(column.shape)]
    return (*sizes, column.is_nested, column.layout, column.device)


def _described(column: Any, number: int) -> str:
    if isinstance(column, torch.Tensor):
        jagged = " jagged" if column.is_nested else ""
        return f"data[{number}] has{jagged} {shape_text(column)} on {column.device}"
    return f"data[{number}] has a {type(column).__name__}"


def _shapes_by_position(columns: Sequence[Any]) -> str:
    positions: dict[str, list[int]] = {}
    for number, column in enumerate(columns):
        text = shape_text(column) if isinstance(column, torch.Tensor) else type(column).__name__
        positions.setdefault(text, []).append(number)
    return "; ".join(f"{text} at {_who(where)}" for text, where in positions.items())


def join_arrays(members: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """``non_tensor_batch`` of all rows.

    Raises:
        MissingKeyError: An array that not all have.
        ShapeError: Arrays that don't fit.
    """
    _check_same_keys("non_tensor_batch", [member.keys() for member in members])
    return {key: _join_array(key, [member[key] for member in members]) for key in members[0]}


def _join_array(key: str, columns: Sequence[Array]) -> Array:
    first = columns[0]
    for number, column in enumerate(columns):
        if column.shape[1:] != first.shape[1:]:
            raise ShapeError(
                f"concat: non_tensor_batch[{key!r}] doesn't fit: data[0] has {first.shape}, "
                f"data[{number}] has {column.shape}"
            )
    # numpy would turn numbers beside strings into strings, and dates beside numbers into an error.
    kinds = {column.dtype.kind for column in columns}
    if len(kinds) > 1 and not kinds <= set("biufc"):
        columns = [column.astype(object) for column in columns]
    alike = all(column.dtype == first.dtype for column in columns)
    return np.concatenate(columns, dtype=first.dtype if alike else None)  # else the byte order would change


def join_meta(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``meta_info`` of all: metrics pooled, counts added up, everything else equal wherever it is.

    Raises:
        ConflictError: An entry that differs.
        InputTypeError: Metrics that are neither dicts nor lists of dicts.

    >>> join_meta([{"t": 1.0, "metrics": {"loss": [1, 2]}}, {"t": 1.0, "metrics": [{"loss": 3}, None]}])
    {'t': 1.0, 'metrics': {'loss': [1, 2, 3]}}
    """
    joined: dict[str, Any] = {}
    owners: dict[str, int] = {}
    for number, member in enumerate(members):
        for key, value in member.items():
            if key not in owners:
                owners[key], joined[key] = number, value
            elif key not in (METRICS, METRICS_MISSING, PAD_ROWS) and not same(joined[key], value):
                raise ConflictError(
                    f"concat: meta_info[{key!r}] differs: data[{owners[key]}] has {brief(joined[key])}, "
                    f"data[{number}] has {brief(value)} ({difference(joined[key], value)})"
                )
    if PAD_ROWS in joined:
        joined[PAD_ROWS] = sum(member.get(PAD_ROWS, 0) for member in members)
    if METRICS in joined:
        _pool_metrics(joined, members)
    return joined


def _pool_metrics(joined: dict[str, Any], members: Sequence[Mapping[str, Any]]) -> None:
    pooled: dict[str, Any] = {}
    having: dict[str, int] = {}
    missing: dict[str, int] = {}
    for number, member in enumerate(members):
        found = _metric_dicts(number, member.get(METRICS))
        for one in found:
            append_to_dict(pooled, one)
        for key in dict.fromkeys(key for one in found for key in one):
            having[key] = having.get(key, 0) + 1
        for key, count in member.get(METRICS_MISSING, {}).items():
            missing[key] = missing.get(key, 0) + count
    for key, count in having.items():
        if count < len(members):
            missing[key] = missing.get(key, 0) + len(members) - count
    joined[METRICS] = pooled
    if missing:
        joined[METRICS_MISSING] = missing


def _metric_dicts(number: int, metrics: Any) -> list[Mapping[str, Any]]:
    found = metrics if isinstance(metrics, list | tuple) else [metrics]
    found = [one for one in found if one is not None]
    for one in found:
        if not isinstance(one, Mapping):
            raise InputTypeError(
                f"concat: meta_info['metrics'] of data[{number}] holds a {type(one).__name__}, "
                "expected a dict, or a list of dicts"
            )
    return found
