from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probe import hooks
from probe.core import torch_functional
from probe.core.functional import logit_chunks
from probe.core.functional.entropy import entropy_from_logits_with_chunking
from probe.core.torch_functional import (
    calculate_sum_pi_squared_from_logits,
    clip_by_value,
    entropy_from_logits,
    gather_from_labels,
    logprobs_from_logits,
    masked_mean,
    masked_sum,
    masked_var,
    masked_whiten,
)
from probe.errors import InputError, InputTypeError, ShapeError

NAN, INF = float("nan"), float("inf")


def naive(logits, labels):
    return torch.log_softmax(logits, -1).gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)


def made(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    return logits, torch.randint(shape[-1], shape[:-1], generator=generator)


# --------------------------------------------------------------------------------------- the log-probs


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 7), (2, 3, 4, 7), (0, 7), (2, 0, 7), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_values_and_gradients_of_the_plain_formula(shape, dtype):
    logits, labels = made(*shape, dtype=dtype)
    mine, theirs = (logits.clone().requires_grad_() for _ in range(2))
    got, expected = logprobs_from_logits(mine, labels), naive(theirs.double(), labels)
    assert got.dtype == dtype
    assert got.shape == logits.shape[:-1]
    torch.testing.assert_close(got, expected.to(dtype))
    weights = torch.randn_like(expected)
    (got.double() * weights).sum().backward()
    (expected * weights.to(dtype).double()).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("ignore_index", [None, -100, 2])
def test_gradcheck(ignore_index):
    logits, labels = made(3, 4, 5, dtype=torch.float64)
    if ignore_index is not None:
        labels[1, :2] = ignore_index

    def call(leaf):
        return logprobs_from_logits(leaf * 1.5, labels, ignore_index=ignore_index)

    assert torch.autograd.gradcheck(call, logits.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_chunks(monkeypatch, dtype):
    monkeypatch.setattr(logit_chunks, "_CHUNK", (1, 24, 24))
    monkeypatch.setattr(logit_chunks, "_CHUNK_SHARE", 1)
    logits, labels = made(4, 9, 8, dtype=dtype)
    for view, chosen in (
        (logits, labels),
        (logits[:, :-1], labels[:, 1:]),
        (logits.transpose(0, 1), labels.T),
    ):
        leaf = view.detach().clone().requires_grad_()
        got, expected = logprobs_from_logits(view, chosen), naive(leaf.double(), chosen)
        torch.testing.assert_close(got, expected.detach().to(dtype))
        source = logits.detach().clone().requires_grad_()
        inner = source.as_strided(view.shape, view.stride(), view.storage_offset())
        logprobs_from_logits(inner, chosen).sum().backward()
        expected.sum().backward()
        reached = source.grad.as_strided(view.shape, view.stride(), view.storage_offset())
        torch.testing.assert_close(reached, leaf.grad)


def test_a_shifted_view_is_not_copied(monkeypatch):
    seen = []
    real = torch.logsumexp
    monkeypatch.setattr(torch, "logsumexp", lambda rows, *a, **k: seen.append(rows.data_ptr()) or real(rows, *a, **k))
    logits, labels = made(3, 5, 8)
    logprobs_from_logits(logits[:, :-1], labels[:, 1:])
    first, last = logits.data_ptr(), logits.data_ptr() + logits.nbytes
    assert seen
    assert all(first <= pointer < last for pointer in seen)


def test_ignored_labels_give_zero_and_no_gradient():
    logits, labels = made(4, 6)
    logits[2] = NAN
    labels[2], labels[0] = -100, -100
    leaf = logits.clone().requires_grad_()
    got = logprobs_from_logits(leaf, labels, ignore_index=-100)
    assert got[[0, 2]].tolist() == [0.0, 0.0]
    torch.testing.assert_close(got[[1, 3]], naive(logits[[1, 3]], labels[[1, 3]]))
    got.sum().backward()
    assert not leaf.grad[[0, 2]].any()
    assert leaf.grad[[1, 3]].any()


def test_infinite_logits():
    logits = torch.tensor([[0.0, -INF, 0.0]], requires_grad=True)
    torch.testing.assert_close(logprobs_from_logits(logits, torch.tensor([0])), torch.tensor([0.5]).log())
    assert logprobs_from_logits(logits, torch.tensor([1])).item() == -INF
    assert torch.isnan(logprobs_from_logits(torch.tensor([[NAN, 0.0]]), torch.tensor([1]))).all()


@pytest.mark.parametrize(
    ("logits", "labels", "error"),
    [
        (torch.zeros(2, 3, 4), torch.zeros(2, 2, dtype=torch.long), ShapeError),
        (torch.zeros(2, 3, 4), torch.zeros(1, 3, dtype=torch.long), ShapeError),
        (torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.long), ShapeError),
        (torch.zeros(()), torch.tensor(0), ShapeError),
        (torch.zeros(2, 0), torch.zeros(2, dtype=torch.long), ShapeError),
        (torch.zeros(2, 4), torch.zeros(2), InputTypeError),
        (torch.zeros(2, 4), torch.zeros(2, dtype=torch.bool), InputTypeError),
        (torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, dtype=torch.long), InputTypeError),
        (torch.zeros(2, 4), [0, 1], InputTypeError),
        (torch.zeros(2, 4), torch.tensor([0, 4]), InputError),
        (torch.zeros(2, 4), torch.tensor([0, -100]), InputError),
        (torch.zeros(2, 4, device="meta"), torch.tensor([0, 1]), ShapeError),
    ],
)
def test_bad_logprob_input(logits, labels, error):
    with pytest.raises(error):
        logprobs_from_logits(logits, labels)


def test_the_bad_label_is_named():
    with pytest.raises(InputError, match=r"got 9 at \(1, 0\), expected 0 to 3 or ignore_index"):
        logprobs_from_logits(torch.zeros(2, 2, 4), torch.tensor([[0, -100], [9, 1]]), ignore_index=-100)


def test_integer_labels_of_any_width():
    logits, labels = made(3, 5)
    torch.testing.assert_close(logprobs_from_logits(logits, labels.to(torch.int32)), naive(logits, labels))


def gradient_of(function, *, inplace, keep=False):
    """Gradient of the leaf, and whether the logits' own memory received the gradient."""
    leaf, labels = made(6, 8)
    leaf.requires_grad_()
    logits = function(leaf)
    pointer, given = logits.data_ptr(), []
    logits.register_hook(lambda gradient: given.append(gradient.data_ptr()))
    got = logprobs_from_logits(logits, labels, inplace_backward=inplace)
    if not keep:
        del logits
    got.sum().backward()
    return leaf.grad, given == [pointer]


def scaled(leaf):
    return leaf * 2.0


@pytest.mark.parametrize(
    ("function", "inplace", "keep", "written"),
    [
        (scaled, True, False, True),
        (scaled, False, False, False),
        (scaled, True, True, False),  # the caller can still look at them
        (torch.tanh, True, False, False),  # tanh keeps its result for its own gradient
        (lambda leaf: (leaf * 2.0)[:], True, False, False),  # a view: its base may be needed
        (lambda leaf: leaf.log_softmax(-1), True, False, False),
    ],
)
def test_the_gradient_goes_into_the_logits_only_where_nobody_can_see_it(function, inplace, keep, written):
    leaf, labels = made(6, 8)
    leaf.requires_grad_()
    naive(function(leaf), labels).sum().backward()
    gradient, in_place = gradient_of(function, inplace=inplace, keep=keep)
    torch.testing.assert_close(gradient, leaf.grad)
    assert in_place is written


@pytest.mark.parametrize("entropy_first", [True, False])
def test_logits_that_another_operation_needs_are_left_alone(entropy_first):
    leaf, labels = made(6, 8)
    results = []
    for logprobs in (logprobs_from_logits, naive):
        mine = leaf.clone().requires_grad_()
        logits = mine * 2.0
        terms = [lambda x: (x.softmax(-1) * x).sum(), lambda x, f=logprobs: f(x, labels).sum()]
        first, second = (term(logits) for term in (terms if entropy_first else terms[::-1]))
        del logits
        (first + second).backward()
        results.append(mine.grad)
    torch.testing.assert_close(*results)


def test_a_leaf_keeps_its_values():
    logits, labels = made(6, 8)
    leaf = logits.clone().requires_grad_()
    logprobs_from_logits(leaf, labels).sum().backward()
    assert torch.equal(leaf, logits)


def test_a_kept_graph_can_be_used_again():
    logits, labels = made(6, 8)
    leaf = logits.requires_grad_()
    got = logprobs_from_logits(leaf * 1.0, labels).sum()
    first, second = (torch.autograd.grad(got, leaf, retain_graph=keep)[0] for keep in (True, False))
    assert torch.equal(first, second)
    assert first.any()


def test_extra_memory_is_a_small_part_of_the_logits():
    logits, labels = made(4, 2048, 1024, dtype=torch.bfloat16)
    sizes = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if (
                isinstance(out, torch.Tensor)
                and out.untyped_storage().data_ptr() != logits.untyped_storage().data_ptr()
            ):
                sizes.append(out.untyped_storage().nbytes())
            return out

    with Sizes():
        logprobs_from_logits(logits, labels)
    assert max(sizes) <= logits.nbytes // 8


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


# -------------------------------------------------------------------------------- entropy, squared probabilities


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


# -------------------------------------------------------------------------------------------------- the front door


def test_everything_is_under_the_documented_home():
    assert all(callable(getattr(torch_functional, name)) for name in torch_functional.__all__)


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_e_narrow_logits_are_normalized_as_exactly_as_wide_ones(dtype):
    torch.manual_seed(0)
    logits = (torch.randn(70, 5000) * 4).to(dtype)
    labels = torch.randint(0, 5000, (70,))
    logits[range(8), labels[:8]] = -20_000.0  # far below the rest: the rest is what the normalizer is about
    logits[9, labels[9]] = -torch.inf
    narrow, wide = logits.clone().requires_grad_(), logits.double().requires_grad_()
    ours, exact = logprobs_from_logits(narrow, labels), torch.log_softmax(wide, -1).gather(-1, labels[:, None])[:, 0]
    ours.sum().backward()
    exact.sum().backward()
    assert ours[9] == -torch.inf
    torch.testing.assert_close(ours.double(), exact.to(dtype).double(), rtol=1e-2, atol=0)
    torch.testing.assert_close(narrow.grad.double(), wide.grad, rtol=1e-2, atol=1e-7, equal_nan=True)
    with torch.no_grad():
        assert torch.equal(logprobs_from_logits(narrow, labels), ours)


def test_an_observer_hears_of_the_heavy_ones_and_changes_nothing():
    class Hear(hooks.Listener):
        def __init__(self):
            self.names = []

        def leave(self, event, state):
            self.names.append(event.point.name)

    logits, labels = made(3, 7)
    hear = Hear()

    def results():
        leaf = (logits * 1.0).requires_grad_()
        terms = (
            logprobs_from_logits(leaf, labels),
            entropy_from_logits(leaf),
            calculate_sum_pi_squared_from_logits(leaf),
        )
        (terms[0] + terms[1] + terms[2]).sum().backward()
        return [*terms, leaf.grad]

    silent = results()
    with hooks.subscribe(hear, "log_probs.*", "entropy.*"):
        heard = results()
    assert all(torch.equal(one, other) for one, other in zip(silent, heard, strict=True))
    assert hear.names == [
        "log_probs.logprobs_from_logits",
        "entropy.entropy_from_logits",
        "entropy.calculate_sum_pi_squared_from_logits",
    ]


def test_c_entries_are_gathered_by_label():
    data = torch.randn(2, 3, 5, requires_grad=True)
    label = torch.tensor([[0, 4, 2], [1, 1, 3]])
    got = gather_from_labels(data, label)
    assert got.tolist() == [[data[i, j, label[i, j]].item() for j in range(3)] for i in range(2)]
    got.sum().backward()
    assert data.grad.sum() == 6
    assert gather_from_labels(torch.tensor([7, 8]), torch.tensor(1, dtype=torch.int32)) == 8
    with pytest.raises(ShapeError, match=r"label: got shape \(3,\) for data of shape \(2, 3, 5\)"):
        gather_from_labels(data, label[0])
    with pytest.raises(InputError, match=r"label: got 5 at \(0, 0\), expected 0 to 4$"):
        gather_from_labels(data, label + 5)
    with pytest.raises(InputTypeError, match=r"label: got torch.float32"):
        gather_from_labels(data, label.float())
    for wrong in ([1.0], torch.nested.nested_tensor([torch.zeros(2)], layout=torch.jagged)):
        with pytest.raises(InputTypeError, match="data: got"):
            gather_from_labels(wrong, label)
    with pytest.raises(ShapeError, match="data: got shape"):
        gather_from_labels(torch.tensor(1.0), torch.tensor(0))
