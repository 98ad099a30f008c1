"""Jagged columns, which are nested tensors: made and checked, their rows taken, cut and joined.

TensorDict itself can't index, join or split jagged columns before 0.15.3, and some of its versions lose the
cached longest row on the way, after which padding goes wrong. So they are handled here, from
their values and offsets. Columns that share one offsets tensor share one afterwards as well, without which
torch refuses to combine them; the shortest and the longest row are always known.

Letters in shapes: B rows, T tokens of all rows together, ``*`` anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import torch

from probe.errors import SerializationError

#: torch can't select rows of these, but of their twins of the same size.
_SIGNED: Final = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


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
        raise SerializationError(
            f"ragged_dim: got {ragged_dim!r}, expected 1 to {most} for values of shape {tuple(values.shape)}"
        )
    total = values.shape[ragged_dim - 1]
    for name, column in (("offsets", offsets), ("lengths", lengths)):
        if column is not None and (column.dim() != 1 or column.dtype not in (torch.int32, torch.int64)):
            raise SerializationError(
                f"{name}: got {column.dtype} {tuple(column.shape)}, expected one dimension of int64 or int32"
            )
    if not offsets.numel() or int(offsets[0]) != 0 or bool((offsets.diff() < 0).any()) or int(offsets[-1]) > total:
        told = offsets[:8].tolist()
        raise SerializationError(
            f"offsets: got {told}…, expected numbers from 0 to {total} that begin with 0 and never fall"
        )
    if lengths is None and int(offsets[-1]) != total:
        raise SerializationError(f"offsets: end at {int(offsets[-1])}, expected {total}, where the values end")
    if lengths is not None:
        room = offsets.diff()
        if lengths.shape != room.shape or bool((lengths < 0).any()) or bool((lengths > room).any()):
            raise SerializationError(
                f"lengths: got {lengths[:8].tolist()}…, expected one for each row, none beyond the next offset"
            )
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


def picked(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    signed = _SIGNED.get(tensor.dtype)
    if signed is None:
        return tensor.index_select(dim, index)
    return tensor.view(signed).index_select(dim, index).view(tensor.dtype)


def _offsets_of(lengths: torch.Tensor) -> torch.Tensor:
    offsets = lengths.new_zeros(lengths.shape[0] + 1)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets


def take_jagged(column: Any, index: torch.Tensor, shared: Shared) -> torch.Tensor:
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
    values = picked(column._values, dim - 1, source)
    return build_jagged(values, new, shortest, longest, ragged_dim=dim)


def cut_jagged(column: Any, start: int, stop: int, shared: Shared) -> torch.Tensor:
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


def join_jagged(parts: Sequence[Any], shared: Shared) -> torch.Tensor:
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
    return take_jagged(column, everything, Shared())


def map_jagged(column: Any, change: Callable[[torch.Tensor], torch.Tensor], shared: Shared) -> torch.Tensor:
    """The column with ``change`` applied to its values and to its offsets (moved or copied, never
    reshaped)."""
    offsets, lengths = column.offsets(), column.lengths()

    def plan() -> tuple[Any, ...]:
        return change(offsets), None if lengths is None else change(lengths), *jagged_bounds(column)

    new, kept, shortest, longest = shared.get((offsets, lengths), plan)
    values = change(column._values)
    return build_jagged(values, new, shortest, longest, lengths=kept, ragged_dim=column._ragged_idx)
