"""Columns of a DataProto that are selected, taken out, renamed, or added from another batch."""

from __future__ import annotations

import copy
from typing import Any

from tensordict import TensorDictBase

from probe.core.columns import rows
from probe.core.data_proto.checks import Keys, key_names, picked, picked_of
from probe.core.data_proto.members import M, Members, like
from probe.core.data_proto.merging import plan_array_union, plan_meta_union, plan_tensor_union
from probe.errors import InputError


def select(data: M, batch_keys: Keys, non_tensor_batch_keys: Keys, meta_info_keys: Keys, deepcopy: bool) -> M:
    """See :meth:`probe.core.protocol.DataProto.select`."""
    columns = picked("batch", {} if data.batch is None else dict(data.batch.items()), batch_keys)
    arrays = picked_of("non_tensor_batch_keys", data.non_tensor_batch, non_tensor_batch_keys)
    meta = picked_of("meta_info_keys", data.meta_info, meta_info_keys)
    batch = None if data.batch is None else rows.rebuilt(data.batch, columns, len(data))
    chosen = like(data, batch, arrays, meta)
    return copy.deepcopy(chosen) if deepcopy else chosen


def pop(data: M, batch_keys: Keys, non_tensor_batch_keys: Keys, meta_info_keys: Keys) -> M:
    """See :meth:`probe.core.protocol.DataProto.pop`."""
    columns = picked("batch", {} if data.batch is None else dict(data.batch.items()), batch_keys or ())
    arrays = picked("non_tensor_batch", data.non_tensor_batch, non_tensor_batch_keys or ())
    meta = picked("meta_info", data.meta_info, meta_info_keys or ())
    batch = rows.rebuilt(data.batch, columns, len(data)) if data.batch is not None else None
    taken = like(data, batch, arrays, meta)
    if data.batch is not None:
        if data.batch.is_locked:
            data.batch = rows.unalias(data.batch)
        for key in columns:
            data.batch.pop(key)
    for key in arrays:
        del data.non_tensor_batch[key]
    for key in meta:
        del data.meta_info[key]
    return taken


def rename(data: M, old_keys: Keys, new_keys: Keys) -> M:
    """See :meth:`probe.core.protocol.DataProto.rename`."""
    olds, news = key_names("old_keys", old_keys or ()), key_names("new_keys", new_keys or ())
    if len(olds) != len(news) or len({*olds}) != len(olds):
        raise InputError(
            f"rename: got old_keys {olds} and new_keys {news}, expected equally many, and no old key twice"
        )
    columns = {} if data.batch is None else dict(data.batch.items())
    picked("batch", columns, olds)
    if data.batch is None:
        return data
    mapping = dict(zip(olds, news, strict=True))
    renamed = {mapping.get(key, key): column for key, column in columns.items()}
    if len(renamed) != len(columns):
        raise InputError(f"new_keys: got {news}, which would give two of the columns {list(columns)} one name")
    data.batch = rows.rebuilt(data.batch, renamed, len(data))
    return data


def union(data: M, other: Members) -> M:
    """See :meth:`probe.core.protocol.DataProto.union`."""
    if other is data:
        return data
    count = len(data) if _has_rows(data) else None
    columns = plan_tensor_union(data.batch, other.batch, count)
    arrays = plan_array_union(data.non_tensor_batch, other.non_tensor_batch, count, len(other))
    meta = plan_meta_union(data.meta_info, other.meta_info)
    if data.batch is not None:
        data.batch = _with_columns(data.batch, columns)
    elif other.batch is not None:
        data.batch = rows.unalias(other.batch)
    data.non_tensor_batch.update(arrays)
    data.meta_info.update(meta)
    return data


def _has_rows(data: Members) -> bool:
    return data.batch is not None or bool(data.non_tensor_batch)


def _with_columns(mine: TensorDictBase, new: dict[str, Any]) -> TensorDictBase:
    if mine.is_locked:
        mine = rows.unalias(mine)
    return mine.update(new)
