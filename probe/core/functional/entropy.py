"""Entropy of the distribution behind logits, and the sum of its squared probabilities.

Exact, worked out in float32 (float64 for float64) over a few rows at a time: next to large logits the forward pass
takes a small part of a copy, and the backward pass that part besides the gradient itself. Between the passes only the
logits and two numbers a row are kept. A probability of 0 (a logit of −∞, as after top-k) adds nothing.

Shapes: ``*`` any leading dimensions, ``V`` the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from probe.core.functional.logit_chunks import check_logits, chunks, clear_unused_rows, wide
from probe.errors import InputError, InputTypeError
from probe.hooks import observed


@observed("entropy.entropy_from_logits", "the entropy of each row of logits; argument logits")
def entropy_from_logits(logits: Tensor) -> Tensor:
    """Entropy of the softmax of each row, in nats: ``logsumexp(x) − Σ softmax(x) · x``.

    A row that gets no gradient gives none, so that NaN logits outside a mask stay outside.

    Args:
        logits: Floating point, (*, V).

    Returns:
        (*), dtype of the logits. Differentiable once.

    Raises:
        InputTypeError: It is not a plain tensor of floating point.
        ShapeError: It has no vocabulary.

    >>> entropy_from_logits(torch.zeros(2, 4)) / torch.log(torch.tensor(4.0))
    tensor([1., 1.])
    >>> entropy_from_logits(torch.tensor([0.0, -torch.inf, 0.0]))
    tensor(0.6931)
    """
    check_logits(logits)
    return _applied(logits, _ENTROPY, None, logits.dtype)


@observed(
    "entropy.entropy_from_logits_with_chunking", "the entropy of each row, in float32; arguments logits, chunk_size"
)
def entropy_from_logits_with_chunking(logits: Tensor, chunk_size: int = 2048) -> Tensor:
    """:func:`entropy_from_logits` in float32 whatever the logits are, with pieces of a chosen size.

    As in verl, the result isn't rounded to half precision. The other function works in pieces as well, and chooses
    their size.

    Args:
        logits: Floating point, (*, V).
        chunk_size: Rows worked on at once; they need ``3 × chunk_size × V × 4`` bytes at most.

    Returns:
        (*), float32 (float64 for float64). Differentiable once.

    Raises:
        InputError: ``chunk_size`` is below 1.
        InputTypeError: As :func:`entropy_from_logits`.
        ShapeError: As :func:`entropy_from_logits`.

    >>> entropy_from_logits_with_chunking(torch.zeros(3, 4, dtype=torch.bfloat16), chunk_size=2)
    tensor([1.3863, 1.3863, 1.3863])
    """
    check_logits(logits)
    if not isinstance(chunk_size, int):
        raise InputTypeError(f"chunk_size: got {type(chunk_size).__name__}, expected an int")
    if chunk_size < 1:
        raise InputError(f"chunk_size: got {chunk_size}, expected at least 1 row")
    return _applied(logits, _ENTROPY, chunk_size, wide(logits.dtype))


@observed("entropy.calculate_sum_pi_squared_from_logits", "sum of squared probabilities of each row; argument logits")
def calculate_sum_pi_squared_from_logits(logits: Tensor) -> Tensor:
    """``Σ softmax(x)²`` of each row: the chance that two draws agree, used by the optimal-baseline estimators.

    Equal to ``exp(logsumexp(2x) − 2 logsumexp(x))``. A row that gets no gradient gives none.

    Args:
        logits: Floating point, (*, V).

    Returns:
        (*), dtype of the logits, from 1 / V to 1. Differentiable once.

    Raises:
        InputTypeError: As :func:`entropy_from_logits`.
        ShapeError: As :func:`entropy_from_logits`.

    >>> calculate_sum_pi_squared_from_logits(torch.tensor([[0.0, 0.0], [9e9, 0.0]]))
    tensor([0.5000, 1.0000])
    """
    check_logits(logits)
    return _applied(logits, _SUM_OF_SQUARES, None, logits.dtype)


class _Statistic(NamedTuple):
    """One number for each row, from its log-probabilities ℓ (rows, V); p is exp(ℓ), both free to be written to."""

    #: ℓ, p → (rows,)
    value: Callable[[Tensor, Tensor], Tensor]
    #: ℓ, p, the value (rows, 1) → its gradient with respect to the logits (rows, V)
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor]


# A product of vectors (vecdot) would be shorter, but autocast works it out in half precision.
_ENTROPY = _Statistic(
    lambda log_p, p: 0 - p.mul_(log_p).sum(-1),  # a minus alone would make −0 of 0
    lambda log_p, p, entropy: p.mul_(log_p.add_(entropy)).neg_(),
)
_SUM_OF_SQUARES = _Statistic(
    lambda _, p: p.square_().sum(-1),
    lambda _, p, value: (p - value).mul_(p).mul_(2),
)


def _applied(logits: Tensor, statistic: _Statistic, rows_at_once: int | None, dtype: torch.dtype) -> Tensor:
    apply: Callable[..., Tensor] = _ByRow.apply  # torch leaves it untyped
    return apply(logits, statistic, rows_at_once).to(dtype)


class _ByRow(torch.autograd.Function):
    """A :class:`_Statistic` of every row, in pieces."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, statistic: _Statistic, rows_at_once: int | None) -> Tensor:
        result, normalizer = (
            torch.empty(logits.shape[:-1], dtype=wide(logits.dtype), device=logits.device) for _ in range(2)
        )
        for rows, value, log_sum in chunks(logits, result, normalizer, rows_at_once=rows_at_once):
            widened = rows.to(log_sum.dtype)
            torch.logsumexp(widened, -1, out=log_sum)
            # A wider copy is ours to write to, the logits themselves aren't.
            log_p = _log_probabilities(widened, log_sum, None if widened is rows else widened)
            value.copy_(statistic.value(log_p, log_p.exp()))
        ctx.save_for_backward(logits, result, normalizer)
        ctx.statistic, ctx.rows_at_once = statistic, rows_at_once
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        logits, values, normalizer = ctx.saved_tensors
        result = torch.empty_like(logits)
        pieces = chunks(logits.detach(), values, gradient, normalizer, result, rows_at_once=ctx.rows_at_once)
        for rows, value, given, log_sum, target in pieces:
            widened = rows.to(log_sum.dtype)
            log_p = _log_probabilities(widened, log_sum, target if widened is rows else widened)
            work = ctx.statistic.gradient(log_p, log_p.exp(), value.unsqueeze(-1))
            scale = given.to(log_sum.dtype).unsqueeze(-1)
            target.copy_(clear_unused_rows(work.mul_(scale), scale))
        return result, None, None


def _log_probabilities(rows: Tensor, log_sum: Tensor, out: Tensor | None) -> Tensor:
    """Log-softmax with the lowest finite number for −∞, so that 0 · log 0 is 0."""
    log_p = torch.sub(rows, log_sum.unsqueeze(-1), out=out)
    return log_p.clamp_min_(torch.finfo(log_p.dtype).min)
