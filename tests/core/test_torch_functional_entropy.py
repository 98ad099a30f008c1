"""Entropy and squared probabilities of logits: values, gradients and memory."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from probe.core.functional import logit_chunks
from probe.core.functional.entropy import entropy_from_logits_with_chunking
from probe.core.torch_functional import (
    calculate_sum_pi_squared_from_logits,
    entropy_from_logits,
    logprobs_from_logits,
    masked_mean,
    masked_sum,
    masked_var,
    masked_whiten,
)
from probe.errors import InputError, InputTypeError, ShapeError
from tests.core.random_logits import made

NAN, INF = float("nan"), float("inf")


def naive_entropy(logits):
    return torch.logsumexp(logits, -1) - (logits.softmax(-1) * logits).sum(-1)


def naive_squares(logits):
    return logits.softmax(-1).square().sum(-1)


STATISTICS = [
    (entropy_from_logits, naive_entropy),
    (lambda logits: entropy_from_logits_with_chunking(logits, 2), naive_entropy),
    (calculate_sum_pi_squared_from_logits, naive_squares),
]


@pytest.mark.parametrize(("function", "plain"), STATISTICS)
@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 7), (0, 7), (2, 0, 7), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_statistics_of_a_row_and_their_gradients(function, plain, shape, dtype):
    logits, _ = made(*shape, dtype=dtype)
    mine, theirs = (logits.clone().requires_grad_() for _ in range(2))
    got, expected = function(mine), plain(theirs.double())
    assert got.shape == logits.shape[:-1]
    torch.testing.assert_close(
        got, expected.to(got.dtype), atol=1e-5 if dtype is not torch.float64 else 1e-12, rtol=1e-2
    )
    weights = torch.randn_like(expected)
    (got.double() * weights).sum().backward()
    (expected * weights.to(got.dtype).double()).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_only_the_chunked_entropy_is_never_rounded_to_half():
    logits, _ = made(3, 7, dtype=torch.bfloat16)
    assert entropy_from_logits(logits).dtype is torch.bfloat16
    assert entropy_from_logits_with_chunking(logits).dtype is torch.float32
    assert entropy_from_logits_with_chunking(logits.double()).dtype is torch.float64
    torch.testing.assert_close(entropy_from_logits_with_chunking(logits).double(), naive_entropy(logits.double()))


@pytest.mark.parametrize(("function", "plain"), STATISTICS)
def test_gradcheck_of_statistics(function, plain):
    logits, _ = made(3, 4, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(function, logits.requires_grad_())
    assert torch.autograd.gradcheck(function, logits[:, 1:])  # a view that can't be flattened


@pytest.mark.parametrize(("function", "plain"), STATISTICS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_in_many_chunks_leave_the_logits_alone(monkeypatch, function, plain, dtype):
    monkeypatch.setattr(logit_chunks, "_CHUNK", (1, 24, 24))
    monkeypatch.setattr(logit_chunks, "_CHUNK_SHARE", 1)
    logits, _ = made(4, 9, 8, dtype=dtype)
    before = logits.clone()
    for view in (logits, logits[:, :-1], logits.transpose(0, 1), logits.transpose(1, 2).contiguous().transpose(1, 2)):
        leaf = view.detach().clone().requires_grad_()
        got, expected = function(view), plain(view.double())
        torch.testing.assert_close(got, expected.to(got.dtype), atol=1e-5, rtol=1e-2)
        function(leaf).sum().backward()
        plain(theirs := view.double().requires_grad_()).sum().backward()
        torch.testing.assert_close(leaf.grad, theirs.grad.to(dtype), atol=1e-5, rtol=2e-2)
    assert torch.equal(logits, before)


def test_a_certain_choice_has_no_entropy_and_no_minus_before_it():
    assert [str(one.item()) for one in entropy_from_logits(torch.ones(2, 1))] == ["0.0", "0.0"]


def test_a_probability_of_zero_adds_nothing():
    logits = torch.tensor([[0.0, -INF, 0.0], [5.0, -INF, -INF]], requires_grad=True)
    torch.testing.assert_close(entropy_from_logits(logits), torch.tensor([math.log(2), 0.0]))
    torch.testing.assert_close(calculate_sum_pi_squared_from_logits(logits), torch.tensor([0.5, 1.0]))
    (entropy_from_logits(logits) + calculate_sum_pi_squared_from_logits(logits)).sum().backward()
    assert logits.grad.tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("function", "plain"), STATISTICS)
def test_nan_is_nan_where_it_is_and_nowhere_else(function, plain):
    logits, _ = made(3, 6)
    logits[1] = NAN
    leaf = logits.requires_grad_()
    got = function(leaf)
    assert got.isnan().tolist() == [False, True, False]
    masked_mean(got, torch.tensor([1, 0, 1])).backward()
    assert torch.isfinite(leaf.grad).all()
    assert leaf.grad[0].any()


def peak_bytes(call):
    """The most that the CPU allocator gave out at once during a call, on top of what there was."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept = call()
    events = [one for one in profile.profiler.kineto_results.events() if one.name() == "[memory]"]
    del kept
    now = top = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        now += event.nbytes()
        top = max(top, now)
    return top


@pytest.mark.slow
@pytest.mark.parametrize("function", [entropy_from_logits, calculate_sum_pi_squared_from_logits])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_take_a_small_part_of_the_logits(function, dtype):
    logits = torch.randn(4, 1024, 2048).to(dtype).requires_grad_()
    result = function(logits)
    assert peak_bytes(lambda: naive_entropy(logits)) > logits.nbytes  # what is measured is there
    assert peak_bytes(lambda: function(logits)) < 0.45 * logits.nbytes
    backward = peak_bytes(lambda: torch.autograd.grad(result.sum(), logits))
    assert logits.nbytes <= backward < 1.5 * logits.nbytes  # the gradient itself is one


def test_the_size_of_a_chunk_is_the_caller_s():
    logits = torch.randn(1024, 2048)
    few, many = (peak_bytes(lambda rows=rows: entropy_from_logits_with_chunking(logits, rows)) for rows in (8, 512))
    assert few < 0.1 * logits.nbytes < many


@pytest.mark.parametrize("function", [function for function, _ in STATISTICS])
@pytest.mark.parametrize(
    ("logits", "error"),
    [
        ([0.0], InputTypeError),
        (torch.zeros(2, 3, dtype=torch.long), InputTypeError),
        (torch.nested.nested_tensor([torch.zeros(1, 3), torch.zeros(2, 3)], layout=torch.jagged), InputTypeError),
        (torch.zeros(()), ShapeError),
        (torch.zeros(2, 0), ShapeError),
    ],
)
def test_bad_logits(function, logits, error):
    with pytest.raises(error, match="logits"):
        function(logits)


@pytest.mark.parametrize(("size", "error"), [(0, InputError), (-1, InputError), (2.5, InputTypeError)])
def test_a_bad_chunk_size(size, error):
    with pytest.raises(error, match="chunk_size"):
        entropy_from_logits_with_chunking(torch.zeros(2, 3), size)


def test_autocast_takes_no_digits_away():
    logits, labels = made(5, 40)
    ones = torch.ones_like(logits)

    def results():
        functions = [
            functools.partial(logprobs_from_logits, labels=labels),
            *(function for function, _ in STATISTICS),
            *(functools.partial(one, mask=ones) for one in (masked_mean, masked_sum, masked_var, masked_whiten)),
        ]
        for function in functions:
            leaf = logits.clone().requires_grad_()
            result = function(leaf)
            (result * result).sum().backward()
            yield from (result, leaf.grad)

    plain = list(results())
    with torch.autocast("cpu", torch.bfloat16):
        inside = list(results())
    assert all(torch.equal(one, other) for one, other in zip(inside, plain, strict=True))
