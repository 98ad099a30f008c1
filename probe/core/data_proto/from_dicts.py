"""The members of a DataProto out of dicts of tensors and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict

from probe.core.data_proto.checks import Array, common_size, object_column
from probe.core.data_proto.config import DataProtoConfig
from probe.errors import InputError, ShapeError

Sections: TypeAlias = tuple[TensorDict | None, dict[str, Array], dict[str, Any]]


def members_of_one(
    data: Mapping[str, torch.Tensor | Array], meta_info: Mapping[str, Any] | None, auto_padding: bool
) -> Sections:
    """See :meth:`probe.core.protocol.DataProto.from_single_dict`."""
    tensors = {key: value for key, value in data.items() if isinstance(value, torch.Tensor)}
    arrays = {key: value for key, value in data.items() if isinstance(value, np.ndarray)}
    for key, value in data.items():
        if key not in tensors and key not in arrays:
            raise InputError(f"data[{key!r}]: got {type(value).__name__}, expected a tensor or a numpy array")
    return members_of(tensors, arrays, meta_info, 1, auto_padding)


def members_of(
    tensors: Mapping[str, torch.Tensor] | None,
    non_tensors: Mapping[str, Any] | None,
    meta_info: Mapping[str, Any] | None,
    num_batch_dims: int,
    auto_padding: bool,
) -> Sections:
    """See :meth:`probe.core.protocol.DataProto.from_dict`."""
    if not isinstance(num_batch_dims, int) or num_batch_dims < 1:
        raise InputError(f"num_batch_dims: got {num_batch_dims!r}, expected a whole number from 1 on")
    if non_tensors and num_batch_dims > 1:
        raise ShapeError(
            f"num_batch_dims: got {num_batch_dims}, expected 1, because non_tensors have one batch dimension"
        )
    batch = None
    if tensors:
        size = common_size(tensors, num_batch_dims)
        batch = TensorDict(dict(tensors), batch_size=size)
    arrays = {key: object_column(key, value) for key, value in (non_tensors or {}).items()}
    meta = dict(meta_info or {})
    if auto_padding:
        meta[DataProtoConfig.auto_padding_key] = True
    return batch, arrays, meta
