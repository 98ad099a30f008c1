"""Which ranks share a sequence (DeepSpeed-Ulysses), and whether a model's heads can be dealt out to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed import ProcessGroup

from probe._check import whole_number
from probe.errors import InputError

#: The documented setter has no scope of its own. Neither a context variable nor a thread's local would do:
#: activation checkpointing runs the forward pass again in autograd's own threads, which must see the same group.
_group: ProcessGroup | None = None


def set_ulysses_sequence_parallel_group(group: ProcessGroup | None) -> None:
    """Make ``group`` the one that is meant where no group is given. None: no sequence parallelism."""
    global _group
    _group = group


def get_ulysses_sequence_parallel_group() -> ProcessGroup | None:
    """The group that :func:`set_ulysses_sequence_parallel_group` was given last, None before."""
    return _group


@contextmanager
def ulysses_sequence_parallel(group: ProcessGroup | None) -> Iterator[None]:
    """The block runs with ``group`` as the sequence-parallel group; the one before comes back after it."""
    before = get_ulysses_sequence_parallel_group()
    set_ulysses_sequence_parallel_group(group)
    try:
        yield
    finally:
        set_ulysses_sequence_parallel_group(before)


def get_ulysses_sequence_parallel_world_size(group: ProcessGroup | None = None) -> int:
    """Ranks that share a sequence: of ``group``, else of the group that was set; 1 without either.

    Raises:
        InputError: This rank is not in the group.

    >>> get_ulysses_sequence_parallel_world_size()
    1
    """
    return place_of(group)[1]


def get_ulysses_sequence_parallel_rank(group: ProcessGroup | None = None) -> int:
    """Which slice of the sequence is this rank's, from 0; 0 without a group.

    Raises:
        InputError: This rank is not in the group.
    """
    return place_of(group)[0]


def place_of(group: ProcessGroup | None) -> tuple[int, int]:
    """This rank within ``group`` (None: the one that was set), and the group's size; (0, 1) with no group."""
    group = _group if group is None else group
    if group is None:
        return 0, 1
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise InputError(f"group: rank {dist.get_rank()} is not in it, expected a group that this rank belongs to")
    return rank, size


def validate_ulysses_config(num_heads: int, ulysses_sequence_size: int, num_key_value_heads: int | None = None) -> None:
    """Check that heads can be dealt out to the ranks, before a model is built.

    Args:
        num_heads: Query heads of one attention layer.
        ulysses_sequence_size: Ranks that share a sequence.
        num_key_value_heads: Key and value heads, with grouped-query attention; where there are fewer than ranks each is
            repeated, so that one number must divide the other.

    Raises:
        InputError: They can't be dealt out equally, or a number is below 1.

    >>> validate_ulysses_config(num_heads=28, ulysses_sequence_size=4, num_key_value_heads=2)
    >>> validate_ulysses_config(num_heads=28, ulysses_sequence_size=8)
    Traceback (most recent call last):
    ...
    probe.errors.InputError: num_heads: got 28, expected a multiple of ulysses_sequence_size, which is 8
    """
    heads = whole_number("num_heads", num_heads, 1)
    size = whole_number("ulysses_sequence_size", ulysses_sequence_size, 1)
    if heads % size:
        raise InputError(f"num_heads: got {heads}, expected a multiple of ulysses_sequence_size, which is {size}")
    if num_key_value_heads is None:
        return
    shared = whole_number("num_key_value_heads", num_key_value_heads, 1)
    if heads % shared:
        raise InputError(f"num_key_value_heads: got {shared}, expected a divisor of num_heads, which is {heads}")
    if shared % size and size % shared:
        raise InputError(
            f"num_key_value_heads: got {shared}, expected a multiple or a divisor of ulysses_sequence_size, "
            f"which is {size}"
        )
