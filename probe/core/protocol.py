"""DataProto: the batch that travels between the parts of a trainer.

Three members, the documented ones: ``batch`` (a TensorDict, one column for each tensor),
``non_tensor_batch`` (numpy arrays, one entry for each row: prompts, ids, anything) and ``meta_info`` (what
holds for the whole batch). All methods keep the three together, return the class they were
called on, and either do all of what they say or nothing.

What is shared: results share tensors with their source wherever torch can make a view, and never share
``meta_info`` or ``non_tensor_batch``, so that adding a key to one batch doesn't add it to another.

Jagged columns (nested tensors) work everywhere that rows are taken, cut or joined; see
:mod:`probe.core.columns.rows`. Here is what is documented; what the methods do is in functions of
:mod:`probe.core.data_proto`, one group a file: :mod:`~probe.core.data_proto.members` (all three members),
:mod:`~probe.core.data_proto.picking` (rows), :mod:`~probe.core.data_proto.cutting` (parts),
:mod:`~probe.core.data_proto.column_choice` (columns), :mod:`~probe.core.data_proto.merging` (``union`` and ``concat``),
:mod:`~probe.core.data_proto.file` (files), :mod:`~probe.core.data_proto.info` (how a batch looks). Payloads are in
:mod:`probe.core.columns.serialization`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from probe.core.columns import rows
from probe.core.columns.serialization import (
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)
from probe.core.data_proto import column_choice, cutting, from_dicts, members, merging, padding, picking, reshaping
from probe.core.data_proto import file as data_file
from probe.core.data_proto import info as data_info
from probe.core.data_proto.checks import Array, Keys
from probe.core.data_proto.config import DataProtoConfig
from probe.core.data_proto.exchange import from_mixed_tensordict, gather_columns, to_mixed_tensordict
from probe.core.data_proto.future import DataProtoFuture, batches_are
from probe.core.data_proto.item import DataProtoItem, same_members
from probe.core.data_proto.merging import (
    list_of_dict_to_dict_of_list,
    plan_meta_union,
    union_numpy_dict,
    union_tensor_dict,
    union_two_dict,
)
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

    @observed("data_proto.select_idxs", "rows are picked")
    def select_idxs(self, idxs: Any) -> Self:
        """The rows that ``idxs`` (integers or booleans, in a list, array or tensor) picks, copied.

        Raises: as ``data[idxs]``; a single integer is an InputTypeError.

        >>> DataProto.from_dict({"a": torch.arange(3)}).select_idxs([2, 2]).batch["a"].tolist()
        [2, 2]
        """
        return picking.rows_of(self, idxs)

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
        return picking.stretch(self, slice(start, end, step))

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
        return column_choice.select(self, batch_keys, non_tensor_batch_keys, meta_info_keys, deepcopy)

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
        return column_choice.pop(self, batch_keys, non_tensor_batch_keys, meta_info_keys)

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
        return column_choice.rename(self, old_keys, new_keys)

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
        return merging.concat(data, DataProto)

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
        return cutting.chunk(self, chunks)

    @observed("data_proto.split", "a batch is cut into parts of a given size")
    def split(self, split_size: int) -> list[Self]:
        """Batches of ``split_size`` rows, as views; the last may be shorter.

        Raises:
            InputError: ``split_size`` is below 1.

        >>> [len(part) for part in DataProto.from_dict({"a": torch.arange(5)}).split(2)]
        [2, 2, 1]
        """
        return cutting.split(self, split_size)

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
        return picking.repeat(self, repeat_times, interleave)

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
        return picking.sample_level_repeat(self, repeat_times)

    @observed("data_proto.reorder", "the rows are put in another order")
    def reorder(self, indices: Any) -> None:
        """Put the rows in the order of ``indices`` (list, array or tensor), in place.

        Raises: as ``data[indices]``; nothing has changed then.

        >>> data = DataProto.from_dict({"a": torch.tensor([7, 8, 9])})
        >>> data.reorder([2, 0, 1])
        >>> data.batch["a"].tolist()
        [9, 7, 8]
        """
        picking.reorder(self, indices)

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
        return reshaping.unfold_column_chunks(self, n_split, split_keys)

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
        return cutting.mini_batches(self, mini_batch_size, epochs, seed, dataloader_kwargs)

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
        padding.padding(self, padding_size, padding_candidate)

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
        return data_info.mime_bundle(repr(self), self._repr_html_(), include, exclude)

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
        return reshaping.fold_batch_dim(self, new_batch_size)

    @observed("data_proto.unfold_batch_dim", "groups become rows again")
    def unfold_batch_dim(self, batch_dims: int = 2) -> Self:
        """The first ``batch_dims`` dimensions of all columns as one. This batch stays as it is.

        Raises:
            InputError: ``batch_dims`` is below 1.
            ShapeError: A column has fewer dimensions, or others than its neighbours, or is jagged.

        >>> DataProto.from_dict({"a": torch.zeros(2, 3, 5)}).unfold_batch_dim()
        DataProto(6 rows; batch: a float32(6, 5))
        """
        return reshaping.unfold_batch_dim(self, batch_dims)


batches_are(DataProto)


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
