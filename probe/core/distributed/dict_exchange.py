"""Dicts that all ranks share: broadcast from one of them, or gathered from all.

Tensors travel as bytes, so every dtype does, over every backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from tensordict import TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor

from probe.core.columns.jagged import Shared, build_jagged, compact_jagged, is_jagged, jagged_bounds, jagged_lengths
from probe.core.distributed.process_group import initialized, meeting_device, rank_count, talks_on_cpu, told_by_all
from probe.errors import InputError, InputTypeError, MissingKeyError, PeerError, ShapeError
from probe.hooks import observed

Tensors = TypeVar("Tensors", bound="Mapping[str, Tensor] | TensorDictBase")
#: Of a TensorDict's leaf: the names on the way to it.
_Key: TypeAlias = "tuple[str, ...]"


@observed("dict_exchange.broadcast_dict_tensor", "tensors are overwritten by one rank's; arguments tensors, src, group")
def broadcast_dict_tensor(tensors: Mapping[str, Tensor] | TensorDictBase, src: int, group: Any = None) -> None:
    """Overwrite every tensor, in place, by that of rank ``src``. A collective.

    All ranks need the same names, dtypes and shapes, in any order. Where the group can talk on the CPU that is
    checked, and all ranks raise the same; otherwise checking would wait for the device.

    Args:
        tensors: Name to tensor, plain ones. A TensorDict may be nested. Without a process group nothing happens.
        src: The sender's global rank.
        group: The process group; None means all ranks.

    Raises:
        MissingKeyError: The ranks don't have the same names.
        ShapeError: The ranks don't have the same shapes.
        PeerError: A rank (this one too) has a value that isn't a plain tensor.
        InputError: ``src`` isn't a rank of the group.

    >>> broadcast_dict_tensor({"weight": torch.ones(2)}, src=0)
    """
    ranks = dist.get_process_group_ranks(group) if initialized() else [0]
    if src not in ranks:
        raise InputError(f"src: got {src}, expected a global rank of the group, one of {ranks}")
    mine = _described(tensors)
    _check(told_by_all(mine, group) if initialized() and talks_on_cpu(group) else [mine], "broadcast_dict_tensor")
    if not initialized():
        return
    for _, tensor in sorted(_leaves(tensors).items()):
        _broadcast(tensor, src, group)


def _broadcast(tensor: Tensor, src: int, group: Any) -> None:
    target = tensor.detach()
    sent = target.to(meeting_device(target.device, group)).contiguous().resolve_conj().resolve_neg()
    if sent.numel():
        dist.broadcast(_bytes(sent), src, group=group)
    if sent.data_ptr() != target.data_ptr():
        target.copy_(sent)


@observed(
    "dict_exchange.allgather_dict_tensors", "tensors of all ranks are joined; arguments tensors, size, group, dim"
)
def allgather_dict_tensors(tensors: Tensors, size: int, group: Any = None, dim: int = 0) -> Tensors:
    """Every tensor joined with those of the other ranks along ``dim``, in the order of ranks. A collective.

    The ranks first tell each other what they have: sizes along ``dim`` may differ, anything else raises the same
    error on every rank. On a group that talks over a device only, this waits for the device.

    Args:
        tensors: Name to tensor, plain or (with ``dim=0``) jagged. A TensorDict may be nested.
        size: The number of ranks of the group, as documented.
        group: The process group; None means all ranks.
        dim: The dimension along which they are joined.

    Returns:
        The same type, with new tensors on the same devices, without gradient. Jagged tensors with equal rows share
        their offsets.

    Raises:
        InputError: ``size`` isn't the number of ranks, or ``dim`` is negative for a TensorDict.
        ShapeError: The shapes of the ranks don't fit each other.
        PeerError: A rank (this one too) has something that can't be sent, or no dimension ``dim``.
        MissingKeyError: The ranks don't have the same names.

    >>> allgather_dict_tensors({"reward": torch.tensor([1.0, 2.0])}, size=1)
    {'reward': tensor([1., 2.])}
    """
    ranks = rank_count(group)
    if size != ranks:
        raise InputError(f"size: got {size}, expected {ranks}, the number of ranks of the group")
    if dim < 0 and isinstance(tensors, TensorDictBase):
        raise InputError(f"dim: got {dim} for a TensorDict, expected at least 0")
    told = told_by_all(_described(tensors, dim), group)
    _check(told, "allgather_dict_tensors")
    leaves, shared = _leaves(tensors), Shared()
    joined = {
        key: _gathered(leaves[key], [one["facts"][key] for one in told], dim, group, shared) for key in sorted(leaves)
    }
    return cast("Tensors", _like(tensors, {key: joined[key] for key in leaves}, dim))


def _gathered(column: Any, facts: Sequence[dict[str, Any]], dim: int, group: Any, shared: Shared) -> Tensor:
    if not is_jagged(column):
        return _joined(column, [one["shape"] for one in facts], dim, group)
    whole: Any = compact_jagged(column)
    values = _joined(whole._values, [one["shape"] for one in facts], whole._ragged_idx - 1, group)
    lengths = _joined(jagged_lengths(whole), [(one["rows"],) for one in facts], 0, group)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    offsets = shared.get((offsets,), lambda: offsets)
    bounds = [one["bounds"] for one in facts if one["rows"]] or [(0, 0)]
    shortest, longest = min(one[0] for one in bounds), max(one[1] for one in bounds)
    return build_jagged(values, offsets, shortest, longest, ragged_dim=whole._ragged_idx)


def _joined(tensor: Tensor, shapes: Sequence[tuple[int, ...]], dim: int, group: Any) -> Tensor:
    """The tensors of all ranks along ``dim``. Shorter ones travel with zeros behind them."""
    if not initialized():
        return tensor.detach().clone()
    sizes = [int(np.prod(shape, dtype=np.int64)) * tensor.element_size() for shape in shapes]
    mine = tensor.detach().to(meeting_device(tensor.device, group)).contiguous()
    sent = mine.new_zeros(max(sizes), dtype=torch.uint8)
    sent[: mine.nbytes] = _bytes(mine)
    received = sent.new_empty(len(sizes), max(sizes))
    if max(sizes):
        dist.all_gather(list(received.unbind(0)), sent, group=group)
    parts = [
        row[:size].view(tensor.dtype).reshape(shape) for row, size, shape in zip(received, sizes, shapes, strict=True)
    ]
    return torch.cat(parts, dim).to(tensor.device)


def _bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor."""
    return tensor.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


# ------------------------------------------------------------------------------------------ what every rank tells first


def _described(tensors: Any, dim: int | None = None) -> dict[str, Any]:
    """Facts of each tensor. An error is told like any other fact, since the other ranks wait for this one."""
    try:
        return {"facts": {key: _facts(key, tensor, dim) for key, tensor in _leaves(tensors).items()}}
    except (InputError, InputTypeError) as error:
        return {"error": str(error)}


def _facts(key: _Key, tensor: Any, dim: int | None) -> dict[str, Any]:
    """``shape``; what all ranks must have alike stands in ``common``."""
    name = f"tensors[{_name(key)!r}]"
    if not is_jagged(tensor):
        if dim is not None and not -tensor.ndim <= dim < tensor.ndim:
            raise InputError(f"dim: got {dim}, expected a dimension of {name}, which has shape {tuple(tensor.shape)}")
        along = None if dim is None else dim % tensor.ndim
        return {"shape": tuple(tensor.shape), "common": _common(tensor, along)}
    if dim is None or dim % tensor.ndim != 0:
        raise InputError(f"{name}: got a jagged tensor, which can't be broadcast and is only gathered along dim=0")
    whole = compact_jagged(tensor)
    common = _common(whole._values, whole._ragged_idx - 1)
    bounds = jagged_bounds(whole)
    return {"shape": tuple(whole._values.shape), "common": f"jagged {common}", "rows": whole.shape[0], "bounds": bounds}


def _common(tensor: Tensor, along: int | None) -> str:
    sizes = ["any" if one == along else str(size) for one, size in enumerate(tensor.shape)]
    return f"{str(tensor.dtype).removeprefix('torch.')} ({', '.join(sizes)})"


def _check(told: Sequence[dict[str, Any]], function: str) -> None:
    """Raise the same on every rank: all of them see the same ``told``."""
    for rank, one in enumerate(told):
        if "error" in one:
            raise PeerError(f"{function}: rank {rank} of the group can't take part: {one['error']}")
    first = told[0]["facts"]
    for rank, one in enumerate(told):
        facts = one["facts"]
        if odd := sorted(first.keys() ^ facts.keys()):
            raise MissingKeyError(
                f"{function}: only one of ranks 0 and {rank} of the group has {_name(odd[0])!r}, expected it on all"
            )
        for key in first:
            if first[key]["common"] != facts[key]["common"]:
                raise ShapeError(
                    f"{function}: tensors[{_name(key)!r}]: rank 0 of the group has {first[key]['common']}, "
                    f"rank {rank} has {facts[key]['common']}; expected the same on all"
                )


# ------------------------------------------------------------------------------------------------ dicts and TensorDicts


def _leaves(tensors: Any) -> dict[_Key, Any]:
    leaves = dict(_pairs(tensors))
    for key, tensor in leaves.items():
        if not isinstance(tensor, Tensor) or (tensor.is_nested and not is_jagged(tensor)) or tensor.is_sparse:
            raise InputTypeError(
                f"tensors[{_name(key)!r}]: got {type(tensor).__name__}, expected a plain or jagged tensor"
            )
    return leaves


def _pairs(tensors: Any) -> Iterator[tuple[_Key, Any]]:
    if isinstance(tensors, TensorDictBase):
        names = tensors.keys()  # iterating the TensorDict itself gives rows
        for name in names:
            value = tensors.get(name)  # TensorDict's own walk over its leaves leaves out what isn't a tensor
            if isinstance(value, TensorDictBase) and not is_non_tensor(value):
                yield from (((name, *rest), leaf) for rest, leaf in _pairs(value))
            else:
                yield (name,), value
    elif isinstance(tensors, Mapping):
        for key, value in tensors.items():
            if not isinstance(key, str):
                raise InputTypeError(f"tensors: got the key {key!r}, expected strings")
            yield (key,), value
    else:
        raise InputTypeError(f"tensors: got {type(tensors).__name__}, expected a dict or a TensorDict")


def _name(key: _Key) -> str:
    return ".".join(key)


def _like(tensors: Any, joined: dict[_Key, Tensor], dim: int) -> Any:
    if not isinstance(tensors, TensorDictBase):
        return {key[0]: tensor for key, tensor in joined.items()}
    size = list(tensors.batch_size)
    if joined and 0 <= dim < len(size):
        size[dim] = next(iter(joined.values())).shape[dim]
    made = TensorDict({}, batch_size=size, device=tensors.device)
    for key, tensor in joined.items():
        made.set(key, tensor)
    return made


@observed("dict_exchange.allgather_dict_into_dict", "dicts of all ranks become one of lists; arguments data, group")
def allgather_dict_into_dict(data: Mapping[str, Any], group: Any = None) -> dict[str, list[Any]]:
    """The values of all ranks under each key, in the order of ranks. A collective; values are pickled.

    A rank that lacks a key adds nothing to its list, and a value that is a list stays one entry.

    Args:
        data: A dict of plain values, such as the metrics of this rank.
        group: The process group; None means all ranks.

    Raises:
        InputTypeError: It is not a dict.

    >>> allgather_dict_into_dict({"loss": 0.5, "lengths": [3, 4]})
    {'loss': [0.5], 'lengths': [[3, 4]]}
    """
    if not isinstance(data, Mapping):
        raise InputTypeError(f"data: got {type(data).__name__}, expected a dict")
    gathered: dict[str, list[Any]] = {}
    for one in told_by_all(dict(data), group):
        for key, value in one.items():
            gathered.setdefault(key, []).append(value)
    return gathered
