"""Which rows an index means: numbers, masks, lists, arrays and tensors of either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from probe._check import is_whole
from probe.errors import InputTypeError, RowIndexError, ShapeError

#: What may stand in the brackets of a batch.
Index: TypeAlias = "int | slice | Sequence[int] | Sequence[bool] | np.ndarray[Any, Any] | torch.Tensor"
_INTEGERS: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


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
        raise RowIndexError(f"index: got row {number}, but there are only {rows} rows")
    return number + rows if number < 0 else number


def row_numbers(index: object, rows: int) -> torch.Tensor:
    """``index`` as int64 row numbers, negative ones and masks resolved.

    Args:
        index: A list, range, NumPy array or tensor; one-dimensional; integers or booleans (one for each row).
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
            raise RowIndexError(f"index: got row {outside}, but there are only {rows} rows")
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
        raise InputTypeError(
            "index: got a list that mixes booleans with other things, expected only integers or only booleans"
        )
    numbers = [one.item() if isinstance(one, torch.Tensor | np.ndarray) and one.ndim == 0 else one for one in index]
    if not all(map(is_whole, numbers)):
        names = ", ".join(sorted({type(one).__name__ for one in numbers}))
        raise InputTypeError(f"index: got a list of {names}, expected integers or booleans")
    return torch.tensor([int(one) for one in numbers], dtype=torch.int64)
