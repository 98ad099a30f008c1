"""Rows of logits, a few at a time: what keeps the memory of a softmax far below a copy of the logits.

Shapes: ``*`` any leading dimensions, ``V`` the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from probe.errors import InputTypeError, ShapeError

#: Elements of logits worked on at once: at least, at most on the CPU (caches), at most on a device.
_CHUNK: Final = (2**18, 2**20, 2**25)
#: ... and, above the least, never more than this part: the extra memory stays far below one copy.
_CHUNK_SHARE: Final = 32


def check_logits(logits: object) -> None:
    """Raise unless ``logits`` is a plain floating-point tensor with a vocabulary in its last dimension."""
    if not isinstance(logits, Tensor):
        raise InputTypeError(f"logits: got {type(logits).__name__}, expected a tensor")
    if not logits.is_floating_point():
        raise InputTypeError(f"logits: got {logits.dtype}, expected floating point")
    if logits.is_nested:
        raise InputTypeError("logits: got a nested tensor, expected a plain one, such as its values()")
    if logits.ndim == 0:
        raise ShapeError("logits: got a tensor without dimensions, expected (*, vocabulary)")
    if logits.shape[-1] == 0:
        raise ShapeError(f"logits: got shape {tuple(logits.shape)}, expected a vocabulary of at least 1")


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums over ``dtype`` are worked out in."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def chunks(
    logits: Tensor, by_row: Tensor, *others: Tensor, rows_at_once: int | None = None
) -> Iterator[tuple[Tensor, ...]]:
    """Matching pieces of the tensors, as views: (rows, V) of the logits and their gradient, else (rows,).

    Args:
        logits: Floating point, (*, V).
        by_row: A tensor (*) that is cut along with the logits.
        *others: Further tensors (*) or (*, V).
        rows_at_once: Rows of a piece at most; None chooses by the number of elements.
    """
    if rows_at_once is not None:
        return _pieces((logits, by_row, *others), rows_at_once)
    least, most_cpu, most_device = _CHUNK
    most = most_cpu if logits.device.type == "cpu" else most_device
    elements = max(least, min(most, logits.numel() // _CHUNK_SHARE))
    return _pieces((logits, by_row, *others), max(1, elements // max(1, logits.shape[-1])))


def _pieces(tensors: tuple[Tensor, ...], rows: int) -> Iterator[tuple[Tensor, ...]]:
    leading = tensors[1].shape
    if math.prod(leading) == 0:
        return
    flat = [_flat(tensor, tensor.shape[len(leading) :]) for tensor in tensors]
    if all(one is not None for one in flat):
        yield from zip(*(torch.split(one, rows) for one in flat if one is not None), strict=True)
        return
    # Such as logits[:, :-1]: flattening would copy everything, so go one dimension down.
    for inner in zip(*(tensor.unbind(0) for tensor in tensors), strict=True):
        yield from _pieces(inner, rows)


def _flat(tensor: Tensor, trailing: torch.Size) -> Tensor | None:
    try:
        return tensor.view(-1, *trailing)
    except RuntimeError:  # the only way that torch tells that a view isn't possible
        return None


def clear_unused_rows(gradient: Tensor, scale: Tensor) -> Tensor:
    """Set rows of ``gradient`` (rows, V) to 0, in place, whose ``scale`` (rows, 1) is 0: 0 × NaN would be NaN.

    On the CPU that costs nothing where there is no such row; a device would have to be waited for.
    """
    unused = scale == 0
    if scale.device.type == "cpu" and not bool(unused.any()):
        return gradient
    return gradient.masked_fill_(unused, 0)
