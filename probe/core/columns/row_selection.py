"""Rows of a TensorDict, dense and jagged: how long they are, and copies of some of them.

A micro-batch is a copy of its rows rather than a view into one permuted copy of the batch. Gathering once and slicing
would save some microseconds, but then no micro-batch could be freed before the last one, writing into one could not
be told from writing into the batch's copy, and pickling one would carry the storage of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase

from probe.core.columns.jagged import Shared, build_jagged, is_jagged, jagged_lengths
from probe.core.columns.rows import columns, rebuilt, rows_at
from probe.errors import InputTypeError, MissingKeyError, ShapeError


def sequence_lengths(batch: TensorDictBase) -> tuple[list[int], int | None]:
    """Tokens of each row, and the padded width of the rectangle that they stand in (None for jagged rows).

    Jagged ``input_ids`` tell by their offsets; else ``attention_mask`` tells by its sum. One copy to the CPU.

    Raises:
        MissingKeyError: Neither is there.
        ShapeError: The mask isn't B × S.
    """
    ids = batch.get("input_ids", None)
    if is_jagged(ids):
        return jagged_lengths(ids).tolist(), None
    mask = batch.get("attention_mask", None)
    if mask is None:
        keys = ", ".join(sorted(map(str, batch.keys()))) or "none"
        raise MissingKeyError(f"batch: expected 'attention_mask' or jagged 'input_ids'; its keys: {keys}")
    if is_jagged(mask):
        zero = mask.values().new_zeros(1, dtype=torch.long)
        running = torch.cat((zero, (mask.values() != 0).long().cumsum(0)))
        starts = mask.offsets()[:-1]
        return (running[starts + jagged_lengths(mask)] - running[starts]).tolist(), None
    if mask.dim() != 2:
        raise ShapeError(f"attention_mask: got shape {tuple(mask.shape)}, expected (B, S)")
    return (mask != 0).sum(dim=-1).tolist(), int(mask.shape[1])


def host_lengths(tensor: torch.Tensor) -> list[int]:
    """:func:`jagged_lengths` as a list: one copy to the CPU."""
    lengths: list[int] = jagged_lengths(tensor).tolist()
    return lengths


class _Plan(NamedTuple):
    """Which tokens the chosen rows of some jagged columns are."""

    offsets: torch.Tensor
    tokens: torch.Tensor
    shortest: int
    longest: int

    @classmethod
    def from_index(cls, column: torch.Tensor, index: torch.Tensor, lengths: Sequence[int]) -> _Plan:
        nested: Any = column
        sizes = jagged_lengths(column).index_select(0, index)
        ends = sizes.cumsum(0)
        offsets = torch.cat((ends.new_zeros(1), ends))
        total = sum(lengths)  # told to torch, which would wait for the device to learn it
        shift = torch.repeat_interleave(
            nested.offsets()[:-1].index_select(0, index) - offsets[:-1], sizes, output_size=total
        )
        tokens = shift + torch.arange(total, device=index.device)
        return cls(offsets, tokens, min(lengths, default=0), max(lengths, default=0))

    def gathered(self, column: torch.Tensor) -> torch.Tensor:
        ragged: int = getattr(column, "_ragged_idx", 1)  # torch has no public name for the ragged dimension
        values = column.values().index_select(ragged - 1, self.tokens)
        return build_jagged(values, self.offsets, self.shortest, self.longest, ragged_dim=ragged)


def select_jagged(tensor: torch.Tensor, index: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """The rows ``index`` of a jagged tensor, as a jagged tensor of its own.

    By values and offsets, because indexing a jagged tensor by a list isn't in every torch. Differentiable.

    Args:
        tensor: A jagged tensor of two or more dimensions.
        index: Numbers of the rows, on the device of ``tensor``.
        lengths: The lengths of those rows, known on the CPU.
    """
    return _Plan.from_index(tensor, index, lengths).gathered(tensor)


class RowSelector:
    """Copies rows out of one batch. Made once for a batch, so that jagged lengths travel to the CPU once.

    Jagged columns that share their offsets share them in what is taken too: else torch couldn't combine them.

    >>> batch = TensorDict({"a": torch.tensor([10, 20, 30])}, batch_size=[3])
    >>> RowSelector(batch).select([2, 0])["a"].tolist()
    [30, 10]
    """

    def __init__(self, batch: TensorDictBase) -> None:
        if batch.batch_dims < 1:
            raise ShapeError("batch: got a TensorDict without a batch dimension, expected batch_size [B, …]")
        table = columns(batch)
        for key, column in table.items():
            if isinstance(column, torch.Tensor) and column.is_nested and not is_jagged(column):
                raise InputTypeError(f"batch[{key!r}]: got a nested tensor of layout {column.layout}, expected jagged")
        self._keys = list(table)
        self._jagged = {key: column for key, column in table.items() if is_jagged(column)}
        others = {key: column for key, column in table.items() if key not in self._jagged}
        self._others = rebuilt(batch, others, batch.batch_size[0])
        self._lengths = Shared()

    def select(self, rows: Sequence[int]) -> TensorDict:
        """A TensorDict of copies of ``rows``, which may be empty."""
        index = torch.tensor(rows, dtype=torch.long)
        taken = rows_at(self._others, index)
        if not self._jagged:
            return taken
        plans = Shared()
        picked = columns(taken)
        picked |= {key: self._selected_rows(column, index, rows, plans) for key, column in self._jagged.items()}
        return rebuilt(self._others, {key: picked[key] for key in self._keys}, len(rows))

    def _selected_rows(
        self, column: torch.Tensor, index: torch.Tensor, rows: Sequence[int], plans: Shared
    ) -> torch.Tensor:
        nested: Any = column
        layout = (nested.offsets(), nested.lengths())

        def plan() -> _Plan:
            lengths = self._lengths.get(layout, lambda: host_lengths(column))
            return _Plan.from_index(column, index.to(column.device), [lengths[row] for row in rows])

        made: _Plan = plans.get(layout, plan)
        return made.gathered(column)
