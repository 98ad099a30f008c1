"""A DataProto cut into parts: equal ones, ones of a given size, mini-batches by way of torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic

import torch
from torch.utils.data import DataLoader, Dataset

from probe._check import whole_number
from probe.core.columns import rows
from probe.core.data_proto.members import M, like
from probe.core.data_proto.merging import PAD_ROWS
from probe.core.data_proto.padding import padded
from probe.core.data_proto.picking import row_meta, rows_at
from probe.errors import InputError


def chunk(data: M, chunks: int) -> list[M]:
    """See :meth:`probe.core.protocol.DataProto.chunk`."""
    whole_number("chunks", chunks, 1, expected="an integer")
    short = -len(data) % chunks
    if not short:
        return _pieces(data, [len(data) // chunks] * chunks)
    if not data.is_padding_enabled():
        raise InputError(
            f"chunks: got {chunks} for {len(data)} rows, which don't divide evenly; expected a "
            "divisor, or auto_padding=True, or DataProtoConfig.auto_padding"
        )
    parts = _pieces(padded(data, short, "data_proto.chunk"), [(len(data) + short) // chunks] * chunks)
    size = (len(data) + short) // chunks
    for number, part in enumerate(parts):
        part.meta_info[PAD_ROWS] = min(size, max(0, (number + 1) * size - len(data)))
    return parts


def split(data: M, split_size: int) -> list[M]:
    """See :meth:`probe.core.protocol.DataProto.split`."""
    whole_number("split_size", split_size, 1, expected="an integer")
    whole, rest = divmod(len(data), split_size)
    return _pieces(data, [split_size] * whole + [rest] * bool(rest))


def _pieces(data: M, sizes: Sequence[int]) -> list[M]:
    batches = [None] * len(sizes) if data.batch is None else rows.pieces(data.batch, sizes)
    spans = list(rows.spans_of(sizes))
    return [
        like(
            data,
            batch,
            {key: column[start:stop] for key, column in data.non_tensor_batch.items()},
            row_meta(data),
        )
        for batch, (start, stop) in zip(batches, spans, strict=True)
    ]


# ------------------------------------------------------------------------------------------------------ mini-batches


def mini_batches(
    data: M, mini_batch_size: int, epochs: int, seed: int | None, dataloader_kwargs: Mapping[str, Any] | None
) -> Iterator[M]:
    """See :meth:`probe.core.protocol.DataProto.make_iterator`."""
    whole_number("mini_batch_size", mini_batch_size, 1, expected="an integer")
    whole_number("epochs", epochs, 0, expected="an integer")
    if len(data) % mini_batch_size:
        raise InputError(f"mini_batch_size: got {mini_batch_size}, which doesn't divide the {len(data)} rows")
    chosen = dict(dataloader_kwargs or {})
    for name in {"dataset", "batch_size", "collate_fn"} & chosen.keys():
        raise InputError(f"dataloader_kwargs: got {name!r}, which make_iterator sets itself")
    if seed is not None:
        chosen.setdefault("generator", torch.Generator().manual_seed(seed))
    if not len(data):
        return iter(())
    loader = DataLoader(_RowNumbers(len(data)), mini_batch_size, collate_fn=_Collate(data), **chosen)
    return (part for _ in range(epochs) for part in loader)


class _RowNumbers(Dataset[int]):
    """What the DataLoader draws from: row numbers, so that a worker process gets no copy of a row per
    item."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> int:
        return row


class _Collate(Generic[M]):
    """Row numbers to a batch; a class and no closure, so that a DataLoader's workers can be spawned."""

    def __init__(self, data: M) -> None:
        self._data = data

    def __call__(self, numbers: list[int]) -> M:
        return rows_at(self._data, torch.tensor(numbers, dtype=torch.int64))
