"""Rows of a TensorDict, jagged columns included: taking, cutting and joining them, and moving or copying a whole one.

What an index means is in :mod:`probe.core.columns.row_index`, the jagged columns themselves are in
:mod:`probe.core.columns.jagged`. Columns that share one offsets tensor share one afterwards as well.

Letters in shapes: B rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor

from probe.core.columns.jagged import Shared, cut_jagged, is_jagged, join_jagged, map_jagged, picked, take_jagged

#: The columns here are made to fit, and checking each again is most of what cutting into many parts would
#: cost.
#: TensorDict's own methods use the unchecked constructor for the same reason; it isn't public, hence the
#: fallback.
_UNCHECKED: Final[Callable[..., TensorDict]] = getattr(TensorDict, "_new_unsafe", TensorDict)


def columns(batch: TensorDictBase) -> dict[str, Any]:
    """Name to column: a tensor, a nested TensorDict, or TensorDict's own wrapper of what isn't a tensor."""
    return dict(batch.items())


def rebuilt(batch: TensorDictBase, new: dict[str, Any], rows: int) -> TensorDict:
    """A TensorDict of ``new`` columns that has ``batch``'s device and further batch dimensions."""
    return _UNCHECKED(new, batch_size=torch.Size([rows, *batch.batch_size[1:]]), device=batch.device)


def _is_batch(column: object) -> bool:
    return isinstance(column, TensorDictBase) and not is_non_tensor(column)


def _strided_rows(column: torch.Tensor, index: Sequence[int]) -> torch.Tensor:
    rows = column.unbind()
    return torch.nested.nested_tensor([rows[one] for one in index], dtype=column.dtype, device=column.device)


def rows_at(batch: TensorDictBase, index: torch.Tensor, shared: Shared | None = None) -> TensorDict:
    """Copies of the rows ``index`` (int64, not negative), in that order."""
    shared = shared or Shared()
    moved: dict[torch.device, torch.Tensor] = {index.device: index}

    def one(column: Any) -> Any:
        if isinstance(column, torch.Tensor):
            if column.is_nested:
                if column.layout is torch.jagged:
                    return take_jagged(column, index, shared)
                return _strided_rows(column, index.tolist())
            device = column.device
            if device not in moved:
                moved[device] = index.to(device)
            return picked(column, 0, moved[device])
        return rows_at(column, index, shared) if _is_batch(column) else column[index]

    return rebuilt(batch, {key: one(column) for key, column in batch.items()}, index.shape[0])


def cut(batch: TensorDictBase, start: int, stop: int, shared: Shared | None = None) -> TensorDict:
    """Rows ``start`` to ``stop`` (``0 <= start <= stop <= B``) as views."""
    shared = shared or Shared()
    count = stop - start

    def one(column: Any) -> Any:
        if isinstance(column, torch.Tensor):
            if column.is_nested:
                if column.layout is torch.jagged:
                    return cut_jagged(column, start, stop, shared)
                return _strided_rows(column, range(start, stop))
            return column.narrow(0, start, count)
        return cut(column, start, stop, shared) if _is_batch(column) else column[start:stop]

    return rebuilt(batch, {key: one(column) for key, column in batch.items()}, count)


def pieces(batch: TensorDictBase, sizes: Sequence[int], shared: Sequence[Shared] = ()) -> list[TensorDict]:
    """Consecutive cuts of ``sizes`` rows, which add up to B, as views."""
    shared = shared or [Shared() for _ in sizes]
    tables: list[dict[str, Any]] = [{} for _ in sizes]
    for key, column in batch.items():
        for table, piece in zip(tables, _column_pieces(column, sizes, shared), strict=True):
            table[key] = piece
    return [rebuilt(batch, table, size) for table, size in zip(tables, sizes, strict=True)]


def _column_pieces(column: Any, sizes: Sequence[int], shared: Sequence[Shared]) -> Any:
    if isinstance(column, torch.Tensor) and not column.is_nested:
        return torch.split(column, list(sizes))
    if _is_batch(column):
        return pieces(column, sizes, shared)
    spans = list(spans_of(sizes))
    if is_jagged(column):
        return [cut_jagged(column, *span, one) for span, one in zip(spans, shared, strict=True)]
    if isinstance(column, torch.Tensor):
        return [_strided_rows(column, range(*span)) for span in spans]
    return [column[start:stop] for start, stop in spans]


def spans_of(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(start, stop) of consecutive stretches of ``sizes``."""
    start = 0
    for size in sizes:
        yield start, start + size
        start += size


def join(batches: Sequence[TensorDictBase], shared: Shared | None = None) -> TensorDict:
    """The rows of all ``batches``, which have the same keys, one after the other.

    Raises:
        RuntimeError: torch can't join a column; :func:`probe.core.protocol.DataProto.concat` says why.
        TypeError: torch can't join a column; :func:`probe.core.protocol.DataProto.concat` says why.
    """
    shared = shared or Shared()
    first = batches[0]
    tables = [dict(batch.items()) for batch in batches]

    def one(parts: list[Any]) -> Any:
        head = parts[0]
        if isinstance(head, torch.Tensor):
            if not head.is_nested:
                return torch.cat(parts)
            if head.layout is torch.jagged:
                return join_jagged(parts, shared)
            rows = [row for part in parts for row in part.unbind()]
            return torch.nested.nested_tensor(rows, dtype=head.dtype, device=head.device)
        if _is_batch(head) and any(part.keys() != head.keys() for part in parts):
            raise KeyError("the nested TensorDicts have different keys")
        return join(parts, shared) if _is_batch(head) else torch.cat(parts)

    joined = {key: one([table[key] for table in tables]) for key in tables[0]}
    return rebuilt(first, joined, sum(batch.batch_size[0] for batch in batches))


def cloned(batch: TensorDictBase) -> TensorDict:
    """Every tensor copied; jagged columns keep sharing."""
    shared = Shared()

    def one(column: Any) -> Any:
        if is_jagged(column):
            return map_jagged(column, torch.Tensor.clone, shared)
        return cloned(column) if _is_batch(column) else column.clone()

    new = {key: one(column) for key, column in batch.items()}
    return TensorDict(new, batch_size=batch.batch_size, device=batch.device)


def moved(batch: TensorDictBase, device: torch.device) -> TensorDictBase:
    """``batch`` on ``device``; jagged columns keep sharing their offsets, which TensorDict's own ``to``
    doesn't ensure."""
    if not any(is_jagged(column) for column in batch.values()):
        return batch.to(device)
    shared = Shared()

    def one(column: Any) -> Any:
        if is_jagged(column):
            if column.device == device:
                return column
            return map_jagged(column, lambda tensor: tensor.to(device), shared)
        return moved(column, device) if _is_batch(column) else column.to(device)

    new = {key: one(column) for key, column in batch.items()}
    return TensorDict(new, batch_size=batch.batch_size, device=device)


def unalias(batch: TensorDictBase) -> TensorDict:
    """A new container with the same columns: adding or removing one leaves ``batch`` as it is."""
    return TensorDict(dict(batch.items()), batch_size=batch.batch_size, device=batch.device)
