"""A DataProto in other forms: as one TensorDict that holds objects too, and as the rows of all ranks
together."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import tensordict
import torch
import torch.distributed as dist
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor

from probe.core.columns.jagged import Shared, build_jagged, compact_jagged, is_jagged, jagged_bounds, jagged_lengths
from probe.core.columns.rows import rebuilt
from probe.core.columns.serialization import dtype_of
from probe.core.data_proto.merging import join_arrays
from probe.errors import (
    ConflictError,
    InputError,
    InputTypeError,
    MissingDependencyError,
    MissingKeyError,
    PeerError,
    SessionError,
    ShapeError,
)
from probe.guard import attempt

Array: TypeAlias = np.ndarray[Any, Any]

#: Older ones drop or repeat the rows of a NonTensorStack.
_OLDEST_WITH_ROWS: Final = (0, 10)


# ---------------------------------------------------------------------------------- as one TensorDict


class ColumnRow(np.ndarray[Any, Any]):
    """A row of a numpy column with several dimensions, on its way through a TensorDict.

    An ordinary array to everyone; the mark says that the column was one array, and not objects that happened
    to be arrays of the same shape.
    """


def require_rows_of_objects(version: str | None = None) -> None:
    """Raise unless this tensordict (or ``version``) keeps rows of objects.

    Raises:
        MissingDependencyError: It is older than 0.10.

    >>> require_rows_of_objects("0.9.1")
    Traceback (most recent call last):
    probe.errors.MissingDependencyError: objects in a TensorDict need tensordict>=0.10; found 0.9.1
    """
    found = str(version or tensordict.__version__)
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < _OLDEST_WITH_ROWS:
        raise MissingDependencyError(f"objects in a TensorDict need tensordict>=0.10; found {found}")


def to_mixed_tensordict(
    batch: TensorDictBase | None, arrays: Mapping[str, Array], meta: Mapping[str, Any], rows: int
) -> TensorDict:
    """See :meth:`probe.core.protocol.DataProto.to_tensordict`."""
    columns: dict[str, Any] = {} if batch is None else dict(batch.items())
    size = torch.Size([rows]) if batch is None else batch.batch_size
    if arrays or meta:
        require_rows_of_objects()
    for section, entries in (("non_tensor_batch", arrays), ("meta_info", meta)):
        for key, value in entries.items():
            if key in columns:
                raise ConflictError(f"{section}[{key!r}]: another section has this key too; rename one of them")
            columns[key] = _stack(value, rows) if section == "non_tensor_batch" else _constant(value, size)
    return TensorDict(columns, batch_size=size, device=None if batch is None else batch.device)


def _stack(column: Array, rows: int) -> Any:
    if not rows or column.ndim > 1:
        column = column.view(ColumnRow)
    if not rows:  # a stack of nothing would lose its dtype
        return NonTensorData(data=column, batch_size=torch.Size([0]))
    return NonTensorStack(*[NonTensorData(data=one) for one in column])


def _constant(value: Any, size: torch.Size) -> Any:
    return NonTensorData(data=value, batch_size=size)


def from_mixed_tensordict(
    batch: TensorDictBase, num_batch_dims: int
) -> tuple[TensorDict | None, dict[str, Array], dict[str, Any]]:
    """See :meth:`probe.core.protocol.DataProto.from_tensordict`."""
    if not isinstance(batch, TensorDictBase):
        raise InputTypeError(f"tensor_dict: got {type(batch).__name__}, expected a TensorDict")
    if not 1 <= num_batch_dims <= batch.batch_dims:
        raise InputError(
            f"num_batch_dims: got {num_batch_dims} for a batch size of {tuple(batch.batch_size)}, "
            f"expected 1 to {batch.batch_dims}"
        )
    tensors: dict[str, Any] = {}
    arrays: dict[str, Array] = {}
    meta: dict[str, Any] = {}
    names = batch.keys()  # iterating the TensorDict itself gives rows
    for key in names:
        column = batch.get(key)
        if not is_non_tensor(column):
            tensors[key] = column
            continue
        require_rows_of_objects()
        if isinstance(column, NonTensorStack):
            arrays[key] = _unstack(column.tolist())
        elif isinstance(column.data, ColumnRow):
            arrays[key] = column.data.view(np.ndarray)
        else:
            meta[key] = column.data
    size = batch.batch_size[:num_batch_dims]
    if not tensors and (arrays or meta):
        return None, arrays, meta
    return TensorDict(tensors, batch_size=size, device=batch.device), arrays, meta


def _unstack(values: Sequence[Any]) -> Array:
    if all(isinstance(value, ColumnRow) for value in values):
        return np.stack([value.view(np.ndarray) for value in values])
    kinds = {type(value) for value in values}
    kind = next(iter(kinds))
    if len(kinds) == 1 and issubclass(kind, np.generic):
        # Widths of string scalars differ from row to row; for anything else the scalar knows its dtype.
        return np.array(values) if issubclass(kind, np.str_ | np.bytes_) else np.array(values, dtype=values[0].dtype)
    made = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        made[number] = value
    return made


# ------------------------------------------------------------------------------- the rows of all ranks

#: What every rank tells of a column before any tensor moves.
_Facts: TypeAlias = dict[str, Any]


def gather_columns(data: Any, group: Any) -> tuple[TensorDict | None, dict[str, Array]]:
    """See :func:`probe.core.protocol.all_gather_data_proto`."""
    if not dist.is_available() or not dist.is_initialized():
        raise SessionError(
            "all_gather_data_proto: there is no process group; call torch.distributed.init_process_group"
        )
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, _describe(data), group=group)
    for one in told:
        if "arrays" in one:
            one["arrays"] = unpickled(one["arrays"])
    _check_ranks(told)
    arrays = join_arrays([one["arrays"] for one in told])
    if told[0]["columns"] is None:
        return None, arrays
    shared = Shared()
    columns = {
        key: _gather_column(data.batch.get(key), [one["columns"][key] for one in told], group, shared)
        for key in told[0]["columns"]
    }
    return rebuilt(data.batch, columns, sum(one["rows"] for one in told)), arrays


def unpickled(told: bytes) -> Any:
    """What another rank pickled.

    Args:
        told: From a member of our own process group, never from a file or a stranger.
    """
    return pickle.loads(told)  # noqa: S301  (from members of our own process group)


def _describe(data: Any) -> _Facts:
    """What this rank has. An error is told like any other fact, since the other ranks wait for this one."""
    return attempt(lambda: _own(data), lambda error: {"error": f"{type(error).__name__}: {error}"})


def _own(data: Any) -> _Facts:
    batch = data.batch
    columns = None if batch is None else {key: _facts(key, column) for key, column in batch.items()}
    return {"rows": len(data), "columns": columns, "arrays": pickle.dumps(data.non_tensor_batch)}


def _facts(key: str, column: Any) -> _Facts:
    if not isinstance(column, torch.Tensor) or (column.is_nested and not is_jagged(column)):
        raise InputTypeError(f"batch[{key!r}]: got a {type(column).__name__}, expected a plain or a jagged tensor")
    facts = {"dtype": str(column.dtype).removeprefix("torch."), "jagged": is_jagged(column)}
    if not facts["jagged"]:
        return {**facts, "shape": tuple(column.shape), "ragged_dim": 0}
    whole = compact_jagged(column)
    shape = tuple(whole._values.shape)
    lengths = jagged_lengths(whole).tolist()
    return {
        **facts,
        "shape": shape,
        "ragged_dim": whole._ragged_idx,
        "lengths": lengths,
        "bounds": jagged_bounds(whole),
    }


def _check_ranks(told: Sequence[_Facts]) -> None:
    """Raise the same on every rank: all of them see the same ``told``."""
    for rank, one in enumerate(told):
        if "error" in one:
            raise PeerError(f"all_gather_data_proto: rank {rank} can't take part: {one['error']}")
    first = told[0]
    for rank, one in enumerate(told):
        for name in ("columns", "arrays"):
            mine, theirs = first[name] or {}, one[name] or {}
            if odd := sorted(map(str, mine.keys() ^ theirs.keys())):
                raise MissingKeyError(
                    f"all_gather_data_proto: only one of ranks 0 and {rank} has {odd[0]!r}, expected it on all"
                )
        for key, facts in (first["columns"] or {}).items():
            theirs = one["columns"][key]
            if _common(facts) != _common(theirs):
                raise ShapeError(
                    f"all_gather_data_proto: batch[{key!r}] doesn't fit: rank 0 has {_said(facts)}, "
                    f"rank {rank} has {_said(theirs)}; they may differ in the number of rows only"
                )


def _common(facts: _Facts) -> tuple[Any, ...]:
    """What all ranks must have alike; the dimension along which they are joined is left out."""
    along = max(facts["ragged_dim"] - 1, 0)
    sizes = tuple(size for dim, size in enumerate(facts["shape"]) if dim != along)
    return facts["dtype"], facts["jagged"], facts["ragged_dim"], len(facts["shape"]), sizes


def _said(facts: _Facts) -> str:
    return f"{'jagged ' if facts['jagged'] else ''}{facts['dtype']} {facts['shape']}"


def _gather_column(column: Any, facts: Sequence[_Facts], group: Any, shared: Shared) -> Any:
    if not facts[0]["jagged"]:
        return torch.cat(_gather_bytes(column, facts, group))
    dim = facts[0]["ragged_dim"]
    values = torch.cat(_gather_bytes(compact_jagged(column)._values, facts, group), dim - 1)
    lengths = [length for one in facts for length in one["lengths"]]
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()], dtype=torch.int64).to(column.device)
    offsets = shared.get((offsets,), lambda: offsets)
    bounds = [one["bounds"] for one in facts if one["lengths"]] or [(0, 0)]
    shortest, longest = min(b[0] for b in bounds), max(b[1] for b in bounds)
    return build_jagged(values, offsets, shortest, longest, ragged_dim=dim)


def _gather_bytes(tensor: torch.Tensor, facts: Sequence[_Facts], group: Any) -> list[torch.Tensor]:
    """Every rank's tensor. Bytes travel, since a backend knows few dtypes; shorter ones are padded to the
    longest."""
    dtype = dtype_of(facts[0]["dtype"])
    sizes = [int(np.prod(one["shape"], dtype=np.int64)) * dtype.itemsize for one in facts]
    device = tensor.device
    if device.type == "cpu" and "nccl" in str(dist.get_backend(group)):
        device = torch.device("cuda", torch.cuda.current_device())
    mine = tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).to(device)
    sent = mine.new_zeros(max(sizes))
    sent[: mine.shape[0]] = mine
    received = [torch.empty_like(sent) for _ in sizes]
    if max(sizes):
        dist.all_gather(received, sent, group=group)
    return [
        part[:size].view(dtype).reshape(one["shape"]).to(tensor.device)
        for part, size, one in zip(received, sizes, facts, strict=True)
    ]
