"""When two values are the same, and where they first differ, as words. NaN equals NaN; nothing here raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from probe.core.columns.jagged import is_jagged
from probe.core.columns.walking import Mismatch, differing, differing_entries, walk
from probe.guard import attempt


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal by content: dtype, shape and elements for tensors and arrays, NaN equal
    to NaN.

    Tensors on different devices are compared on the device of ``one``. What can't be compared is not the
    same.

    >>> same({"a": torch.tensor([1.0, float("nan")])}, {"a": torch.tensor([1.0, float("nan")])})
    True
    >>> same(np.array([1, 2]), [1, 2])
    False
    """
    return next(walk(one, other), None) is None


def difference(one: Any, other: Any) -> str:
    """The first thing in which two values that aren't the same differ, as words for an error.

    >>> difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    'first difference at [1]: 2.0 and 3.0'
    >>> difference(torch.ones(2), torch.ones(3))
    'shapes (2,) and (3,)'
    >>> difference({"a": {"b": 0.7}}, {"a": {"b": 1.0}})
    "under 'a', under 'b', 0.7 and 1.0"
    """
    found = next(walk(one, other), None)
    return f"{brief(one)} and {brief(other)}" if found is None else _words(one, other, found, found.path)


def _words(one: Any, other: Any, found: Mismatch, path: tuple[Any, ...]) -> str:
    """The words for what lies ``path`` below these two: the way there as far as it helps to see it."""
    if not path:
        return _words_of_the_place(found)
    step = path[0]
    if isinstance(one, Mapping):
        return f"under {step!r}, {_words(one[step], other[step], found, path[1:])}"
    if isinstance(one, np.ndarray):
        return f"first difference at {list(step)}: {brief(one[step])} and {brief(other[step])}"
    if isinstance(one, torch.Tensor):
        return f"in row {step}, {_words_of_the_place(found)}"
    return f"{brief(one)} and {brief(other)}"


def _words_of_the_place(found: Mismatch) -> str:
    one, other = found.one, found.other
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return _tensor_words(found)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return _array_words(found)
    if found.what == "keys":
        odd = next(key for key in [*one, *other] if (key in one) != (key in other))
        return f"only one of them has the key {odd!r}"
    return f"{brief(one)} and {brief(other)}"


def _tensor_words(found: Mismatch) -> str:
    one, other = found.one, found.other
    if found.what == "shape" or one.is_nested != other.is_nested:
        return f"shapes {shape_text(one)} and {shape_text(other)}"
    if found.what == "dtype":
        return f"dtypes {one.dtype} and {other.dtype}"
    if found.what == "layout":
        return f"layouts {one.layout} and {other.layout}"
    try:
        differ = differing(one, other)
    except (RuntimeError, NotImplementedError):
        differ = None
    if differ is None:
        return "tensors that can't be compared"
    where = tuple(differ.nonzero()[0].tolist())
    return f"first difference at {list(where)}: {one[where].item()} and {other[where].item()}"


def _array_words(found: Mismatch) -> str:
    one, other = found.one, found.other
    if found.what == "shape":
        return f"shapes {shape_text(one)} and {shape_text(other)}"
    if found.what == "dtype":
        return f"dtypes {one.dtype} and {other.dtype}"
    differ = differing_entries(one, other)
    if differ is None:
        return "arrays that can't be compared"
    where = tuple(int(at) for at in np.argwhere(differ)[0]) if one.ndim else ()
    return f"first difference at {list(where)}: {brief(one[where])} and {brief(other[where])}"


def shape_text(value: Any) -> str:
    """The shape of a tensor or array: ``(4, 7)``, or ``(4, j≤7)`` for a jagged one whose longest row is
    known.

    >>> shape_text(torch.zeros(4, 7))
    '(4, 7)'
    """
    if is_jagged(value):
        longest = value._maybe_max_seqlen
        ragged = value._ragged_idx
        sizes = [
            ("j" if longest is None else f"j≤{longest}") if dim == ragged else str(size)
            for dim, size in enumerate(value.shape)
        ]
        return f"({', '.join(sizes)})"
    if isinstance(value, torch.Tensor) and value.is_nested:
        return f"({value.size(0)}, nested)"
    return str(tuple(value.shape))


def brief(value: Any, limit: int = 80) -> str:
    """``repr(value)`` short enough for an error; tensors and arrays by shape and dtype when they are long.

    >>> brief(torch.zeros(1000))
    'a tensor of shape (1000,), torch.float32'
    """
    if isinstance(value, torch.Tensor) and (value.is_nested or value.numel() > 1):
        return f"a tensor of shape {shape_text(value)}, {value.dtype}"
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"an array of shape {value.shape}, {value.dtype}"
    text = attempt(  # a foreign __repr__ may raise anything, and an error message must still be made
        lambda: repr(value.item() if isinstance(value, torch.Tensor | np.generic) else value),
        lambda _: f"<{type(value).__name__}>",
    )
    return text if len(text) <= limit else text[: limit - 1] + "…"
