"""Rows between a padded rectangle and one beside the other: the copying that the codec does.

torch's own way cuts each row out and joins the cuts, or pads by a kernel of its own; nearly all of that time is
overhead per row. Here the rows are *spans* of one flat axis. On the CPU they are copied through plain views of the
same memory, at about 0.15 µs a row and the speed of memory; elsewhere by one index for all rows, which never waits
for the device. Bits are copied, not numbers, so that every dtype survives that torch can view as an integer of its
size.

Letters in shapes: N rows, S width of a rectangle, T tokens of all rows together, ``*`` anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probe.core.columns.jagged import build_jagged
from probe.errors import InputError, InputTypeError, ShapeError

Ints = npt.NDArray[np.int64]

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_INTEGERS: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
#: From here on NumPy's memory is taken for outputs: it asks Linux for huge pages, torch doesn't, and the first touch
#: of small pages would cost more than all the copying.
_HUGE_BYTES: Final = 4 * 2**20


# ---------------------------------------------------------------------------------- reading nested tensors

# What a jagged tensor says of itself through torch's public methods goes through its dispatch, at 10 to 15 µs each,
# which is half of what a small field costs to pack. Its own attributes answer at once.


def is_jagged(value: object) -> bool:
    """:func:`probe.core.columns.jagged.is_jagged`, at once."""
    return isinstance(value, Tensor) and getattr(value, "_ragged_idx", None) is not None


def values_of(column: Any) -> Tensor:
    """(T, *) of a jagged tensor; part of the graph where the column is."""
    if not torch.is_grad_enabled():
        return cast("Tensor", column._values)
    with torch._C.DisableTorchFunctionSubclass():  # else even this goes through the dispatch
        is_part = column.requires_grad
    return cast("Tensor", column.values() if is_part else column._values)


# ------------------------------------------------------------------------------------------------ lengths


class RowLengths:
    """Lengths of the rows of a batch, read once, and the offsets that all its jagged fields share.

    Attributes:
        host: The lengths, int64 (N,), on the CPU.
        rows: The number of rows, N.
        total: The sum of the lengths, T.
        shortest: The shortest length, 0 without rows.
        longest: The longest length, 0 without rows.
    """

    def __init__(self, host: Ints) -> None:
        self.host = host
        self.rows = int(host.shape[0])
        self.total = int(host.sum())
        self.shortest = int(host.min()) if self.rows else 0
        self.longest = int(host.max()) if self.rows else 0
        self.starts = _starts_of(host)
        self._offsets: dict[torch.device, Tensor] = {}
        self._spans: dict[int, Spans] = {}

    @classmethod
    def read(cls, lengths: Tensor, rows: int | None = None) -> RowLengths:
        """From a tensor of integers on any device, which is copied to the CPU once.

        Args:
            lengths: Integers (N,), on any device.
            rows: The N that is expected; None means any.

        Raises:
            InputTypeError: It is no tensor, or not of integers.
            ShapeError: It isn't (N,).
            InputError: A length is negative.

        >>> RowLengths.read(torch.tensor([2, 0, 5])).longest
        5
        """
        if not isinstance(lengths, Tensor):
            raise InputTypeError(f"lengths: got {type(lengths).__name__}, expected a tensor of shape (N,)")
        if lengths.is_nested or lengths.dim() != 1 or (rows is not None and lengths.shape[0] != rows):
            found = "a nested tensor" if lengths.is_nested else f"lengths shape {tuple(lengths.shape)}"
            raise ShapeError(f"lengths: got {found}, expected ({'N' if rows is None else rows},)")
        if lengths.dtype not in _INTEGERS:
            raise InputTypeError(f"lengths: got {lengths.dtype}, expected integers")
        host = lengths.detach().to("cpu", torch.int64).numpy()
        found_lengths = cls(host if lengths.device.type != "cpu" else host.copy())
        if found_lengths.shortest < 0:
            row = int(np.argmax(host < 0))
            raise InputError(f"lengths: row {row} has length {int(host[row])}, expected at least 0")
        return found_lengths

    def check_width(self, width: int, name: str) -> None:
        """Raise :class:`ShapeError` if a row is longer than ``width``, the second size of the argument ``name``."""
        if self.longest > width:
            row = int(np.argmax(self.host))
            raise ShapeError(f"lengths: row {row} has length {self.longest}, but {name} is only {width} wide")

    def offsets(self, device: torch.device) -> Tensor:
        """int64 (N + 1,), the very same tensor whenever it is asked for one device."""
        found = self._offsets.get(device)
        if found is None:
            found = torch.from_numpy(self.starts).to(device, non_blocking=True)
            self._offsets[device] = found
        return found

    def jagged(self, values: Tensor) -> Tensor:
        """(T, *) as a jagged tensor (N, j, *) of these lengths."""
        return build_jagged(values, self.offsets(values.device), self.shortest, self.longest)

    def spans(self, pitch: int) -> Spans:
        """The rows of a rectangle ``pitch`` wide, as spans of its flat axis; made once for all its fields."""
        found = self._spans.get(pitch)
        if found is None:
            starts = np.arange(self.rows, dtype=np.int64) * pitch
            found = self._spans[pitch] = Spans(starts, self.host, self.total)
        return found


def _starts_of(lengths: Ints) -> Ints:
    starts = np.zeros(lengths.shape[0] + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


# -------------------------------------------------------------------------------------------------- spans


class Spans:
    """N stretches of a flat axis that don't overlap: row i is ``[starts[i], starts[i] + lengths[i])``."""

    def __init__(self, starts: Ints, lengths: Ints, total: int) -> None:
        self.starts = starts
        self.lengths = lengths
        self.total = total
        self._index: dict[torch.device, Tensor] = {}
        self._bounds: dict[int, tuple[list[int], list[int]]] = {}

    def byte_bounds(self, size: int) -> Iterator[tuple[int, int]]:
        """First and last byte of each row, for entries of ``size`` bytes."""
        found = self._bounds.get(size)
        if found is None:
            first = self.starts * size
            found = self._bounds[size] = (first.tolist(), (first + self.lengths * size).tolist())
        return zip(*found, strict=True)

    def index(self, device: torch.device) -> Tensor:
        """Where each of the T tokens stands on the flat axis: int64 (T,)."""
        found = self._index.get(device)
        if found is None:
            shift = torch.from_numpy(self.starts - _starts_of(self.lengths)[:-1]).to(device, non_blocking=True)
            lengths = torch.from_numpy(self.lengths).to(device, non_blocking=True)
            found = torch.repeat_interleave(shift, lengths, output_size=self.total)
            found += torch.arange(self.total, device=device)
            self._index[device] = found
        return found


def take_spans(flat: Tensor, spans: Spans) -> Tensor:
    """The tokens of ``spans``, side by side: (F, *) to a new (T, *). Differentiable.

    >>> take_spans(torch.arange(6), Spans(np.array([0, 3]), np.array([1, 2]), 3))
    tensor([0, 3, 4])
    """
    if flat.requires_grad and torch.is_grad_enabled():
        take: Callable[..., Tensor] = _Take.apply
        return take(flat, spans)
    bits = _bits(flat)
    if not _on_host(flat):
        return _of_bits(bits.index_select(0, spans.index(flat.device)), flat.dtype)
    size = _entry_bytes(flat)
    shape = (spans.total, *flat.shape[1:])
    if not spans.total or not size:
        return flat.new_empty(shape)
    source = _bytes(bits)
    if spans.total * size < _HUGE_BYTES:
        joined = bytearray().join([source[first:last] for first, last in spans.byte_bounds(size)])
        return torch.frombuffer(joined, dtype=flat.dtype).view(shape)
    made = empty(shape, flat)
    target, done = _bytes(_bits(made)), 0
    for first, last in spans.byte_bounds(size):
        end = done + last - first
        target[done:end] = source[first:last]
        done = end
    return made


def put_spans(values: Tensor, spans: Spans, size: int, fill: float | bool) -> Tensor:
    """The inverse of :func:`take_spans`: (T, *) to a new (size, *) that is ``fill`` outside the spans. Differentiable.

    >>> put_spans(torch.tensor([7, 8, 9]), Spans(np.array([0, 3]), np.array([1, 2]), 3), 6, -1)
    tensor([ 7, -1, -1,  8,  9, -1])
    """
    if values.requires_grad and torch.is_grad_enabled():
        put: Callable[..., Tensor] = _Put.apply
        return put(values, spans, size, fill)
    made = _filled_with(fill, empty((size, *values.shape[1:]), values))
    bits = _bits(values)
    if not _on_host(values):
        _bits(made).index_copy_(0, spans.index(values.device), bits)
        return made
    if not values.numel():
        return made
    source, target = _bytes(bits), _bytes(_bits(made))
    done = 0
    for first, last in spans.byte_bounds(_entry_bytes(values)):
        end = done + last - first
        target[first:last] = source[done:end]
        done = end
    return made


def _filled_with(fill: float | bool, made: Tensor) -> Tensor:
    """``made`` with ``fill`` everywhere. Zeros are set at the speed of memory, other numbers at four fifths of it."""
    return made.zero_() if fill == 0 and math.copysign(1.0, fill) > 0 else made.fill_(fill)


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: Tensor, spans: Spans) -> Tensor:
        ctx.spans, ctx.size = spans, flat.shape[0]
        return take_spans(flat.detach(), spans)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return put_spans(grads[0], ctx.spans, ctx.size, 0), None


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, spans: Spans, size: int, fill: float | bool) -> Tensor:
        ctx.spans = spans
        return put_spans(values.detach(), spans, size, fill)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return take_spans(grads[0], ctx.spans), None, None, None


# ------------------------------------------------------------------------------------- rectangles and rows


def pack_rows(padded: Tensor, lengths: RowLengths) -> Tensor:
    """(N, S, *) to (T, *): the first ``lengths[i]`` entries of each row. Differentiable.

    Raises:
        ShapeError: A row is longer than S.
    """
    width = int(padded.shape[1])
    lengths.check_width(width, "padded")
    if padded.is_contiguous() or not _on_host(padded) or padded.requires_grad:
        flat = padded.reshape(lengths.rows * width, *padded.shape[2:])
        return take_spans(flat, lengths.spans(width))
    made = empty((lengths.total, *padded.shape[2:]), padded)
    if lengths.total and made.numel():
        rows = zip(_bits(padded).numpy(), lengths.host.tolist(), strict=True)
        np.concatenate([row[:length] for row, length in rows], out=_bits(made).numpy())
    return made


def pad_rows(values: Tensor, offsets: Tensor, width: int, fill: float | bool, lengths: Ints | None = None) -> Tensor:
    """(T, *) with ``offsets`` int64 (N + 1,) to a new (N, width, *). Differentiable; never waits for a device.

    Args:
        values: The rows one after the other, (T, *).
        offsets: Where each row begins and the last one ends, int64 (N + 1,).
        width: At least the longest row. On a device it is believed: to check it would wait.
        fill: What is put behind the end of each row.
        lengths: What ``offsets`` say of the rows, int64 (N,), where that is known; None reads them.

    Raises:
        ShapeError: On the CPU, a row is longer than ``width``.

    >>> pad_rows(torch.tensor([1, 2, 3]), torch.tensor([0, 1, 3]), 3, 0).tolist()
    [[1, 0, 0], [2, 3, 0]]
    """
    rows = int(offsets.shape[0]) - 1
    shape = (rows, width, *values.shape[1:])
    if _on_host(values):
        lengths = np.diff(offsets.numpy()) if lengths is None else lengths
        if rows and int(lengths.max()) > width:
            raise ShapeError(f"width: got {width}, but the longest row has {int(lengths.max())} tokens")
        spans = Spans(np.arange(rows, dtype=np.int64) * width, lengths, int(lengths.sum()))
        return put_spans(values, spans, rows * width, fill).reshape(shape)
    if not math.prod(shape) or not values.shape[0]:
        return values.new_empty(shape).fill_(fill)
    places = torch.arange(width, device=values.device)
    outside = places >= offsets.diff().unsqueeze(1)
    source = (offsets[:-1].unsqueeze(1) + places).clamp_(max=values.shape[0] - 1).reshape(-1)
    filling = torch.full((), fill, dtype=values.dtype, device=values.device)
    if values.requires_grad and torch.is_grad_enabled():
        return _filled(values.index_select(0, source), outside, filling).reshape(shape)
    return _of_bits(_filled(_bits(values).index_select(0, source), outside, _bits(filling)), values.dtype).reshape(
        shape
    )


def _filled(flat: Tensor, outside: Tensor, filling: Tensor) -> Tensor:
    """``flat`` (N·S, *) with ``filling`` where ``outside`` (N, S)."""
    return torch.where(outside.reshape(-1, *[1] * (flat.dim() - 1)), filling, flat)


def widen(padded: Tensor, width: int, fill: float | bool) -> Tensor:
    """(N, S, *) to a new (N, width, *) with S at most ``width``. Differentiable."""
    made = empty((padded.shape[0], width, *padded.shape[2:]), padded)
    have = int(padded.shape[1])
    made.narrow(1, have, width - have).fill_(fill)
    made.narrow(1, 0, have).copy_(padded)
    return made


# --------------------------------------------------------------------------------------------------- memory


def empty(shape: Sequence[int], like: Tensor) -> Tensor:
    """Memory of ``shape`` with the dtype and device of ``like``; what it holds is undefined."""
    amount = math.prod(shape) * like.element_size()
    if amount < _HUGE_BYTES or not _on_host(like):
        return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)
    return torch.from_numpy(np.empty(amount, dtype=np.uint8)).view(like.dtype).view(tuple(shape))


def _on_host(tensor: Tensor) -> bool:
    """Whether NumPy can see its memory; subclasses (fake, functional, distributed tensors) are left to torch."""
    return tensor.device.type == "cpu" and type(tensor) in (Tensor, torch.nn.Parameter)


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as integers; complex128 gets one more dimension of 2."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.element_size() > 8:
        plain = torch.view_as_real(plain)
    return plain.view(_BITS[plain.element_size()])


def _bytes(bits: Tensor) -> memoryview:
    """Its memory, copied first where it isn't contiguous. Slices of it cost half of what NumPy's cost."""
    return bits.contiguous().view(-1).view(torch.uint8).numpy().data


def _entry_bytes(flat: Tensor) -> int:
    return math.prod(flat.shape[1:]) * flat.element_size()


def _of_bits(bits: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.itemsize > 8:
        return torch.view_as_complex(bits.view(torch.float64))
    return bits.view(dtype)


def fill_value(name: str, dtype: torch.dtype, value: Any) -> float | bool:
    """``value`` as something that ``dtype`` can hold exactly, or as near as a float comes.

    Raises:
        InputTypeError: It is no number.
        InputError: The dtype can't hold it (1.5 or NaN as an integer, −1 as uint8).

    >>> fill_value("ids", torch.int64, 2**53 + 1)
    9007199254740993
    """
    if isinstance(value, Tensor | np.ndarray | np.generic) and math.prod(value.shape) == 1:
        value = value.item()
    if not isinstance(value, int | float):
        raise InputTypeError(f"pad_value_dict[{name!r}]: got {type(value).__name__}, expected a number")
    if not dtype.is_floating_point and not dtype.is_complex:
        low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        if not math.isfinite(value) or value != int(value) or not low <= value <= high:
            raise InputError(f"pad_value_dict[{name!r}]: got {value!r}, which {dtype} can't hold")
        return int(value)
    if math.isfinite(value) and abs(value) > torch.finfo(dtype).max:
        raise InputError(f"pad_value_dict[{name!r}]: got {value!r}, which {dtype} can't hold")
    return float(value)
