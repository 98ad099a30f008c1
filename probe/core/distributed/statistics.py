"""Statistics over the tensors of all ranks, and the norm of a model's gradient.

Each is a collective: every rank of the group must call it, with as many values as it has, none included. Sums and
counts travel in float64. Nothing here is differentiable, and without a process group each works on this process
alone. Arguments are checked before anything is sent: a rank that raises takes no part, and the others wait for it as
for any rank that has died.

Shapes: ``*`` any dimensions, and not the same ones on every rank.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from probe.core.distributed.process_group import stacked, summed
from probe.core.functional.logit_chunks import wide
from probe.core.functional.masked import EPSILON, result_dtype, weighted
from probe.errors import InputTypeError
from probe.hooks import observed


@observed(
    "distributed_math.distributed_masked_mean", "a masked mean over all ranks; arguments local_tensor, local_mask"
)
def distributed_masked_mean(local_tensor: Tensor, local_mask: Tensor, group: Any = None) -> Tensor:
    """:func:`~probe.core.functional.masked.masked_mean` of the values of all ranks together, in one collective.

    So a rank counts by what its mask selects, and one that selects nothing doesn't count; NaN outside a mask stays
    outside.

    Args:
        local_tensor: This rank's values (*), see ``masked_mean``.
        local_mask: This rank's mask (*), see ``masked_mean``.
        group: The process group; None means all ranks.

    Returns:
        0-d, the same on every rank, without gradient; 0 where no rank selects anything.

    Raises:
        ShapeError: As ``masked_mean``.
        InputTypeError: As ``masked_mean``.

    >>> distributed_masked_mean(torch.tensor([1.0, 3.0, float("nan")]), torch.tensor([1, 1, 0]))
    tensor(2.)
    """
    with torch.no_grad():
        kept, weights = weighted(local_tensor, local_mask)
        dtype = _precise(kept.device)
        total, count = summed(torch.stack([kept.sum(dtype=dtype), weights.sum(dtype=dtype)]), group)
        mean: Tensor = (total / (count + EPSILON)).to(result_dtype(local_tensor))
        return mean


@observed(
    "distributed_math.distributed_mean_max_min_std", "mean, extremes, deviation over all ranks; argument local_tensor"
)
def distributed_mean_max_min_std(
    local_tensor: Tensor,
    compute_max: bool = True,
    compute_min: bool = True,
    compute_std: bool = True,
    group: Any = None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Mean, largest, smallest and standard deviation of the values of all ranks together, in one collective.

    Every rank tells its count, mean and sum of squared deviations, which are put together without loss of digits
    (Chan, Golub & LeVeque 1983). The deviation is the unbiased one.

    Args:
        local_tensor: Real numbers (*); a rank may have none.
        compute_max: False gives None in the result's place.
        compute_min: False gives None in the result's place.
        compute_std: False gives None in the result's place.
        group: The process group; None means all ranks.

    Returns:
        Mean, max, min, std: 0-d, the same on every rank, float32 (float64 for float64 and whole numbers). NaN where
        there is no value at all, and where one of them is NaN; the deviation of one value is NaN as well.

    Raises:
        InputTypeError: It is not a tensor of real numbers.

    >>> distributed_mean_max_min_std(torch.tensor([1.0, 2.0, 3.0]), compute_min=False)
    (tensor(2.), tensor(3.), None, tensor(1.))
    """
    if not isinstance(local_tensor, Tensor) or local_tensor.is_complex() or local_tensor.is_nested:
        got = local_tensor.dtype if isinstance(local_tensor, Tensor) else type(local_tensor).__name__
        raise InputTypeError(f"local_tensor: got {got}, expected a plain tensor of real numbers")
    with torch.no_grad():
        mean, highest, lowest, deviation = _joined(stacked(_moments(local_tensor), group))
        whole = not local_tensor.is_floating_point()
        dtype = _precise(mean.device) if whole else wide(local_tensor.dtype)
        return (
            mean.to(dtype),
            highest.to(dtype) if compute_max else None,
            lowest.to(dtype) if compute_min else None,
            deviation.to(dtype) if compute_std else None,
        )


def _moments(values: Tensor) -> Tensor:
    """Count, mean, sum of squared deviations, largest and smallest: (5,). No value: 0, 0, 0, −∞, ∞."""
    precise = values.detach().flatten().to(_precise(values.device))
    if not precise.numel():
        nothing = precise.new_zeros(5)
        nothing[3], nothing[4] = -math.inf, math.inf
        return nothing
    mean = precise.mean()
    lowest, highest = torch.aminmax(precise)
    squares = (precise - mean).square_().sum()
    return torch.stack([torch.full_like(mean, precise.numel()), mean, squares, highest, lowest])


def _joined(told: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, largest, smallest and deviation from (ranks, 5) of :func:`_moments`."""
    counts, means, squares, highest, lowest = told.unbind(1)
    count = counts.sum()
    mean = (counts * means).sum() / count
    # A rank without values has the mean 0, and 0 × ∞ would be NaN.
    between = torch.where(counts > 0, counts * (means - mean).square(), 0)
    variance = (squares + between).sum() / (count - 1)
    nothing = count == 0
    deviation = torch.where(count > 1, variance.sqrt(), math.nan)
    return (
        mean,
        torch.where(nothing, math.nan, highest.amax()),
        torch.where(nothing, math.nan, lowest.amin()),
        deviation,
    )


def _precise(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # the one device that knows no float64


# ------------------------------------------------------------------------------------------------- the gradient's norm


@observed("distributed_math.compute_grad_norm", "the norm of a model's gradient; argument model, result a float")
def compute_grad_norm(model: nn.Module, group: Any = None) -> float:
    """L2 norm of all gradients of ``model`` together.

    verl's function of this name returns the *square* of it, which here is :func:`compute_squared_grad_norm`.

    Gradients that are DTensors (FSDP2, tensor parallelism) are summed up over the ranks that hold their parts, so
    every rank of the mesh must call this; a parameter that has no gradient counts as 0. Half precision is summed in
    float32.

    Args:
        model: The model whose ``.grad`` is read. This waits for the device, once for each set of ranks.
        group: Ranks that hold the other parts of gradients that are plain tensors, as FSDP1's flat ones are. None means
            that they are whole.

    Returns:
        The norm; 0 without gradients.

    Raises:
        InputTypeError: ``model`` is not a module.

    >>> layer = nn.Linear(1, 2, bias=False)
    >>> layer.weight.grad = torch.tensor([[3.0], [4.0]])
    >>> compute_grad_norm(layer), compute_squared_grad_norm(layer)
    (5.0, 25.0)
    """
    return math.sqrt(_squared_norm(model, group))


@observed("distributed_math.compute_squared_grad_norm", "the squared norm of a model's gradient; argument model")
def compute_squared_grad_norm(model: nn.Module, group: Any = None) -> float:
    """Square of :func:`compute_grad_norm`: what verl's function of that name returns, where nothing is sharded.

    Args:
        model: As for :func:`compute_grad_norm`.
        group: As for :func:`compute_grad_norm`.

    Raises:
        InputTypeError: ``model`` is not a module.
    """
    return _squared_norm(model, group)


def _squared_norm(model: nn.Module, group: Any) -> float:
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model: got {type(model).__name__}, expected a torch.nn.Module")
    by_groups: dict[tuple[Any, ...], list[Tensor]] = {}
    with torch.no_grad():
        for parameter in model.parameters():
            # By the parameter, not its gradient: all ranks must meet in the same groups, whatever gradients they have.
            groups, gradient = _local_part(parameter, group)
            norms = by_groups.setdefault(groups, [])
            norms.append(torch.zeros((), device=parameter.device) if gradient is None else _norm(gradient))
        return math.fsum(_total(norms, groups).item() for groups, norms in by_groups.items())


def _local_part(parameter: Tensor, group: Any) -> tuple[tuple[Any, ...], Tensor | None]:
    """The groups over which squares are summed up, and this rank's part of the gradient."""
    module: Any = sys.modules.get("torch.distributed.tensor")  # nobody has a DTensor where it isn't imported
    gradient: Any = parameter.grad
    if module is None or not isinstance(parameter, module.DTensor):
        return (() if group is None else (group,)), gradient
    mesh: Any = parameter.device_mesh
    # Whatever isn't whole on every rank: FSDP2 over tensor parallelism has a placement that isn't a Shard.
    groups = tuple(mesh.get_group(dim) for dim, one in enumerate(parameter.placements) if not one.is_replicate())
    if gradient is not None:
        gradient = gradient.redistribute(mesh, parameter.placements).to_local()
    return groups, gradient


def _norm(gradient: Tensor) -> Tensor:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    values = torch.view_as_real(values) if values.is_complex() else values
    norm: Tensor = torch.linalg.vector_norm(values, dtype=wide(values.dtype))
    return norm


def _total(norms: list[Tensor], groups: Iterable[Any]) -> Tensor:
    device = next((norm.device for norm in norms if norm.device.type != "cpu"), norms[0].device)
    total = torch.stack([norm.to(device, _precise(device)) for norm in norms]).square_().sum()
    for group in groups:
        total = summed(total, group)
    return total
