"""The rows of all ranks together, for a batch of columns of any kind."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict

from probe.core.columns import batch_columns as columns
from probe.core.columns import rows
from probe.core.columns.jagged import is_jagged
from probe.core.data_proto.exchange import gather_columns, unpickled
from probe.errors import MissingKeyError, PeerError, SessionError, ShapeError
from probe.guard import attempt


class _Tensors:
    """Tensors as :func:`probe.core.data_proto.exchange.gather_columns` takes them: a batch without other columns."""

    def __init__(self, batch: TensorDict, count: int) -> None:
        self.batch = batch
        self.non_tensor_batch: dict[str, Any] = {}
        self._count = count

    def __len__(self) -> int:
        return self._count


def gathered(data: Mapping[str, Any], group: Any, pad_values: Mapping[str, float] | None) -> dict[str, Any]:
    """See ``BatchedDataDict.all_gather``. What every rank has is told first, so that all raise the same."""
    if not dist.is_available() or not dist.is_initialized():
        raise SessionError("all_gather: there is no process group; call torch.distributed.init_process_group")
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, _describe(data), group=group)
    facts, objects = _read(told)
    tensors = _alike(data, facts, pad_values or {})
    done = columns.joined(objects) if objects[0] else {}
    if tensors:
        batch = TensorDict(tensors, batch_size=[columns.rows_of(tensors)])
        found, _ = gather_columns(_Tensors(batch, batch.batch_size[0]), group)
        done |= rows.columns(found) if found is not None else {}
    return {key: done[key] for key in data}


def _describe(data: Mapping[str, Any]) -> dict[str, Any]:
    """What this rank has. An error is told like any other fact, since the other ranks wait for this one."""
    return attempt(lambda: _own(data), lambda error: {"error": f"{type(error).__name__}: {error}"})


def _own(data: Mapping[str, Any]) -> dict[str, Any]:
    columns.rows_of(data)
    tensors = {key: column for key, column in data.items() if isinstance(column, torch.Tensor)}
    others = {key: column for key, column in data.items() if key not in tensors}
    facts = {
        key: {
            "jagged": is_jagged(column),
            "dtype": column.dtype,
            "shape": None if is_jagged(column) else tuple(column.shape),
            "ragged_dim": getattr(column, "_ragged_idx", 1) if is_jagged(column) else None,
        }
        for key, column in tensors.items()
    }
    return {"keys": list(data), "facts": facts, "objects": pickle.dumps(others)}


def _read(told: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Facts of the tensors and the other columns of every rank; raises the same on all of them."""
    for rank, one in enumerate(told):
        if "error" in one:
            raise PeerError(f"all_gather: rank {rank} can't take part: {one['error']}")
        if odd := sorted(set(one["keys"]) ^ set(told[0]["keys"])):
            raise MissingKeyError(
                f"all_gather: only one of ranks 0 and {rank} has the column {odd[0]!r}, expected it on every rank"
            )
        if odd := sorted(set(one["facts"]) ^ set(told[0]["facts"])):
            raise ShapeError(
                f"all_gather: {odd[0]!r} is a tensor on only one of ranks 0 and {rank}, expected one on each"
            )
    objects = [unpickled(one["objects"]) for one in told]
    return [one["facts"] for one in told], objects


def _alike(
    data: Mapping[str, Any], facts: Sequence[Mapping[str, Any]], pad_values: Mapping[str, float]
) -> dict[str, torch.Tensor]:
    """This rank's tensors in the form that all ranks agree on: jagged where any has it so, else equally wide."""
    made: dict[str, torch.Tensor] = {}
    for key in facts[0]:
        told = [one[key] for one in facts]
        dtype = columns.common_dtype(key, [one["dtype"] for one in told])
        ragged = next((one["ragged_dim"] for one in told if one["jagged"]), None)
        if ragged is not None:
            for rank, one in enumerate(told):
                if one["shape"] is not None and len(one["shape"]) <= ragged:
                    raise ShapeError(
                        f"all_gather: {key!r} is jagged on a rank, but has shape {one['shape']} on rank {rank}, "
                        f"expected more than {ragged} dimensions"
                    )
            made[key] = columns.as_jagged(key, data[key], ragged).to(dtype)
            continue
        made[key] = _widened(key, data[key].to(dtype), [one["shape"] for one in told], pad_values)
    return made


def _widened(
    key: str, column: torch.Tensor, shapes: Sequence[tuple[int, ...]], pad_values: Mapping[str, float]
) -> torch.Tensor:
    for rank, shape in enumerate(shapes):
        if len(shape) != len(shapes[0]) or shape[2:] != shapes[0][2:]:
            raise ShapeError(
                f"all_gather: {key!r} has shape {shapes[0]} on rank 0 and {shape} on rank {rank}; "
                "only the first two sizes may differ"
            )
    widths = {shape[1] for shape in shapes if len(shape) > 1}
    if len(widths) <= 1:
        return column
    pad_value = pad_values.get(key, 0)
    columns.check_pad_value(key, pad_value, column.dtype)
    made = column.new_full((column.shape[0], max(widths), *column.shape[2:]), pad_value)
    made[:, : column.shape[1]] = column
    return made
