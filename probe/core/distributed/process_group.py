"""A process group and what is sent over it. Without one, this process is a group of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def initialized() -> bool:
    """Whether this process belongs to a group at all."""
    return dist.is_available() and dist.is_initialized()


def rank_count(group: Any = None) -> int:
    """Ranks of ``group``, None meaning all; 1 without a process group."""
    return dist.get_world_size(group) if initialized() else 1


def meeting_device(device: torch.device, group: Any = None) -> torch.device:
    """``device`` where the group can send its tensors, else one whose tensors it can send."""
    backends = str(dist.get_backend_config(group))  # such as "cpu:gloo,cuda:nccl"
    kinds = [pair.partition(":")[0] for pair in backends.split(",")]
    return device if device.type in kinds else torch.device(kinds[0])


def talks_on_cpu(group: Any = None) -> bool:
    """Whether objects travel without the help, and so without waiting for, a device."""
    return meeting_device(torch.device("cpu"), group).type == "cpu"


def told_by_all(mine: Any, group: Any = None) -> list[Any]:
    """``mine`` of every rank, in the order of ranks. A collective; pickled, by members of our own process group."""
    if not initialized():
        return [mine]
    told: list[Any] = [None] * rank_count(group)
    dist.all_gather_object(told, mine, group=group)
    return told


def summed(tensor: Tensor, group: Any = None) -> Tensor:
    """The sum over all ranks, on the device of ``tensor``, which may be written to. A collective."""
    if not initialized():
        return tensor
    sent = tensor.to(meeting_device(tensor.device, group))
    dist.all_reduce(sent, group=group)
    return sent.to(tensor.device)


def stacked(tensor: Tensor, group: Any = None) -> Tensor:
    """Every rank's ``tensor``, which has one shape on all: (ranks, *shape), on its device. A collective."""
    if not initialized():
        return tensor.unsqueeze(0)
    sent = tensor.to(meeting_device(tensor.device, group)).contiguous()
    received = sent.new_empty(rank_count(group), *sent.shape)
    dist.all_gather(list(received.unbind(0)), sent, group=group)
    return received.to(tensor.device)
