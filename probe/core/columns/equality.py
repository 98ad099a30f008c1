"""When two values are the same, and where they first differ. NaN equals NaN; nothing here raises.

``==`` doesn't do for what a batch holds: on tensors and arrays it answers with a tensor, on NaN with False.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from tensordict import NonTensorData, TensorDictBase, is_non_tensor

from probe.core.columns.rows import is_jagged, jagged_lengths

#: Pairs of containers whose comparison is under way: a container may hold itself.
_Pairs = set[tuple[int, int]]

#: A TensorDict, or its wrapper of what isn't a tensor.
_BATCHES: Final = (TensorDictBase, NonTensorData)


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
    return _same(one, other, set())


def _same(one: Any, other: Any, open_pairs: _Pairs) -> bool:
    if one is other:
        return True
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        return both and same_tensors(one, other)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        both = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
        return both and _same_arrays(one, other, open_pairs)
    if isinstance(one, _BATCHES) or isinstance(other, _BATCHES):
        both = isinstance(one, _BATCHES) and isinstance(other, _BATCHES)
        return both and _same_batches(one, other, open_pairs)
    if isinstance(one, Mapping | list | tuple):
        return _same_containers(one, other, open_pairs)
    return _same_scalars(one, other)


def _same_scalars(one: Any, other: Any) -> bool:
    try:
        return bool(one == other) or bool(one != one and other != other)  # noqa: PLR0124  (NaN)
    except Exception:  # a foreign __eq__ may raise anything; what can't be compared is not the same
        return False


def _same_containers(one: Any, other: Any, open_pairs: _Pairs) -> bool:
    pair = (id(one), id(other))
    if pair in open_pairs:
        return True
    open_pairs.add(pair)
    try:
        if isinstance(one, Mapping):
            if not isinstance(other, Mapping) or one.keys() != other.keys():
                return False
            return all(_same(value, other[key], open_pairs) for key, value in one.items())
        if not isinstance(other, list if isinstance(one, list) else tuple) or len(one) != len(other):
            return False
        return all(_same(*values, open_pairs) for values in zip(one, other, strict=True))
    except RecursionError:
        return False
    finally:
        open_pairs.discard(pair)


def same_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and elements; NaN equals NaN, jagged rows go by their
    content."""
    if one is other:
        return True
    if one.dtype != other.dtype or one.is_nested != other.is_nested or one.layout != other.layout:
        return False
    try:
        if one.is_nested:
            return _same_nested(one, other)
        return one.shape == other.shape and (_same_memory(one, other) or _differences(one, other) is None)
    except (RuntimeError, NotImplementedError):  # meta, sparse and quantised tensors have no comparison
        return False


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.layout is torch.strided
        and one.device == other.device
        and one.device.type != "meta"
        and one.data_ptr() == other.data_ptr()
        and one.stride() == other.stride()
        and one.is_conj() == other.is_conj()
    )


def _same_nested(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.size(0) != other.size(0) or one.ndim != other.ndim:
        return False
    if is_jagged(one):
        mine, theirs = jagged_lengths(one), jagged_lengths(other).to(one.device)
        if mine is not theirs and not torch.equal(mine, theirs):
            return False
    return all(map(same_tensors, one.unbind(), other.unbind()))


def _differences(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    """None if all elements are equal, else a boolean tensor that is True where they differ."""
    other = other.to(one.device)
    if torch.equal(one, other):
        return None
    if one.dtype.is_floating_point and one.dtype.itemsize == 1:
        one, other = one.float(), other.float()  # fp8 has no comparison of its own
    differ = one != other
    if one.dtype.is_floating_point or one.dtype.is_complex:
        differ &= ~(one.isnan() & other.isnan())
    return differ if bool(differ.any()) else None


def _same_arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], open_pairs: _Pairs) -> bool:
    if one.shape != other.shape or not _same_dtypes(one.dtype, other.dtype):
        return False
    if one.dtype.hasobject:
        pair = (id(one), id(other))
        if pair in open_pairs:
            return True
        open_pairs.add(pair)
        try:
            return all(_same(*values, open_pairs) for values in zip(one.ravel(), other.ravel(), strict=True))
        except RecursionError:
            return False
        finally:
            open_pairs.discard(pair)
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fcmM"))


def _same_dtypes(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    # The byte order isn't content, and the width of a string dtype is that of the longest string that was
    # there.
    return one.newbyteorder("=") == other.newbyteorder("=") or (one.kind == other.kind and one.kind in "US")


def _same_batches(one: Any, other: Any, open_pairs: _Pairs) -> bool:
    if one.batch_size != other.batch_size:
        return False
    if is_non_tensor(one) or is_non_tensor(other):
        both = is_non_tensor(one) and is_non_tensor(other)
        return both and _same(one.tolist(), other.tolist(), open_pairs)
    mine, theirs = dict(one.items()), dict(other.items())
    return mine.keys() == theirs.keys() and all(_same(v, theirs[key], open_pairs) for key, v in mine.items())


# ----------------------------------------------------------------------------------------- what differs


def difference(one: Any, other: Any) -> str:
    """The first thing in which two values that aren't the same differ, as words for an error.

    >>> difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    'first difference at [1]: 2.0 and 3.0'
    >>> difference(torch.ones(2), torch.ones(3))
    'shapes (2,) and (3,)'
    >>> difference(0.7, 1.0)
    '0.7 and 1.0'
    """
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return _tensor_difference(one, other)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return _array_difference(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return _mapping_difference(one, other)
    return f"{brief(one)} and {brief(other)}"


def _shapes(one: Any, other: Any) -> str:
    return f"shapes {shape_text(one)} and {shape_text(other)}"


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


def _tensor_difference(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.is_nested or other.is_nested:
        return _nested_difference(one, other)
    if one.shape != other.shape:
        return _shapes(one, other)
    if one.dtype != other.dtype:
        return f"dtypes {one.dtype} and {other.dtype}"
    try:
        differ = _differences(one, other)
    except (RuntimeError, NotImplementedError):
        return "tensors that can't be compared"
    if differ is None:
        return f"layouts {one.layout} and {other.layout}"
    where = tuple(differ.nonzero()[0].tolist())
    return f"first difference at {list(where)}: {one[where].item()} and {other[where].item()}"


def _nested_difference(one: torch.Tensor, other: torch.Tensor) -> str:
    if not (one.is_nested and other.is_nested) or one.size(0) != other.size(0):
        return _shapes(one, other)
    for row, (mine, theirs) in enumerate(zip(one.unbind(), other.unbind(), strict=True)):
        if not same_tensors(mine, theirs):
            return f"in row {row}, {_tensor_difference(mine, theirs)}"
    return _shapes(one, other)


def _array_difference(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> str:
    if one.shape != other.shape:
        return _shapes(one, other)
    if not _same_dtypes(one.dtype, other.dtype):
        return f"dtypes {one.dtype} and {other.dtype}"
    for where in np.ndindex(one.shape):
        if not same(one[where], other[where]):
            return f"first difference at {list(where)}: {brief(one[where])} and {brief(other[where])}"
    return "arrays that can't be compared"


def _mapping_difference(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> str:
    if one.keys() != other.keys():
        odd = next(key for key in [*one, *other] if (key in one) != (key in other))
        return f"only one of them has the key {odd!r}"
    for key, value in one.items():
        if not same(value, other[key]):
            return f"under {key!r}, {difference(value, other[key])}"
    return f"{brief(one)} and {brief(other)}"


def brief(value: Any, limit: int = 80) -> str:
    """``repr(value)`` short enough for an error; tensors and arrays by shape and dtype when they are long.

    >>> brief(torch.zeros(1000))
    'a tensor of shape (1000,), torch.float32'
    """
    if isinstance(value, torch.Tensor) and (value.is_nested or value.numel() > 1):
        return f"a tensor of shape {shape_text(value)}, {value.dtype}"
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"an array of shape {value.shape}, {value.dtype}"
    try:
        text = repr(value.item() if isinstance(value, torch.Tensor | np.generic) else value)
    except Exception:  # a foreign __repr__ may raise anything, and an error message must still be made
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else text[: limit - 1] + "…"
