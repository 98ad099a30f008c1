"""Numbers of tokens as they come from a trainer, taken without waiting, and laid out one answer behind the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from probe.recorders.mask_lengths import unnoticed

Array = npt.NDArray[Any]

#: Tensors up to so many numbers are copied by torch, as small masks are; for larger ones it would wake its threads.
_SMALL: Final = 16_384

#: Most numbers of one array that are copied from a device; larger ones are left out, and count as unknown.
MOST_FROM_DEVICE: Final = 2**24


class Taken:
    """One array as it was when it was told of.

    Args:
        value: None, numbers, sequences of numbers, an array or a tensor.
        waiting: Gets an event for what still travels from a device.
        flags: Whether it is of yes and no: then all that isn't 0 is True.

    Attributes:
        known: Whether there is anything: what is on a device that can't be read without waiting isn't.
    """

    __slots__ = ("_flags", "_held", "_offsets", "known")

    def __init__(self, value: Any, waiting: list[Any], *, flags: bool = False) -> None:
        self._flags = flags
        self._offsets: Any = None
        is_tensor: bool = isinstance(value, torch.Tensor)  # "offsets" is of nested ones alone, which no type says
        if is_tensor and value.is_nested:
            self._offsets = _copied(value.offsets(), waiting, flags=False)
            value = value.values()
            self._held = None if self._offsets is None else _copied(value, waiting, flags=flags)
        else:
            self._held = _copied(value, waiting, flags=flags)
        self.known = self._held is not None

    def array(self) -> Array | None:
        """All of it as one array; None where nothing is known, or it isn't of numbers."""
        found = self._held
        if isinstance(found, list):
            found = [_numpy(one) if isinstance(one, torch.Tensor) else one for one in found]
        return None if found is None else _read(found, self._flags)

    def rows(self) -> list[Array] | Array | None:
        """As a rectangle, or one array an answer; None where nothing is known, or not of each answer."""
        found = self._held
        if isinstance(found, list) and any(hasattr(one, "__len__") for one in found):
            if not all(hasattr(one, "__len__") for one in found):
                return None
            rows = [row for one in found if (row := _read(one, self._flags)) is not None]
            if len(rows) < len(found):
                return None
            return np.stack(rows) if len({len(one) for one in rows}) == 1 else rows
        if self._offsets is not None and found is not None:
            ends, whole = _numpy(self._offsets).tolist(), _read(found, self._flags)
            return None if whole is None else list(np.split(whole, ends[1:-1]))
        return self.array()


def _read(held: Any, flags: bool) -> Array | None:
    """Numbers, of which None is NaN, or flags; None where there is something else, or it isn't known of each."""
    try:
        found = _numpy(held)
        if found.dtype == np.object_ and not flags:
            found = found.astype(np.float64)
    except (TypeError, ValueError):  # lists of unlike lengths, or of other things than numbers
        return None
    if found.dtype.kind not in "biuf":
        return None
    return found != 0 if flags and found.dtype != np.bool_ else found


def _numpy(held: Any) -> Array:
    if not isinstance(held, torch.Tensor):
        return np.asarray(held)
    return held.float().numpy() if held.dtype == torch.bfloat16 else held.numpy()  # numpy doesn't know bfloat16


def _copied(value: Any, waiting: list[Any], *, flags: bool) -> Any:
    """A copy that nobody else changes; None where there is nothing, or it can't be had without waiting."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        value = value.detach() if value.requires_grad else value
        # `is_cpu`, since a `device` and its type take four times as long where the processor's caches are cold.
        return _of_host(value, flags=flags) if value.is_cpu else _of_device(value, waiting)
    if isinstance(value, np.ndarray):
        return np.not_equal(value, 0) if flags else value.copy()
    if isinstance(value, Sequence) and any(isinstance(one, torch.Tensor) for one in value):
        rows = [_copied(one, waiting, flags=flags) for one in value]
        return None if any(one is None for one in rows) else rows
    return [list(one) if isinstance(one, list | tuple) else one for one in value]


def _of_host(value: torch.Tensor, *, flags: bool) -> Any:
    if value.numel() <= _SMALL and unnoticed():  # what isn't 0 is looked for later, off the training thread
        return value.clone()
    if value.dtype == torch.bfloat16:  # which numpy doesn't know
        return value.float()
    # In numpy, in this one thread: torch would wake all of its threads.
    return np.not_equal(value.numpy(), 0) if flags else value.numpy().copy()


def _of_device(value: torch.Tensor, waiting: list[Any]) -> Any:
    if value.device.type != "cuda" or value.numel() > MOST_FROM_DEVICE or torch.cuda.is_current_stream_capturing():
        return None
    landing = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    landing.copy_(value, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(value.device))
    waiting.append(done)
    return _Landing(landing)


class _Landing:
    """What travels from a device: read when its event is done, by whoever has waited for that."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:  # numpy's contract
        found = self._tensor.float() if self._tensor.dtype == torch.bfloat16 else self._tensor
        return np.asarray(found.numpy(), dtype=dtype)


class Layout:
    """Where the response tokens of each answer stand.

    Args:
        lengths: Response tokens of each answer; None takes the sums of ``inside``.
        inside: Which entries of a rectangle are response tokens; None where each row begins with them.

    Attributes:
        lengths: int64 (n,).
        tokens: Their sum.
        row_of: Of each token its answer, int64 (tokens,).
    """

    def __init__(self, lengths: Array | None, inside: list[Array] | Array | None) -> None:
        self._inside = inside
        self._of_width: dict[int, Array] = {}
        if lengths is None:
            lengths = np.array([], np.int64) if inside is None else _counted(inside)
        self.lengths: Array = np.maximum(np.asarray(lengths).astype(np.int64).reshape(-1), 0)
        self.tokens = int(self.lengths.sum())
        self.row_of: Array = np.repeat(np.arange(len(self.lengths)), self.lengths)
        self.begins: Array = np.cumsum(self.lengths) - self.lengths

    def flat(self, rows: list[Array] | Array | None, of: Array | None = None) -> Array | None:
        """The entries of response tokens, one answer behind the other.

        Args:
            rows: One number an answer (n,), a rectangle (n, width), or one array an answer.
            of: Which answers the rows are of, in their order; None is all.

        Returns:
            An array (tokens of these answers,); None where ``rows`` is None or has another number of tokens.
        """
        if rows is None:
            return None
        if isinstance(rows, list):
            which = np.arange(len(self.lengths)) if of is None else of
            return self._of_rows(rows, which, self.lengths[which])
        lengths = self.lengths if of is None else self.lengths[of]
        if rows.ndim == 1:
            return np.repeat(rows, lengths) if len(rows) == len(lengths) else None
        if rows.ndim != 2 or len(rows) != len(lengths):
            return None
        inside = self._in_rectangle(of, rows.shape[1])
        if inside is None or inside.shape != rows.shape:
            return None
        found = np.take(rows, self._places(inside) if of is None else np.flatnonzero(inside))
        return found if len(found) == lengths.sum() else None

    def _places(self, inside: Array) -> Array:
        """Where the response tokens of all answers stand in a rectangle: the same for all of one width."""
        if inside.shape[1] not in self._of_width:
            self._of_width[inside.shape[1]] = np.flatnonzero(inside)
        return self._of_width[inside.shape[1]]

    def _of_rows(self, rows: list[Array], which: Array, lengths: Array) -> Array | None:
        if len(rows) != len(which):
            return None
        if any(len(one) != length for one, length in zip(rows, lengths.tolist(), strict=True)):
            inside = None if self._inside is None else [self._inside[int(at)] for at in which]
            if inside is None or any(len(a) != len(b) for a, b in zip(rows, inside, strict=True)):
                return None
            rows = [one[at] for one, at in zip(rows, inside, strict=True)]
        return np.concatenate(rows) if rows else np.empty(0)

    def _in_rectangle(self, of: Array | None, width: int) -> Array | None:
        if self._inside is None:
            return np.arange(width) < (self.lengths if of is None else self.lengths[of])[:, None]
        if isinstance(self._inside, list):
            return None
        return self._inside if of is None else self._inside[of]


def _counted(inside: list[Array] | Array) -> Array:
    """How many entries of each row are response tokens."""
    if isinstance(inside, list):
        return np.array([np.count_nonzero(one) for one in inside], np.int64)
    return np.asarray(np.count_nonzero(inside.reshape(len(inside), -1), axis=1))


def ready(waiting: Sequence[Any]) -> Callable[[], bool] | None:
    """Tells whether everything has come from the device; None where nothing is awaited."""
    return (lambda: all(event.query() for event in waiting)) if waiting else None
