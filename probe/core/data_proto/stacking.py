"""Items, each one row of a DataProto, stacked into a batch again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from probe.core.columns.equality import same, shape_text
from probe.core.columns.jagged import Shared, build_jagged
from probe.core.data_proto.checks import Array, object_array
from probe.core.data_proto.item import DataProtoItem
from probe.errors import InputError, MissingKeyError, ShapeError


def stacked(x: Sequence[DataProtoItem]) -> tuple[TensorDict | None, dict[str, Array], dict[str, Any]]:
    """See :func:`probe.core.protocol.collate_fn`."""
    if not len(x):
        raise InputError("x: got no items, expected at least one DataProtoItem")
    tables = [{} if item.batch is None else dict(item.batch.items()) for item in x]
    others = [item.non_tensor_batch for item in x]
    for name, members in (("batch", tables), ("non_tensor_batch", others)):
        for number, member in enumerate(members):
            for key in members[0].keys() ^ member.keys():
                raise MissingKeyError(f"{name}: only one of items 0 and {number} has {key!r}, expected it in all")
    batch = None
    if x[0].batch is not None:
        shared = Shared()
        columns = {key: _stack_rows(key, [table[key] for table in tables], shared) for key in tables[0]}
        batch = TensorDict(columns, batch_size=[len(x)], device=x[0].batch.device)
    arrays = {key: _stack_objects([other[key] for other in others]) for key in others[0]}
    first, *rest = [item.meta_info for item in x]
    meta = {k: v for k, v in first.items() if all(k in one and same(v, one[k]) for one in rest)}
    return batch, arrays, meta


def _stack_rows(key: str, values: list[Any], shared: Shared) -> Any:
    """The tensors of several rows as a column; jagged, if their lengths differ."""
    if len({value.shape for value in values}) == 1:
        return torch.stack(values)
    if any(value.ndim < 1 or value.shape[1:] != values[0].shape[1:] for value in values):
        shapes = ", ".join(sorted({shape_text(value) for value in values}))
        raise ShapeError(f"batch[{key!r}]: got rows of shapes {shapes}, which may differ in dimension 0 only")
    lengths = [value.shape[0] for value in values]
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()], device=values[0].device)
    offsets = shared.get((offsets,), lambda: offsets)
    return build_jagged(torch.cat(values), offsets, min(lengths), max(lengths))


def _stack_objects(values: list[Any]) -> Array:
    """The objects of several rows as a column; numbers and arrays keep their dtype."""
    kinds = {(type(value), getattr(value, "dtype", None), getattr(value, "shape", None)) for value in values}
    if len(kinds) == 1:
        first = values[0]
        if isinstance(first, np.generic):
            return np.array(values, dtype=first.dtype)
        if isinstance(first, np.ndarray) and first.dtype != object:
            return np.stack(values)
    if values and all(isinstance(value, np.str_ | np.bytes_) for value in values):
        return np.array(values)
    return object_array(values)
