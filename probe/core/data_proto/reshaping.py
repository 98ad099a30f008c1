"""The batch dimension of a DataProto: rows put into groups, groups into rows, columns cut into rows of their own.

Letters in shapes: B rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from probe._check import whole_number
from probe.core.columns import rows
from probe.core.data_proto.checks import Keys, common_size, key_names, picked_any, unfolded, without
from probe.core.data_proto.members import M, like
from probe.core.data_proto.picking import rows_at
from probe.errors import InputError, ShapeError


def fold_batch_dim(data: M, new_batch_size: int) -> M:
    """See :meth:`probe.core.protocol.DataProto.fold_batch_dim`."""
    whole_number("new_batch_size", new_batch_size, 1, expected="an integer")
    if len(data) % new_batch_size:
        raise InputError(f"new_batch_size: got {new_batch_size}, which doesn't divide the {len(data)} rows")
    inner = len(data) // new_batch_size
    return _reshaped(data, 1, (new_batch_size, inner), new_batch_size)


def unfold_batch_dim(data: M, batch_dims: int) -> M:
    """See :meth:`probe.core.protocol.DataProto.unfold_batch_dim`."""
    whole_number("batch_dims", batch_dims, 1, expected="an integer")
    columns: dict[str, Any] = {} if data.batch is None else dict(data.batch.items())
    columns = {**columns, **data.non_tensor_batch}
    size = tuple(common_size(columns, batch_dims, check_type=False)) if columns else (0,)
    return _reshaped(data, batch_dims, (int(np.prod(size)),), int(np.prod(size)))


def _reshaped(data: M, dims: int, lead: tuple[int, ...], count: int) -> M:
    def one(key: str, column: Any) -> Any:
        if isinstance(column, TensorDictBase) or (isinstance(column, torch.Tensor) and column.is_nested):
            raise ShapeError(f"batch[{key!r}]: got a {type(column).__name__}, expected a plain tensor")
        return column.reshape(*lead, *column.shape[dims:])

    arrays = {key: one(key, column) for key, column in data.non_tensor_batch.items()}
    if data.batch is None:
        return like(data, None, arrays)
    columns = {key: one(key, column) for key, column in data.batch.items()}
    return like(data, TensorDict(columns, batch_size=[count], device=data.batch.device), arrays)


def unfold_column_chunks(data: M, n_split: int, split_keys: Keys) -> M:
    """See :meth:`probe.core.protocol.DataProto.unfold_column_chunks`."""
    whole_number("n_split", n_split, 1, expected="an integer")
    keys = key_names("split_keys", split_keys or ())
    columns = {} if data.batch is None else dict(data.batch.items())
    cut = {key: unfolded(key, one, n_split) for key, one in picked_any(columns, data.non_tensor_batch, keys)}
    kept = like(
        data,
        None if data.batch is None else rows.rebuilt(data.batch, without(columns, cut), len(data)),
        without(data.non_tensor_batch, cut),
    )
    rest = rows_at(kept, torch.arange(len(data)).repeat_interleave(n_split))
    if rest.batch is not None:
        repeated = {**dict(rest.batch.items()), **cut}
        rest.batch = rows.rebuilt(rest.batch, {key: repeated[key] for key in columns}, len(data) * n_split)
    rest.non_tensor_batch = {
        key: cut[key] if key in cut else rest.non_tensor_batch[key] for key in data.non_tensor_batch
    }
    return rest
