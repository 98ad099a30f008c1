"""verl's exchanges between ranks and ours, on the same tensors: ``python verl_exchanges.py RANK RANKS STORE``.

A program of its own: a rank imports what it compares, and not what all other tests need.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import verl.utils.ulysses as theirs

from probe.core import ulysses


def exchanged(module: Any, rank: int) -> list[Any]:
    """What verl's or our functions make of a tensor on each rank, and its gradients."""
    found: list[Any] = []
    ways: tuple[Callable[[Any], Any], ...] = (
        lambda x: module.SeqAllToAll.apply(dist.group.WORLD, x, 2, 1),
        lambda x: module.SeqAllToAll.apply(None, x, 1, 2, False),
        lambda x: module.Gather.apply(dist.group.WORLD, x, 1),
        lambda x: module.Gather.apply(None, x, 2, False),
    )
    for apply in ways:
        x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(rank)).requires_grad_()
        got = apply(x)
        (got * torch.arange(got.numel()).reshape(got.shape)).sum().backward()
        found += [got.detach(), x.grad]
    return found


def main(rank: int, world: int, store: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        for one, other in zip(exchanged(theirs, rank), exchanged(ulysses, rank), strict=True):
            assert torch.equal(one, other)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
