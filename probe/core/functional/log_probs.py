"""Log-probabilities of labels under the softmax of their logits, exact and with little memory.

Shapes: ``*`` any leading dimensions, ``V`` the vocabulary.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from probe.core.functional.logit_chunks import check_logits, chunks, clear_unused_rows, wide
from probe.errors import InputError, InputTypeError, ShapeError
from probe.hooks import observed


@observed("log_probs.logprobs_from_logits", "log-probabilities of labels; arguments logits, labels")
def logprobs_from_logits(
    logits: Tensor, labels: Tensor, inplace_backward: bool = True, *, ignore_index: int | None = None
) -> Tensor:
    """Log-probability of each label under the softmax of its logits. Nothing is shifted.

    The exact value, worked out in float32 (float64 for float64) over a few rows at a time. Next to large
    logits it takes 1/4 of a copy at most, next to small ones a few MiB: forward and, in place, backward.
    A row that gets no gradient gives none, so that NaN logits outside a mask stay outside. On CUDA
    flash-attention's cross-entropy is used where it is installed.

    Args:
        logits: Floating point, (*, V).
        labels: Integers in [0, V), (*).
        inplace_backward: Whether to write the gradient into the logits' own memory. The exact path does so only where
            nobody else can see it: no leaf, no view, held by no variable and by no other operation of the graph. With
            flash-attention that is the caller's promise, as documented.
        ignore_index: The label at which the result and the gradient are 0.

    Returns:
        (*), dtype of the logits.

    Raises:
        InputTypeError: They are not tensors, or of the wrong dtypes.
        ShapeError: Shapes or devices don't fit.
        InputError: A label is outside the vocabulary (known only for labels on the CPU).

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


def gather_from_labels(data: Tensor, label: Tensor) -> Tensor:
    """The entry of each row that its label names, such as the log-probability of each token.

    Args:
        data: Any dtype, (*, V).
        label: Integers in [0, V), (*).

    Returns:
        (*), dtype of ``data``; differentiable.

    Raises:
        InputTypeError: They are not plain tensors, or the labels no integers.
        ShapeError: Shapes or devices don't fit.
        InputError: A label is outside (known only for labels on the CPU).

    >>> gather_from_labels(torch.tensor([[0.1, 0.9], [0.4, 0.6]]), torch.tensor([1, 0]))
    tensor([0.9000, 0.4000])
    """
    if not isinstance(data, Tensor) or data.is_nested:
        got = "a nested tensor" if isinstance(data, Tensor) else type(data).__name__
        raise InputTypeError(f"data: got {got}, expected a plain tensor")
    if not data.ndim:
        raise ShapeError("data: got shape (), expected (…, entries)")
    _check_index(label, data, ("label", "data"), None)
    return data.gather(-1, label.long().unsqueeze(-1)).squeeze(-1)


def _check_labels(logits: Tensor, labels: Tensor, ignore_index: int | None) -> None:
    check_logits(logits)
    _check_index(labels, logits, ("labels", "logits"), ignore_index)


def _check_index(labels: Tensor, data: Tensor, names: tuple[str, str], ignore_index: int | None) -> None:
    name, of = names
    if not isinstance(labels, Tensor):
        raise InputTypeError(f"{name}: got {type(labels).__name__}, expected a tensor")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool:
        raise InputTypeError(f"{name}: got {labels.dtype}, expected integers")
    if labels.shape != data.shape[:-1]:
        raise ShapeError(
            f"{name}: got shape {tuple(labels.shape)} for {of} of shape {tuple(data.shape)}, "
            "expected that shape without its last dimension"
        )
    if labels.device != data.device:
        raise ShapeError(f"{name}: on {labels.device}, but {of} on {data.device}")
    if labels.device.type == "cpu" and labels.numel():
        _check_range(labels, data.shape[-1], name, ignore_index)


def _check_range(labels: Tensor, vocabulary: int, name: str, ignore_index: int | None) -> None:
    lowest, highest = (int(one) for one in torch.aminmax(labels))
    if lowest >= 0 and highest < vocabulary:
        return
    outside = (labels < 0) | (labels >= vocabulary)
    if ignore_index is not None:
        outside &= labels != ignore_index
    if bool(outside.any()):
        where = tuple(outside.nonzero()[0].tolist())
        more = " or ignore_index" if ignore_index is not None else "; set ignore_index to leave a label out"
        raise InputError(
            f"{name}: got {int(labels[where])} at {where}, expected 0 to {vocabulary - 1}"
            + (more if name == "labels" else "")
        )


class _LogProbs(torch.autograd.Function):
    """Exact, in chunks of rows. Between the passes it keeps the logits, the labels and one number a row."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, inplace: bool, ignore_index: int | None) -> Tensor:
        out = logits.new_empty(labels.shape)
        normalizer = torch.empty(labels.shape, dtype=wide(logits.dtype), device=logits.device)
        work = _Widened(wants_sums=ctx.needs_input_grad[0]) if _is_narrow(logits) else _wide_rows
        for rows, label, result, log_sum in chunks(logits, labels, out, normalizer):
            kept, index = _labelled(label, ignore_index)
            chosen = work(rows, index.unsqueeze(-1), log_sum)
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
        pieces = chunks(logits.detach(), labels, gradient, normalizer, result)
        for rows, label, given, log_sum, target in pieces:
            kept, index = _labelled(label, ctx.ignore_index)
            scale = given.to(log_sum.dtype)
            scale = (scale if kept is None else torch.where(kept, scale, 0)).unsqueeze(-1)
            work = _probabilities(rows, log_sum, target).mul_(-scale)
            clear_unused_rows(work, scale)
            work.scatter_add_(-1, index.unsqueeze(-1), scale)
            if work is not target:
                target.copy_(work)
        return result, None, None, None


def _wide_rows(rows: Tensor, index: Tensor, log_sum: Tensor) -> Tensor:
    """Log-probabilities (rows,) of the labels ``index`` (rows, 1), and into ``log_sum`` the normalizer."""
    widened = rows.to(log_sum.dtype)
    torch.logsumexp(widened, -1, out=log_sum)
    return widened.gather(-1, index).squeeze(-1) - log_sum


def _is_narrow(logits: Tensor) -> bool:
    return logits.device.type == "cpu" and logits.dtype != wide(logits.dtype)


class _Widened:
    """:func:`_wide_rows` for 16-bit logits on the CPU, in half its time: rows are widened into one buffer and their
    log-softmax, which goes over them once, written into another.

    Args:
        wants_sums: Whether the normalizers are wanted: a pass without a gradient does without.
    """

    def __init__(self, *, wants_sums: bool) -> None:
        self._wants_sums = wants_sums
        self._buffers: tuple[Tensor, Tensor] | None = None

    def __call__(self, rows: Tensor, index: Tensor, log_sum: Tensor) -> Tensor:
        if self._buffers is None or self._buffers[0].shape != rows.shape:  # the last chunk is shorter
            self._buffers = torch.empty_like(rows, dtype=log_sum.dtype), torch.empty_like(rows, dtype=log_sum.dtype)
        widened, logs = self._buffers
        torch.ops.aten._log_softmax.out(widened.copy_(rows), -1, False, out=logs)
        if self._wants_sums:  # at the largest of each row, whose logarithm is near 0 and so the most exact
            highest, where = widened.max(-1, keepdim=True)
            torch.sub(highest, logs.gather(-1, where), out=log_sum.unsqueeze(-1))
        return logs.gather(-1, index).squeeze(-1)


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
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        del gradient  # only who holds the saved tensor is asked
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
