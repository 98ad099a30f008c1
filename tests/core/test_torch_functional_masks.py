"""Means, sums and variances under a mask, and clipping."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probe.core.torch_functional import (
    clip_by_value,
    logprobs_from_logits,
    masked_mean,
    masked_sum,
    masked_var,
    masked_whiten,
)
from probe.errors import InputError, InputTypeError, ShapeError
from tests.core.random_logits import made

NAN, INF = float("nan"), float("inf")


# --------------------------------------------------------------------------------------- masked things


@st.composite
def masked(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return values, torch.rand(*shape, generator=generator) < draw(st.floats(0, 1))


@settings(deadline=None)
@example(given_pair=(torch.tensor([1.0, 1.00005], dtype=torch.float64), torch.ones(2, dtype=torch.bool)))
@given(masked())
def test_mean_and_sum_by_hand(given_pair):
    values, mask = given_pair
    selected = values[mask]
    poisoned = torch.where(mask, values, NAN)
    assert masked_sum(poisoned, mask).item() == pytest.approx(selected.sum().item())
    expected = selected.mean().item() if selected.numel() else 0.0
    assert masked_mean(poisoned, mask).item() == pytest.approx(expected, abs=1e-6)
    along = masked_sum(poisoned, mask, axis=-1)
    torch.testing.assert_close(along, torch.where(mask, values, 0).sum(-1))
    if selected.numel() > 1:
        assert masked_var(poisoned, mask).item() == pytest.approx(selected.var().item(), abs=1e-6)
        white = masked_whiten(poisoned, mask)
        assert torch.isfinite(white).all()
        deviation = (selected.var() + 1e-8).sqrt()
        expected = (selected - selected.mean()) / deviation
        # The mean is over the count plus 1e-8: a part of itself that counts where the deviation is small.
        rounding = 1e-5 + 1e-8 * (selected.mean().abs() / deviation).item()
        torch.testing.assert_close(white[mask], expected, rtol=1e-5, atol=rounding)
        kept = masked_whiten(poisoned, mask, shift_mean=False)
        torch.testing.assert_close(kept[mask], expected + selected.mean(), rtol=1e-5, atol=rounding)


def test_axes_weights_and_dtypes():
    values = torch.arange(12.0).reshape(2, 3, 2)
    mask = torch.ones_like(values)
    mask[0, 0] = 0.5
    for axis in (0, -1, (0, 2), (0, 1, 2)):
        expected = (values * mask).sum(axis) / (mask.sum(axis) + 1e-8)
        torch.testing.assert_close(masked_mean(values, mask, axis=axis), expected)
    assert masked_mean(torch.tensor([1, 4]), torch.tensor([1, 1])).item() == 2.5
    half = torch.ones(1000, dtype=torch.bfloat16)
    assert masked_mean(half, torch.ones(1000, dtype=torch.bool)).item() == 1.0
    assert masked_mean(half, half).dtype is torch.bfloat16
    assert masked_mean(torch.tensor([NAN, INF]), torch.tensor([0, 0])).item() == 0.0
    assert torch.isnan(masked_mean(torch.tensor([NAN, 1.0]), torch.tensor([1, 1])))


@pytest.mark.parametrize("function", [masked_mean, masked_sum, masked_var, masked_whiten])
def test_nan_outside_the_mask_reaches_no_gradient(function):
    values = torch.tensor([1.0, NAN, 3.0, INF, 5.0], requires_grad=True)
    mask = torch.tensor([1, 0, 1, 0, 1])
    result = function(values, mask)
    (result * torch.arange(1.0, 6.0) if result.ndim else result).sum().backward()
    clean = torch.tensor([1.0, 3.0, 5.0], requires_grad=True)
    assert torch.isfinite(values.grad).all()
    if function is not masked_whiten:  # which gives the places outside a result, so a share of the gradient
        function(clean, torch.ones(3)).sum().backward()
        torch.testing.assert_close(values.grad[mask.bool()], clean.grad)
        assert values.grad[~mask.bool()].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("function", [masked_var, masked_whiten])
@pytest.mark.parametrize("mask", [[0, 0, 0], [0, 1, 0]])
def test_a_variance_needs_two(function, mask):
    with pytest.raises(InputError, match="mask: its sum is"):
        function(torch.tensor([1.0, 2.0, 3.0]), torch.tensor(mask))
    with pytest.raises(ValueError, match="expected more than 1"):
        function(torch.tensor([1.0, 2.0, 3.0]), torch.tensor(mask))


def test_the_biased_variance():
    assert masked_var(torch.tensor([1.0, 3.0]), torch.ones(2), unbiased=False).item() == pytest.approx(1.0)
    assert masked_var(torch.tensor([1.0, 3.0]), torch.tensor([1, 0]), unbiased=False).item() == 0.0


@pytest.mark.parametrize("function", [masked_mean, masked_sum, masked_var, masked_whiten])
@pytest.mark.parametrize(
    ("values", "mask", "error"),
    [
        (torch.ones(2, 3), torch.ones(3), ShapeError),
        (torch.ones(2, 3), torch.ones(2, 1), ShapeError),
        (torch.ones(2, 3), torch.ones(2, 3, device="meta"), ShapeError),
        (torch.ones(2, 3), [[1, 1, 1], [1, 1, 1]], InputTypeError),
        (torch.ones(2, dtype=torch.complex64), torch.ones(2), InputTypeError),
    ],
)
def test_bad_masks(function, values, mask, error):
    with pytest.raises(error):
        function(values, mask)


@pytest.mark.parametrize("axis", [2, -3, (0, 5), ()])
def test_bad_axis(axis):
    with pytest.raises(InputError, match="axis"):
        masked_mean(torch.ones(2, 3), torch.ones(2, 3), axis=axis)


def test_a_row_that_gets_no_gradient_gives_none_whatever_its_logits_are():
    logits, labels = made(3, 6)
    logits[1] = NAN
    leaf = logits.requires_grad_()
    masked_mean(logprobs_from_logits(leaf, labels), torch.tensor([1, 0, 1])).backward()
    assert not leaf.grad[1].any()
    assert torch.isfinite(leaf.grad).all()
    assert leaf.grad[[0, 2]].any()


# ------------------------------------------------------------------------------------------------------- clipping


def test_clipping_is_max_of_min_in_values_and_gradients():
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(4, 5, generator=generator) for _ in range(3)]
    tensors[0][0, 0] = tensors[1][0, 0]  # a tie
    mine, theirs = ([one.clone().requires_grad_() for one in tensors] for _ in range(2))
    got, expected = clip_by_value(*mine), torch.max(torch.min(theirs[0], theirs[2]), theirs[1])
    assert torch.equal(got, expected)
    got.sum().backward()
    expected.sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        assert torch.equal(one.grad, other.grad)


def test_clipping_to_numbers_and_dtypes():
    x = torch.tensor([-3.0, 0.5, NAN, 3.0], dtype=torch.bfloat16)
    got = clip_by_value(x, -1, 2.0)
    assert got.dtype is torch.bfloat16
    assert got.tolist()[:2] + got.tolist()[3:] == [-1.0, 0.5, 2.0]
    assert got[2].isnan()
    assert clip_by_value(torch.tensor([0, 5]), 0.5, 2.5).tolist() == [0.5, 2.5]
    assert clip_by_value(torch.tensor([0.0, 5.0]), torch.tensor(1.0), torch.tensor(2.0)).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("x", "low", "high", "error"),
    [
        ([1.0], 0, 1, InputTypeError),
        (torch.ones(2), "0", 1, InputTypeError),
        (torch.ones(2, 3), torch.ones(3), 1, ShapeError),
        (torch.ones(2, 3), 0, torch.ones(2, 1), ShapeError),
        (torch.ones(3), 0, torch.ones(3, device="meta"), ShapeError),
        (torch.ones(3), torch.ones((), device="meta"), 1, ShapeError),
        (torch.ones(3, dtype=torch.complex64), 0, 1, InputTypeError),
        (torch.ones(3), torch.ones(3, dtype=torch.complex64), 1, InputTypeError),
    ],
)
def test_bad_bounds(x, low, high, error):
    with pytest.raises(error):
        clip_by_value(x, low, high)
