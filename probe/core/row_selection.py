"""Rows of a TensorDict, dense and jagged: how long they are, and copies of some of them.

A micro-batch is a copy of its rows rather than a view into one permuted copy of the batch. Gathering once and slicing
would save some microseconds, but then no micro-batch could be freed before the last one, writing into one could not
be told from writing into the batch's copy, and pickling one would carry the storage of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from probe.errors import InputTypeError, MissingKeyError, ShapeError


def is_jagged(value: object) -> bool:
    """Whether ``value`` is a nested tensor of the jagged layout."""
    return isinstance(value, torch.Tensor) and value.is_nested and value.layout == torch.jagged


def sequence_lengths(batch: TensorDictBase) -> tuple[list[int], int | None]:
    """Tokens of each row, and the padded width of the rectangle that they stand in (None for jagged rows).

    Jagged ``input_ids`` tell by their offsets; else ``attention_mask`` tells by its sum. One copy to the CPU.

    Raises:
        MissingKeyError: neither is there. ShapeError: the mask isn't B × S.
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


def jagged_lengths(tensor: torch.Tensor) -> torch.Tensor:
    """Length of each row of a jagged tensor, on its device."""
    nested: Any = tensor  # torch's stubs don't know the methods of a jagged tensor
    holes: torch.Tensor | None = nested.lengths()
    offsets: torch.Tensor = nested.offsets()
    return offsets.diff() if holes is None else holes


def host_lengths(tensor: torch.Tensor) -> list[int]:
    """:func:`jagged_lengths` as a list: one copy to the CPU."""
    lengths: list[int] = jagged_lengths(tensor).tolist()
    return lengths


def select_jagged(tensor: torch.Tensor, index: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """The rows ``index`` of a jagged tensor, as a jagged tensor of its own.

    By values and offsets, because indexing a jagged tensor by a list isn't in every torch. Differentiable.

    Args:
        index: rows, on the device of ``tensor``. lengths: of those rows, known on the CPU.
    """
    ragged: int = getattr(tensor, "_ragged_idx", 1)  # torch has no public name for the ragged dimension
    sizes = jagged_lengths(tensor)[index]
    ends = sizes.cumsum(0)
    offsets = torch.cat((ends.new_zeros(1), ends))
    nested: Any = tensor
    shift = torch.repeat_interleave(nested.offsets()[:-1][index] - offsets[:-1], sizes, output_size=sum(lengths))
    places = shift + torch.arange(sum(lengths), device=index.device)
    values = tensor.values().index_select(ragged - 1, places)
    return torch.nested.nested_tensor_from_jagged(
        values,
        offsets,
        jagged_dim=ragged,
        min_seqlen=min(lengths, default=0),
        max_seqlen=max(lengths, default=0),
    )


class RowSelector:
    """Copies rows out of one batch. Made once for a batch, so that jagged lengths travel to the CPU once.

    >>> batch = TensorDict({"a": torch.tensor([10, 20, 30])}, batch_size=[3])
    >>> RowSelector(batch).take([2, 0])["a"].tolist()
    [30, 10]
    """

    def __init__(self, batch: TensorDictBase) -> None:
        if batch.batch_dims < 1:
            raise ShapeError("batch: got a TensorDict without a batch dimension, expected batch_size [B, …]")
        self._batch = batch
        self._nested: dict[str, RowSelector] = {}
        self._lengths: dict[int, list[int]] = {}

    def take(self, rows: Sequence[int]) -> TensorDict:
        """A TensorDict of copies of ``rows``, which may be empty."""
        picked = {key: self._pick(str(key), value, rows) for key, value in self._batch.items()}
        size = [len(rows), *self._batch.batch_size[1:]]
        return TensorDict(picked, batch_size=size, device=self._batch.device)

    def _pick(self, key: str, value: Any, rows: Sequence[int]) -> Any:
        if isinstance(value, torch.Tensor):
            index = torch.tensor(rows, dtype=torch.long).to(value.device, non_blocking=True)
            if not value.is_nested:
                return value.index_select(0, index)
            if value.layout != torch.jagged:
                raise InputTypeError(
                    f"batch[{key!r}]: got a nested tensor of layout {value.layout}, expected torch.jagged"
                )
            lengths = self._host_lengths(value)
            return select_jagged(value, index, [lengths[row] for row in rows])
        if isinstance(value, TensorDictBase) and not hasattr(value, "data_type"):
            if type(value).__name__ in _NON_TENSORS:
                return value[list(rows)]
            if key not in self._nested:
                self._nested[key] = RowSelector(value)
            return self._nested[key].take(rows)
        return value[list(rows)]

    def _host_lengths(self, value: torch.Tensor) -> list[int]:
        # Columns of one batch usually share their offsets; ids stay unique because the batch keeps the tensors alive.
        nested: Any = value
        owner = nested.offsets() if nested.lengths() is None else nested.lengths()
        if id(owner) not in self._lengths:
            self._lengths[id(owner)] = host_lengths(value)
        return self._lengths[id(owner)]


_NON_TENSORS = frozenset({"NonTensorData", "NonTensorStack"})
