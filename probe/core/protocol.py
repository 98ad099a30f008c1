"""DataProto: the batch that travels between the parts of a trainer.

Three members, the documented ones: ``batch`` (a TensorDict, one column for each tensor),
``non_tensor_batch`` (numpy arrays, one entry for each row: prompts, ids, anything) and ``meta_info`` (what
holds for the whole batch). All methods keep the three together, return the class they were
called on, and either do all of what they say or nothing.

What is shared: results share tensors with their source wherever torch can make a view, and never share
``meta_info`` or ``non_tensor_batch``, so that adding a key to one batch doesn't add it to another.

Jagged columns (nested tensors) work everywhere that rows are taken, cut or joined; see
:mod:`probe.core.columns.rows`. The neighbours are :mod:`probe.core.columns.serialization` (payloads),
:mod:`probe.core.data_proto.file` (files), :mod:`probe.core.data_proto.info` (how a batch looks) and
:mod:`probe.core.data_proto.merging` (``union`` and ``concat``).
"""

from __future__ import annotations

import builtins
import copy
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch.utils.data import DataLoader, Dataset

from probe._check import whole_number
from probe.core.columns import rows
from probe.core.columns.equality import same
from probe.core.columns.serialization import (
    batch_of,
    deserialize_single_tensor,
    deserialize_tensordict,
    own_bytes,
    payload_of,
    serialize_single_tensor,
    serialize_tensordict,
)
from probe.core.data_proto import file as data_file
from probe.core.data_proto import info as data_info
from probe.core.data_proto.checks import (
    Array,
    Keys,
    check_types,
    common_size,
    key_names,
    object_column,
    picked,
    picked_any,
    picked_of,
    repeat_counts,
    unfolded,
    without,
)
from probe.core.data_proto.config import DataProtoConfig
from probe.core.data_proto.exchange import from_mixed_tensordict, gather_columns, to_mixed_tensordict
from probe.core.data_proto.future import DataProtoFuture
from probe.core.data_proto.item import DataProtoItem, same_members
from probe.core.data_proto.merging import (
    PAD_ROWS,
    join_arrays,
    join_batches,
    join_meta,
    list_of_dict_to_dict_of_list,
    plan_array_union,
    plan_meta_union,
    plan_tensor_union,
    stack_objects,
    stack_rows,
    union_two_dict,
)
from probe.errors import InputError, InputTypeError, MissingKeyError, RowIndexError, SerializationError, ShapeError
from probe.hooks import emit, observed, point

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


_log = logging.getLogger("probe.core.protocol")

#: Rows that are copies of others were added so that a batch divides evenly.
PADDED: Final = point(
    "data_proto.padded",
    "copies of rows were added: data (the DataProto after it), rows (before), pad_rows (added), source",
)


@dataclass(eq=False, repr=False)
class DataProto:
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
        if self.non_tensor_batch is None:  # as verl's callers write it
            self.non_tensor_batch = {}  # type: ignore[unreachable]  # the annotation says what it is from here on
        self.check_consistency()

    # ------------------------------------------------------------------------------------ making one

    def _like(self, batch: TensorDictBase | None, arrays: dict[str, Array], meta: dict[str, Any] | None = None) -> Self:
        """A batch of the same class with these members, which are known to fit; attributes of a subclass
        stay."""
        new = object.__new__(type(self))
        members = new.__dict__
        members.update(self.__dict__)
        members["batch"] = batch
        members["non_tensor_batch"] = arrays
        members["meta_info"] = dict(self.meta_info) if meta is None else meta
        return new

    @classmethod
    @observed("data_proto.from_single_dict", "a batch is made from one dict of tensors and arrays")
    def from_single_dict(
        cls,
        data: Mapping[str, torch.Tensor | Array],
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
        tensors = {key: value for key, value in data.items() if isinstance(value, torch.Tensor)}
        arrays = {key: value for key, value in data.items() if isinstance(value, np.ndarray)}
        for key, value in data.items():
            if key not in tensors and key not in arrays:
                raise InputError(f"data[{key!r}]: got {type(value).__name__}, expected a tensor or a numpy array")
        return cls._from_dict(tensors, arrays, meta_info, 1, auto_padding)

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
        return cls._from_dict(tensors, non_tensors, meta_info, num_batch_dims, auto_padding)

    @classmethod
    def _from_dict(
        cls,
        tensors: Mapping[str, torch.Tensor] | None,
        non_tensors: Mapping[str, Any] | None,
        meta_info: Mapping[str, Any] | None,
        num_batch_dims: int,
        auto_padding: bool,
    ) -> Self:
        if not isinstance(num_batch_dims, int) or num_batch_dims < 1:
            raise InputError(f"num_batch_dims: got {num_batch_dims!r}, expected 1")
        if non_tensors and num_batch_dims > 1:
            raise ShapeError(f"num_batch_dims: got {num_batch_dims}, expected 1: arrays have one batch dimension")
        batch = None
        if tensors:
            size = common_size(tensors, num_batch_dims)
            batch = TensorDict(dict(tensors), batch_size=size)
        arrays = {key: object_column(key, value) for key, value in (non_tensors or {}).items()}
        meta = dict(meta_info or {})
        if auto_padding:
            meta[DataProtoConfig.auto_padding_key] = True
        return cls(batch, arrays, meta)

    @classmethod
    @observed("data_proto.from_tensordict", "a batch is made from a TensorDict that holds objects too")
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

    # ------------------------------------------------------------------------------- reading and rows

    def __len__(self) -> int:
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        for column in self.non_tensor_batch.values():
            return int(column.shape[0])
        return 0

    def __contains__(self, key: object) -> bool:
        """Whether ``key`` is a column, of tensors or of objects."""
        if not isinstance(key, str | tuple):
            return False
        return key in self.non_tensor_batch or (self.batch is not None and key in self.batch.keys(True))

    def __iter__(self) -> Iterator[DataProtoItem]:
        """The rows, as items."""
        return (self._item(row) for row in range(len(self)))

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
        if isinstance(item, slice):
            return self._slice(item)
        if isinstance(item, str):
            return self._column(item)
        count = len(self)
        row = rows.row_number(item, count)
        return self._rows_at_indices(rows.row_numbers(item, count)) if row is None else self._item(row)

    def _column(self, name: str) -> Any:
        if self.batch is not None and name in self.batch.keys():  # noqa: SIM118  (a TensorDict asks for it)
            return self.batch.get(name)
        if name in self.non_tensor_batch:
            return self.non_tensor_batch[name]
        known = [*(() if self.batch is None else self.batch.keys()), *self.non_tensor_batch]
        raise MissingKeyError(
            f"index: there is no column {name!r}; the batch has {', '.join(map(repr, known)) or 'none'}"
        )

    def _item(self, row: int) -> DataProtoItem:
        batch = None if self.batch is None else self.batch[row]
        return DataProtoItem(
            batch, {key: column[row] for key, column in self.non_tensor_batch.items()}, dict(self.meta_info)
        )

    def _row_meta(self) -> dict[str, Any]:
        """The meta info of other rows than these: it doesn't say which of them are copies."""
        return {key: value for key, value in self.meta_info.items() if key != PAD_ROWS}

    def _rows_at_indices(self, index: torch.Tensor) -> Self:
        """The rows ``index`` (int64, not negative), copied."""
        batch = None if self.batch is None else rows.rows_at(self.batch, index)
        arrays = self.non_tensor_batch
        if arrays:
            numbers = index.cpu().numpy()
            arrays = {key: column[numbers] for key, column in arrays.items()}
        return self._like(batch, dict(arrays), self._row_meta())

    def _slice(self, span: builtins.slice) -> Self:
        try:
            start, stop, step = span.indices(len(self))
        except TypeError as error:
            raise InputTypeError(f"index: got {span!r}, expected integers or None in a slice") from error
        if step != 1:
            return self._rows_at_indices(torch.from_numpy(np.arange(start, stop, step)))
        stop = max(start, stop)
        batch = None if self.batch is None else rows.cut(self.batch, start, stop)
        arrays = {key: column[start:stop] for key, column in self.non_tensor_batch.items()}
        return self._like(batch, arrays, self._row_meta())

    @observed("data_proto.select_idxs", "rows are picked")
    def select_idxs(self, idxs: Any) -> Self:
        """The rows that ``idxs`` (integers or booleans, in a list, array or tensor) picks, copied.

        Raises: as ``data[idxs]``; a single integer is an InputTypeError.

        >>> DataProto.from_dict({"a": torch.arange(3)}).select_idxs([2, 2]).batch["a"].tolist()
        [2, 2]
        """
        return self._rows_at_indices(rows.row_numbers(idxs, len(self)))

    @observed("data_proto.slice", "a stretch of rows is cut out")
    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> Self:
        """Rows ``start`` to ``end``; views, if ``step`` is 1 or None.

        Args:
            start: The first row; None means the beginning.
            end: The row after the last one; None means the end.
            step: Take each so-many-th row; None means 1.

        >>> DataProto.from_dict({"a": torch.arange(5)}).slice(1, 4, 2).batch["a"].tolist()
        [1, 3]
        """
        return self._slice(slice(start, end, step))

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
        check_types(self)
        count, owner = None, ""
        if self.batch is not None:
            if len(self.batch.batch_size) != 1:
                raise ShapeError(
                    f"batch: got a TensorDict of batch size {tuple(self.batch.batch_size)}, expected one batch "
                    "dimension (num_batch_dims=1)"
                )
            count, owner = int(self.batch.batch_size[0]), "batch"
        for key, column in self.non_tensor_batch.items():
            if not isinstance(column, np.ndarray):
                raise InputTypeError(f"non_tensor_batch[{key!r}]: got {type(column).__name__}, expected a numpy array")
            found = column.shape[0] if column.ndim else None
            if found is None or (count is not None and found != count):
                expected = "at least one dimension" if count is None else f"{count} rows as {owner} has"
                raise ShapeError(f"non_tensor_batch[{key!r}]: got shape {column.shape}, expected {expected}")
            if count is None:
                count, owner = found, f"non_tensor_batch[{key!r}]"

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
        members = dict(self.__dict__)
        members["batch"] = None if self.batch is None else payload_of(self.batch)
        members["meta_info"] = {key: own_bytes(value) for key, value in self.meta_info.items()}
        return members

    def __setstate__(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or not {"batch", "non_tensor_batch", "meta_info"} <= state.keys():
            raise SerializationError("state: got something else than what DataProto.__getstate__ gives")
        self.__dict__.update(state)
        if state["batch"] is not None:
            self.batch = batch_of(state["batch"])

    def __copy__(self) -> Self:
        batch = None if self.batch is None else rows.unalias(self.batch)
        return self._like(batch, dict(self.non_tensor_batch))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        others = {key: one for key, one in self.__dict__.items() if key not in DataProto.__dataclass_fields__}
        batch = None if self.batch is None else rows.cloned(self.batch)
        arrays, meta = copy.deepcopy((self.non_tensor_batch, self.meta_info), memo)
        new = self._like(batch, arrays, meta)
        new.__dict__.update(copy.deepcopy(others, memo))
        return new

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

    # -------------------------------------------------------------------------------------- columns

    @observed("data_proto.select", "columns are picked")
    def select(
        self,
        batch_keys: Keys = None,
        non_tensor_batch_keys: Keys = None,
        meta_info_keys: Keys = None,
        deepcopy: bool = False,
    ) -> Self:
        """A batch of some columns. It shares the tensors and arrays, never the dicts.

        Args:
            batch_keys: Names of columns in ``batch``; None keeps all.
            non_tensor_batch_keys: Names of columns in ``non_tensor_batch``; None keeps all. As in verl a name that
                isn't there is left out, here and in ``meta_info``: not every worker sets every fact.
            meta_info_keys: Names of entries in ``meta_info``; None keeps all.
            deepcopy: Whether tensors, arrays and meta info are copied too.

        Raises:
            MissingKeyError: There is no such column of tensors; the message names what there is.

        >>> data = DataProto.from_dict({"a": torch.zeros(2), "b": torch.ones(2)}, meta_info={"t": 1})
        >>> data.select(["b"])
        DataProto(2 rows; batch: b float32(2,); meta_info: t)
        """
        columns = picked("batch", {} if self.batch is None else dict(self.batch.items()), batch_keys)
        arrays = picked_of("non_tensor_batch_keys", self.non_tensor_batch, non_tensor_batch_keys)
        meta = picked_of("meta_info_keys", self.meta_info, meta_info_keys)
        batch = None if self.batch is None else rows.rebuilt(self.batch, columns, len(self))
        chosen = self._like(batch, arrays, meta)
        return copy.deepcopy(chosen) if deepcopy else chosen

    @observed("data_proto.pop", "columns are taken out")
    def pop(self, batch_keys: Keys = None, non_tensor_batch_keys: Keys = None, meta_info_keys: Keys = None) -> Self:
        """Take columns out of this batch; all of them or, on an error, none.

        Args:
            batch_keys: Names of columns in ``batch``; None takes none.
            non_tensor_batch_keys: Names of columns in ``non_tensor_batch``; None takes none.
            meta_info_keys: Names of entries in ``meta_info``; None takes none.

        Returns:
            A batch of what was taken out.

        Raises:
            MissingKeyError: A name isn't there, in any member.

        >>> data = DataProto.from_dict({"a": torch.zeros(2), "b": torch.ones(2)})
        >>> data.pop("a"), data
        (DataProto(2 rows; batch: a float32(2,)), DataProto(2 rows; batch: b float32(2,)))
        """
        columns = picked("batch", {} if self.batch is None else dict(self.batch.items()), batch_keys or ())
        arrays = picked("non_tensor_batch", self.non_tensor_batch, non_tensor_batch_keys or ())
        meta = picked("meta_info", self.meta_info, meta_info_keys or ())
        batch = rows.rebuilt(self.batch, columns, len(self)) if self.batch is not None else None
        taken = self._like(batch, arrays, meta)
        if self.batch is not None and self.batch.is_locked:
            self.batch = rows.unalias(self.batch)
        for key in columns:
            self.batch.pop(key)  # type: ignore[union-attr]  # there are columns, so there is a batch
        for key in arrays:
            del self.non_tensor_batch[key]
        for key in meta:
            del self.meta_info[key]
        return taken

    @observed("data_proto.rename", "tensor columns get other names")
    def rename(self, old_keys: Keys = None, new_keys: Keys = None) -> Self:
        """Give tensor columns other names, in place; the order of the columns stays.

        Args:
            old_keys: One name or several, as they are now.
            new_keys: Equally many names, as they shall be.

        Returns:
            This batch.

        Raises:
            MissingKeyError: There is no such old name.
            InputError: The two aren't equally many, or a name would be there twice.

        >>> data = DataProto.from_dict({"a": torch.zeros(2), "b": torch.ones(2)})
        >>> data.rename(["a", "b"], ["b", "a"]).batch["a"]
        tensor([1., 1.])
        """
        olds, news = key_names("old_keys", old_keys or ()), key_names("new_keys", new_keys or ())
        if len(olds) != len(news) or len({*olds}) != len(olds):
            raise InputError(f"rename: got old_keys {olds} and new_keys {news}, expected equally many, none twice")
        columns = {} if self.batch is None else dict(self.batch.items())
        picked("batch", columns, olds)
        if self.batch is None:
            return self
        mapping = dict(zip(olds, news, strict=True))
        renamed = {mapping.get(key, key): column for key, column in columns.items()}
        if len(renamed) != len(columns):
            raise InputError(f"new_keys: got {news}, of which one would stand for two columns of {list(columns)}")
        self.batch = rows.rebuilt(self.batch, renamed, len(self))
        return self

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
        if other is self:
            return self
        count = len(self) if self._has_rows() else None
        columns = plan_tensor_union(self.batch, other.batch, count)
        arrays = plan_array_union(self.non_tensor_batch, other.non_tensor_batch, count, len(other))
        meta = plan_meta_union(self.meta_info, other.meta_info)
        if self.batch is not None:
            self.batch = _with_columns(self.batch, columns)
        elif other.batch is not None:
            self.batch = rows.unalias(other.batch)
        self.non_tensor_batch.update(arrays)
        self.meta_info.update(meta)
        return self

    def _has_rows(self) -> bool:
        return self.batch is not None or bool(self.non_tensor_batch)

    # ----------------------------------------------------------------------------- joining and cutting

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
        return _concat(data)

    @observed("data_proto.chunk", "a batch is cut into equal parts")
    def chunk(self, chunks: int) -> list[Self]:
        """``chunks`` batches of the same size, as views.

        Where padding is enabled (:meth:`is_padding_enabled`) and the rows don't divide evenly, copies of the
        first rows are added at the end, and ``meta_info["pad_rows"]`` of each part says how many of its last
        rows are such copies. ``concat`` adds these up, so that ``unpad_dataproto(joined,
        joined.meta_info["pad_rows"])`` takes them off again.

        Raises:
            InputError: ``chunks`` is below 1, or the rows don't divide evenly without padding.

        >>> [len(part) for part in DataProto.from_dict({"a": torch.arange(6)}).chunk(3)]
        [2, 2, 2]
        """
        whole_number("chunks", chunks, 1, expected="an integer")
        short = -len(self) % chunks
        if not short:
            return self._pieces([len(self) // chunks] * chunks)
        if not self.is_padding_enabled():
            raise InputError(
                f"chunks: got {chunks} for {len(self)} rows, which don't divide evenly; expected a "
                "divisor, or auto_padding=True, or DataProtoConfig.auto_padding"
            )
        parts = self._padded(short, "data_proto.chunk")._pieces([(len(self) + short) // chunks] * chunks)
        size = (len(self) + short) // chunks
        for number, part in enumerate(parts):
            part.meta_info[PAD_ROWS] = min(size, max(0, (number + 1) * size - len(self)))
        return parts

    @observed("data_proto.split", "a batch is cut into parts of a given size")
    def split(self, split_size: int) -> list[Self]:
        """Batches of ``split_size`` rows, as views; the last may be shorter.

        Raises:
            InputError: ``split_size`` is below 1.

        >>> [len(part) for part in DataProto.from_dict({"a": torch.arange(5)}).split(2)]
        [2, 2, 1]
        """
        whole_number("split_size", split_size, 1, expected="an integer")
        whole, rest = divmod(len(self), split_size)
        return self._pieces([split_size] * whole + [rest] * bool(rest))

    def _pieces(self, sizes: Sequence[int]) -> list[Self]:
        batches = [None] * len(sizes) if self.batch is None else rows.pieces(self.batch, sizes)
        spans = list(rows.spans_of(sizes))
        return [
            self._like(
                batch,
                {key: column[start:stop] for key, column in self.non_tensor_batch.items()},
                self._row_meta(),
            )
            for batch, (start, stop) in zip(batches, spans, strict=True)
        ]

    @observed("data_proto.repeat", "every row is repeated")
    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> Self:
        """Every row ``repeat_times`` times: side by side (a a b b) or, without ``interleave``, in turns (a b
        a b).

        Args:
            repeat_times: How often each row is there in the result.
            interleave: Whether copies of a row stand side by side rather than in turns.

        Raises:
            InputError: ``repeat_times`` is below 0.

        >>> data = DataProto.from_dict({"a": torch.tensor([1, 2])})
        >>> data.repeat(2).batch["a"].tolist(), data.repeat(2, interleave=False).batch["a"].tolist()
        ([1, 1, 2, 2], [1, 2, 1, 2])
        """
        whole_number("repeat_times", repeat_times, 0, expected="an integer")
        index = torch.arange(len(self))
        return self._rows_at_indices(
            index.repeat_interleave(repeat_times) if interleave else index.repeat(repeat_times)
        )

    @observed("data_proto.sample_level_repeat", "each row is repeated its own number of times")
    def sample_level_repeat(self, repeat_times: Sequence[int] | torch.Tensor | Array) -> Self:
        """Row ``i`` ``repeat_times[i]`` times, side by side; 0 leaves it out.

        Raises:
            ShapeError: There isn't one number for each row.
            InputError: A number is negative.
            InputTypeError: They are not integers.

        >>> data = DataProto.from_dict({"a": torch.tensor([7, 8, 9])})
        >>> data.sample_level_repeat([2, 0, 1]).batch["a"].tolist()
        [7, 7, 9]
        """
        counts = repeat_counts(repeat_times)
        if counts.shape != (len(self),):
            raise ShapeError(f"repeat_times: got shape {tuple(counts.shape)}, expected ({len(self)},)")
        if counts.numel() and int(counts.min()) < 0:
            raise InputError(f"repeat_times: got {int(counts.min())}, expected numbers of at least 0")
        return self._rows_at_indices(torch.repeat_interleave(torch.arange(len(self)), counts))

    @observed("data_proto.reorder", "the rows are put in another order")
    def reorder(self, indices: Any) -> None:
        """Put the rows in the order of ``indices`` (list, array or tensor), in place.

        Raises: as ``data[indices]``; nothing has changed then.

        >>> data = DataProto.from_dict({"a": torch.tensor([7, 8, 9])})
        >>> data.reorder([2, 0, 1])
        >>> data.batch["a"].tolist()
        [9, 7, 8]
        """
        self._become(self._rows_at_indices(rows.row_numbers(indices, len(self))))
        self.meta_info.pop(PAD_ROWS, None)

    def _become(self, other: DataProto) -> None:
        self.batch = other.batch
        self.non_tensor_batch = other.non_tensor_batch

    @observed("data_proto.unfold_column_chunks", "columns are cut along dimension 1 into rows of their own")
    def unfold_column_chunks(self, n_split: int, split_keys: Keys = None) -> Self:
        """Each row becomes ``n_split`` rows: the columns ``split_keys`` are cut along dimension 1, the
        others repeated.

        Args:
            n_split: How many rows each row becomes.
            split_keys: Columns (B, n_split · k, ...), which become (B · n_split, k, ...). None cuts none. A column of
                objects (B,) that are lists of n_split · k entries each becomes objects (B · n_split, k).

        Raises:
            InputError: ``n_split`` is below 1.
            MissingKeyError: There is no such column.
            ShapeError: A column can't be cut so.

        >>> data = DataProto.from_dict({"pair": torch.tensor([[1, 2], [3, 4]]), "id": torch.tensor([7, 8])})
        >>> both = data.unfold_column_chunks(2, ["pair"]).batch
        >>> both["pair"].tolist(), both["id"].tolist()
        ([[1], [2], [3], [4]], [7, 7, 8, 8])
        """
        whole_number("n_split", n_split, 1, expected="an integer")
        keys = key_names("split_keys", split_keys or ())
        columns = {} if self.batch is None else dict(self.batch.items())
        cut = {key: unfolded(key, one, n_split) for key, one in picked_any(columns, self.non_tensor_batch, keys)}
        rest = self._like(
            None if self.batch is None else rows.rebuilt(self.batch, without(columns, cut), len(self)),
            without(self.non_tensor_batch, cut),
        )._rows_at_indices(torch.arange(len(self)).repeat_interleave(n_split))
        if rest.batch is not None:
            repeated = {**dict(rest.batch.items()), **cut}
            rest.batch = rows.rebuilt(rest.batch, {key: repeated[key] for key in columns}, len(self) * n_split)
        rest.non_tensor_batch = {
            key: cut[key] if key in cut else rest.non_tensor_batch[key] for key in self.non_tensor_batch
        }
        return rest

    @observed("data_proto.make_iterator", "an iterator over mini-batches is made")
    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[Self]:
        """Mini-batches of this batch through torch's DataLoader, ``epochs`` times over.

        Args:
            mini_batch_size: Rows in each mini-batch; it must divide the number of rows.
            epochs: How many times all rows are gone through.
            seed: Seed of the one generator that all epochs draw from. Rows are shuffled only on request.
            dataloader_kwargs: Further arguments of the DataLoader, such as ``{"shuffle": True}``.

        Returns:
            An iterator of ``len(self) * epochs // mini_batch_size`` batches, each with meta info of its own.

        Raises:
            InputError: The rows don't divide evenly (raised at once and not at the first step), or an argument of the
                DataLoader is one that is set here.

        >>> data = DataProto.from_dict({"a": torch.arange(4)})
        >>> [part.batch["a"].tolist() for part in data.make_iterator(2, epochs=1)]
        [[0, 1], [2, 3]]
        """
        whole_number("mini_batch_size", mini_batch_size, 1, expected="an integer")
        whole_number("epochs", epochs, 0, expected="an integer")
        if len(self) % mini_batch_size:
            raise InputError(f"mini_batch_size: got {mini_batch_size}, which doesn't divide the {len(self)} rows")
        chosen = dict(dataloader_kwargs or {})
        for name in {"dataset", "batch_size", "collate_fn"} & chosen.keys():
            raise InputError(f"dataloader_kwargs: got {name!r}, which make_iterator sets itself")
        if seed is not None:
            chosen.setdefault("generator", torch.Generator().manual_seed(seed))
        if not len(self):
            return iter(())
        loader = DataLoader(_RowNumbers(len(self)), mini_batch_size, collate_fn=_Collate(self), **chosen)
        return (part for _ in range(epochs) for part in loader)

    # -------------------------------------------------------------------------------------- padding

    def is_padding_enabled(self) -> bool:
        """Whether :meth:`chunk` may add rows: this batch opted in, or :class:`DataProtoConfig` says so for
        all."""
        return bool(self.meta_info.get(DataProtoConfig.auto_padding_key, False)) or DataProtoConfig.auto_padding

    @observed("data_proto.padding", "copies of one row are added at the end")
    def padding(self, padding_size: int, padding_candidate: str = "") -> None:
        """Add ``padding_size`` copies of the first (``padding_candidate="first"``) or else the last row, in place.

        Args:
            padding_size: How many rows are added.
            padding_candidate: With ``"first"`` the first row is copied, with anything else the last.

        Raises:
            InputError: The size is negative, or the batch has no rows.

        >>> data = DataProto.from_dict({"a": torch.tensor([1, 2])})
        >>> data.padding(2)
        >>> data.batch["a"].tolist()
        [1, 2, 2, 2]
        """
        whole_number("padding_size", padding_size, 0, expected="an integer")
        if not padding_size:
            return
        count = len(self)
        if not count:
            raise InputError(f"padding_size: got {padding_size} for a batch without rows to copy")
        copied = 0 if padding_candidate == "first" else count - 1
        self._become(self._rows_at_indices(torch.cat([torch.arange(count), torch.full((padding_size,), copied)])))
        self._tell_padded(padding_size, "data_proto.padding")

    def _padded(self, pad_rows: int, source: str) -> Self:
        """A copy with ``pad_rows`` more rows, taken cyclically from the start; its meta info, metrics
        included, stays."""
        count = len(self)
        padded = self._rows_at_indices(torch.arange(count + pad_rows) % max(count, 1))
        padded._tell_padded(pad_rows, source)
        return padded

    def _tell_padded(self, pad_rows: int, source: str) -> None:
        if PADDED.listeners:
            emit(PADDED, data=self, rows=len(self) - pad_rows, pad_rows=pad_rows, source=source)

    # -------------------------------------------------------------------------------------- its looks

    def print_size(self, prefix: str = "") -> None:
        """Write the size of tensors and of arrays, in GB (1024³ bytes), to standard output."""
        sys.stdout.write(data_info.size_text(self.batch, self.non_tensor_batch, prefix) + "\n")

    def get_data_info(self) -> str:
        """All keys with their shapes, dtypes and devices, as text.

        >>> print(DataProto.from_dict({"a": torch.zeros(2, 3)}, meta_info={"t": 1.0}).get_data_info())
        rows: 2
        batch:
          a: (2, 3) float32 cpu
        non_tensor_batch:
        meta_info:
          t: float
        """
        return data_info.schema_text(len(self), self.batch, self.non_tensor_batch, self.meta_info)

    def __repr__(self) -> str:
        name = type(self).__name__
        return data_info.one_line(name, len(self), self.batch, self.non_tensor_batch, self.meta_info)

    def _repr_html_(self) -> str:
        name = type(self).__name__
        return data_info.html_table(name, len(self), self.batch, self.non_tensor_batch, self.meta_info)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"text/plain": repr(self), "text/html": self._repr_html_()}
        return {
            kind: text
            for kind, text in bundle.items()
            if (not include or kind in include) and not (exclude and kind in exclude)
        }

    # ---------------------------------------------------------------------------------- a deeper batch

    @observed("data_proto.fold_batch_dim", "rows are grouped")
    def fold_batch_dim(self, new_batch_size: int) -> Self:
        """Columns (B, ...) as (b, B / b, ...), with ``b = new_batch_size`` rows. This batch stays as it is.

        Raises:
            InputError: ``new_batch_size`` doesn't divide the rows.
            ShapeError: A column is jagged.

        >>> DataProto.from_dict({"a": torch.zeros(6, 5)}).fold_batch_dim(2)
        DataProto(2 rows; batch: a float32(2, 3, 5))
        """
        whole_number("new_batch_size", new_batch_size, 1, expected="an integer")
        if len(self) % new_batch_size:
            raise InputError(f"new_batch_size: got {new_batch_size}, which doesn't divide the {len(self)} rows")
        inner = len(self) // new_batch_size
        return self._reshaped(1, (new_batch_size, inner), new_batch_size)

    @observed("data_proto.unfold_batch_dim", "groups become rows again")
    def unfold_batch_dim(self, batch_dims: int = 2) -> Self:
        """The first ``batch_dims`` dimensions of all columns as one. This batch stays as it is.

        Raises:
            InputError: ``batch_dims`` is below 1.
            ShapeError: A column has fewer dimensions, or others than its neighbours, or is jagged.

        >>> DataProto.from_dict({"a": torch.zeros(2, 3, 5)}).unfold_batch_dim()
        DataProto(6 rows; batch: a float32(6, 5))
        """
        whole_number("batch_dims", batch_dims, 1, expected="an integer")
        columns: dict[str, Any] = {} if self.batch is None else dict(self.batch.items())
        columns = {**columns, **self.non_tensor_batch}
        size = tuple(common_size(columns, batch_dims, check_type=False)) if columns else (0,)
        return self._reshaped(batch_dims, (int(np.prod(size)),), int(np.prod(size)))

    def _reshaped(self, dims: int, lead: tuple[int, ...], count: int) -> Self:
        def one(key: str, column: Any) -> Any:
            if isinstance(column, TensorDictBase) or (isinstance(column, torch.Tensor) and column.is_nested):
                raise ShapeError(f"batch[{key!r}]: got a {type(column).__name__}, expected a plain tensor")
            return column.reshape(*lead, *column.shape[dims:])

        arrays = {key: one(key, column) for key, column in self.non_tensor_batch.items()}
        if self.batch is None:
            return self._like(None, arrays)
        columns = {key: one(key, column) for key, column in self.batch.items()}
        return self._like(TensorDict(columns, batch_size=[count], device=self.batch.device), arrays)


# ------------------------------------------------------------------------------------- helpers of the class


def _with_columns(mine: TensorDictBase, new: dict[str, Any]) -> TensorDictBase:
    if mine.is_locked:
        mine = rows.unalias(mine)
    return mine.update(new)


class _RowNumbers(Dataset[int]):
    """What the DataLoader draws from: row numbers, so that a worker process gets no copy of a row per
    item."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> int:
        return row


class _Collate:
    """Row numbers to a batch; a class and no closure, so that a DataLoader's workers can be spawned."""

    def __init__(self, data: DataProto) -> None:
        self._data = data

    def __call__(self, numbers: list[int]) -> DataProto:
        return self._data._rows_at_indices(torch.tensor(numbers, dtype=torch.int64))


def _concat(data: Sequence[DataProto]) -> DataProto:
    parts = list(data)
    if not parts:
        raise InputError("data: got an empty list, expected at least one DataProto")
    for number, part in enumerate(parts):
        if not isinstance(part, DataProto):
            raise InputTypeError(f"data[{number}]: got {type(part).__name__}, expected a DataProto")
    meta = join_meta([part.meta_info for part in parts])
    batch = join_batches([part.batch for part in parts])
    arrays = join_arrays([part.non_tensor_batch for part in parts])
    return parts[0]._like(batch, arrays, meta)


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
    whole_number("size_divisor", size_divisor, 1, expected="an integer")
    added = -len(data) % size_divisor
    if not len(data):
        _log.warning("a batch without rows can't be padded to a multiple of %d; it stays empty", size_divisor)
    if not added:
        return data, 0
    return data._padded(added, "data_proto.pad_to_divisor"), added


@observed("data_proto.unpad", "rows that were added are taken off")
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
    whole_number("pad_size", pad_size, 0, expected="an integer")
    if pad_size > len(data):
        raise InputError(f"pad_size: got {pad_size} for a batch of {len(data)} rows")
    if not pad_size:
        return data
    kept = data._slice(slice(0, len(data) - pad_size))
    kept.meta_info.pop(PAD_ROWS, None)
    return kept


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


def union_tensor_dict(tensor_dict1: TensorDictBase, tensor_dict2: TensorDictBase) -> TensorDictBase:
    """Add the columns of the second TensorDict to the first, in place; what both have must be equal.

    Args:
        tensor_dict1: The TensorDict that gets the columns.
        tensor_dict2: The TensorDict whose columns are added; it stays as it is.

    Raises:
        ConflictError: The batch sizes differ, or a column does; nothing has changed then.

    >>> one, two = TensorDict({"a": torch.ones(2)}, [2]), TensorDict({"b": torch.zeros(2)}, [2])
    >>> sorted(union_tensor_dict(one, two).keys())
    ['a', 'b']
    """
    new = plan_tensor_union(tensor_dict1, tensor_dict2, tensor_dict1.batch_size[0])
    return tensor_dict1.update(new)


def union_numpy_dict(tensor_dict1: dict[str, Array], tensor_dict2: dict[str, Array]) -> dict[str, Array]:
    """Add the arrays of the second dict to the first, in place; what both have must be equal, NaN equal to NaN.

    Args:
        tensor_dict1: Name to array; it gets the arrays of the other.
        tensor_dict2: Name to array; it stays as it is.

    Raises:
        ConflictError: An array differs; nothing has changed then.

    >>> union_numpy_dict({"a": np.array([1.0])}, {"b": np.array([2.0])})
    {'a': array([1.]), 'b': array([2.])}
    """
    tensor_dict1.update(plan_array_union(tensor_dict1, tensor_dict2))
    return tensor_dict1


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
    if not len(x):
        raise InputError("x: got no items, expected at least one DataProtoItem")
    tables = [{} if item.batch is None else dict(item.batch.items()) for item in x]
    others = [item.non_tensor_batch for item in x]
    for name, members in (("batch", tables), ("non_tensor_batch", others)):
        for number, member in enumerate(members):
            for key in members[0].keys() ^ member.keys():
                raise MissingKeyError(f"{name}: not all items have {key!r}; items 0 and {number} differ")
    batch = None
    if x[0].batch is not None:
        shared = rows.Shared()
        stacked = {key: stack_rows(key, [table[key] for table in tables], shared) for key in tables[0]}
        batch = TensorDict(stacked, batch_size=[len(x)], device=x[0].batch.device)
    arrays = {key: stack_objects([other[key] for other in others]) for key in others[0]}
    first, *rest = [item.meta_info for item in x]
    meta = {k: v for k, v in first.items() if all(k in one and same(v, one[k]) for one in rest)}
    return DataProto(batch, arrays, meta)


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
