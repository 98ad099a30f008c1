"""Rows of a DataProto that are picked: one of them as an item, a stretch, any list of them, each several times.

Letters in shapes: B rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from probe._check import whole_number
from probe.core.columns import rows
from probe.core.columns.row_index import row_number, row_numbers
from probe.core.data_proto.checks import Array, repeat_counts
from probe.core.data_proto.item import DataProtoItem
from probe.core.data_proto.members import M, Members, like
from probe.core.data_proto.merging import PAD_ROWS
from probe.errors import InputError, InputTypeError, MissingKeyError, ShapeError


def got(data: Members, index: Any) -> Any:
    """See :meth:`probe.core.protocol.DataProto.__getitem__`."""
    if isinstance(index, slice):
        return stretch(data, index)
    if isinstance(index, str):
        return column(data, index)
    count = len(data)
    row = row_number(index, count)
    return rows_at(data, row_numbers(index, count)) if row is None else item(data, row)


def column(data: Members, name: str) -> Any:
    """The column of that name, of tensors or of objects.

    Raises:
        MissingKeyError: There is none; the message names what there is.
    """
    names = () if data.batch is None else data.batch.keys()  # a TensorDict itself refuses `in`
    if data.batch is not None and name in names:
        return data.batch.get(name)
    if name in data.non_tensor_batch:
        return data.non_tensor_batch[name]
    known = [*names, *data.non_tensor_batch]
    raise MissingKeyError(f"index: there is no column {name!r}; the batch has {', '.join(map(repr, known)) or 'none'}")


def item(data: Members, row: int) -> DataProtoItem:
    """Row ``row``, counted from 0."""
    batch = None if data.batch is None else data.batch[row]
    return DataProtoItem(
        batch, {key: column[row] for key, column in data.non_tensor_batch.items()}, dict(data.meta_info)
    )


def items(data: Members) -> Iterator[DataProtoItem]:
    """All rows, one after the other."""
    return (item(data, row) for row in range(len(data)))


def row_meta(data: Members) -> dict[str, Any]:
    """The meta info of other rows than these: it doesn't say which of them are copies."""
    return {key: value for key, value in data.meta_info.items() if key != PAD_ROWS}


def rows_at(data: M, index: torch.Tensor) -> M:
    """The rows ``index`` (int64, not negative), copied."""
    batch = None if data.batch is None else rows.rows_at(data.batch, index)
    arrays = data.non_tensor_batch
    if arrays:
        numbers = index.cpu().numpy()
        arrays = {key: column[numbers] for key, column in arrays.items()}
    return like(data, batch, dict(arrays), row_meta(data))


def rows_of(data: M, index: Any) -> M:
    """The rows that a list, an array or a tensor of integers or booleans picks, copied."""
    return rows_at(data, row_numbers(index, len(data)))


def stretch(data: M, span: slice) -> M:
    """The rows of a slice: views, if its step is 1 or None.

    Raises:
        InputTypeError: Its bounds are neither integers nor None.
    """
    try:
        start, stop, step = span.indices(len(data))
    except TypeError as error:
        raise InputTypeError(f"index: got {span!r}, expected integers or None in a slice") from error
    if step != 1:
        return rows_at(data, torch.from_numpy(np.arange(start, stop, step)))
    stop = max(start, stop)
    batch = None if data.batch is None else rows.cut(data.batch, start, stop)
    arrays = {key: column[start:stop] for key, column in data.non_tensor_batch.items()}
    return like(data, batch, arrays, row_meta(data))


def become(data: Members, other: Members) -> None:
    """Give ``data`` the rows of ``other``, in place; its meta info stays."""
    data.batch = other.batch
    data.non_tensor_batch = other.non_tensor_batch


def reorder(data: Members, indices: Any) -> None:
    """See :meth:`probe.core.protocol.DataProto.reorder`."""
    become(data, rows_of(data, indices))
    data.meta_info.pop(PAD_ROWS, None)


def repeat(data: M, repeat_times: int, interleave: bool) -> M:
    """See :meth:`probe.core.protocol.DataProto.repeat`."""
    whole_number("repeat_times", repeat_times, 0, expected="an integer")
    index = torch.arange(len(data))
    return rows_at(data, index.repeat_interleave(repeat_times) if interleave else index.repeat(repeat_times))


def sample_level_repeat(data: M, repeat_times: Sequence[int] | torch.Tensor | Array) -> M:
    """See :meth:`probe.core.protocol.DataProto.sample_level_repeat`."""
    counts = repeat_counts(repeat_times)
    if counts.shape != (len(data),):
        raise ShapeError(f"repeat_times: got shape {tuple(counts.shape)}, expected ({len(data)},)")
    if counts.numel() and int(counts.min()) < 0:
        raise InputError(f"repeat_times: got {int(counts.min())}, expected numbers of at least 0")
    return rows_at(data, torch.repeat_interleave(torch.arange(len(data)), counts))
