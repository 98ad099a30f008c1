from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.core import logit_chunks
from probe.core.torch_functional import (
    get_constant_schedule_with_warmup,
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
        expected = (selected - selected.mean()) / (selected.var() + 1e-8).sqrt()
        torch.testing.assert_close(white[mask], expected, rtol=1e-5, atol=1e-5)
        kept = masked_whiten(poisoned, mask, shift_mean=False)
        torch.testing.assert_close(kept[mask], expected + selected.mean(), rtol=1e-5, atol=1e-5)


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


# ---------------------------------------------------------------------------------------- the schedule


def rates(warmup, steps, last_epoch=-1):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2.0)
    if last_epoch >= 0:
        optimizer.param_groups[0]["initial_lr"] = 2.0
    schedule = get_constant_schedule_with_warmup(optimizer, warmup, last_epoch)
    found = []
    for _ in range(steps):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return found


def test_warm_up():
    assert rates(4, 6) == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates(0, 2) == rates(-3, 2) == [2.0, 2.0]
    assert rates(2.5, 4) == pytest.approx([0.0, 0.8, 1.6, 2.0])
    assert rates(0.5, 2) == [0.0, 2.0]
    assert rates(4, 3, last_epoch=1) == [1.0, 1.5, 2.0]


def test_the_schedule_can_be_saved():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2.0)
    state = get_constant_schedule_with_warmup(optimizer, 4).state_dict()
    assert pickle.loads(pickle.dumps(state))["last_epoch"] == 0


@pytest.mark.parametrize(("optimizer", "steps"), [("adam", 3), (None, None), (None, NAN)])
def test_bad_schedule_input(optimizer, steps):
    optimizer = optimizer or torch.optim.SGD([torch.zeros(1)], lr=2.0)
    with pytest.raises(InputTypeError):
        get_constant_schedule_with_warmup(optimizer, steps)
