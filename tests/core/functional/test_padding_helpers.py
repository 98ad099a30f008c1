from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe import hooks
from probe.core.torch_functional import (
    expand_as_nested,
    get_response_mask,
    get_unpad_data,
    pad_2d_list_to_length,
    pad_sequence_to_length,
    postprocess_data,
)
from probe.errors import CapacityError, InputError, InputTypeError, ShapeError, UnknownNameError

rows_of_ids = st.lists(st.lists(st.integers(-5, 100), max_size=9), max_size=6)


# ------------------------------------------------------------------------------------------------- the response's mask


@settings(deadline=None, max_examples=40)
@given(rows=st.integers(0, 4), width=st.integers(0, 7), seed=st.integers(0, 999), eos=st.sampled_from([2, [2], [1, 3]]))
def test_everything_up_to_the_first_end_is_response(rows, width, seed, eos):
    ids = torch.randint(0, 5, (rows, width), generator=torch.Generator().manual_seed(seed))
    ends = [eos] if isinstance(eos, int) else eos
    expected = []
    for row in ids.tolist():
        found = [place for place, token in enumerate(row) if token in ends]
        length = found[0] + 1 if found else width
        expected.append([1] * length + [0] * (width - length))
    got = get_response_mask(ids, eos)
    assert got.tolist() == expected
    assert got.dtype is torch.int64
    assert got.shape == ids.shape


def test_dtype_and_leading_dimensions_of_the_mask():
    ids = torch.tensor([[[5, 2, 2], [2, 5, 5]]], dtype=torch.int32)
    assert get_response_mask(ids, dtype=torch.bool).tolist() == [[[True, True, False], [True, False, False]]]
    assert get_response_mask(ids[0, 0], [9]).tolist() == [1, 1, 1]
    assert get_response_mask(ids[0, 0], np.array([2, 9])[0]).tolist() == [1, 1, 0]  # an id out of an array


def test_padding_of_a_response_that_was_cut_off_counts_only_where_nobody_knows_it():
    ids = torch.tensor([[7, 8, 0, 0], [7, 0, 8, 0], [7, 2, 0, 0], [0, 0, 0, 0]])
    assert get_response_mask(ids, 2).sum(-1).tolist() == [4, 4, 2, 4]
    assert get_response_mask(ids, 2, pad_token_id=0).sum(-1).tolist() == [2, 3, 2, 0]
    same = torch.tensor([[7, 8, 2, 2], [2, 2, 2, 2]])  # many tokenizers pad with the end token
    assert get_response_mask(same, 2, pad_token_id=2).tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("ids", "eos", "error", "named"),
    [
        (torch.ones(2, 3), 2, InputTypeError, "response_id"),
        (torch.ones(2, 3, dtype=torch.bool), 2, InputTypeError, "response_id"),
        ([[1, 2]], 2, InputTypeError, "response_id"),
        (torch.tensor(1), 2, ShapeError, "response_id"),
        (torch.ones(2, 3, dtype=torch.long), [], InputError, "eos_token"),
        (torch.ones(2, 3, dtype=torch.long), [2, None], InputTypeError, "eos_token"),
        (torch.ones(2, 3, dtype=torch.long), None, InputTypeError, "eos_token"),
    ],
)
def test_bad_responses(ids, eos, error, named):
    with pytest.raises(error, match=named):
        get_response_mask(ids, eos)


# ------------------------------------------------------------------------------------------------------- filling up


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *(((2, 3), dtype) for dtype in (torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.float64)),
        *((shape, torch.int64) for shape in ((3,), (2, 2, 3), (0, 3), (2, 0))),
    ],
)
def test_filling_up(shape, dtype, left):
    tensor = torch.ones(shape, dtype=dtype)
    got = pad_sequence_to_length(tensor, 5, 0, left_pad=left)
    assert got.dtype is dtype
    assert got.shape == (*shape[:-1], 5)
    kept = got[..., 5 - shape[-1] :] if left else got[..., : shape[-1]]
    assert torch.equal(kept, tensor)
    assert int((got != 0).sum()) == tensor.numel()


def test_what_is_long_enough_comes_back_as_it_is():
    tensor = torch.ones(2, 4)
    assert pad_sequence_to_length(tensor, 4, 0) is tensor
    assert pad_sequence_to_length(tensor, 2, 0) is tensor


def test_filling_up_with_an_infinity_that_was_asked_for():
    assert pad_sequence_to_length(torch.ones(1, dtype=torch.float16), 2, float("-inf")).tolist() == [1.0, float("-inf")]


def test_filling_up_carries_the_gradient():
    leaf = torch.ones(2, 3, requires_grad=True)
    pad_sequence_to_length(leaf, 5, float("nan"), left_pad=True)[:, 2:].sum().backward()
    assert leaf.grad.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize(
    ("tensor", "width", "pad", "error", "named"),
    [
        ([1], 3, 0, InputTypeError, "tensors"),
        (torch.tensor(1), 3, 0, ShapeError, "tensors"),
        (torch.ones(2), 3.0, 0, InputTypeError, "max_seq_len"),
        (torch.ones(2), -1, 0, InputError, "max_seq_len"),
        (torch.ones(2, dtype=torch.long), 3, 0.5, InputError, "pad_token_id"),
        (torch.ones(2, dtype=torch.long), 3, float("nan"), InputError, "pad_token_id"),
        (torch.ones(2, dtype=torch.uint8), 3, -1, InputError, "pad_token_id"),
        (torch.ones(2, dtype=torch.bool), 3, 2, InputError, "pad_token_id"),
        (torch.ones(2), 3, None, InputTypeError, "pad_token_id"),
        (torch.ones(2, dtype=torch.float16), 3, -1e9, InputError, "pad_token_id"),
        (torch.ones(2), 3, 1e39, InputError, "pad_token_id"),
    ],
)
def test_bad_filling(tensor, width, pad, error, named):
    with pytest.raises(error, match=named):
        pad_sequence_to_length(tensor, width, pad)


@settings(deadline=None, max_examples=40)
@given(lists=rows_of_ids, least=st.none() | st.integers(0, 12))
def test_lists_become_a_rectangle_and_nothing_is_cut_off(lists, least):
    got = pad_2d_list_to_length(lists, -9, least)
    width = max([*map(len, lists), least or 0])
    assert got.dtype is torch.int64
    assert got.tolist() == [[*row, *[-9] * (width - len(row))] for row in lists]


def test_dtypes_of_lists():
    got = pad_2d_list_to_length([[0.5], [1.5, 2.5]], 0)
    assert got.dtype is torch.float32
    assert got.tolist() == [[0.5, 0.0], [1.5, 2.5]]
    assert pad_2d_list_to_length([[True], []], False).tolist() == [[True], [False]]
    assert pad_2d_list_to_length([], 0, 3).shape == (0, 3)
    assert pad_2d_list_to_length([[], []], 0).shape == (2, 0)


@pytest.mark.parametrize(
    ("lists", "pad", "least", "error", "named"),
    [
        ([[1], [2.5], ["a"]], 0, None, InputTypeError, "response"),
        ([1, 2], 0, None, InputTypeError, "response"),
        ([[[1]], [[2]]], 0, None, InputTypeError, "response"),
        ([[1], [[2]]], 0, None, InputTypeError, "response"),
        ([[1]], 0.5, None, InputError, "pad_token_id"),
        ([[1]], 0, -1, InputError, "max_length"),
        ([[1]], 0, "3", InputTypeError, "max_length"),
    ],
)
def test_bad_lists(lists, pad, least, error, named):
    with pytest.raises(error, match=named):
        pad_2d_list_to_length(lists, pad, least)


# ------------------------------------------------------------------------------------------------------- taking it out


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(0, 5),
    width=st.integers(0, 6),
    seed=st.integers(0, 999),
    kind=st.sampled_from(["bool", "int64", "float32"]),
)
def test_unpadding_finds_every_token(rows, width, seed, kind):
    mask = torch.rand(rows, width, generator=torch.Generator().manual_seed(seed)) < 0.5
    indices, cu_seqlens, longest = get_unpad_data(mask.to(getattr(torch, kind)))
    lengths = mask.sum(-1).tolist()
    assert torch.equal(indices, mask.flatten().nonzero().flatten())
    assert cu_seqlens.dtype is torch.int32
    assert cu_seqlens.diff().tolist() == lengths
    assert cu_seqlens[0] == 0
    assert len(cu_seqlens) == rows + 1
    assert (longest, type(longest)) == (max([*lengths, 0]), int)
    ids = torch.arange(rows * width).reshape(rows, width)
    assert torch.equal(ids.flatten()[indices], ids[mask])


@pytest.mark.parametrize(("mask", "error"), [(torch.ones(3), ShapeError), ([[1]], InputTypeError)])
def test_bad_attention_masks(mask, error):
    with pytest.raises(error, match="attention_mask"):
        get_unpad_data(mask)


# ------------------------------------------------------------------------------------------------- a value of each row


def jagged(lengths, *trailing, dtype=torch.float64):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(torch.ones(sum(lengths), *trailing, dtype=dtype), offsets)


@settings(deadline=None, max_examples=30)
@given(lengths=st.lists(st.integers(0, 5), max_size=6), trailing=st.sampled_from([(), (2,), (2, 3)]))
def test_a_value_is_repeated_for_each_token(lengths, trailing):
    nested = jagged(lengths, *trailing)
    values = torch.arange(len(lengths) * max(1, torch.Size(trailing).numel()), dtype=torch.float64)
    values = values.reshape(len(lengths), *trailing).requires_grad_()
    got = expand_as_nested(values, nested)
    assert got.offsets() is nested.offsets()
    expected = [row for row, length in zip(values, lengths, strict=True) for _ in range(length)]
    assert torch.equal(got.values(), torch.stack(expected) if expected else values.new_zeros(0, *trailing))
    assert torch.equal((got * nested).values(), got.values())
    got.values().sum().backward()
    assert torch.equal(
        values.grad, torch.tensor(lengths, dtype=torch.float64).reshape(-1, *[1] * len(trailing)).expand_as(values)
    )


def test_rows_with_places_between_them():
    offsets, lengths = torch.tensor([1, 4, 10]), torch.tensor([2, 3])
    nested = torch.nested.nested_tensor_from_jagged(torch.arange(12.0), offsets, lengths)
    got = expand_as_nested(torch.tensor([1.0, 2.0]), nested)
    assert [row.tolist() for row in got.unbind()] == [[1.0, 1.0], [2.0, 2.0, 2.0]]
    assert [row.tolist() for row in (got * nested).unbind()] == [[1.0, 2.0], [8.0, 10.0, 12.0]]


@pytest.mark.parametrize(
    ("tensor", "nested", "error"),
    [
        (torch.ones(2), torch.ones(2, 3), InputTypeError),
        ([1.0, 2.0], jagged([1, 2]), InputTypeError),
        (torch.ones(1), jagged([1, 2]), ShapeError),
        (torch.ones(2), jagged([1, 2], 3), ShapeError),
        (torch.ones(2, 1), jagged([1, 2], 3), ShapeError),
        (torch.ones(2, 3), jagged([1, 2], 3).transpose(1, 2), ShapeError),
        (torch.ones(2, device="meta"), jagged([1, 2]), ShapeError),
    ],
)
def test_bad_expansion(tensor, nested, error):
    with pytest.raises(error):
        expand_as_nested(tensor, nested)


def test_an_observer_hears_what_was_padded():
    class Hear(hooks.Listener):
        told: tuple = ()

        def leave(self, event, state):
            self.told = (event.point.name, event.argument("max_seq_len"), tuple(event.result.shape))

    with hooks.subscribe(hear := Hear(), "padding.*"):
        pad_sequence_to_length(torch.ones(2, 3), 5, 0)
    assert hear.told == ("padding.pad_sequence_to_length", 5, (2, 5))


# --------------------------------------------------------------------------------- what a tokenizer made, to one width


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.sampled_from(["left", "right", "middle"]))
def test_c_postprocess_data_gives_one_width(width, wanted, left, cut):
    ids = torch.arange(1, 2 * width + 1).reshape(2, width)
    got, mask = postprocess_data(ids, torch.ones_like(ids), wanted, pad_token_id=-7, left_pad=left, truncation=cut)
    assert got.shape == mask.shape == (2, wanted)
    assert torch.equal(got == -7, mask == 0)
    for row in range(2):
        told, kept = ids[row].tolist(), got[row][mask[row].bool()].tolist()
        first = {"left": 0, "right": wanted, "middle": wanted // 2}[cut]
        assert kept == (told if width <= wanted else told[:first] + told[width - (wanted - first) :])
    padding = [-7] * (wanted - width)
    if width <= wanted:
        assert got[0].tolist() == (padding + ids[0].tolist() if left else ids[0].tolist() + padding)


def test_c_postprocess_data_refuses_to_cut_unless_told_how():
    ids = torch.tensor([[1, 2, 3]])
    for kind in (NotImplementedError, CapacityError):
        with pytest.raises(kind, match="3 tokens in a row, above max_length=2"):
            postprocess_data(ids, ids, 2, 0)
    with pytest.raises(AssertionError, match="truncation"):
        postprocess_data(ids, ids, 2, 0, truncation="front")
    with pytest.raises(UnknownNameError):
        postprocess_data(ids, ids, 3, 0, truncation="front")
    for wrong in ((ids[0], ids[0]), (ids, ids[:, :2])):
        with pytest.raises(AssertionError, match="input_ids"):
            postprocess_data(*wrong, 3, 0)


def test_c_expand_as_nested_asserts():
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(1)], layout=torch.jagged)
    for wrong in ((torch.zeros(2), torch.zeros(2, 2)), (torch.zeros(3), nested), (torch.zeros(2, 1), nested)):
        with pytest.raises(AssertionError):
            expand_as_nested(*wrong)
