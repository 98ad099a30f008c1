"""Methods of a DataProto that make it a TensorDict or a file, and a batch of these again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

from tensordict import TensorDict, TensorDictBase

from probe.core.data_proto import file as data_file
from probe.core.data_proto.exchange import from_mixed_tensordict, to_mixed_tensordict
from probe.core.data_proto.members import Members
from probe.core.data_proto.merging import plan_meta_union
from probe.core.data_proto.naming import method_group
from probe.hooks import observed


@method_group
class ConversionMethods(Members):
    """All three members as one TensorDict or as one file, and back."""

    @classmethod
    @observed("data_proto.from_tensordict", "a batch is made from a TensorDict that also holds objects")
    def from_tensordict(
        cls, tensor_dict: TensorDictBase, meta_info: Mapping[str, Any] | None = None, num_batch_dims: int = 1
    ) -> Self:
        """A batch of what a TensorDict holds: the way back from :meth:`to_tensordict`.

        A NonTensorStack becomes a column of ``non_tensor_batch``, NonTensorData an entry of ``meta_info``,
        and anything else stays in ``batch``.

        Args:
            tensor_dict: A TensorDict with at least one batch dimension.
            meta_info: Further entries of ``meta_info``.
            num_batch_dims: How many batch dimensions to keep; a DataProto has 1.

        Raises:
            InputTypeError: It is not a TensorDict.
            InputError: It has fewer batch dimensions.
            ConflictError: ``meta_info`` has another value for a key.
            MissingDependencyError: It holds objects and tensordict is older than 0.10.

        >>> data = DataProto.from_dict({"a": torch.zeros(2)}, {"uid": ["x", "y"]}, {"step": 3})
        >>> DataProto.from_tensordict(data.to_tensordict()) == data
        True
        """
        batch, arrays, found = from_mixed_tensordict(tensor_dict, num_batch_dims)
        added = plan_meta_union(found, dict(meta_info or {}))
        return cls(batch, arrays, {**found, **added})

    @observed("data_proto.to_tensordict", "the three members become one TensorDict")
    def to_tensordict(self) -> TensorDict:
        """All three members in one TensorDict: columns of objects as NonTensorStack, ``meta_info`` as
        NonTensorData.

        Raises:
            ConflictError: Two members have the same key.
            MissingDependencyError: There is something that isn't a tensor, and tensordict is older than 0.10.

        >>> both = DataProto.from_dict({"a": torch.zeros(2)}, {"uid": ["x", "y"]}).to_tensordict()
        >>> sorted(both.keys()), both["uid"][1]
        (['a', 'uid'], 'y')
        """
        return to_mixed_tensordict(self.batch, self.non_tensor_batch, self.meta_info, len(self))

    @observed("data_proto.save_to_disk", "a batch is written to a file")
    def save_to_disk(self, filepath: str | os.PathLike[str]) -> None:
        """Write the batch to one file, without pickle; see :mod:`probe.core.data_proto.file`.

        The file appears when it is complete: a failure leaves what was there before.

        Raises:
            SerializationError: An object can't be stored so; its key is named.
            OSError: The file can't be written.
        """
        data_file.write(filepath, self.batch, self.non_tensor_batch, self.meta_info)

    @classmethod
    @observed("data_proto.load_from_disk", "a batch is read from a file")
    def load_from_disk(cls, filepath: str | os.PathLike[str]) -> Self:
        """The batch that :meth:`save_to_disk` wrote, on the CPU. Reading can't run code from the file.

        Raises:
            FileNotFoundError: There is no such file.
            SerializationError: It is not such a file, or a damaged one.
        """
        return data_file.read(filepath, cls)
