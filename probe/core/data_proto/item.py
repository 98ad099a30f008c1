"""One row of a DataProto."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from tensordict import TensorDictBase

from probe.core.columns.equality import same
from probe.core.columns.serialization import batch_of, payload_of
from probe.core.data_proto import info as data_info


def same_members(one: Any, other: Any) -> bool:
    """Whether two batches, or two items, hold the same; never raises."""
    return (
        same(one.batch, other.batch)
        and same(one.non_tensor_batch, other.non_tensor_batch)
        and same(one.meta_info, other.meta_info)
    )


@dataclass(eq=False, repr=False)
class DataProtoItem:
    """One row of a :class:`DataProto`: ``batch`` has an empty batch size, ``non_tensor_batch`` holds plain values."""

    batch: TensorDictBase | None = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return same_members(self, other)

    __hash__: ClassVar[Any] = None  # equal by content, and mutable

    def __getstate__(self) -> dict[str, Any]:
        members = dict(self.__dict__)
        members["batch"] = None if self.batch is None else payload_of(self.batch)
        return members

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if state["batch"] is not None:
            self.batch = batch_of(state["batch"])

    def __repr__(self) -> str:
        return data_info.one_line(type(self).__name__, None, self.batch, self.non_tensor_batch, self.meta_info)
