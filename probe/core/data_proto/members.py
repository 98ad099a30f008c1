"""The three members of a DataProto taken together: whether they fit each other, and a batch with others in their place.

Copies and the state that is pickled are made here as well.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
from tensordict import TensorDictBase

from probe.core.columns import rows
from probe.core.columns.serialization import batch_of, own_bytes, payload_of
from probe.core.data_proto.checks import Array, check_types
from probe.core.data_proto.config import DataProtoConfig
from probe.core.data_proto.naming import method_group
from probe.errors import InputTypeError, SerializationError, ShapeError

#: The names of the members.
MEMBERS: Final = frozenset({"batch", "non_tensor_batch", "meta_info"})


@dataclass(eq=False, repr=False)
@method_group
class Members:
    """The three members of a DataProto, and how many rows they have: what the classes of its methods derive from."""

    batch: TensorDictBase | None = None
    non_tensor_batch: dict[str, Array] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        for column in self.non_tensor_batch.values():
            return int(column.shape[0])
        return 0

    def is_padding_enabled(self) -> bool:
        """Whether :meth:`chunk` may add rows: this batch opted in, or :class:`DataProtoConfig` says so for
        all."""
        return bool(self.meta_info.get(DataProtoConfig.auto_padding_key, False)) or DataProtoConfig.auto_padding


M = TypeVar("M", bound=Members)


def like(data: M, batch: TensorDictBase | None, arrays: dict[str, Array], meta: dict[str, Any] | None = None) -> M:
    """A batch of the same class with these members, which are known to fit; attributes of a subclass stay.

    Args:
        data: The batch whose class and attributes the new one has.
        batch: Its columns of tensors.
        arrays: Its ``non_tensor_batch``.
        meta: Its ``meta_info``; None takes a copy of that of ``data``.
    """
    new = object.__new__(type(data))
    members = new.__dict__
    members.update(data.__dict__)
    members["batch"] = batch
    members["non_tensor_batch"] = arrays
    members["meta_info"] = dict(data.meta_info) if meta is None else meta
    return new


def check_consistency(data: Members) -> None:
    """See :meth:`probe.core.protocol.DataProto.check_consistency`."""
    check_types(data)
    count, owner = None, ""
    if data.batch is not None:
        if len(data.batch.batch_size) != 1:
            raise ShapeError(
                f"batch: got a TensorDict of batch size {tuple(data.batch.batch_size)}, expected one batch "
                "dimension (num_batch_dims=1)"
            )
        count, owner = int(data.batch.batch_size[0]), "batch"
    for key, column in data.non_tensor_batch.items():
        if not isinstance(column, np.ndarray):
            raise InputTypeError(f"non_tensor_batch[{key!r}]: got {type(column).__name__}, expected a numpy array")
        found = column.shape[0] if column.ndim else None
        if found is None or (count is not None and found != count):
            expected = "at least one dimension" if count is None else f"{count} rows as {owner} has"
            raise ShapeError(f"non_tensor_batch[{key!r}]: got shape {column.shape}, expected {expected}")
        if count is None:
            count, owner = found, f"non_tensor_batch[{key!r}]"


# -------------------------------------------------------------------------------------------- copies and pickled state


def state_of(data: Members) -> dict[str, Any]:
    """What is pickled of a batch, attributes of a subclass included."""
    members = dict(data.__dict__)
    members["batch"] = None if data.batch is None else payload_of(data.batch)
    members["meta_info"] = {key: own_bytes(value) for key, value in data.meta_info.items()}
    return members


def restore(data: Members, state: Any) -> None:
    """Give an empty batch the members that :func:`state_of` took of another.

    Args:
        data: The batch, without members yet.
        state: What :func:`state_of` made.

    Raises:
        SerializationError: It is something else.
    """
    if not isinstance(state, dict) or not state.keys() >= MEMBERS:
        raise SerializationError(
            f"state: got {type(state).__name__}, expected the dict that DataProto.__getstate__ returns"
        )
    data.__dict__.update(state)
    if state["batch"] is not None:
        data.batch = batch_of(state["batch"])


def shallow(data: M) -> M:
    """A copy with containers of its own, of the same tensors, arrays and facts."""
    return like(data, None if data.batch is None else rows.unalias(data.batch), dict(data.non_tensor_batch))


def deep(data: M, memo: dict[int, Any]) -> M:
    """A copy of everything; jagged columns keep sharing.

    Args:
        data: The batch, which stays as it is.
        memo: What :func:`copy.deepcopy` has copied so far.
    """
    others = {key: one for key, one in data.__dict__.items() if key not in MEMBERS}
    batch = None if data.batch is None else rows.cloned(data.batch)
    arrays, meta = copy.deepcopy((data.non_tensor_batch, data.meta_info), memo)
    new = like(data, batch, arrays, meta)
    new.__dict__.update(copy.deepcopy(others, memo))
    return new
