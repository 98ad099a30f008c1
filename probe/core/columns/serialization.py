"""Tensors and TensorDicts as plain tuples of numbers, strings and byte arrays, and back.

A payload says by itself what it is (dtype, shape, layout), so that both ends need no common setting. It
holds the bytes
of the elements and nothing around them: a view of a large storage is as small as what it shows. On the CPU a
contiguous tensor isn't copied: its payload shares its memory until it is pickled.

Forms of a payload::

    tensor      (dtype, shape, bytes)                    e.g. ("float32", (4, 7), uint8 array of 112 bytes);
                (dtype, shape, bytes, device)            the device is left out for the CPU
    jagged      ("jagged", values, offsets, lengths, ragged_dim, shortest, longest)
                offsets: a tensor's payload, or the name of the column that holds the same offsets; lengths:
                a tensor's payload or None
    strided     ("strided", [tensor, ...])               a nested tensor of the old layout
    rows        ("rows", [object, ...])                  an object for each row (NonTensorStack)
    constant    ("constant", object)                     an object for all rows (NonTensorData)
    TensorDict  (batch_size, device or None, {name: payload})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor

from probe.core.columns.jagged import build_jagged, is_jagged, jagged_bounds
from probe.errors import InputTypeError, SerializationError
from probe.hooks import observed

Payload: TypeAlias = tuple[Any, ...]

_DENSE_FORMS: Final = (3, 4)


# -------------------------------------------------------------------------------------------- one tensor


def serialize_single_tensor(obj: torch.Tensor) -> Payload:
    """A tensor as a payload (see the top of this file): any dtype, any strides, 0-d, empty, nested.

    Raises:
        InputTypeError: It is not a tensor.
        SerializationError: It is sparse, quantised or on the meta device, which has no bytes.

    >>> dtype, shape, data = serialize_single_tensor(torch.tensor([1, 2], dtype=torch.int16))
    >>> dtype, shape, data.tolist()
    ('int16', (2,), [1, 0, 2, 0])
    """
    if not isinstance(obj, torch.Tensor):
        raise InputTypeError(f"obj: got {type(obj).__name__}, expected a torch.Tensor")
    if obj.is_nested:
        return _nested_payload(obj, {}, "")
    if obj.layout is not torch.strided or obj.is_quantized or obj.device.type == "meta":
        what = "quantised" if obj.is_quantized else f"{obj.layout} on {obj.device}"
        raise SerializationError(f"obj: got a tensor that is {what}, expected a dense one that holds its elements")
    device = obj.device
    plain = obj.detach().resolve_conj().resolve_neg().cpu().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy()
    name = str(obj.dtype).removeprefix("torch.")
    if device.type == "cpu":
        return name, tuple(obj.shape), data
    return name, tuple(obj.shape), data, str(device)


def deserialize_single_tensor(arr: Payload) -> torch.Tensor:
    """The tensor of a payload. It shares the payload's memory where that can be written to.

    A tensor that was on a device comes back there if the device exists here, else on the CPU.

    Raises:
        SerializationError: It is not a payload, the dtype is unknown, or the number of bytes doesn't fit the shape.

    >>> deserialize_single_tensor(serialize_single_tensor(torch.tensor(2.5)))
    tensor(2.5000)
    """
    if not isinstance(arr, tuple | list) or not arr:
        raise SerializationError(
            f"arr: got {type(arr).__name__}, expected the tuple that serialize_single_tensor returns"
        )
    if arr[0] in ("jagged", "strided"):
        return _nested_tensor(tuple(arr), {})
    if len(arr) not in _DENSE_FORMS:
        raise SerializationError(f"arr: got {len(arr)} entries, expected (dtype, shape, bytes[, device])")
    tensor = tensor_from_bytes(arr[2], dtype_of(arr[0]), arr[1])
    return tensor if len(arr) == 3 else tensor.to(usable_device(arr[3]))


def dtype_of(name: object) -> torch.dtype:
    """The torch dtype called ``name``; SerializationError where there is none."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise SerializationError(f"dtype: got {name!r}, expected the name of a torch dtype such as 'bfloat16'")
    return found


def usable_device(name: str) -> torch.device:
    """The device called ``name`` if this machine has it, else the CPU."""
    device = torch.device(name)
    if device.type == "cpu":
        return device
    module = getattr(torch, device.type, None)
    count = module.device_count() if module is not None and hasattr(module, "device_count") else 0
    return device if (device.index or 0) < count else torch.device("cpu")


def tensor_from_bytes(data: Any, dtype: torch.dtype, shape: Any) -> torch.Tensor:
    """A tensor over ``data`` (a uint8 array or a buffer), copied only if it can't be written to.

    Raises:
        SerializationError: The number of bytes doesn't fit dtype and shape.
    """
    try:
        flat = np.frombuffer(data, dtype=np.uint8) if not isinstance(data, np.ndarray) else data
        sizes = tuple(int(size) for size in shape)
        if flat.dtype != np.uint8 or flat.ndim != 1 or any(size < 0 for size in sizes):
            raise SerializationError(
                f"arr: got {flat.dtype} {flat.shape} for the shape {sizes}, expected flat uint8 bytes and sizes from 0"
            )
        if not flat.size:  # torch can't look at no bytes as another dtype
            return torch.from_numpy(np.empty(0, np.uint8)).to(dtype).reshape(sizes)
        if not flat.flags.writeable or not flat.flags.c_contiguous:
            flat = flat.copy()
        return torch.from_numpy(flat).view(dtype).reshape(sizes)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, SerializationError):
            raise
        raise SerializationError(f"arr: the bytes don't fit {dtype} {shape}: {error}") from error


# ------------------------------------------------------------------------------------------ nested tensors


def _nested_payload(column: Any, holders: dict[int, str], name: str) -> Payload:
    """``holders``: id of an offsets tensor to the column whose payload has it."""
    if not is_jagged(column):
        return "strided", [serialize_single_tensor(row) for row in column.unbind()]
    offsets, lengths = column.offsets(), column.lengths()
    holder = holders.setdefault(id(offsets), name)
    where = holder if holder != name else serialize_single_tensor(offsets)
    kept = None if lengths is None else serialize_single_tensor(lengths)
    values = serialize_single_tensor(column._values)
    return "jagged", values, where, kept, column._ragged_idx, *jagged_bounds(column)


def _nested_tensor(payload: Payload, offsets_by_name: dict[str, torch.Tensor], name: str = "") -> torch.Tensor:
    if payload[0] == "strided":
        rows = [deserialize_single_tensor(row) for row in payload[1]]
        return torch.nested.nested_tensor(rows)
    if len(payload) != 7:
        raise SerializationError(f"arr: got a jagged payload of {len(payload)} entries, expected 7")
    _, values, where, kept, ragged_dim, shortest, longest = payload
    try:
        offsets = offsets_by_name[where] if isinstance(where, str) else deserialize_single_tensor(where)
    except KeyError:
        raise SerializationError(f"arr: jagged column {name!r} needs the offsets of {where!r}") from None
    offsets_by_name[name] = offsets
    return build_jagged(
        deserialize_single_tensor(values),
        offsets,
        shortest,
        longest,
        lengths=None if kept is None else deserialize_single_tensor(kept),
        ragged_dim=ragged_dim,
    )


# --------------------------------------------------------------------------------------------- TensorDicts


@observed("data_proto.serialize", "a TensorDict becomes a payload of plain tuples and byte arrays")
def serialize_tensordict(batch: TensorDictBase) -> Payload:
    """A TensorDict as ``(batch_size, device, {name: payload})``; see the top of this file.

    Raises:
        InputTypeError: It is not a TensorDict.
        SerializationError: A column has no bytes; the message names it.

    >>> batch = TensorDict({"a": torch.ones(2, 3)}, batch_size=[2])
    >>> size, device, items = serialize_tensordict(batch)
    >>> size, device, items["a"][:2]
    ((2,), None, ('float32', (2, 3)))
    """
    return payload_of(batch)


@observed("data_proto.deserialize", "a payload becomes a TensorDict again")
def deserialize_tensordict(arr: Payload) -> TensorDict:
    """The TensorDict of a payload, on its device if this machine has it, else on the CPU.

    Raises:
        SerializationError: It is not a payload of :func:`serialize_tensordict`; the message names the column.

    >>> batch = TensorDict({"a": torch.ones(2, 3)}, batch_size=[2])
    >>> deserialize_tensordict(serialize_tensordict(batch))["a"].shape
    torch.Size([2, 3])
    """
    return batch_of(arr)


def payload_of(batch: TensorDictBase) -> Payload:
    """:func:`serialize_tensordict` without telling anyone."""
    if not isinstance(batch, TensorDictBase):
        raise InputTypeError(f"batch: got {type(batch).__name__}, expected a TensorDict")
    holders: dict[int, str] = {}
    items: dict[str, Payload] = {}
    for name, column in batch.items():
        try:
            items[name] = _column_payload(column, holders, name)
        except SerializationError as error:
            raise SerializationError(f"batch[{name!r}]: {error}") from error
    return tuple(batch.batch_size), None if batch.device is None else str(batch.device), items


def _column_payload(column: Any, holders: dict[int, str], name: str) -> Payload:
    if isinstance(column, torch.Tensor):
        return _nested_payload(column, holders, name) if column.is_nested else serialize_single_tensor(column)
    if is_non_tensor(column):
        if isinstance(column, NonTensorStack):
            return "rows", column.tolist()
        return "constant", column.data
    return payload_of(column)


def batch_of(arr: Payload) -> TensorDict:
    """:func:`deserialize_tensordict` without telling anyone."""
    if not isinstance(arr, tuple | list) or len(arr) != 3 or not isinstance(arr[2], Mapping):
        raise SerializationError(f"arr: got {type(arr).__name__}, expected (batch_size, device, {{name: payload}})")
    size, device_name, items = arr
    offsets: dict[str, torch.Tensor] = {}
    columns: dict[str, Any] = {}
    for name, payload in items.items():
        try:
            columns[name] = _column(payload, offsets, name, size)
        except SerializationError as error:
            raise SerializationError(f"arr[{name!r}]: {error}") from error
    device = None if device_name is None else usable_device(device_name)
    try:
        return TensorDict(columns, batch_size=torch.Size(size), device=device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise SerializationError(f"arr: the columns don't fit the batch size {tuple(size)}: {error}") from error


def _column(payload: Any, offsets: dict[str, torch.Tensor], name: str, size: Any) -> Any:
    if not isinstance(payload, tuple | list) or not payload:
        raise SerializationError(f"got {type(payload).__name__}, expected a tuple that serialize_tensordict made")
    kind = payload[0]
    if kind == "rows":
        return rows_of(payload[1])
    if kind == "constant":
        return NonTensorData(data=payload[1], batch_size=torch.Size(size))
    if kind in ("jagged", "strided"):
        return _nested_tensor(tuple(payload), offsets, name)
    return deserialize_single_tensor(tuple(payload)) if isinstance(kind, str) else batch_of(tuple(payload))


def rows_of(values: Any) -> Any:
    """A NonTensorStack with one entry for each of ``values``."""
    return NonTensorStack(*[NonTensorData(value) for value in values])


def own_bytes(value: Any) -> Any:
    """A tensor that shows a part of a larger storage, as one of its own size: pickle writes whole
    storages."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested:
        whole = value.untyped_storage().nbytes()
        if whole > value.numel() * value.element_size() and value.device.type != "meta":
            return value.detach().clone(memory_format=torch.contiguous_format)
    return value
