"""Walks two nested values side by side and finds the places where they aren't the same.

The one walker behind equality, the words of an error, and ``probe.compare``. ``==`` doesn't do for what a batch
holds: on tensors and arrays it answers with a tensor, on NaN with False. Here NaN equals NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from operator import ne
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from tensordict import NonTensorData, TensorDictBase, is_non_tensor

from probe.core.columns.jagged import is_jagged, jagged_spans
from probe.guard import attempt

#: A TensorDict, or its wrapper of what isn't a tensor.
_BATCHES: Final = (TensorDictBase, NonTensorData)

#: What most entries are, and no container, tensor or array: no need to ask for each of these.
_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})

#: Kinds of arrays that know a NaN or a NaT.
_WITH_NAN: Final = "fcmM"


class Mismatch(NamedTuple):
    """A place where two values aren't the same.

    Attributes:
        path: The steps from the outside to the place: keys of mappings, positions in lists and tuples, index tuples of
            object arrays, rows of nested tensors. Empty where the two values themselves differ.
        what: "type", "keys", "length", "shape", "dtype", "layout" or "values"; "values" also of what can't be compared.
        one: What stands there on the first side.
        other: What stands there on the second side.
    """

    path: tuple[Any, ...]
    what: str
    one: Any
    other: Any


#: A pair of values that is still to be compared: the last step of the path to it, and the two values.
_Step: TypeAlias = tuple[Any, Any, Any]

#: What is known of a pair: in what its values differ ("" when they are the same), or the pairs inside of it.
_Known: TypeAlias = "str | Iterator[_Step]"


def walk(one: Any, other: Any) -> Iterator[Mismatch]:
    """Every place where two values differ, in the order of ``one``, found as they are asked for.

    A container may hold itself, and may be nested as deep as memory goes. Tensors on different devices are compared
    on the device of ``one``.

    Args:
        one: Any value: tensors, arrays, TensorDicts, mappings, lists and tuples of them, anything else by ``==``.
        other: The value that it is compared with.

    Yields:
        The mismatches. Nothing inside of one is looked at any more.

    >>> [found[:2] for found in walk({"a": [1, 2.0], "b": torch.ones(2)}, {"a": [1, 3.0], "b": torch.ones(3)})]
    [(('a', 1), 'values'), (('b',), 'shape')]
    """
    under_way: set[tuple[int, int]] = set()
    # Each container with its steps: an id in `under_way` is good for as long as its object is kept.
    frames: list[tuple[_Step, Iterator[_Step]]] = [((None, None, None), iter([(None, one, other)]))]
    while frames:
        outer, steps = frames[-1]
        step = next(steps, None)
        if step is None:
            frames.pop()
            under_way.discard((id(outer[1]), id(outer[2])))
            continue
        key, mine, theirs = step
        if mine is theirs or (id(mine), id(theirs)) in under_way:
            continue
        known = _compared(mine, theirs)
        if not isinstance(known, str):
            under_way.add((id(mine), id(theirs)))
            frames.append((step, known))
        elif known:
            path = [*(container[0] for container, _ in frames), key]
            yield Mismatch(tuple(path[2:]), known, mine, theirs)


def _compared(one: Any, other: Any) -> _Known:
    if type(one) is type(other) and type(one) in _PLAIN:
        return _scalars(one, other)
    for kind, compared in _KINDS:
        if isinstance(one, kind) or isinstance(other, kind):
            if not (isinstance(one, kind) and isinstance(other, kind)):
                return "type"
            found: _Known = compared(one, other)
            return found
    if isinstance(one, Mapping):
        return _mappings(one, other)
    if isinstance(one, list | tuple):
        return _sequences(one, other)
    return attempt(partial(_scalars, one, other), _incomparable)


def _scalars(one: Any, other: Any) -> str:
    # What differs from itself is NaN, also in a foreign type that math.isnan can't read.
    return "" if bool(one == other) or bool(ne(one, one) and ne(other, other)) else "values"


def _incomparable(_: Exception) -> str:
    """A foreign __eq__ may raise anything; what can't be compared is not the same."""
    return "values"


def _mappings(one: Mapping[Any, Any], other: Any) -> _Known:
    if not isinstance(other, Mapping):
        return "type"
    if one.keys() != other.keys():
        return "keys"
    return ((key, value, other[key]) for key, value in one.items())


def _sequences(one: Any, other: Any) -> _Known:
    if not isinstance(other, list if isinstance(one, list) else tuple):
        return "type"
    if len(one) != len(other):
        return "length"
    return zip(count(), one, other, strict=False)


def _batches(one: Any, other: Any) -> _Known:
    if one.batch_size != other.batch_size:
        return "shape"
    if is_non_tensor(one) or is_non_tensor(other):
        both = is_non_tensor(one) and is_non_tensor(other)
        return _compared(one.tolist(), other.tolist()) if both else "type"
    return _mappings(dict(one.items()), dict(other.items()))


# ------------------------------------------------------------------------------------------------------ tensors


def _tensors(one: torch.Tensor, other: torch.Tensor) -> _Known:
    if one.is_nested != other.is_nested or one.layout != other.layout:
        return "layout"
    try:
        if one.is_nested:
            return _nested(one, other)
        if one.shape != other.shape:
            return "shape"
        if one.dtype != other.dtype:
            return "dtype"
        return "" if _same_memory(one, other) or differing(one, other) is None else "values"
    except (RuntimeError, NotImplementedError):  # meta, sparse and quantised tensors have no comparison
        return "values"


def _nested(one: torch.Tensor, other: torch.Tensor) -> _Known:
    if one.size(0) != other.size(0) or one.ndim != other.ndim:
        return "shape"
    if one.dtype != other.dtype:
        return "dtype"
    return zip(count(), nested_rows(one), nested_rows(other), strict=False)


def nested_rows(nested: Any) -> list[torch.Tensor]:
    """The rows of a nested tensor as views: ``unbind`` of a jagged one with holes isn't in every torch."""
    if not is_jagged(nested):
        return list(nested.unbind())
    dim = nested._ragged_idx - 1
    spans = jagged_spans(nested, 0, int(nested.size(0)))
    return [nested._values.narrow(dim, begin, end - begin) for begin, end in spans]


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.layout is torch.strided
        and one.device == other.device
        and one.device.type != "meta"
        and one.data_ptr() == other.data_ptr()
        and one.stride() == other.stride()
        and one.is_conj() == other.is_conj()
    )


def differing(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    """Where the elements of two tensors of one shape and dtype differ; NaN equals NaN.

    Args:
        one: A dense tensor.
        other: The tensor that it is compared with; it is brought to the device of ``one``.

    Returns:
        A boolean tensor of their shape that is True where they differ, None where they differ nowhere.

    >>> differing(torch.tensor([1.0, float("nan"), 2.0]), torch.tensor([1.0, float("nan"), 3.0]))
    tensor([False, False,  True])
    """
    other = other.to(one.device)
    if torch.equal(one, other):
        return None
    if one.dtype.is_floating_point and one.dtype.itemsize == 1:
        one, other = one.float(), other.float()  # fp8 has no comparison of its own
    differ = one != other
    if one.dtype.is_floating_point or one.dtype.is_complex:
        differ &= ~(one.isnan() & other.isnan())
    return differ if bool(differ.any()) else None


# ------------------------------------------------------------------------------------------------------- arrays


def _arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> _Known:
    if one.shape != other.shape:
        return "shape"
    if not _same_dtypes(one.dtype, other.dtype):
        return "dtype"
    if not one.dtype.hasobject:
        return "" if differing_entries(one, other) is None else "values"
    return zip(np.ndindex(one.shape), one.ravel(), other.ravel(), strict=True)


def _same_dtypes(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    # The byte order isn't content, and the width of a string dtype is that of the longest string that was
    # there.
    return one.newbyteorder("=") == other.newbyteorder("=") or (one.kind == other.kind and one.kind in "US")


def differing_entries(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Where two arrays of one shape that hold no objects differ; NaN equals NaN, NaT equals NaT.

    Returns:
        A boolean array that is True where they differ (of shape (1,) for 0-d arrays), None where they differ
        nowhere.

    >>> differing_entries(np.array([1.0, np.nan]), np.array([2.0, np.nan]))
    array([ True, False])
    """
    with np.errstate(all="ignore"):
        differ = np.atleast_1d(one != other)
        if differ.any() and one.dtype.kind in _WITH_NAN and other.dtype.kind in _WITH_NAN:
            differ &= ~np.atleast_1d(np.not_equal(one, one) & np.not_equal(other, other))
    return differ if differ.any() else None


#: The kinds that are the same only as their own kind, whichever of the two sides has it.
_KINDS: Final[tuple[tuple[Any, Any], ...]] = (
    (torch.Tensor, _tensors),
    (np.ndarray, _arrays),
    (_BATCHES, _batches),
)
