"""What a batch holds, read without touching its data: rows, bytes and keys of DataProto, TensorDict and plain
dicts.

It is asked on the training thread for every observed call, so that it walks attributes directly where that is
known to be safe and gives up (None) where an answer would cost a copy. Batches of other frameworks are told
by what they have, not by their class: a DataProto has ``batch`` and ``non_tensor_batch``.
"""

from __future__ import annotations

import itertools
from collections import UserDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch

from probe.hooks import Event
from probe.recorders.packed import packed

#: What most arguments are; to ask a tensor for an attribute that it doesn't have takes it 2 µs.
_NO_BATCHES: Final = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None), type})

#: What a batch of some class is, where the class tells: each attribute that an object is asked for in vain costs.
_DICT: Final = 1
_TENSORS: Final = 2  #: a TensorDict
_PROTO: Final = 3  #: a DataProto, ours or verl's
_ASK: Final = 4  #: only the object itself tells
_WAYS: Final[dict[type, int]] = {dict: _DICT}
_CLASSES: Final = 1000  # of which that is kept: some programs make classes as they go
_NONE: Final[list[Any]] = []  # shared: nobody adds to it
_made: Final = tuple.__new__
_TENSOR: Final = torch.Tensor  # whose type tells faster than its base classes

#: Batches of one list whose bytes are added up; beyond it the bytes are unknown rather than slow.
_LISTED: Final = 8


class Size(NamedTuple):
    """Rows, bytes (of tensors and numeric arrays; what object arrays point to is not counted) and keys."""

    rows: int | None
    bytes: int | None
    keys: tuple[str, ...] | None


def batches_of(value: Any) -> list[Any]:
    """The batches in ``value``: itself, those of a list, or those in the first entry of a tuple."""
    kind = type(value)
    if kind in _NO_BATCHES:
        return _NONE
    if kind is not list and kind is not tuple and is_batch(value):
        return [value]
    if isinstance(value, list | tuple) and value:
        first = value[0]
        if type(first) is not list and is_batch(first):
            return [one for one in value if is_batch(one)]
        if isinstance(value, tuple) and isinstance(first, list) and first and is_batch(first[0]):
            return first
    return []


def is_batch(value: Any) -> bool:
    """Whether ``value`` is a DataProto, a TensorDict, or a dict that begins with a tensor or an array."""
    way = _way_of(value)
    if way == _DICT:
        return _holds_columns(value)
    if way != _ASK:
        return True
    columns = value.data if isinstance(value, UserDict) else value  # a BatchedDataDict, ours or NeMo-RL's
    if type(columns) is dict:
        return _holds_columns(columns)
    return hasattr(value, "non_tensor_batch") or hasattr(value, "_tensordict")


def _holds_columns(columns: dict[Any, Any]) -> bool:
    for first in columns.values():
        return type(first) is _TENSOR or isinstance(first, torch.Tensor | np.ndarray)
    return False


def _way_of(value: Any) -> int:
    kind = type(value)
    way = _WAYS.get(kind)
    if way is None:
        way = _ASK
        if (kind.__module__, kind.__qualname__) == ("tensordict._td", "TensorDict") and hasattr(value, "_tensordict"):
            way = _TENSORS
        elif {"batch", "non_tensor_batch"} <= getattr(kind, "__dataclass_fields__", {}).keys():
            way = _PROTO
        if len(_WAYS) < _CLASSES:
            _WAYS[kind] = way
    return way


def size_of(batches: list[Any]) -> Size:
    """Rows and bytes of all ``batches`` together, keys of the first."""
    if not batches:
        return Size(None, None, None)
    if len(batches) == 1:
        return _size(batches[0])
    if len(batches) > _LISTED:
        return Size(_total(_rows(one) for one in batches), None, _keys(batches[0]))
    sizes = [_size(one) for one in batches]
    return Size(_total(size[0] for size in sizes), _total(size[1] for size in sizes), sizes[0][2] or ())


def tensors_of(batch: Any) -> dict[str, torch.Tensor]:
    """The tensors of a DataProto, TensorDict or dict by key, those of nested TensorDicts left out."""
    return {
        key: value
        for key, value in _columns(batch).items()
        if type(value) is _TENSOR or isinstance(value, torch.Tensor)
    }


def _columns(batch: Any) -> dict[str, Any]:
    way = _way_of(batch)
    if way == _DICT:
        return cast("dict[str, Any]", batch)
    if way == _TENSORS:
        return _held(batch)
    if way == _PROTO:
        return _held(batch.batch)
    if isinstance(batch, UserDict):
        batch = batch.data
    if type(batch) is dict:
        return batch
    return _held(getattr(batch, "batch", batch) if hasattr(batch, "non_tensor_batch") else batch)


def _held(held: Any) -> dict[str, Any]:
    columns = getattr(held, "_tensordict", None)  # a lazy stack has none: its columns would have to be copied
    return columns if type(columns) is dict else {}


def _size(batch: Any) -> Size:
    columns, way = _columns(batch), _way_of(batch)
    others = None if way in (_DICT, _TENSORS) else getattr(batch, "non_tensor_batch", None)
    if not columns and not others:
        return Size(_rows(batch), None, None)
    amount = 0
    for value in columns.values():
        amount += value.nbytes if type(value) is _TENSOR else _bytes(value)
    keys = tuple(columns)
    if others:
        keys += tuple(others)
        for value in others.values():
            amount += _bytes(value)
    return _made(Size, (_rows(batch), amount, keys))  # a third of the class's own time


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        # A jagged tensor's own nbytes goes through a slow dispatch.
        jagged = getattr(value, "_offsets", None) is not None
        return int(cast("Any", value)._values.nbytes if jagged else value.nbytes)
    if isinstance(value, np.ndarray):
        return 0 if value.dtype.hasobject else value.nbytes
    nested = getattr(value, "_tensordict", None)
    return sum(_bytes(one) for one in nested.values()) if type(nested) is dict else 0


def _keys(batch: Any) -> tuple[str, ...]:
    return (*_columns(batch), *(getattr(batch, "non_tensor_batch", None) or ()))


def _rows(batch: Any) -> int | None:
    way = _way_of(batch)
    if way == _DICT:
        return _rows_of_columns(batch)
    tensors = batch if way == _TENSORS else batch.batch if way == _PROTO else None
    if tensors is not None and _way_of(tensors) == _TENSORS:
        size = tensors.batch_size
        return int(size[0]) if size else None
    held = getattr(batch, "batch", None) if hasattr(batch, "non_tensor_batch") else batch
    if isinstance(held, UserDict):
        held = held.data
    if held is None or type(held) is dict:
        return _rows_of_columns(held or batch.non_tensor_batch)
    batch_size: Sequence[int] = getattr(held, "batch_size", ())
    return int(batch_size[0]) if batch_size else None


def _rows_of_columns(columns: dict[Any, Any]) -> int | None:
    for one in columns.values():
        if hasattr(one, "shape"):
            shape = one.shape
            return int(shape[0]) if len(shape) else None
    return None


def _total(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for one in numbers:
        if one is None:
            return None
        total += one
    return total


_batch_ids = itertools.count(1)
_BATCH: Final = "batch_id"  # beside what an event carries under that name or any other
_CUT: Final = "cut"  # likewise


def batch_id_of(event: Event) -> int:
    """A number for the batch of ``event``, unique in the process and the same for every recorder."""
    shared = event.shared
    if _BATCH not in shared:
        shared[_BATCH] = next(_batch_ids)
    return cast("int", shared[_BATCH])


def lengths_of(event: Event) -> list[int]:
    """A copy of the ``lengths`` that an event carries, whose caller gets them too; one for all recorders."""
    return cast("list[int]", _copied(event, "lengths", list))


def partitions_of(event: Event, name: str = "partitions") -> list[list[int]]:
    """A copy of the partitions that an event carries, whose caller gets them too; one for all recorders.

    Args:
        event: That tells of them.
        name: What it calls them.
    """
    return cast("list[list[int]]", _copied(event, name, _copy_each))


def cut_of(event: Event, name: str = "partitions") -> Any:
    """Copies of :func:`lengths_of` and :func:`partitions_of`, :func:`packed`; one for all recorders.

    Args:
        event: That tells of them.
        name: What it calls the partitions.
    """
    shared = event.shared
    if _CUT not in shared:
        values = event.values
        shared[_CUT] = packed((list(values["lengths"]), _copy_each(values[name])))
    return shared[_CUT]


def _copy_each(parts: Iterable[Iterable[int]]) -> list[list[int]]:
    return [list(part) for part in parts]


def _copied(event: Event, name: str, copy: Callable[[Any], list[Any]]) -> list[Any]:
    shared = event.shared
    if name not in shared:
        shared[name] = copy(event.values[name])
    return cast("list[Any]", shared[name])


def next_batch_id() -> int:
    """A number for a batch that no event of its own tells of; unique in the process."""
    return next(_batch_ids)
