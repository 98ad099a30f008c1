"""Log-probabilities and entries gathered by label: values, gradients, memory, and what observers hear."""

from __future__ import annotations

import pytest
import torch

from probe import hooks
from probe.core import torch_functional
from probe.core.functional import logit_chunks
from probe.core.torch_functional import (
    calculate_sum_pi_squared_from_logits,
    entropy_from_logits,
    gather_from_labels,
    logprobs_from_logits,
)
from probe.errors import InputError, InputTypeError, ShapeError
from tests.core.random_logits import made

NAN, INF = float("nan"), float("inf")


def naive(logits, labels):
    return torch.log_softmax(logits, -1).gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)


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


# -------------------------------------------------------------------------------------------------- the front door


def test_everything_is_under_the_documented_home():
    assert all(callable(getattr(torch_functional, name)) for name in torch_functional.__all__)


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
