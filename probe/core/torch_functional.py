"""Small tensor helpers of a policy-gradient trainer: log-probabilities, masked statistics, a warm-up
schedule.

Names and results follow verl's documented ``torch_functional``. Three things hold throughout: shapes are
checked and nothing broadcasts silently; what lies outside a mask never reaches a result, NaN included; and no
check makes the program wait for a device. What can only be known from the data is checked where the data is
on the CPU.

Shapes: ``*`` any leading dimensions, ``V`` the vocabulary.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from probe.errors import InputError, InputTypeError, ShapeError

#: Keeps a quotient finite over an empty mask, and a square root over a constant; as documented.
_EPSILON: Final = 1e-8

#: Elements of logits worked on at once: at least, at most on the CPU (caches), at most on a device.
_CHUNK: Final = (2**18, 2**20, 2**25)
#: ... and, above the least, never more than this part: the extra memory stays far below one copy.
_CHUNK_SHARE: Final = 32

# ----------------------------------------------------------------------------------- log-probabilities


def logprobs_from_logits(
    logits: Tensor, labels: Tensor, inplace_backward: bool = True, *, ignore_index: int | None = None
) -> Tensor:
    """Log-probability of each label under the softmax of its logits. Nothing is shifted.

    The exact value, worked out in float32 (float64 for float64) over a few rows at a time. Next to large
    logits it takes 1/4 of a copy at most, next to small ones a few MiB: forward and, in place, backward.
    On CUDA flash-attention's cross-entropy is used where it is installed.

    Args:
        logits: (*, V), floating point. labels: (*), integers in [0, V).
        inplace_backward: write the gradient into the logits' own memory. The exact path does so only where
            nobody else can see it: no leaf, no view, held by no variable and by no other operation of the
            graph. With flash-attention that is the caller's promise, as documented.
        ignore_index: where a label equals it the result and the gradient are 0.

    Returns:
        (*), dtype of the logits.

    Raises:
        InputTypeError: not tensors, or of the wrong dtypes. ShapeError: shapes or devices that don't fit.
        InputError: labels outside the vocabulary (known only for labels on the CPU).

    >>> logprobs_from_logits(torch.zeros(2, 4), torch.tensor([1, 3])).exp()
    tensor([0.2500, 0.2500])
    >>> logprobs_from_logits(torch.zeros(4), torch.tensor(1)).exp()
    tensor(0.2500)
    """
    _check_labels(logits, labels, ignore_index)
    flash = _flash_cross_entropy() if logits.is_cuda and logits.numel() else None
    if flash is not None:
        return _flash_logprobs(flash, logits, labels, inplace_backward, ignore_index)
    apply: Callable[..., Tensor] = _LogProbs.apply  # torch leaves it untyped
    return apply(logits, labels.long(), inplace_backward, ignore_index)


def _check_labels(logits: Tensor, labels: Tensor, ignore_index: int | None) -> None:
    for name, given in (("logits", logits), ("labels", labels)):
        if not isinstance(given, Tensor):
            raise InputTypeError(f"{name}: got {type(given).__name__}, expected a tensor")
    if not logits.is_floating_point():
        raise InputTypeError(f"logits: got {logits.dtype}, expected floating point")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool:
        raise InputTypeError(f"labels: got {labels.dtype}, expected integers")
    if logits.ndim == 0 or labels.shape != logits.shape[:-1]:
        raise ShapeError(
            f"labels: got shape {tuple(labels.shape)} for logits of shape {tuple(logits.shape)}, "
            "expected that shape without its last dimension"
        )
    if labels.device != logits.device:
        raise ShapeError(f"labels: on {labels.device}, but the logits are on {logits.device}")
    if labels.device.type == "cpu" and labels.numel():
        _check_range(labels, logits.shape[-1], ignore_index)


def _check_range(labels: Tensor, vocabulary: int, ignore_index: int | None) -> None:
    lowest, highest = (int(one) for one in torch.aminmax(labels))
    if lowest >= 0 and highest < vocabulary:
        return
    outside = (labels < 0) | (labels >= vocabulary)
    if ignore_index is not None:
        outside &= labels != ignore_index
    if bool(outside.any()):
        where = tuple(outside.nonzero()[0].tolist())
        raise InputError(
            f"labels: got {int(labels[where])} at {where}, expected 0 to {vocabulary - 1}"
            + (" or ignore_index" if ignore_index is not None else "; ignore_index= names one to leave out")
        )


class _LogProbs(torch.autograd.Function):
    """Exact, in chunks of rows. Between the passes it keeps the logits, the labels and one number a row."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, inplace: bool, ignore_index: int | None) -> Tensor:
        out = logits.new_empty(labels.shape)
        normalizer = torch.empty(labels.shape, dtype=_wide(logits.dtype), device=logits.device)
        for rows, label, result, log_sum in _chunks(logits, labels, out, normalizer):
            wide = rows.to(log_sum.dtype)
            torch.logsumexp(wide, -1, out=log_sum)
            kept, index = _labelled(label, ignore_index)
            chosen = wide.gather(-1, index.unsqueeze(-1)).squeeze(-1) - log_sum
            result.copy_(chosen if kept is None else torch.where(kept, chosen, 0))
        ctx.save_for_backward(logits, labels, normalizer)
        hidden = inplace and not logits.is_leaf and logits._base is None
        ctx.inplace = _holders_when_alone() if hidden else None
        ctx.ignore_index = ignore_index
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        logits, labels, normalizer = ctx.saved_tensors
        alone = ctx.inplace and not _graph_is_kept() and _holders(logits) == ctx.inplace
        result = logits.detach() if alone else torch.empty_like(logits)
        pieces = _chunks(logits.detach(), labels, gradient, normalizer, result)
        for rows, label, given, log_sum, target in pieces:
            kept, index = _labelled(label, ctx.ignore_index)
            scale = given.to(log_sum.dtype)
            scale = (scale if kept is None else torch.where(kept, scale, 0)).unsqueeze(-1)
            work = _probabilities(rows, log_sum, target).mul_(-scale)
            if kept is not None:  # 0 × NaN: a row left out stays out whatever its logits are
                work.masked_fill_(~kept.unsqueeze(-1), 0)
            work.scatter_add_(-1, index.unsqueeze(-1), scale)
            if work is not target:
                target.copy_(work)
        return result, None, None, None


def _probabilities(rows: Tensor, log_sum: Tensor, target: Tensor) -> Tensor:
    """Softmax of ``rows``; in ``target`` itself where that is wide enough."""
    if target.dtype == log_sum.dtype:
        return torch.sub(rows, log_sum.unsqueeze(-1), out=target).exp_()
    return rows.to(log_sum.dtype).sub_(log_sum.unsqueeze(-1)).exp_()


def _labelled(label: Tensor, ignore_index: int | None) -> tuple[Tensor | None, Tensor]:
    if ignore_index is None:
        return None, label
    kept = label != ignore_index
    return kept, torch.where(kept, label, 0)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _chunks(logits: Tensor, labels: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Matching pieces of the tensors, as views: (rows, V) of the logits and their gradient, else (rows,)."""
    least, most_cpu, most_device = _CHUNK
    most = most_cpu if logits.device.type == "cpu" else most_device
    elements = max(least, min(most, logits.numel() // _CHUNK_SHARE))
    return _pieces((logits, labels, *others), max(1, elements // max(1, logits.shape[-1])))


def _pieces(tensors: tuple[Tensor, ...], rows: int) -> Iterator[tuple[Tensor, ...]]:
    leading = tensors[1].shape
    if math.prod(leading) == 0:
        return
    flat = [_flat(tensor, tensor.shape[len(leading) :]) for tensor in tensors]
    if all(one is not None for one in flat):
        yield from zip(*(torch.split(one, rows) for one in flat if one is not None), strict=True)
        return
    # Such as logits[:, :-1]: flattening would copy everything, so go one dimension down.
    for inner in zip(*(tensor.unbind(0) for tensor in tensors), strict=True):
        yield from _pieces(inner, rows)


def _flat(tensor: Tensor, trailing: torch.Size) -> Tensor | None:
    try:
        return tensor.view(-1, *trailing)
    except RuntimeError:  # the only way that torch tells that a view isn't possible
        return None


def _graph_is_kept() -> bool:
    """Whether the running backward pass has ``retain_graph=True``, which may need the logits again."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return ask is None or bool(ask())


def _holders(tensor: Tensor) -> tuple[int, int, int]:
    """How many hold the Python object, the tensor behind it, and its memory."""
    storage_count = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    impl_count = cast("Any", tensor)._use_count()
    return sys.getrefcount(tensor), impl_count, storage_count


class _Held(torch.autograd.Function):
    """Saves one tensor, as :class:`_LogProbs` does, and tells who holds it when the gradient comes."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, told: list[tuple[int, int, int]]) -> Tensor:
        ctx.save_for_backward(tensor, None)
        ctx.told = told
        return tensor.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:  # noqa: ARG004  # torch's signature
        tensor, _ = ctx.saved_tensors
        ctx.told.append(_holders(tensor))
        return None, None


@functools.cache
def _holders_when_alone() -> tuple[int, int, int] | None:
    """:func:`_holders` of a tensor that only a graph holds, measured: it differs between versions.

    None where this torch can't tell; then no gradient is written in place, which costs memory only.
    """
    if not (hasattr(torch._C, "_storage_Use_Count") and hasattr(Tensor, "_use_count")):
        return None
    told: list[tuple[int, int, int]] = []
    apply: Callable[..., Tensor] = _Held.apply
    with torch.enable_grad():
        torch.autograd.backward(apply(torch.zeros(1, requires_grad=True) * 2, told))
    return told[0] if told else None


@functools.cache
def _flash_cross_entropy() -> Any:
    try:
        from flash_attn.ops.triton.cross_entropy import cross_entropy_loss
    except ImportError:
        return None
    return cross_entropy_loss


def _flash_logprobs(
    flash: Any, logits: Tensor, labels: Tensor, inplace_backward: bool, ignore_index: int | None
) -> Tensor:
    rows = logits.reshape(-1, logits.shape[-1])
    left_out = -(2**31) if ignore_index is None else ignore_index
    loss, _ = flash(
        rows,
        labels.reshape(-1).long(),
        ignore_index=left_out,
        inplace_backward=inplace_backward and not logits.is_leaf,
    )
    return cast("Tensor", -loss).to(logits.dtype).view(labels.shape)


# --------------------------------------------------------------------------------------------------- masked
# statistics


def masked_sum(values: Tensor, mask: Tensor, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Sum of ``values × mask`` over ``axis``; see :func:`masked_mean` for the arguments and errors.

    >>> masked_sum(torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([1, 0, 1]))
    tensor(4.)
    """
    kept, _ = _weighted(values, mask)
    return _reduce(kept, axis).to(_result_dtype(values))


def masked_mean(values: Tensor, mask: Tensor, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Mean of the values that ``mask`` selects: ``sum(values × mask) / (sum(mask) + 1e-8)``.

    Half precision is summed in float32, so that a count above 256 isn't rounded to bfloat16.

    Args:
        values: (*), any dtype but complex; whole numbers and bools give float32.
        mask: (*), the same shape; bool, or numbers that are weights. Where it is 0 the value doesn't matter,
            NaN and infinities included, and gets no gradient.
        axis: dimension or dimensions to reduce; None means all.

    Returns:
        The shape of ``values`` without ``axis``. 0 where nothing is selected.

    Raises:
        InputTypeError: not tensors. ShapeError: shapes or devices that differ. InputError: an axis that isn't
            there.

    >>> masked_mean(torch.tensor([[1.0, 2.0], [3.0, float("nan")]]), torch.tensor([[1, 1], [1, 0]]))
    tensor(2.)
    >>> masked_mean(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1, 1], [1, 0]]), axis=1)
    tensor([1.5000, 3.0000])
    """
    kept, weights = _weighted(values, mask)
    mean = _reduce(kept, axis) / (_reduce(weights, axis) + _EPSILON)
    return mean.to(_result_dtype(values))


def masked_var(values: Tensor, mask: Tensor, unbiased: bool = True) -> Tensor:
    """Variance of the values that ``mask`` selects, over all dimensions.

    Args:
        values, mask: as in :func:`masked_mean`.
        unbiased: times n / (n − 1), where n is the sum of the mask.

    Returns:
        A 0-d tensor. On a device, where asking for n would mean to wait, it is NaN instead of the error
        below.

    Raises:
        InputError: n isn't above 1 (above 0 with ``unbiased=False``). And as :func:`masked_mean`.

    >>> masked_var(torch.tensor([1.0, 3.0, 99.0]), torch.tensor([True, True, False]))
    tensor(2.)
    """
    _, variance = _moments(values, mask, unbiased)
    return variance.to(_result_dtype(values))


def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """Scale to variance 1 and shift to mean 0, both taken over ``mask``: ``(x − mean) / sqrt(var + 1e-8)``.

    The variance is the unbiased one. Positions outside the mask are transformed alike; a NaN or infinity
    there becomes what the mean becomes, so that a later product with the mask, or its gradient, stays finite.

    Args:
        values, mask: as in :func:`masked_mean`.
        shift_mean: False adds the mean back.

    Returns:
        (*), the shape of ``values``.

    Raises:
        As :func:`masked_var`.

    >>> masked_whiten(torch.tensor([1.0, 3.0, float("nan")]), torch.tensor([1, 1, 0]))
    tensor([-0.7071,  0.7071,  0.0000])
    """
    mean, variance = _moments(values, mask, unbiased=True)
    wide = values.to(mean.dtype)
    known = torch.where((mask != 0) | torch.isfinite(wide), wide, mean.detach())
    whitened = (known - mean) * torch.rsqrt(variance + _EPSILON)
    return (whitened if shift_mean else whitened + mean).to(_result_dtype(values))


def _moments(values: Tensor, mask: Tensor, unbiased: bool) -> tuple[Tensor, Tensor]:
    """Masked mean and variance in the dtype of the computation."""
    kept, weights = _weighted(values, mask)
    count = weights.sum()
    least = 1 if unbiased else 0
    if count.device.type == "cpu" and not float(count) > least:
        raise InputError(f"mask: its sum is {float(count):g}, expected more than {least} for a variance")
    mean = kept.sum() / (count + _EPSILON)
    selected = mask != 0
    centred = torch.where(selected, torch.where(selected, values.to(mean.dtype), 0) - mean, 0)
    variance = (centred.square() * weights).sum() / (count + _EPSILON)
    if unbiased:
        variance = variance * (count / (count - 1))
    return mean, torch.where(count > least, variance, math.nan)


def _weighted(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """``values × mask`` with everything outside the mask gone, and the mask as weights."""
    _check_mask(values, mask)
    dtype = _wide(values.dtype)
    if mask.is_floating_point():
        dtype = torch.promote_types(dtype, mask.dtype)
    weights = mask.to(dtype)
    kept = torch.where(mask != 0, values.to(dtype), 0)
    return (kept if mask.dtype is torch.bool else kept * weights), weights


def _check_mask(values: Tensor, mask: Tensor) -> None:
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
        raise InputError(f"axis: got {axis!r}, expected dimensions of a tensor that has {tensor.ndim}")
    return tensor.sum(dim=wanted)


def _result_dtype(values: Tensor) -> torch.dtype:
    return values.dtype if values.is_floating_point() else torch.float32


# -------------------------------------------------------------------------------------------- schedule


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: int, last_epoch: int = -1) -> LambdaLR:
    """A learning rate that rises linearly from 0 over ``num_warmup_steps`` and then stays.

    Args:
        optimizer: whose rates are scaled. num_warmup_steps: 0 or less means no warm-up; fractions work.
        last_epoch: steps already done, when a training is resumed.

    Raises:
        InputTypeError: not an optimizer, or not a number.

    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=2)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates += schedule.get_last_lr()
    ...     optimizer.step()
    ...     schedule.step()
    >>> rates
    [0.0, 0.5, 1.0, 1.0]
    """
    if not isinstance(optimizer, Optimizer):
        raise InputTypeError(f"optimizer: got {type(optimizer).__name__}, expected a torch Optimizer")
    if not isinstance(num_warmup_steps, int | float) or math.isnan(num_warmup_steps):
        raise InputTypeError(f"num_warmup_steps: got {num_warmup_steps!r}, expected a number")
    return LambdaLR(optimizer, functools.partial(_warmup_factor, num_warmup_steps), last_epoch)


def _warmup_factor(warmup_steps: float, step: int) -> float:
    return step / max(1.0, warmup_steps) if step < warmup_steps else 1.0
