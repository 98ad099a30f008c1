"""DataProto: the batch that travels between the parts of a trainer.

Three members, the documented ones: ``batch`` (a TensorDict, one column for each tensor),
``non_tensor_batch`` (numpy arrays, one entry for each row: prompts, ids, anything) and ``meta_info`` (what
holds for the whole batch). All methods keep the three together, return the class they were
called on, and either do all of what they say or nothing.

What is shared: results share tensors with their source wherever torch can make a view, and never share
``meta_info`` or ``non_tensor_batch``, so that adding a key to one batch doesn't add it to another.

Jagged columns (nested tensors) work everywhere that rows are taken, cut or joined; see
:mod:`probe.core.columns.rows`. Here is how a batch is made, indexed, compared, moved, pickled and joined; the other
documented methods are in :mod:`probe.core.data_proto.methods`. What the methods do is in functions of
:mod:`probe.core.data_proto`, one group a file: :mod:`~probe.core.data_proto.members` (all three members),
:mod:`~probe.core.data_proto.picking` (rows), :mod:`~probe.core.data_proto.cutting` (parts),
:mod:`~probe.core.data_proto.column_choice` (columns), :mod:`~probe.core.data_proto.merging` (``union`` and ``concat``),
:mod:`~probe.core.data_proto.file` (files), :mod:`~probe.core.data_proto.info` (how a batch looks). Payloads are in
:mod:`probe.core.columns.serialization`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import torch
from tensordict import TensorDictBase

from probe.core.columns import rows
from probe.core.columns.serialization import (
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)
from probe.core.data_proto import column_choice, from_dicts, members, merging, padding, picking
from probe.core.data_proto.checks import Array
from probe.core.data_proto.config import DataProtoConfig
from probe.core.data_proto.exchange import gather_columns
from probe.core.data_proto.future import DataProtoFuture, batches_are
from probe.core.data_proto.item import DataProtoItem, same_members
from probe.core.data_proto.merging import (
    list_of_dict_to_dict_of_list,
    union_numpy_dict,
    union_tensor_dict,
    union_two_dict,
)
from probe.core.data_proto.methods.columns import ColumnMethods
from probe.core.data_proto.methods.conversion import ConversionMethods
from probe.core.data_proto.methods.looks import LookMethods
from probe.core.data_proto.methods.parts import PartMethods
from probe.core.data_proto.methods.rows import RowMethods
from probe.core.data_proto.methods.shape import ShapeMethods
from probe.core.data_proto.stacking import stacked
from probe.errors import InputTypeError, RowIndexError
from probe.hooks import observed

__all__ = [
    "DataProto",
    "DataProtoConfig",
    "DataProtoFuture",
    "DataProtoItem",
    "RowIndexError",
    "all_gather_data_proto",
    "collate_fn",
    "deserialize_single_tensor",
    "deserialize_tensordict",
    "fold_batch_dim",
    "list_of_dict_to_dict_of_list",
    "pad_dataproto_to_divisor",
    "serialize_single_tensor",
    "serialize_tensordict",
    "unfold_batch_dim",
    "union_numpy_dict",
    "union_tensor_dict",
    "union_two_dict",
    "unpad_dataproto",
]


@dataclass(eq=False, repr=False)
class DataProto(ConversionMethods, RowMethods, ColumnMethods, PartMethods, ShapeMethods, LookMethods):
    """A batch: tensors, objects and facts about both.

    Attributes:
        batch: Columns of tensors, each of shape (B, ...); None where there are none.
        non_tensor_batch: Columns of numpy arrays, each of shape (B, ...); None is taken as an empty dict.
        meta_info: Anything that holds for the whole batch. ``metrics`` in it is pooled by :meth:`concat`.

    Raises:
        InputTypeError: A member has another type.
        ShapeError: Columns have different lengths; both are named.

    >>> data = DataProto.from_dict({"reward": torch.tensor([0.0, 1.0, 0.5])}, {"uid": ["a", "b", "c"]})
    >>> data
    DataProto(3 rows; batch: reward float32(3,); non_tensor_batch: uid object(3,))
    >>> data[-1].non_tensor_batch["uid"], data[[True, False, True]].batch["reward"].tolist()
    ('c', [0.0, 0.5])
    """

    batch: TensorDictBase | None = None
    non_tensor_batch: dict[str, Array] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given: Any = self.non_tensor_batch
        if given is None:  # as verl's callers write it
            self.non_tensor_batch = {}
        self.check_consistency()

    # ------------------------------------------------------------------------------------ making one

    @classmethod
    @observed("data_proto.from_single_dict", "a batch is made from one dict of tensors and arrays")
    def from_single_dict(
        cls,
        data: Mapping[str, torch.Tensor | np.ndarray[Any, Any]],
        meta_info: Mapping[str, Any] | None = None,
        auto_padding: bool = False,
    ) -> Self:
        """A batch from one dict, whose tensors become ``batch`` and whose arrays become ``non_tensor_batch``.

        Args:
            data: Name to a tensor or a numpy array, each (B, ...).
            meta_info: What holds for the whole batch, by name.
            auto_padding: Whether :meth:`chunk` may pad this batch.

        Raises:
            InputError: A value is neither; its key is named.
            ShapeError: Columns have different lengths.

        >>> DataProto.from_single_dict({"a": torch.zeros(2), "uid": np.array(["x", "y"])})
        DataProto(2 rows; batch: a float32(2,); non_tensor_batch: uid <U1(2,))
        """
        return cls(*from_dicts.members_of_one(data, meta_info, auto_padding))

    @classmethod
    @observed("data_proto.from_dict", "a batch is made from dicts of tensors and arrays")
    def from_dict(
        cls,
        tensors: Mapping[str, torch.Tensor] | None = None,
        non_tensors: Mapping[str, Any] | None = None,
        meta_info: Mapping[str, Any] | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,
    ) -> Self:
        """A batch from a dict of tensors and a dict of arrays. The dicts stay as they are and aren't shared.

        Args:
            tensors: Name to tensor, each (B, ...).
            non_tensors: Arrays (B, ...), or sequences of B objects, which become object arrays of shape (B,), whatever
                the objects are.
            meta_info: What holds for the whole batch, by name.
            num_batch_dims: Leading dimensions that all tensors have in common; a DataProto has 1.
            auto_padding: Whether :meth:`chunk` may pad this batch.

        Raises:
            ShapeError: Two columns don't fit (both keys and shapes are named), or ``num_batch_dims`` is above 1.
            InputTypeError: A value is not a tensor.
            InputError: ``num_batch_dims`` is below 1.

        >>> DataProto.from_dict({"a": torch.zeros(2, 3)}, {"turns": [["hi"], ["hello", "bye"]]})
        DataProto(2 rows; batch: a float32(2, 3); non_tensor_batch: turns object(2,))
        """
        return cls(*from_dicts.members_of(tensors, non_tensors, meta_info, num_batch_dims, auto_padding))

    # ------------------------------------------------------------------------------- reading and rows

    def __contains__(self, key: object) -> bool:
        """Whether ``key`` is a column, of tensors or of objects."""
        if not isinstance(key, str | tuple):
            return False
        return key in self.non_tensor_batch or (self.batch is not None and key in self.batch.keys(True))

    def __iter__(self) -> Iterator[DataProtoItem]:
        """The rows, as items."""
        return picking.items(self)

    def __getitem__(self, item: Any) -> Any:
        """One row (a :class:`DataProtoItem`) for an integer, a column for its name, a DataProto for anything else.

        Args:
            item: An integer (also numpy's, or a 0-d tensor), a slice, or a list, array or tensor of integers or
                booleans. Negative ones count from the end. A text is the name of a column, as in ``batch`` or
                ``non_tensor_batch``.

        Raises:
            MissingKeyError: There is no column of that name.
            ShapeError: A mask has another length.
            InputTypeError: It is anything else.
            RowIndexError: The number is outside the batch.

        >>> data = DataProto.from_dict({"a": torch.arange(4)})
        >>> data[1:3].batch["a"].tolist(), data[torch.tensor([3, 0])].batch["a"].tolist(), data[-1].batch["a"]
        ([1, 2], [3, 0], tensor(3))
        """
        return picking.got(self, item)

    def __eq__(self, other: object) -> bool:
        """Whether all three members are equal by content (NaN equals NaN). Never raises."""
        if type(other) is not type(self):
            return NotImplemented
        return same_members(self, other)

    __hash__ = None  # type: ignore[assignment]  # equal by content, and mutable

    def check_consistency(self) -> None:
        """Raise if the members don't fit each other.

        Raises:
            InputTypeError: A member has another type.
            ShapeError: Columns have different lengths.

        >>> data = DataProto.from_dict({"a": torch.zeros(2)})
        >>> data.non_tensor_batch["uid"] = np.array(["x"])
        >>> data.check_consistency()
        Traceback (most recent call last):
        probe.errors.ShapeError: non_tensor_batch['uid']: got shape (1,), expected 2 rows as batch has
        """
        members.check_consistency(self)

    # ------------------------------------------------------------------------------------ on the way

    @observed("data_proto.to", "the tensors move to a device")
    def to(self, device: torch.device | str | int) -> Self:
        """Move the tensors to ``device``, in place.

        Returns:
            This batch.

        >>> data = DataProto.from_dict({"a": torch.zeros(2)})
        >>> data.to("cpu") is data
        True
        """
        if self.batch is not None:
            self.batch = rows.moved(self.batch, torch.device(device))
        return self

    def __getstate__(self) -> dict[str, Any]:
        return members.state_of(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        members.restore(self, state)

    def __copy__(self) -> Self:
        return members.shallow(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return members.deep(self, memo)

    # -------------------------------------------------------------------------------------- joining

    @observed("data_proto.union", "another batch's columns are added")
    def union(self, other: DataProto) -> Self:
        """Add the columns and facts of ``other``, in place. What both have must be equal; NaN equals NaN.

        On a conflict nothing has changed. Tensors are compared only if they aren't the same memory.

        Returns:
            This batch.

        Raises:
            ConflictError: A key differs (the message names it, both shapes and the first difference), or there is
                another number of rows.

        >>> data = DataProto.from_dict({"a": torch.tensor([1.0, 2.0])})
        >>> data.union(DataProto.from_dict({"b": torch.zeros(2)}, meta_info={"step": 1}))
        DataProto(2 rows; batch: a float32(2,), b float32(2,); meta_info: step)
        >>> data.union(DataProto.from_dict({"a": torch.tensor([1.0, 3.0])}))
        Traceback (most recent call last):
        probe.errors.ConflictError: union: batch['a'] differs: first difference at [1]: 2.0 and 3.0
        """
        if not isinstance(other, DataProto):
            raise InputTypeError(f"other: got {type(other).__name__}, expected a DataProto")
        return column_choice.union(self, other)

    @staticmethod
    @observed("data_proto.concat", "batches are joined")
    def concat(data: Sequence[DataProto]) -> DataProto:
        """The rows of all batches, one after the other, with their meta info merged.

        ``meta_info["metrics"]`` (a dict or a list of dicts in each) is pooled: key to the list of all
        values, in the order of ``data``. A key that some batches lack is kept, and
        ``meta_info["metrics_missing"]`` says how many lack it. Every other entry must be equal wherever it
        is. Jagged columns are joined as well.

        Returns:
            A batch of the class of the first one.

        Raises:
            InputError: The list is empty.
            MissingKeyError: Not all have a column. This and the next two name the key, the positions in ``data`` (with
                one batch for each worker, the ranks) and what each has.
            ShapeError: Columns don't fit.
            ConflictError: Meta info differs.

        >>> one = DataProto.from_dict({"a": torch.zeros(1)}, meta_info={"metrics": {"loss": 0.5}})
        >>> two = DataProto.from_dict({"a": torch.ones(2)}, meta_info={"metrics": {"loss": 0.7, "kl": 0.1}})
        >>> joined = DataProto.concat([one, two])
        >>> joined.batch["a"].tolist(), joined.meta_info
        ([0.0, 1.0, 1.0], {'metrics': {'loss': [0.5, 0.7], 'kl': [0.1]}, 'metrics_missing': {'kl': 1}})
        """
        return merging.concat(data, DataProto)


batches_are(DataProto)

#: Inherited methods, whose examples doctest runs here; those that DataProto defines it finds by itself.
__test__: Final = {
    f"DataProto.{name}": method
    for name, method in inspect.getmembers(DataProto, inspect.isroutine)
    if not name.startswith("_") and name not in vars(DataProto)
}


# ------------------------------------------------------------------------------------------ free functions


@observed("data_proto.pad_to_divisor", "rows are added until a number divides them")
def pad_dataproto_to_divisor(data: DataProto, size_divisor: int) -> tuple[DataProto, int]:
    """Add copies of the first rows, cyclically, until ``size_divisor`` divides the number of rows.

    Meta info stays as it is: metrics aren't values of rows and are never repeated.

    Args:
        data: The batch, which stays as it is.
        size_divisor: What the number of rows shall be a multiple of, at least 1.

    Returns:
        The padded batch, and how many rows were added. With nothing to add it is ``data`` itself; a batch
        without rows has nothing to copy and stays empty.

    Raises:
        InputTypeError: It is not a DataProto.
        InputError: ``size_divisor`` is below 1.

    >>> padded, added = pad_dataproto_to_divisor(DataProto.from_dict({"a": torch.tensor([1, 2])}), 5)
    >>> padded.batch["a"].tolist(), added
    ([1, 2, 1, 2, 1], 3)
    """
    if not isinstance(data, DataProto):
        raise InputTypeError(f"data: got {type(data).__name__}, expected a DataProto")
    return padding.pad_to_divisor(data, size_divisor)


@observed("data_proto.unpad", "added rows are removed")
def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    """Take the last ``pad_size`` rows off again (views); with 0 it is ``data`` itself.

    Args:
        data: The padded batch.
        pad_size: How many rows were added.

    Raises:
        InputError: ``pad_size`` is negative, or there are fewer rows.

    >>> unpad_dataproto(DataProto.from_dict({"a": torch.arange(5)}), 3).batch["a"].tolist()
    [0, 1]
    """
    return padding.unpad(data, pad_size)


def fold_batch_dim(data: DataProto, new_batch_size: int) -> DataProto:
    """Put neighbouring rows together into one batch of two batch dimensions: :meth:`DataProto.fold_batch_dim` as a
    function.

    Args:
        data: The batch, which stays as it is.
        new_batch_size: Rows of the new batch; it must divide the number of rows.
    """
    return data.fold_batch_dim(new_batch_size)


def unfold_batch_dim(data: DataProto, batch_dims: int = 2) -> DataProto:
    """Make one batch dimension of several: :meth:`DataProto.unfold_batch_dim` as a function.

    Args:
        data: The batch, which stays as it is.
        batch_dims: How many leading dimensions become one.
    """
    return data.unfold_batch_dim(batch_dims)


def collate_fn(x: Sequence[DataProtoItem]) -> DataProto:
    """Items of one batch, or of batches alike, stacked into a batch again.

    Tensors of different lengths become a jagged column. Numbers keep their dtype, anything else becomes an
    object column. ``meta_info`` keeps the entries that are equal in all items.

    Raises:
        InputError: There are no items.
        MissingKeyError: Not every item has a key.

    >>> data = DataProto.from_dict({"a": torch.arange(3)}, {"n": np.array([1.5, 2.5, 3.5])})
    >>> collate_fn([data[2], data[0]]).non_tensor_batch["n"]
    array([3.5, 1.5])
    """
    return DataProto(*stacked(x))


@observed("data_proto.all_gather", "every rank gets the rows of all ranks")
def all_gather_data_proto(data: DataProto, process_group: Any = None) -> DataProto:
    """Give every rank the rows of all ranks, in the order of the ranks, in place. ``meta_info`` stays each
    rank's own.

    Ranks may have different numbers of rows. First they exchange a description of what they have; where those
    don't fit, every rank raises the same error before any tensor moves, so that none waits for another.

    Args:
        data: This rank's batch, changed in place.
        process_group: The process group; None is the default one. Its members must trust each other: objects travel
            pickled.

    Returns:
        ``data``.

    Raises:
        MissingKeyError: Not every rank has a column; the message names key and ranks.
        ShapeError: Columns don't fit; the message names key and ranks.
        InputTypeError: Columns have different dtypes; the message names key and ranks.
        PeerError: A rank can't take part.
        SessionError: There is no process group.
    """
    batch, arrays = gather_columns(data, process_group)
    data.batch, data.non_tensor_batch = batch, arrays
    return data
