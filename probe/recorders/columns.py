"""What a batch holds, read without touching its data: rows, bytes and keys of DataProto, TensorDict and plain
dicts.

It is asked on the training thread for every observed call, so that it walks attributes directly where that is
known to be safe and gives up (None) where an answer would cost a copy. Batches of other frameworks are told
by what they have, not by their class: a DataProto has ``batch`` and ``non_tensor_batch``.
"""

from __future__ import annotations

import itertools
import threading
from collections import UserDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch

from probe.hooks import Event

#: What most arguments are; to ask a tensor for an attribute that it doesn't have takes it 2 µs.
_NO_BATCHES: Final = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)})
_NONE: Final[list[Any]] = []  # shared: nobody adds to it

#: Batches of one list whose bytes are added up; beyond it the bytes are unknown rather than slow.
_LISTED: Final = 8


class Size(NamedTuple):
    """Rows, bytes (of tensors and numeric arrays; what object arrays point to is not counted) and keys."""

    rows: int | None
    bytes: int | None
    keys: tuple[str, ...] | None


def batches_of(value: Any) -> list[Any]:
    """The batches in ``value``: itself, those of a list, or those in the first entry of a tuple."""
    if type(value) in _NO_BATCHES:
        return _NONE
    if is_batch(value):
        return [value]
    if isinstance(value, list | tuple) and value:
        if is_batch(value[0]):
            return [one for one in value if is_batch(one)]
        if isinstance(value, tuple) and isinstance(value[0], list) and value[0] and is_batch(value[0][0]):
            return value[0]
    return []


def is_batch(value: Any) -> bool:
    """Whether ``value`` is a DataProto, a TensorDict, or a dict that begins with a tensor or an array."""
    columns = value.data if isinstance(value, UserDict) else value  # a BatchedDataDict, ours or NeMo-RL's
    if type(columns) is dict:
        return bool(columns) and isinstance(next(iter(columns.values())), torch.Tensor | np.ndarray)
    return hasattr(value, "non_tensor_batch") or hasattr(value, "_tensordict")


def size_of(batches: list[Any]) -> Size:
    """Rows and bytes of all ``batches`` together, keys of the first."""
    if not batches:
        return Size(None, None, None)
    if len(batches) == 1:
        return _size(batches[0])
    rows = _total(_rows(one) for one in batches)
    measured = len(batches) <= _LISTED
    return Size(rows, _total(_size(one).bytes for one in batches) if measured else None, _keys(batches[0]))


def tensors_of(batch: Any) -> dict[str, torch.Tensor]:
    """The tensors of a DataProto, TensorDict or dict by key, those of nested TensorDicts left out."""
    return {key: value for key, value in _columns(batch).items() if isinstance(value, torch.Tensor)}


def _columns(batch: Any) -> dict[str, Any]:
    if isinstance(batch, UserDict):
        batch = batch.data
    if type(batch) is dict:
        return batch
    held = getattr(batch, "batch", batch) if hasattr(batch, "non_tensor_batch") else batch
    columns = getattr(held, "_tensordict", None)  # a lazy stack has none: its columns would have to be copied
    return columns if type(columns) is dict else {}


def _size(batch: Any) -> Size:
    columns = _columns(batch)
    others = getattr(batch, "non_tensor_batch", None)
    if not columns and not others:
        return Size(_rows(batch), None, None)
    amount = 0
    for value in columns.values():
        amount += value.nbytes if type(value) is torch.Tensor else _bytes(value)
    keys = tuple(columns)
    if others:
        keys += tuple(others)
        for value in others.values():
            amount += _bytes(value)
    return Size(_rows(batch), amount, keys)


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
    held = getattr(batch, "batch", None) if hasattr(batch, "non_tensor_batch") else batch
    if isinstance(held, UserDict):
        held = held.data
    if held is None or type(held) is dict:
        columns = (held or batch.non_tensor_batch).values()
        first = next((one for one in columns if hasattr(one, "shape")), None)
        return int(first.shape[0]) if first is not None and len(first.shape) else None
    batch_size: Sequence[int] = getattr(held, "batch_size", ())
    return int(batch_size[0]) if batch_size else None


def _total(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else sum(one for one in known if one is not None)


class _Last(threading.local):
    event: tuple[int, int] = (0, 0)
    batch_id = 0
    lists: dict[str, list[Any]]


_batch_ids = itertools.count(1)
_last = _Last()


def batch_id_of(event: Event) -> int:
    """A number for the batch of ``event``, unique in the process and the same for every recorder."""
    return _at(event).batch_id


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


def _copy_each(parts: Iterable[Iterable[int]]) -> list[list[int]]:
    return [list(part) for part in parts]


def _copied(event: Event, name: str, copy: Callable[[Any], list[Any]]) -> list[Any]:
    lists = _at(event).lists
    if name not in lists:
        lists[name] = copy(event.values[name])
    return lists[name]


def _at(event: Event) -> _Last:
    key = (id(event), event.begin_ns)
    if _last.event != key:
        _last.event = key
        _last.batch_id = next(_batch_ids)
        _last.lists = {}
    return _last


def next_batch_id() -> int:
    """A number for a batch that no event of its own tells of; unique in the process."""
    return next(_batch_ids)
