"""Sum, mean, variance and whitening over the values that a mask selects.

What lies outside a mask never reaches a result, NaN included, and nothing broadcasts silently.

Shapes: ``*`` any dimensions.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from probe.core.functional.logit_chunks import wide
from probe.errors import InputError, InputTypeError, ShapeError
from probe.hooks import observed

#: Keeps a quotient finite over an empty mask, and a square root over a constant; as documented.
EPSILON: Final = 1e-8


def masked_sum(values: Tensor, mask: Tensor, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Sum of ``values × mask`` over ``axis``; see :func:`masked_mean` for the arguments and errors.

    Args:
        values: As for :func:`masked_mean`.
        mask: As for :func:`masked_mean`.
        axis: Dimension or dimensions to reduce; None means all.

    >>> masked_sum(torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([1, 0, 1]))
    tensor(4.)
    """
    kept, _ = weighted(values, mask)
    return _reduce(kept, axis).to(result_dtype(values))


def masked_mean(values: Tensor, mask: Tensor, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Mean of the values that ``mask`` selects: ``sum(values × mask) / (sum(mask) + 1e-8)``.

    Half precision is summed in float32, so that a count above 256 isn't rounded to bfloat16.

    Args:
        values: Any shape and any dtype but complex; whole numbers and bools give float32.
        mask: The same shape; bool, or numbers that are weights. Where it is 0 the value doesn't matter, NaN and
            infinities included, and gets no gradient.
        axis: Dimension or dimensions to reduce; None means all.

    Returns:
        The shape of ``values`` without ``axis``. 0 where nothing is selected.

    Raises:
        InputTypeError: They are not tensors.
        ShapeError: Shapes or devices differ.
        InputError: There is no such axis.

    >>> masked_mean(torch.tensor([[1.0, 2.0], [3.0, float("nan")]]), torch.tensor([[1, 1], [1, 0]]))
    tensor(2.)
    >>> masked_mean(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1, 1], [1, 0]]), axis=1)
    tensor([1.5000, 3.0000])
    """
    kept, weights = weighted(values, mask)
    mean = _reduce(kept, axis) / (_reduce(weights, axis) + EPSILON)
    return mean.to(result_dtype(values))


def masked_var(values: Tensor, mask: Tensor, unbiased: bool = True) -> Tensor:
    """Variance of the values that ``mask`` selects, over all dimensions.

    Args:
        values: As for :func:`masked_mean`.
        mask: As for :func:`masked_mean`.
        unbiased: Whether to multiply by n / (n − 1), where n is the sum of the mask.

    Returns:
        A 0-d tensor. On a device, where asking for n would mean to wait, it is NaN instead of the error
        below.

    Raises:
        InputError: n isn't above 1 (above 0 with ``unbiased=False``); or as :func:`masked_mean`.
        InputTypeError: As :func:`masked_mean`.
        ShapeError: As :func:`masked_mean`.

    >>> masked_var(torch.tensor([1.0, 3.0, 99.0]), torch.tensor([True, True, False]))
    tensor(2.)
    """
    _, variance = _moments(values, mask, unbiased)
    return variance.to(result_dtype(values))


@observed("masked.masked_whiten", "values are whitened over a mask; arguments values, mask")
def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """Scale to variance 1 and shift to mean 0, both taken over ``mask``: ``(x − mean) / sqrt(var + 1e-8)``.

    The variance is the unbiased one. Positions outside the mask are transformed alike; a NaN or infinity
    there becomes what the mean becomes, so that a later product with the mask, or its gradient, stays finite.

    Args:
        values: As for :func:`masked_mean`.
        mask: As for :func:`masked_mean`.
        shift_mean: Whether the mean becomes 0; False adds it back.

    Returns:
        (*), the shape of ``values``.

    Raises:
        InputError: As :func:`masked_var`.
        ShapeError: As :func:`masked_var`.
        InputTypeError: As :func:`masked_var`.

    >>> masked_whiten(torch.tensor([1.0, 3.0, float("nan")]), torch.tensor([1, 1, 0]))
    tensor([-0.7071,  0.7071,  0.0000])
    """
    mean, variance = _moments(values, mask, unbiased=True)
    widened = values.to(mean.dtype)
    known = torch.where((mask != 0) | torch.isfinite(widened), widened, mean.detach())
    whitened = (known - mean) * torch.rsqrt(variance + EPSILON)
    return (whitened if shift_mean else whitened + mean).to(result_dtype(values))


def _moments(values: Tensor, mask: Tensor, unbiased: bool) -> tuple[Tensor, Tensor]:
    """Masked mean and variance in the dtype of the computation."""
    kept, weights = weighted(values, mask)
    count = weights.sum()
    least = 1 if unbiased else 0
    if count.device.type == "cpu" and not float(count) > least:
        raise InputError(f"mask: its sum is {float(count):g}, expected more than {least} for a variance")
    mean = kept.sum() / (count + EPSILON)
    selected = mask != 0
    centred = torch.where(selected, torch.where(selected, values.to(mean.dtype), 0) - mean, 0)
    variance = (centred.square() * weights).sum() / (count + EPSILON)
    if unbiased:
        variance = variance * (count / (count - 1))
    return mean, torch.where(count > least, variance, math.nan)


def weighted(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """``values × mask`` with everything outside the mask gone, and the mask as weights."""
    check_mask(values, mask)
    dtype = wide(values.dtype)
    if mask.is_floating_point():
        dtype = torch.promote_types(dtype, mask.dtype)
    weights = mask.to(dtype)
    kept = torch.where(mask != 0, values.to(dtype), 0)
    return (kept if mask.dtype is torch.bool else kept * weights), weights


def check_mask(values: Tensor, mask: Tensor) -> None:
    """Raise unless both are tensors of real numbers, of one shape and on one device."""
    for name, given in (("values", values), ("mask", mask)):
        if not isinstance(given, Tensor) or given.is_complex():
            got = given.dtype if isinstance(given, Tensor) else type(given).__name__
            raise InputTypeError(f"{name}: got {got}, expected a tensor of real numbers")
    if mask.shape != values.shape:
        raise ShapeError(f"mask: got shape {tuple(mask.shape)}, expected that of values, {tuple(values.shape)}")
    if mask.device != values.device:
        raise ShapeError(f"mask: on {mask.device}, but the values are on {values.device}")


def _reduce(tensor: Tensor, axis: int | tuple[int, ...] | None) -> Tensor:
    if axis is None:
        return tensor.sum()
    wanted = (axis,) if isinstance(axis, int) else tuple(axis)
    if not wanted or any(not -tensor.ndim <= one < tensor.ndim for one in wanted):
        raise InputError(f"axis: got {axis!r}, expected dimensions of a tensor with {tensor.ndim} of them")
    return tensor.sum(dim=wanted)


def result_dtype(values: Tensor) -> torch.dtype:
    """That of ``values``; whole numbers and bools give float32."""
    return values.dtype if values.is_floating_point() else torch.float32
