"""The collectives of sequence parallelism, with their gradients: all slices gathered, and an all-to-all exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from probe.core.ulysses.dimensions import dim_of, part_of_rank, two_dims
from probe.core.ulysses.group import get_ulysses_sequence_parallel_group
from probe.errors import InputError, ShapeError

#: Renamed in torch 2.13, where the old name warns.
_all_gather: Final[Callable[..., Any]] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Gather(torch.autograd.Function):
    """The slices of all ranks in one tensor: what :func:`~probe.core.ulysses.gather_outputs_and_unpad` is made of.

    ``Gather.apply(group, local_tensor, gather_dim, grad_scaler=True, async_op=False)``, by position, as in verl.
    Without a group it is the one that was set, else all ranks; it needs ``torch.distributed`` in any case.

    >>> from torch.testing._internal.distributed.fake_pg import FakeStore  # one rank, alone
    >>> dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    >>> Gather.apply(None, torch.tensor([[1, 2]]), 1).shape
    torch.Size([1, 2])
    >>> dist.destroy_process_group()
    """

    @staticmethod
    def forward(
        ctx: Any,
        group: ProcessGroup | None,
        local_tensor: Tensor,
        gather_dim: int,
        grad_scaler: bool = True,
        async_op: bool = False,
    ) -> Tensor:
        """Gather; called by ``apply``.

        Args:
            ctx: What autograd keeps for the backward pass.
            group: The ranks; None means the group that was set, else all ranks.
            local_tensor: This rank's slice; the same shape on every rank.
            gather_dim: The dimension along which the slices are put together.
            grad_scaler: Whether the gradient is multiplied by the number of ranks.
            async_op: False; autograd would know nothing of a result that comes later.

        Raises:
            InputError: ``async_op`` is True.
            ShapeError: There is no such dimension.
        """
        _refuse_async(async_op)
        group = get_ulysses_sequence_parallel_group() if group is None else group
        dim, size = dim_of("gather_dim", gather_dim, local_tensor), dist.get_world_size(group)
        ctx.place = dim, dist.get_rank(group), size
        ctx.scale = size if grad_scaler else 1
        parts = local_tensor.new_empty((size, *local_tensor.shape))
        _all_gather(parts.view(-1), local_tensor.contiguous().view(-1), group=group)
        return parts.movedim(0, dim).flatten(dim, dim + 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of this rank's slice; called by autograd.

        Args:
            ctx: What :meth:`forward` kept.
            grad_output: The gradient of the gathered tensor.
        """
        own = part_of_rank(grad_output, *ctx.place)
        return None, own * ctx.scale if ctx.scale != 1 else own, None, None, None


def gathered(x: Tensor, dim: int, scaled: bool, group: ProcessGroup, size: int) -> Tensor:
    """:class:`Gather` applied; with one rank it is ``x`` itself.

    Args:
        x: This rank's slice.
        dim: The dimension along which the slices are put together, from 0.
        scaled: Whether the gradient is multiplied by the number of ranks.
        group: The ranks.
        size: Their number.
    """
    if size == 1:
        return x
    gather: Callable[..., Tensor] = Gather.apply
    return gather(group, x, dim, scaled)


class SeqAllToAll(torch.autograd.Function):
    """Each rank cuts one dimension into a piece for every rank, and joins what it gets along another.

    ``SeqAllToAll.apply(group, local_input, scatter_dim, gather_dim, async_op=False)``, by position, as in verl.
    Elements only change places, so the gradient is the exchange with the two dimensions swapped. Without a group it is
    the one that was set, else all ranks; it needs ``torch.distributed`` in any case.

    >>> from torch.testing._internal.distributed.fake_pg import FakeStore  # one rank, alone
    >>> dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    >>> SeqAllToAll.apply(None, torch.zeros(2, 8, 4), 2, 1).shape
    torch.Size([2, 8, 4])
    >>> dist.destroy_process_group()
    """

    @staticmethod
    def forward(
        ctx: Any,
        group: ProcessGroup | None,
        local_input: Tensor,
        scatter_dim: int,
        gather_dim: int,
        async_op: bool = False,
    ) -> Tensor:
        """Exchange; called by ``apply``.

        Args:
            ctx: What autograd keeps for the backward pass.
            group: The ranks; None means the group that was set, else all ranks.
            local_input: This rank's tensor; the same shape on every rank.
            scatter_dim: The dimension that is cut; the number of ranks divides its size.
            gather_dim: The dimension that what comes is joined along.
            async_op: False; autograd would know nothing of a result that comes later.

        Raises:
            InputError: ``async_op`` is True.
            ShapeError: There is no such dimension, both are the same, or one can't be shared equally.
        """
        _refuse_async(async_op)
        group = get_ulysses_sequence_parallel_group() if group is None else group
        scatter, gather = two_dims(local_input, "scatter_dim", scatter_dim, "gather_dim", gather_dim)
        size = dist.get_world_size(group)
        if local_input.shape[scatter] % size:
            raise ShapeError(
                f"local_input: scatter_dim={scatter_dim} has size {local_input.shape[scatter]}, expected a multiple of "
                f"the {size} ranks"
            )
        ctx.dims, ctx.group = (gather, scatter), group
        pieces = (
            local_input.unflatten(scatter, (size, local_input.shape[scatter] // size)).movedim(scatter, 0).contiguous()
        )
        received = torch.empty_like(pieces)
        dist.all_to_all_single(received.view(-1), pieces.view(-1), group=group)
        return received.movedim(0, gather).flatten(gather, gather + 1)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient, exchanged back; called by autograd.

        Args:
            ctx: What :meth:`forward` kept.
            grad_output: The gradient of what came.
        """
        exchange: Callable[..., Tensor] = SeqAllToAll.apply
        back = exchange(ctx.group, grad_output, *ctx.dims)
        return None, back, None, None, None


def exchanged(x: Tensor, scatter_dim: int, gather_dim: int, group: ProcessGroup | None) -> Tensor:
    """:class:`SeqAllToAll` applied.

    Args:
        x: This rank's tensor.
        scatter_dim: The dimension that is cut.
        gather_dim: The dimension that what comes is joined along.
        group: The ranks; None means the group that was set.
    """
    exchange: Callable[..., Tensor] = SeqAllToAll.apply
    return exchange(group, x, scatter_dim, gather_dim)


def _refuse_async(async_op: bool) -> None:
    if async_op:
        raise InputError("async_op: got True, expected False: a result that comes later would have no gradient")
