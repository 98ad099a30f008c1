"""Samples of a dataset put side by side: tensors stacked, anything else in object arrays, and nothing lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from probe.core.codec.field_packing import join_rows
from probe.errors import InputTypeError, MissingKeyError, ShapeError
from probe.hooks import observed

Objects = npt.NDArray[np.object_]


@observed("rl_dataset.collate_fn", "samples of a dataset become one batch; result key -> tensor or array")
def collate_fn(data_list: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor | Objects]:
    """Collate B sample dicts into batched tensors and arrays.

    Args:
        data_list: Mappings from names to tensors or to anything else. All have the same keys.

    Returns:
        Under each key the tensors stacked to (B, …), or an object array of shape (B,). Tensors (k, L_i), such as the
        positions of multimodal models, become a jagged (B, k, L_i) where they differ in L, as
        :func:`probe.core.codec.stack_or_nest` makes of them. Lists of equal length stay lists, one in each place. No
        samples make an empty dict.

    Raises:
        MissingKeyError: A key that not every row has.
        ShapeError: Tensors that differ in shape otherwise.
        InputTypeError: A key that holds a tensor in one row and something else, or another dtype, in another.

    >>> collate_fn([{"n": torch.tensor([1, 2]), "uid": "a"}, {"n": torch.tensor([3, 4]), "uid": "b"}])
    {'n': tensor([[1, 2],
            [3, 4]]), 'uid': array(['a', 'b'], dtype=object)}
    """
    if not len(data_list):
        return {}
    keys = _common_keys(data_list)
    return {key: _column(key, [row[key] for row in data_list]) for key in keys}


def _common_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputTypeError(f"data_list[{number}]: got {type(row).__name__}, expected a dict")
    wanted = dict.fromkeys(key for row in rows for key in row)
    for number, row in enumerate(rows):
        if missing := [key for key in wanted if key not in row]:
            names = ", ".join(repr(key) for key in missing)
            raise MissingKeyError(f"data_list[{number}]: has no {names}, which other rows have; expected the same keys")
    return list(wanted)


def _column(key: str, values: list[Any]) -> torch.Tensor | Objects:
    if not any(isinstance(value, torch.Tensor) for value in values):
        column = np.empty(len(values), dtype=object)
        for number, value in enumerate(values):  # one by one: an assignment of the list would spread equal lengths
            column[number] = value
        return column
    return _stacked(key, values)


def _stacked(key: str, values: list[Any]) -> torch.Tensor:
    first = values[0]
    for number, value in enumerate(values):
        if isinstance(value, torch.Tensor) != isinstance(first, torch.Tensor):
            raise InputTypeError(
                f"data_list: {key!r} is of type {type(first).__name__} in row 0 and {type(value).__name__} "
                f"in row {number}; expected a tensor in every row or in none"
            )
    for number, value in enumerate(values):
        if value.is_nested or not _is_alike(value.shape, first.shape):
            shapes = ", ".join(str(tuple(one.shape)) for one in values[:8]) + (", …" if len(values) > 8 else "")
            raise ShapeError(f"data_list: {key!r} has shapes {shapes}, expected equal ones (row {number} differs)")
        if (value.dtype, value.device) != (first.dtype, first.device):
            raise InputTypeError(
                f"data_list: {key!r} is {value.dtype} on {value.device} in row {number}, "
                f"expected {first.dtype} on {first.device} as in row 0"
            )
    return torch.stack(values) if all(one.shape == first.shape for one in values) else join_rows(values)


def _is_alike(shape: torch.Size, first: torch.Size) -> bool:
    """Whether it is the same, or that of another number of tokens behind a dimension that isn't theirs."""
    return shape == first or (len(shape) == len(first) == 2 and shape[0] == first[0])
