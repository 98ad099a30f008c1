"""What DataProto asks of its arguments, and the errors that say what was given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase

from probe.core.columns.equality import shape_text
from probe.errors import InputTypeError, MissingKeyError, ShapeError

Array: TypeAlias = np.ndarray[Any, Any]
Keys: TypeAlias = str | Iterable[str] | None


def check_types(data: Any) -> None:
    """InputTypeError unless the members have the types they should."""
    if data.batch is not None and not isinstance(data.batch, TensorDictBase):
        raise InputTypeError(f"batch: got {type(data.batch).__name__}, expected a TensorDict or None")
    for name in ("non_tensor_batch", "meta_info"):
        value = getattr(data, name)
        if not isinstance(value, dict):
            raise InputTypeError(f"{name}: got {type(value).__name__}, expected a dict")


def common_size(columns: Mapping[str, Any], dims: int, check_type: bool = True) -> torch.Size:
    """The first ``dims`` sizes, which all columns share."""
    first_key, first = next(iter(columns.items()))
    for key, column in columns.items():
        if check_type and not isinstance(column, torch.Tensor | TensorDictBase):
            raise InputTypeError(f"tensors[{key!r}]: got {type(column).__name__}, expected a torch.Tensor")
        if column.ndim < dims:
            raise ShapeError(f"{key!r}: got shape {shape_text(column)}, expected at least {dims} dimensions")
        if column.shape[:dims] != first.shape[:dims]:
            raise ShapeError(
                f"{key!r}: got shape {shape_text(column)}, expected the same first {dims} size(s) as {first_key!r}, "
                f"which has shape {shape_text(first)}"
            )
    return torch.Size(first.shape[:dims])


def object_column(key: str, value: Any) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, str | bytes | torch.Tensor | Mapping) or not isinstance(value, Iterable):
        raise InputTypeError(f"non_tensors[{key!r}]: got {type(value).__name__}, expected an array or a sequence")
    return object_array(list(value))


def object_array(values: Sequence[Any]) -> Array:
    # Not np.array(values): that would look into the objects, and make two dimensions of lists that happen to
    # be equally long.
    made = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        made[number] = value
    return made


def repeat_counts(values: Any) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        counts = values.detach().cpu()
    else:
        counts = torch.as_tensor(np.asarray(values)) if len(values) else torch.zeros(0, dtype=torch.int64)
    if counts.dtype.is_floating_point or counts.dtype.is_complex or counts.dtype == torch.bool:
        raise InputTypeError(f"repeat_times: got {counts.dtype}, expected integers")
    return counts.to(torch.int64)


def key_names(argument: str, keys: Any) -> list[str]:
    if isinstance(keys, str):
        return [keys]
    if not isinstance(keys, Iterable):
        raise InputTypeError(f"{argument}: got {type(keys).__name__}, expected a name or a list of names")
    return list(keys)


def picked(section: str, mapping: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    if keys is None:
        return dict(mapping)
    picked = {}
    for key in key_names(f"{section}_keys", keys):
        if key not in mapping:
            raise MissingKeyError(f"{section}: there is no {key!r}; it has {_listed(mapping)}")
        picked[key] = mapping[key]
    return picked


def picked_of(argument: str, mapping: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """Those of the entries that are there; None picks all."""
    wanted = mapping if keys is None else key_names(argument, keys)
    return {key: mapping[key] for key in wanted if key in mapping}


def picked_any(columns: Mapping[str, Any], arrays: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for key in keys:
        if key not in columns and key not in arrays:
            raise MissingKeyError(f"split_keys: there is no {key!r}; there are {_listed([*columns, *arrays])}")
        yield key, columns[key] if key in columns else arrays[key]


def _listed(keys: Iterable[object]) -> str:
    return ", ".join(map(repr, keys)) or "nothing"


def without(mapping: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    left_out = set(keys)
    return {key: value for key, value in mapping.items() if key not in left_out}


def _deeper(column: Array) -> Array:
    """A column of equally long lists with those as its second dimension; any other column as it is."""
    if not all(isinstance(one, list | tuple | np.ndarray) for one in column) or len({len(one) for one in column}) != 1:
        return column
    try:
        return np.array(column.tolist(), dtype=object)
    except ValueError:  # arrays of shapes that don't fit each other
        return column


def unfolded(key: str, column: Any, n_split: int) -> Any:
    nested = isinstance(column, torch.Tensor) and column.is_nested
    if isinstance(column, np.ndarray) and column.dtype == object and column.ndim == 1:
        column = _deeper(column)
    if nested or column.ndim < 2 or column.shape[1] % n_split:
        raise ShapeError(f"{key!r}: got shape {shape_text(column)}, expected dimension 1 to be a multiple of {n_split}")
    return column.reshape(column.shape[0] * n_split, column.shape[1] // n_split, *column.shape[2:])
