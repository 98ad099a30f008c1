"""A batch as a mapping of columns: what the codec gives a trainer, and how NeMo-RL's trainer deals with it.

Names and results are those of NeMo-RL's class, which can't select, join, shard or iterate over columns that are
jagged or NumPy arrays of objects. Here every method works with plain tensors, jagged tensors, lists and arrays.

Letters in shapes: N rows, S entries of a padded row, ``*`` anything.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, overload

import torch

from probe._check import whole_number
from probe.core.batched import sharding
from probe.core.batched.exchange import gathered
from probe.core.batched.sharding import Shard
from probe.core.columns import batch_columns as columns
from probe.core.columns.row_index import Index, row_numbers
from probe.errors import InputError, MissingKeyError, RowIndexError
from probe.hooks import observed, scope
from probe.moments import Content

DictT = TypeVar("DictT")


class BatchedDataDict(UserDict[str, Any], Generic[DictT]):
    """Columns of the same number of rows: tensors (N, *), jagged tensors, lists and NumPy arrays.

    It is a plain mapping: a column is checked when rows are asked for, not when it is set. ``DictT`` only says to
    a reader which columns there are.

    Args:
        *args: What a ``dict`` is made from: a mapping, or pairs of a name and its column.
        **kwargs: Further columns by name.

    Attributes:
        micro_batch_indices: For each global batch the [start, stop) rows of its micro-batches, counted from the first
            row of that global batch; None where nothing was planned. Set by :meth:`shard_by_batch_size`.
        micro_batch_lengths: For each global batch and micro-batch its padded width (dynamic batching) or the padded
            tokens packed into it (sequence packing).
        elem_counts_per_gb: Rows of each global batch.
        micro_batch_tokens: Like ``micro_batch_lengths``, but the tokens that are no padding.
        sequence_key: The column of tokens that was planned for; None where nothing was.

    >>> batch = BatchedDataDict({"ids": torch.tensor([[1, 2], [3, 4]]), "text": ["a", "b"]})
    >>> batch.select_indices([1])["text"], batch.size
    (['b'], 2)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.micro_batch_indices: list[list[list[int]]] | None = None
        self.micro_batch_lengths: list[list[int]] | None = None
        self.elem_counts_per_gb: list[int] | None = None
        self.micro_batch_tokens: list[list[int]] | None = None
        self.sequence_key: str | None = None

    # --------------------------------------------------------------------------------------------- whole batches

    @property
    def size(self) -> int:
        """N; 0 without columns.

        Raises:
            ShapeError: Columns have different N.
            InputTypeError: A column is of another kind.
        """
        return columns.rows_of(self.data)

    def get_dict(self) -> dict[str, Any]:
        """The columns as a plain dict of its own."""
        return dict(self.data)

    def to(self, device: torch.device | str | int) -> Self:
        """Move every tensor in place; what isn't a tensor stays. Jagged columns go on sharing their offsets."""
        self.data = columns.mapped(self.data, lambda tensor: tensor.to(device))
        return self

    @classmethod
    @observed("batched_data_dict.from_batches", "batches are joined; argument batches, result the joined one")
    def from_batches(
        cls, batches: Sequence[Mapping[str, Any]], pad_value_dict: Mapping[str, float] | None = None
    ) -> Self:
        """The rows of all ``batches``, in their order; the columns in the order of the first.

        Tensors (N, S, *) of different S are padded at the right of dimension 1 to the widest. A column that is jagged
        in any batch comes out jagged, without padding. Lists stay lists; a list beside an object array gives an array.

        Args:
            batches: At least one; each has the same columns.
            pad_value_dict: The value that a column is padded with, by the column's name; 0 where it names none.

        Raises:
            InputError: There are no batches, or a column can't hold its pad value.
            MissingKeyError: Some batch lacks a column.
            ShapeError: Columns don't fit together.
            InputTypeError: Columns of different kinds or dtypes don't fit together.

        >>> parts = [{"ids": torch.tensor([[1, 2]])}, {"ids": torch.tensor([[3]])}]
        >>> BatchedDataDict.from_batches(parts, {"ids": -1})["ids"].tolist()
        [[1, 2], [3, -1]]
        """
        return cls(columns.joined(list(batches), pad_value_dict))

    @observed("batched_data_dict.all_gather", "the rows of all ranks are gathered; result the joined batch")
    def all_gather(self, group: Any = None, pad_value_dict: Mapping[str, float] | None = None) -> Self:
        """The rows of all ranks of ``group``, in the order of ranks, joined as :meth:`from_batches` does.

        A collective: every rank calls it. Ranks may have different N and S. Tensors travel as they are, objects
        pickled.

        Args:
            group: The process group; None means all ranks.
            pad_value_dict: The value that a column is padded with, by the column's name; 0 where it names none.

        Raises:
            PeerError: Another rank can't take part.
            MissingKeyError: A rank lacks a column. Every rank raises the same.
            ShapeError: Columns don't fit together. Every rank raises the same.
            InputTypeError: Columns of different kinds or dtypes don't fit together. Every rank raises the same.
            SessionError: There is no process group.
        """
        return type(self)(gathered(self.data, group, pad_value_dict))

    # ---------------------------------------------------------------------------------------------- parts of rows

    def slice(self, start: int | None, end: int | None) -> SlicedDataDict:
        """Rows ``start`` to ``end``, read as Python's own slices are. Tensors and arrays are views.

        Args:
            start: The first row; None means the beginning. Negative numbers count from the end.
            end: The row after the last one; None means the end.
        """
        first, last, _ = slice(start, end).indices(self.size)
        return SlicedDataDict(columns.cut(self.data, first, max(first, last)))

    @observed("batched_data_dict.chunk", "one of several equal parts is copied; arguments rank, chunks")
    def chunk(self, rank: int, chunks: int) -> SlicedDataDict:
        """The ``rank``-th of ``chunks`` equal parts, a copy: the whole batch can be freed.

        Args:
            rank: Which of the parts, from 0.
            chunks: How many parts there are; it must divide the number of rows.

        Raises:
            InputError: N isn't a multiple of ``chunks``, or ``rank`` isn't one of 0 … chunks − 1.

        >>> BatchedDataDict({"a": torch.arange(6)}).chunk(1, 3)["a"].tolist()
        [2, 3]
        """
        whole_number("chunks", chunks, 1)
        if not 0 <= rank < chunks:
            raise InputError(f"rank: got {rank}, expected 0 to {chunks - 1}")
        count = self.size
        if count % chunks:
            raise InputError(f"chunks: {count} rows can't be shared equally by {chunks} chunks")
        each = count // chunks
        return SlicedDataDict(columns.cloned(columns.cut(self.data, rank * each, (rank + 1) * each)))

    @observed("batched_data_dict.select_indices", "selected rows are copied; argument indices")
    def select_indices(self, indices: Index) -> Self:
        """Copies of some rows, in the order of ``indices`` (list, array or tensor of numbers or booleans).

        Raises:
            RowIndexError: See :func:`probe.core.columns.row_index.row_numbers`.
            ShapeError: See :func:`probe.core.columns.row_index.row_numbers`.
            InputTypeError: See :func:`probe.core.columns.row_index.row_numbers`.
        """
        index = row_numbers(list(indices) if isinstance(indices, tuple) else indices, self.size)
        return type(self)(columns.columns_at(self.data, index))

    @observed("batched_data_dict.reorder_data", "rows return to their original order; argument reordered_indices")
    def reorder_data(self, reordered_indices: Sequence[int] | torch.Tensor) -> None:
        """Put rows back in place: row j goes to ``reordered_indices[j]``. Undoes what ``shard_by_batch_size`` sorted.

        A plan of micro-batches would no longer fit, and is dropped.

        Raises:
            InputError: The indices aren't each of 0 … N − 1 once; nothing has changed then.

        >>> batch = BatchedDataDict({"a": torch.tensor([30, 10, 20])})
        >>> batch.reorder_data([2, 0, 1]); batch["a"].tolist()
        [10, 20, 30]
        """
        self.data = columns.columns_at(self.data, sharding.inverse_of(reordered_indices, self.size))
        self._plan(None)

    @observed("batched_data_dict.repeat_interleave", "every row is repeated; argument num_repeats")
    def repeat_interleave(self, num_repeats: int, share_immutable_media: bool = False) -> Self:
        """Every row ``num_repeats`` times in a row. Objects are deep copies: no two rows change together.

        Args:
            num_repeats: How often each row is there in the result.
            share_immutable_media: Whether tensors, arrays, bytes and images inside the objects are shared and not
                copied.

        >>> BatchedDataDict({"a": torch.tensor([1, 2])}).repeat_interleave(2)["a"].tolist()
        [1, 1, 2, 2]
        """
        whole_number("num_repeats", num_repeats, 0)
        return type(self)(columns.repeated(self.data, num_repeats, share_immutable_media))

    @observed(
        "batched_data_dict.truncate_tensors", "columns are truncated on the right; arguments dim, truncated_len, keys"
    )
    def truncate_tensors(self, dim: int, truncated_len: int, keys: Iterable[str] | None = None) -> None:
        """Cut tensors in place to at most ``truncated_len`` along ``dim``, as views; shorter ones stay.

        Args:
            dim: The dimension to cut, from 1. Columns without such a dimension stay. Jagged columns are cut row by row
                where it is their ragged dimension (a copy, where any row is longer).
            truncated_len: The most entries that stay along ``dim``.
            keys: The columns to cut; None means every tensor that has the dimension, images and the like included.

        Raises:
            InputError: ``dim`` is below 1, or the length is negative.
            MissingKeyError: ``keys`` names a column that isn't there.
        """
        whole_number("dim", dim, 1)
        whole_number("truncated_len", truncated_len, 0)
        chosen = None if keys is None else list(keys)
        for key in chosen or ():
            if key not in self.data:
                raise MissingKeyError(f"keys: no column {key!r}; there are {', '.join(self.data) or 'none'}")
        self.data = columns.truncated(self.data, dim, truncated_len, chosen)

    # --------------------------------------------------------------------------------------------------- sharding

    @overload
    def shard_by_batch_size(
        self,
        shards: int,
        batch_size: int | None = None,
        allow_uneven_shards: bool = False,
        dynamic_batching_args: None = None,
        sequence_packing_args: None = None,
    ) -> list[SlicedDataDict]: ...

    @overload
    def shard_by_batch_size(
        self,
        shards: int,
        batch_size: int | None = None,
        allow_uneven_shards: bool = False,
        *,
        dynamic_batching_args: Mapping[str, Any],
        sequence_packing_args: None = None,
    ) -> tuple[list[SlicedDataDict], list[int]]: ...

    @overload
    def shard_by_batch_size(
        self,
        shards: int,
        batch_size: int | None = None,
        allow_uneven_shards: bool = False,
        dynamic_batching_args: None = None,
        *,
        sequence_packing_args: Mapping[str, Any],
    ) -> tuple[list[SlicedDataDict], list[int]]: ...

    @observed("batched_data_dict.shard_by_batch_size", "a batch is dealt to shards; result list, or (list, indices)")
    def shard_by_batch_size(
        self,
        shards: int,
        batch_size: int | None = None,
        allow_uneven_shards: bool = False,
        dynamic_batching_args: Mapping[str, Any] | None = None,
        sequence_packing_args: Mapping[str, Any] | None = None,
    ) -> list[SlicedDataDict] | tuple[list[SlicedDataDict], list[int]]:
        """Deal the rows to ``shards`` ranks, each global batch of ``batch_size`` rows to all of them.

        Plain: of every global batch, shard i gets the i-th of ``shards`` equal stretches; its global batches stand
        one after the other.

        Dynamic batching: the rows of a global batch are sorted by length and dealt in turn, then cut into micro-batches
        of the same numbers of rows on every shard, whose rectangles (rows × longest row over all shards, rounded) have
        at most so many tokens. Sequence packing: each global batch is packed into bins (:mod:`probe.core.packing`),
        as many for every shard, dealt in turn.

        Args:
            shards: How many ranks the rows are dealt to.
            batch_size: Rows of a global batch over all shards; None means all rows.
            allow_uneven_shards: Whether shards may differ by one row, the first ones being longer; not with
                ``batch_size`` or dynamic batching.
            dynamic_batching_args: Keys of :class:`probe.core.batched.sharding.DynamicBatchingArgs`.
            sequence_packing_args: Keys of :class:`probe.core.batched.sharding.SequencePackingArgs`.

        Returns:
            The shards, copies; with either of the arguments also for each of their rows, shard after shard, the row
            of this batch that it was. ``BatchedDataDict.from_batches(outputs).reorder_data(indices)`` undoes it.

        Raises:
            InputError: Numbers don't divide.
            CapacityError: A sequence is above the cap; the message names its row.
            UnknownNameError: A key of an argument isn't known.
            MissingKeyError: A key of an argument is lacking, or the column that it names.

        >>> batch = BatchedDataDict({"a": torch.arange(8)})
        >>> [shard["a"].tolist() for shard in batch.shard_by_batch_size(2, batch_size=4)]
        [[0, 1, 4, 5], [2, 3, 6, 7]]
        """
        plan = sharding.plan(
            self.data, shards, batch_size, allow_uneven_shards, dynamic_batching_args, sequence_packing_args
        )
        made = [self._shard(one) for one in plan]
        if dynamic_batching_args is None and sequence_packing_args is None:
            return made
        return made, [row for one in plan for row in one.rows]

    def _shard(self, shard: Shard) -> SlicedDataDict:
        index = torch.tensor(shard.rows, dtype=torch.int64)
        made = SlicedDataDict(columns.columns_at(self.data, index))
        made._plan(shard)
        return made

    def _plan(self, shard: Shard | None) -> None:
        if shard is None or shard.sequence_key is None:
            self.micro_batch_indices = self.micro_batch_lengths = self.micro_batch_tokens = None
            self.elem_counts_per_gb = self.sequence_key = None
            return
        self.sequence_key = shard.sequence_key
        self.elem_counts_per_gb = shard.elem_counts
        self.micro_batch_indices = shard.micro_batch_indices
        self.micro_batch_lengths = shard.micro_batch_lengths
        self.micro_batch_tokens = shard.micro_batch_tokens

    @observed("batched_data_dict.get_batch", "one global batch of a shard; arguments batch_idx, batch_size")
    def get_batch(self, batch_idx: int, batch_size: int | None = None) -> SlicedDataDict:
        """The ``batch_idx``-th global batch of this shard, as views, with its plan of micro-batches.

        Args:
            batch_idx: Number of the global batch, from 0.
            batch_size: Rows of a global batch on this shard. Where micro-batches are planned the plan tells, as global
                batches then have different numbers of rows, and this is ignored.

        Raises:
            InputError: There is no ``batch_size`` and no plan.
            RowIndexError: There is no such global batch.
        """
        counts = self._planned_counts()
        if counts is None:
            if batch_size is None:
                raise InputError("batch_size: got None, expected a number, as no micro-batches are planned")
            whole_number("batch_size", batch_size, 1)
            _check_batch(batch_idx, -(-self.size // batch_size))
            return self.slice(batch_idx * batch_size, (batch_idx + 1) * batch_size)
        _check_batch(batch_idx, len(counts))
        start = sum(counts[:batch_idx])
        batch = self.slice(start, start + counts[batch_idx])
        batch.elem_counts_per_gb = [counts[batch_idx]]
        for name in ("micro_batch_indices", "micro_batch_lengths", "micro_batch_tokens"):
            planned = getattr(self, name)
            setattr(batch, name, None if planned is None else [planned[batch_idx]])
        batch.sequence_key = self.sequence_key
        return batch

    # ----------------------------------------------------------------------------------------------- micro-batches
    #
    # Each is in a scope of its own while the loop's body runs, so that it has its own peak memory and its own time.

    def make_microbatch_iterator(self, microbatch_size: int) -> Iterator[SlicedDataDict]:
        """Micro-batches of ``microbatch_size`` rows, as views.

        Raises:
            InputError: N isn't a multiple of it. Raised at once, not at the first step.

        >>> batch = BatchedDataDict({"a": torch.arange(4)})
        >>> [part["a"].tolist() for part in batch.make_microbatch_iterator(2)]
        [[0, 1], [2, 3]]
        """
        whole_number("microbatch_size", microbatch_size, 1)
        count = self.size
        if count % microbatch_size:
            raise InputError(f"microbatch_size: {count} rows can't be cut into micro-batches of {microbatch_size}")
        spans = [(start, start + microbatch_size) for start in range(0, count, microbatch_size)]
        return self._micro_batches(spans, None)

    def make_microbatch_iterator_with_dynamic_shapes(self, sequence_dim: int = 1) -> Iterator[SlicedDataDict]:
        """The planned micro-batches, each cut to its own width along ``sequence_dim``.

        Only columns that are aligned with the tokens of the plan's input column, being as wide there, are cut.

        Raises:
            InputError: :meth:`shard_by_batch_size` planned no dynamic batching. Raised at once, not at the first step.
        """
        spans, lengths = self._planned("dynamic_batching_args")
        whole_number("sequence_dim", sequence_dim, 1)
        return self._cut_micro_batches(spans, lengths, sequence_dim)

    def get_microbatch_iterator_dynamic_shapes_len(self) -> int:
        """How many micro-batches :meth:`make_microbatch_iterator_with_dynamic_shapes` gives."""
        return len(self._planned("dynamic_batching_args")[0])

    def make_microbatch_iterator_for_packable_sequences(self) -> Iterator[SlicedDataDict]:
        """The planned micro-batches, each the rows of one bin; the model packs them by their lengths.

        Raises:
            InputError: :meth:`shard_by_batch_size` planned no sequence packing. Raised at once, not at the first step.
        """
        spans, _ = self._planned("sequence_packing_args")
        return self._micro_batches(spans, self.micro_batch_tokens)

    def get_microbatch_iterator_for_packable_sequences_len(self) -> tuple[int, int]:
        """How many micro-batches the packable iterator gives, and the most padded tokens in one of them."""
        spans, lengths = self._planned("sequence_packing_args")
        return len(spans), max(lengths, default=0)

    def _planned_counts(self) -> list[int] | None:
        """Rows of each planned global batch; from its micro-batches, where somebody else set those alone."""
        if self.elem_counts_per_gb is None and self.micro_batch_indices is not None:
            return [max((stop for _, stop in spans), default=0) for spans in self.micro_batch_indices]
        return self.elem_counts_per_gb

    def _planned(self, argument: str) -> tuple[list[tuple[int, int]], list[int]]:
        """Rows and padded lengths of the micro-batches of all global batches here."""
        if self.micro_batch_indices is None or self.micro_batch_lengths is None:
            raise InputError(f"no micro-batches are planned: call shard_by_batch_size with {argument} first")
        found, base = [], 0
        for spans, count in zip(self.micro_batch_indices, self._planned_counts() or (), strict=True):
            found += [(base + start, base + stop) for start, stop in spans]
            base += count
        return found, [length for lengths in self.micro_batch_lengths for length in lengths]

    def _micro_batches(
        self, spans: Sequence[tuple[int, int]], planned: list[list[int]] | None
    ) -> Generator[SlicedDataDict, None, None]:
        tokens = [one for batch in planned for one in batch] if planned is not None else None
        for index, (start, stop) in enumerate(spans):
            known: dict[str, Any] = {} if tokens is None else {"tokens": tokens[index]}
            with scope("micro_batch", str(index), micro_batch=index, sequences=stop - start, **known) as opened:
                try:
                    yield self._told(opened, start, stop)
                except GeneratorExit:  # the loop was left early, by a break or by an exception in its body
                    opened.abandon()
                    return

    def _told(self, opened: scope, start: int, stop: int) -> SlicedDataDict:
        part = self.slice(start, stop)
        opened.values["content"] = Content(part, None)
        return part

    def _cut_micro_batches(
        self, spans: Sequence[tuple[int, int]], lengths: Sequence[int], sequence_dim: int
    ) -> Iterator[SlicedDataDict]:
        parts = self._micro_batches(spans, self.micro_batch_tokens)
        try:
            for part, length in zip(parts, lengths, strict=True):
                aligned = columns.aligned_with(part.data, self.sequence_key, sequence_dim)
                part.data = columns.truncated(part.data, sequence_dim, length, aligned)
                yield part
        finally:
            parts.close()  # its scope ends with this loop


class SlicedDataDict(BatchedDataDict[Any]):
    """Some rows of another batch; a class of its own so that a reader can tell."""


def _check_batch(batch_idx: int, count: int) -> None:
    whole_number("batch_idx", batch_idx, 0)
    if batch_idx >= count:
        raise RowIndexError(f"batch_idx: got {batch_idx}, expected 0 to {count - 1}")
