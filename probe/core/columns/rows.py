"""Rows of a TensorDict, jagged columns included: which rows an index means, and taking, cutting and joining
them.

TensorDict itself can't index, join or split jagged columns before 0.15.3, and some of its versions lose the
cached longest row on the way, after which padding goes wrong. So the jagged columns are handled here, from
their values and offsets. Columns that share one offsets tensor share one afterwards as well, without which
torch refuses to combine them; the shortest and the longest row are always known.

Letters in shapes: B rows, T tokens of all rows together, ``*`` anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor

from probe._check import is_whole
from probe.errors import InputTypeError, RowIndexError, SerializationError, ShapeError

#: What may stand in the brackets of a batch.
Index: TypeAlias = "int | slice | Sequence[int] | Sequence[bool] | np.ndarray[Any, Any] | torch.Tensor"
#: The columns here are made to fit, and checking each again is most of what cutting into many parts would
#: cost.
#: TensorDict's own methods use the unchecked constructor for the same reason; it isn't public, hence the
#: fallback.
_UNCHECKED: Final[Callable[..., TensorDict]] = getattr(TensorDict, "_new_unsafe", TensorDict)
#: torch can't select rows of these, but of their twins of the same size.
_SIGNED: Final = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_INTEGERS: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


# --------------------------------------------------------------------------------------- what an index means


def row_number(item: object, rows: int) -> int | None:
    """``item`` as a row from 0, if it is one integer in any of its guises (Python, NumPy, 0-d tensor or
    array).

    Raises:
        RowIndexError: It is outside ``rows``.
        InputTypeError: It is one boolean or one float.

    >>> row_number(-1, 3), row_number(np.int64(2), 3), row_number([0], 3)
    (2, 2, None)
    """
    if isinstance(item, torch.Tensor | np.ndarray):
        if item.ndim or (isinstance(item, torch.Tensor) and item.is_nested):
            return None
        item = item.item()
    if isinstance(item, bool | np.bool_ | float | np.floating):
        raise InputTypeError(f"index: got {item!r}, expected an integer, a slice or a 1-d list of rows")
    if not isinstance(item, int | np.integer):
        return None
    number = int(item)
    if not -rows <= number < rows:
        raise RowIndexError(f"index: got row {number}, expected one of a batch of {rows} rows")
    return number + rows if number < 0 else number


def row_numbers(index: object, rows: int) -> torch.Tensor:
    """``index`` as int64 row numbers, negative ones and masks resolved.

    Args:
        index: A list, tuple, range, NumPy array or tensor; one-dimensional; integers or booleans (one for each row).
        rows: The number of rows, B.

    Returns:
        int64, 1-d. It stays on the device of a tensor; there its range isn't checked, which would wait for
        the device.

    Raises:
        RowIndexError: A row outside the batch.
        ShapeError: A mask of another length, or an index that isn't 1-d.
        InputTypeError: Anything else than integers and booleans.

    >>> row_numbers([0, -1], 3).tolist(), row_numbers(np.array([True, False, True]), 3).tolist()
    ([0, 2], [0, 2])
    """
    found = _as_tensor(index)
    if found.ndim != 1:
        raise ShapeError(f"index: got shape {tuple(found.shape)}, expected one dimension")
    if found.dtype == torch.bool:
        if found.shape[0] != rows:
            raise ShapeError(f"index: got a mask of {found.shape[0]} booleans for a batch of {rows} rows")
        return found.nonzero().squeeze(1)
    if found.dtype not in _INTEGERS:
        raise InputTypeError(f"index: got {found.dtype}, expected integers or booleans")
    found = found.to(torch.int64)
    if found.device.type == "cpu" and found.shape[0]:
        smallest, largest = (int(one) for one in torch.aminmax(found))
        if smallest < -rows or largest >= rows:
            outside = smallest if smallest < -rows else largest
            raise RowIndexError(f"index: got row {outside}, expected rows of a batch of {rows} rows")
        return found if smallest >= 0 else torch.where(found < 0, found + rows, found)
    return torch.where(found < 0, found + rows, found)


def _as_tensor(index: object) -> torch.Tensor:
    if isinstance(index, torch.Tensor):
        if index.is_nested:
            raise InputTypeError("index: got a nested tensor, expected a plain one")
        return index.detach()
    if isinstance(index, np.ndarray):
        if index.dtype.kind not in "biu":
            raise InputTypeError(f"index: got an array of {index.dtype}, expected integers or booleans")
        # int64 first: torch can't take every unsigned type, negative strides or read-only memory.
        return torch.from_numpy(np.array(index, dtype=bool if index.dtype.kind == "b" else np.int64))
    if isinstance(index, list | range):
        return _list_as_tensor(list(index))
    raise InputTypeError(
        f"index: got {type(index).__name__}, expected an integer, a slice, a list, an array or a tensor"
    )


def _list_as_tensor(index: list[Any]) -> torch.Tensor:
    kinds = {type(one) for one in index}
    if kinds <= {int}:
        return torch.tensor(index, dtype=torch.int64)
    if kinds <= {bool, np.bool_}:
        return torch.tensor([bool(one) for one in index])
    if any(issubclass(kind, bool | np.bool_) for kind in kinds):
        raise InputTypeError("index: got a list that mixes booleans with other things")
    numbers = [one.item() if isinstance(one, torch.Tensor | np.ndarray) and one.ndim == 0 else one for one in index]
    if not all(map(is_whole, numbers)):
        names = ", ".join(sorted({type(one).__name__ for one in numbers}))
        raise InputTypeError(f"index: got a list of {names}, expected integers or booleans")
    return torch.tensor([int(one) for one in numbers], dtype=torch.int64)


# ------------------------------------------------------------------------------------------- jagged columns


def is_jagged(value: object) -> bool:
    """Whether ``value`` is a nested tensor of the jagged layout."""
    return isinstance(value, torch.Tensor) and value.is_nested and value.layout is torch.jagged


def jagged_spans(value: Any, start: int, stop: int) -> list[tuple[int, int]]:
    """Where rows ``start`` to ``stop`` of a jagged column begin and end in its values.

    >>> jagged_spans(build_jagged(torch.arange(5), torch.tensor([0, 2, 5]), 2, 3), 0, 2)
    [(0, 2), (2, 5)]
    """
    begins = value.offsets()[start : stop + 1].tolist()
    lengths = value.lengths()
    if lengths is None:
        return list(pairwise(begins))
    return [(begin, begin + size) for begin, size in zip(begins, lengths[start:stop].tolist(), strict=False)]


def build_jagged(
    values: torch.Tensor,
    offsets: torch.Tensor,
    shortest: int,
    longest: int,
    *,
    lengths: torch.Tensor | None = None,
    ragged_dim: int = 1,
) -> torch.Tensor:
    """A jagged tensor whose shortest and longest rows are known.

    Args:
        values: The rows one after the other, (T, *), or with T at dimension ``ragged_dim - 1``.
        offsets: Where each row begins and the last one ends, int64 (B + 1,).
        shortest: Length of the shortest row.
        longest: Length of the longest row.
        lengths: The length of each row, (B,), where rows don't fill the space between their offsets.
        ragged_dim: The dimension whose size differs from row to row, from 1.

    >>> build_jagged(torch.arange(5), torch.tensor([0, 2, 5]), 2, 3).unbind()
    (tensor([0, 1]), tensor([2, 3, 4]))
    """
    made: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        values, offsets, lengths, jagged_dim=ragged_dim, min_seqlen=shortest, max_seqlen=longest
    )
    return made


def checked_jagged(
    values: torch.Tensor,
    offsets: torch.Tensor,
    bounds: Sequence[Any] | None = None,
    *,
    lengths: torch.Tensor | None = None,
    ragged_dim: Any = 1,
) -> torch.Tensor:
    """:func:`build_jagged` of what came from outside, after looking whether it fits together.

    Offsets that don't fit their values would show wrong rows, or memory that isn't theirs; bounds that don't fit would
    make a dimension of any size, so that those of the rows themselves are taken. Looking waits for the device of
    ``offsets``.

    Args:
        values: The rows one after the other; see :func:`build_jagged`.
        offsets: As there.
        bounds: Lengths of the shortest and the longest row as they were told; None takes them from the rows.
        lengths: As there.
        ragged_dim: As there.

    Raises:
        SerializationError: They don't fit each other; the message says what was found and what was expected.
    """
    if type(ragged_dim) is not int or not 1 <= ragged_dim <= values.dim():
        most = values.dim()
        raise SerializationError(f"ragged_dim: got {ragged_dim!r}, expected 1 to {most} for {tuple(values.shape)}")
    total = values.shape[ragged_dim - 1]
    for name, column in (("offsets", offsets), ("lengths", lengths)):
        if column is not None and (column.dim() != 1 or column.dtype not in (torch.int32, torch.int64)):
            raise SerializationError(f"{name}: got {column.dtype} {tuple(column.shape)}, expected one row of int64")
    if not offsets.numel() or int(offsets[0]) != 0 or bool((offsets.diff() < 0).any()) or int(offsets[-1]) > total:
        told = offsets[:8].tolist()
        raise SerializationError(f"offsets: got {told}…, expected to begin with 0, to rise, and to end within {total}")
    if lengths is None and int(offsets[-1]) != total:
        raise SerializationError(f"offsets: end at {int(offsets[-1])}, expected {total}, where the values end")
    if lengths is not None:
        room = offsets.diff()
        if lengths.shape != room.shape or bool((lengths < 0).any()) or bool((lengths > room).any()):
            raise SerializationError(f"lengths: got {lengths[:8].tolist()}…, expected them to fit between the offsets")
    found = _bounds(offsets.diff() if lengths is None else lengths)
    if bounds is not None and not _are_bounds(bounds, found):
        raise SerializationError(f"bounds: got {bounds!r}, expected {list(found)}, the shortest and the longest row")
    return build_jagged(values, offsets, *found, lengths=lengths, ragged_dim=ragged_dim)


def _are_bounds(told: Sequence[Any], found: tuple[int, int]) -> bool:
    """Whether those told hold for the rows. torch itself may know a wider range than there is, as after a selection."""
    if not isinstance(told, list | tuple) or len(told) != 2 or not all(type(one) is int for one in told):
        return False
    shortest, longest = told
    return bool(0 <= shortest <= found[0] and found[1] <= longest)


def jagged_lengths(column: Any) -> torch.Tensor:
    """Lengths of the rows of a jagged column: int64 (B,), on its device."""
    lengths: torch.Tensor | None = column.lengths()
    return column.offsets().diff() if lengths is None else lengths


def jagged_bounds(column: Any) -> tuple[int, int]:
    """Shortest and longest row: from the column's cache, or else from its lengths (which waits for its
    device)."""
    shortest, longest = column._maybe_min_seqlen, column._maybe_max_seqlen
    if shortest is None or longest is None:
        return _bounds(jagged_lengths(column))
    return int(shortest), int(longest)


def _bounds(lengths: torch.Tensor) -> tuple[int, int]:
    if not lengths.numel():
        return 0, 0
    shortest, longest = torch.aminmax(lengths)
    return int(shortest), int(longest)


class Shared:
    """What one operation made of each offsets tensor, so that columns which shared one share the outcome.

    Columns with equal offsets in separate tensors come out sharing as well; that is only looked up on the
    CPU, where it waits for nothing.
    """

    def __init__(self) -> None:
        self._made: list[tuple[tuple[Any, ...], Any]] = []

    def get(self, keys: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The outcome for the tensors (or None) ``keys``, made on first need."""
        for known, outcome in self._made:
            if len(known) == len(keys) and all(map(_same_offsets, known, keys)):
                return outcome
        outcome = make()
        self._made.append((keys, outcome))
        return outcome


def _same_offsets(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.device.type == "cpu" == other.device.type and torch.equal(one, other)
    return isinstance(one, int) and one == other


def _picked(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    signed = _SIGNED.get(tensor.dtype)
    if signed is None:
        return tensor.index_select(dim, index)
    return tensor.view(signed).index_select(dim, index).view(tensor.dtype)


def _offsets_of(lengths: torch.Tensor) -> torch.Tensor:
    offsets = lengths.new_zeros(lengths.shape[0] + 1)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets


def _take_jagged(column: Any, index: torch.Tensor, shared: Shared) -> torch.Tensor:
    offsets, lengths = column.offsets(), column.lengths()

    def plan() -> tuple[Any, ...]:
        rows = index.to(offsets.device)
        taken = jagged_lengths(column).index_select(0, rows)
        new = _offsets_of(taken)
        shift = offsets.index_select(0, rows) - new[:-1]
        source = torch.repeat_interleave(shift, taken)
        source += torch.arange(source.shape[0], device=source.device)
        return new, source, *_bounds(taken)

    new, source, shortest, longest = shared.get((offsets, lengths), plan)
    dim = column._ragged_idx
    values = _picked(column._values, dim - 1, source)
    return build_jagged(values, new, shortest, longest, ragged_dim=dim)


def _cut_jagged(column: Any, start: int, stop: int, shared: Shared) -> torch.Tensor:
    """Rows ``start`` to ``stop`` as a view of the same values."""
    offsets, lengths = column.offsets(), column.lengths()

    def plan() -> tuple[Any, ...]:
        first, last = (int(one) for one in offsets[[start, stop]].tolist())
        kept = None if lengths is None else lengths[start:stop]
        bounds = _bounds(jagged_lengths(column)[start:stop])
        return offsets[start : stop + 1] - first, kept, first, last, *bounds

    new, kept, first, last, shortest, longest = shared.get((offsets, lengths, start, stop), plan)
    dim = column._ragged_idx
    values = column._values.narrow(dim - 1, first, last - first)
    return build_jagged(values, new, shortest, longest, lengths=kept, ragged_dim=dim)


def _join_jagged(parts: Sequence[Any], shared: Shared) -> torch.Tensor:
    parts = [compact_jagged(part) for part in parts]

    def plan() -> tuple[Any, ...]:
        bounds = [jagged_bounds(part) for part in parts if part.shape[0]] or [(0, 0)]
        lengths = torch.cat([jagged_lengths(part) for part in parts])
        return _offsets_of(lengths), min(b[0] for b in bounds), max(b[1] for b in bounds)

    new, shortest, longest = shared.get(tuple(part.offsets() for part in parts), plan)
    dim = parts[0]._ragged_idx
    return build_jagged(torch.cat([p._values for p in parts], dim - 1), new, shortest, longest, ragged_dim=dim)


def compact_jagged(column: Any) -> Any:
    """The column with rows that stand side by side, without holes between them; itself if it is so
    already."""
    if column.lengths() is None:
        return column
    everything = torch.arange(column.shape[0], device=column.device)
    return _take_jagged(column, everything, Shared())


def map_jagged(column: Any, change: Callable[[torch.Tensor], torch.Tensor], shared: Shared) -> torch.Tensor:
    """The column with ``change`` applied to its values and to its offsets (moved or copied, never
    reshaped)."""
    offsets, lengths = column.offsets(), column.lengths()

    def plan() -> tuple[Any, ...]:
        return change(offsets), None if lengths is None else change(lengths), *jagged_bounds(column)

    new, kept, shortest, longest = shared.get((offsets, lengths), plan)
    values = change(column._values)
    return build_jagged(values, new, shortest, longest, lengths=kept, ragged_dim=column._ragged_idx)


# ------------------------------------------------------------------------------------------ whole batches


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
                    return _take_jagged(column, index, shared)
                return _strided_rows(column, index.tolist())
            device = column.device
            if device not in moved:
                moved[device] = index.to(device)
            return _picked(column, 0, moved[device])
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
                    return _cut_jagged(column, start, stop, shared)
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
        return [_cut_jagged(column, *span, one) for span, one in zip(spans, shared, strict=True)]
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
                return _join_jagged(parts, shared)
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
