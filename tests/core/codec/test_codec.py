"""Packing for the wire: what is documented, what is known to go wrong elsewhere, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict

from probe import hooks
from probe.core import codec
from probe.errors import InputError, InputTypeError, ShapeError

LENGTHS = torch.tensor([3, 1, 4])


def rectangle(width=4, rows=3, *trailing, dtype=torch.int64):
    count = rows * width * int(np.prod(trailing))
    return torch.arange(1, count + 1).view(rows, width, *trailing).to(dtype)


def objects(*items):
    made = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        made[place] = item
    return made


def jagged(*rows):
    return torch.nested.nested_tensor(list(rows), layout=torch.jagged)


def with_holes():
    values, offsets, lengths = torch.arange(8), torch.tensor([0, 4, 8]), torch.tensor([2, 3])
    return torch.nested.nested_tensor_from_jagged(values, offsets, lengths)


class Hear(hooks.Listener):
    def __init__(self):
        self.told = []

    def fire(self, event):
        self.told.append(dict(event.values))


def decisions(told):
    return {field.name: (field.decision, field.reason) for field in told["fields"]}


# --------------------------------------------------------------------------------------------- to_nested_by_length


@pytest.mark.parametrize("trailing", [(), (2,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.bool, torch.float8_e4m3fn])
def test_rows_without_their_padding(dtype, trailing):
    padded = rectangle(4, 3, *trailing, dtype=dtype)
    nested = codec.to_nested_by_length(padded, LENGTHS)
    assert nested.dtype == dtype
    for row, found, length in zip(padded, nested.unbind(), LENGTHS.tolist(), strict=True):
        assert torch.equal(found.view(torch.uint8), row[:length].view(torch.uint8))
    assert (nested._maybe_min_seqlen, nested._maybe_max_seqlen) == (1, 4)


def test_it_copies_and_leaves_the_rectangle_alone():
    padded = rectangle()
    nested = codec.to_nested_by_length(padded, LENGTHS)
    nested.values().zero_()
    assert torch.equal(padded, rectangle())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_any_integer_is_a_length(dtype):
    nested = codec.to_nested_by_length(rectangle(), LENGTHS.to(dtype))
    assert nested.offsets().tolist() == [0, 3, 4, 8]
    assert nested.offsets().dtype == torch.int64


def test_no_rows_and_empty_rows():
    none = codec.to_nested_by_length(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))
    assert (none.shape[0], none.offsets().tolist()) == (0, [0])
    assert codec.materialize(TensorDict({"a": none}, [0]))["a"].shape == (0, 0)
    empty = codec.to_nested_by_length(torch.zeros(2, 5), torch.tensor([0, 0]))
    assert [row.shape for row in empty.unbind()] == [(0,), (0,)]
    assert codec.to_nested_by_length(torch.zeros(2, 0), torch.tensor([0, 0])).shape[0] == 2


def test_gradients_flow_through():
    padded = torch.randn(3, 4, requires_grad=True)
    nested = codec.to_nested_by_length(padded, LENGTHS)
    weights = torch.arange(8.0)
    (nested.values() * weights).sum().backward()
    expected = torch.zeros(3, 4)
    for row, (start, length) in enumerate(zip([0, 3, 4], LENGTHS.tolist(), strict=True)):
        expected[row, :length] = weights[start : start + length]
    assert torch.equal(padded.grad, expected)


def test_a_jagged_input_is_cut_too():
    nested = codec.to_nested_by_length(jagged(torch.arange(4), torch.arange(10, 12)), torch.tensor([2, 2]))
    assert [row.tolist() for row in nested.unbind()] == [[0, 1], [10, 11]]
    with pytest.raises(ShapeError, match="row 1 has length 3, but padded has 2"):
        codec.to_nested_by_length(jagged(torch.arange(4), torch.arange(2)), torch.tensor([2, 3]))
    with pytest.raises(InputError, match="holes"):
        codec.to_nested_by_length(with_holes(), torch.tensor([1, 1]))


@pytest.mark.parametrize(
    ("padded", "lengths", "error", "match"),
    [
        (torch.zeros(3), LENGTHS, ValueError, r"\(N, S"),
        (torch.zeros(2, 4), LENGTHS, ValueError, "lengths shape"),
        (torch.zeros(3, 4), LENGTHS.unsqueeze(1), ValueError, "lengths shape"),
        (torch.zeros(3, 3), LENGTHS, ShapeError, "row 2 has length 4, but padded is only 3 wide"),
        (torch.zeros(3, 4), torch.tensor([1, -1, 2]), InputError, "row 1 has length -1"),
        (torch.zeros(3, 4), LENGTHS.float(), InputTypeError, "float32"),
        (torch.zeros(3, 4), [3, 1, 4], InputTypeError, "list"),
        ([[1]], LENGTHS, InputTypeError, "list"),
    ],
)
def test_what_to_nested_by_length_refuses(padded, lengths, error, match):
    with pytest.raises(error, match=match):
        codec.to_nested_by_length(padded, lengths)


# --------------------------------------------------------------------------------------------------- stack_or_nest


def test_stack_or_nest():
    nothing = codec.stack_or_nest([])
    assert (nothing.shape, nothing.dtype) == ((0,), torch.float32)
    assert codec.stack_or_nest([torch.ones(2)]).shape == (1, 2)
    assert codec.stack_or_nest([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]
    found = codec.stack_or_nest([torch.ones(2, 3), torch.ones(5, 3)])
    assert [row.shape for row in found.unbind()] == [(2, 3), (5, 3)]
    assert found._maybe_max_seqlen == 5


def test_rows_that_differ_in_another_dimension():
    rows = [torch.randn(2, 3), torch.randn(2, 5)]
    found = codec.stack_or_nest(rows)
    assert found._ragged_idx == 2
    assert all(torch.equal(one, other) for one, other in zip(found.unbind(), rows, strict=True))
    padded = codec.materialize(TensorDict({"a": found}, [2]))["a"]
    assert padded.shape == (2, 2, 5)
    assert padded.is_contiguous()
    assert torch.equal(padded[0, :, :3], rows[0])
    assert (padded[0, :, 3:] == 0).all()


def test_stacked_rows_are_part_of_the_graph():
    rows = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
    (codec.stack_or_nest(rows).values() * torch.arange(5.0)).sum().backward()
    assert [row.grad.tolist() for row in rows] == [[0, 1], [2, 3, 4]]


@pytest.mark.parametrize(
    ("rows", "error", "match"),
    [
        ([torch.ones(2), torch.ones(2, dtype=torch.int64)], InputTypeError, r"tensors\[1\].*int64"),
        ([torch.ones(2), torch.tensor(1.0)], ShapeError, "0 and 1 dimensions"),
        ([torch.ones(2, 3), torch.ones(3, 2)], ShapeError, r"dimensions \[0, 1\]"),
        ([torch.ones(2), 5], InputTypeError, r"tensors\[1\]: got int"),
    ],
)
def test_what_stack_or_nest_refuses(rows, error, match):
    with pytest.raises(error, match=match):
        codec.stack_or_nest(rows)


# -------------------------------------------------------------------------------------------------- single packing


def test_the_documented_guess():
    assert codec.maybe_pack_jagged(rectangle(), LENGTHS).is_nested
    for other in (rectangle(5), rectangle(3), torch.ones(3), torch.ones(2, 4)):
        assert codec.maybe_pack_jagged(other, LENGTHS) is not None
        assert not codec.maybe_pack_jagged(other, LENGTHS).is_nested
    nothing = codec.maybe_pack_jagged(torch.ones(0, 4), torch.zeros(0, dtype=torch.int64))
    assert nothing.shape == (0, 4)


def test_a_named_field_may_be_wider():
    packed = codec.pack_per_token_field(rectangle(6), LENGTHS)
    assert torch.equal(packed.unbind()[2], rectangle(6)[2, :4])


@pytest.mark.parametrize(
    ("val", "reason"),
    [
        (torch.ones(3, 3), "too_narrow"),
        (torch.ones(2, 4), "other_rows"),
        (torch.ones(3), "one_dimension"),
    ],
)
def test_a_fallback_is_told_of(val, reason):
    hear = Hear()
    with hooks.subscribe(hear, "codec.packed"):
        packed = codec.pack_per_token_field(val, LENGTHS)
    assert torch.equal(packed, val)
    assert decisions(hear.told[0]) == {"": ("fallback", reason)}


def test_packing_detaches_and_makes_contiguous():
    val = torch.ones(4, 3, requires_grad=True).t()
    assert not codec.pack_per_token_field(val, LENGTHS).requires_grad
    kept = codec.maybe_pack_jagged(torch.ones(5, 3, requires_grad=True).t(), LENGTHS)
    assert not kept.requires_grad
    assert kept.is_contiguous()


def test_packing_twice_is_packing_once():
    once = codec.pack_per_token_field(rectangle(), LENGTHS)
    twice = codec.pack_per_token_field(once, LENGTHS)
    assert [row.tolist() for row in twice.unbind()] == [row.tolist() for row in once.unbind()]
    shorter = codec.pack_per_token_field(once, LENGTHS - 1)
    assert [len(row) for row in shorter.unbind()] == [2, 0, 3]
    with pytest.raises(ShapeError, match="row 0 has 3 tokens, but lengths says 4"):
        codec.pack_per_token_field(once, LENGTHS + 1)
    assert codec.maybe_pack_jagged(once, LENGTHS + 1).is_nested


@pytest.mark.parametrize("function", [codec.maybe_pack_jagged, codec.pack_per_token_field])
def test_what_single_packing_refuses(function):
    with pytest.raises(InputTypeError, match="val: got list"):
        function([1], LENGTHS)
    with pytest.raises(InputError, match="holes"):
        function(with_holes(), torch.tensor([1, 1]))
    with pytest.raises(InputError, match="row 0 has length -3"):
        function(rectangle(), -LENGTHS)


# -------------------------------------------------------------------------------------------------- pack_jagged_fields


def test_the_heuristic_without_names():
    fields = {"ids": rectangle(), "wide": rectangle(5), "reward": torch.ones(3), "uid": objects("a", "b", "c")}
    packed = codec.pack_jagged_fields(fields, lengths=LENGTHS)
    assert packed.batch_size == (3,)
    assert packed.get("ids").is_nested
    assert torch.equal(packed.get("wide"), fields["wide"])
    assert torch.equal(packed.get("reward"), fields["reward"])
    assert isinstance(packed.get("uid"), NonTensorStack)


def test_names_decide_where_they_are_given():
    fields = {"ids": rectangle(), "wide": rectangle(6), "image": rectangle(4, 3, 2), "reward": torch.ones(3)}
    names = {"ids", "wide", "reward", "absent"}
    hear = Hear()
    with hooks.subscribe(hear, "codec.packed"):
        packed = codec.pack_jagged_fields(fields, lengths=LENGTHS, token_aligned_fields=names)
    assert torch.equal(packed.get("image"), fields["image"])  # has the shape of a token field, and is none
    assert [len(row) for row in packed.get("wide").unbind()] == [3, 1, 4]
    (told,) = hear.told
    assert decisions(told) == {
        "ids": ("jagged", "named"),
        "wide": ("jagged", "named"),
        "image": ("rectangular", "not_named"),
        "reward": ("fallback", "one_dimension"),
    }
    assert told["rows"] == 3
    assert told["lengths"].tolist() == [3, 1, 4]
    wide = next(field for field in told["fields"] if field.name == "wide")
    assert (wide.width_tokens, wide.kept_tokens, wide.stripped_tokens, wide.bytes_per_token) == (6, 8, 10, 8)


def test_fields_of_one_batch_can_be_combined():
    fields = {"a": rectangle().float(), "b": rectangle(6).float(), "c": rectangle(4, 3, 2)}
    packed = codec.pack_jagged_fields(fields, lengths=LENGTHS, token_aligned_fields=set(fields))
    a, b, c = (packed.get(name) for name in "abc")
    assert a.offsets() is b.offsets() is c.offsets()
    assert (a + b).values().shape == (8,)
    nested = codec.pack_jagged_fields({"x": a, "y": fields["a"]}, lengths=LENGTHS, token_aligned_fields={"x", "y"})
    assert (nested.get("x") - nested.get("y")).values().abs().sum() == 0


def test_without_lengths_everything_passes():
    fields = {"ids": rectangle(), "uid": objects(1, 2, 3)}
    packed = codec.pack_jagged_fields(fields, lengths=None)
    assert packed.batch_size == (3,)
    assert torch.equal(packed.get("ids"), fields["ids"])
    assert codec.pack_jagged_fields({}, lengths=None).batch_size == (0,)
    assert codec.pack_jagged_fields({"uid": objects(1, 2)}, lengths=None).batch_size == (2,)


def test_no_rows_at_all():
    fields = {"ids": torch.zeros(0, 4, dtype=torch.int64), "uid": objects()}
    packed = codec.pack_jagged_fields(fields, lengths=torch.zeros(0, dtype=torch.int64))
    back = codec.materialize(packed)
    assert (back["ids"].shape, back["uid"].shape) == ((0, 4), (0,))


@pytest.mark.parametrize(
    "value",
    [[1, 2, 3], (1, 2, 3), np.zeros(3), np.array(["a", "b", "c"]), 5, None, "abc"],
)
def test_other_values_are_refused(value):
    with pytest.raises(TypeError, match="pack_jagged_fields: unsupported value type for 'x'"):
        codec.pack_jagged_fields({"x": value}, lengths=LENGTHS)


@pytest.mark.parametrize(
    ("fields", "lengths", "error", "match"),
    [
        ({"x": torch.ones(2, 4)}, LENGTHS, ShapeError, "'x': got 2 rows, expected 3 as in lengths"),
        ({"x": objects("a")}, LENGTHS, ShapeError, "'x': got 1 rows, expected 3"),
        ({"x": torch.tensor(1)}, LENGTHS, ShapeError, "'x': got a scalar"),
        ({"x": torch.ones(2), "y": objects("a")}, None, ShapeError, "'y': got 1 rows, expected 2"),
        ({"x": with_holes()}, torch.tensor([2, 3]), InputError, "'x': got a nested tensor with holes"),
    ],
)
def test_fields_that_dont_fit(fields, lengths, error, match):
    with pytest.raises(error, match=match):
        codec.pack_jagged_fields(fields, lengths=lengths)


def test_names_must_not_be_one_string():
    with pytest.raises(InputTypeError, match="token_aligned_fields"):
        codec.pack_jagged_fields({"ids": rectangle()}, lengths=LENGTHS, token_aligned_fields="ids")


# ------------------------------------------------------------------------------------------------ response_from_nested


def test_the_response_shifted_by_one():
    full = jagged(torch.arange(5), torch.arange(10, 14))
    mask = jagged(torch.ones(2), torch.ones(3))
    found = codec.response_from_nested(full, mask)
    assert [row.tolist() for row in found.unbind()] == [[2, 3], [10, 11, 12]]
    assert found.offsets() is mask.offsets()
    assert (found * mask).values().shape == (5,)
    assert found._maybe_max_seqlen == 3


def test_the_response_of_wide_entries_and_of_another_dimension():
    full = jagged(torch.randn(5, 3), torch.randn(4, 3))
    mask = jagged(torch.ones(2), torch.ones(0))
    found = codec.response_from_nested(full, mask)
    assert torch.equal(found.unbind()[0], full.unbind()[0][2:4])
    assert found.unbind()[1].shape == (0, 3)
    turned = codec.stack_or_nest([torch.arange(10).view(2, 5), torch.arange(6).view(2, 3)])
    found = codec.response_from_nested(turned, mask)
    assert found.unbind()[0].tolist() == [[2, 3], [7, 8]]


def test_the_response_is_part_of_the_graph():
    values = torch.randn(9, requires_grad=True)
    full = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 5, 9]))
    mask = jagged(torch.ones(2), torch.ones(3))
    codec.response_from_nested(full, mask).values().sum().backward()
    assert values.grad.tolist() == [0, 0, 1, 1, 0, 1, 1, 1, 0]


def test_an_empty_row_with_an_empty_response():
    full = jagged(torch.arange(0), torch.arange(3))
    found = codec.response_from_nested(full, jagged(torch.ones(0), torch.ones(1)))
    assert [row.tolist() for row in found.unbind()] == [[], [1]]


@pytest.mark.parametrize("response", [3, 4, 7])
@pytest.mark.parametrize("row", [0, 1])
def test_an_empty_prompt_is_an_error_and_never_a_wrong_row(response, row):
    full, mask = [torch.arange(9), torch.arange(9)], [torch.ones(1), torch.ones(1)]
    full[row], mask[row] = torch.arange(3), torch.ones(response)
    with pytest.raises(ShapeError, match=f"row {row} has a response of {response} tokens, but full has 3"):
        codec.response_from_nested(jagged(*full), jagged(*mask))


@pytest.mark.parametrize("more", [(), (3,)], ids=["tokens", "hidden states"])
def test_25_12_responses_that_are_equally_long_are_cut_out_of_plain_tensors(more):
    prompts, response = [3, 1, 2], 2
    rows = [torch.randn(one + response, *more) for one in prompts]
    mask = torch.ones(len(rows), response)
    wanted = [row[one - 1 : one - 1 + response] for row, one in zip(rows, prompts, strict=True)]
    for lengths in (mask, jagged(*mask)):
        assert all(map(torch.equal, codec.response_from_nested(jagged(*rows), lengths).unbind(), wanted))


@pytest.mark.parametrize("plain_mask", [True, False])
def test_25_12_sequences_that_are_equally_long_are_cut_from_a_plain_tensor(plain_mask):
    full = torch.arange(24.0).reshape(2, 6, 2).requires_grad_()
    mask = torch.zeros(2, 3)  # what is masked inside a response doesn't count: a response has its length
    found = codec.response_from_nested(full, mask if plain_mask else jagged(*mask))
    assert torch.equal(torch.stack(found.unbind()), full[:, 2:5])
    found.values().sum().backward()
    assert full.grad.sum() == 12
    uneven = jagged(torch.ones(3), torch.ones(1))
    assert [len(one) for one in codec.response_from_nested(full, uneven).unbind()] == [3, 1]
    with pytest.raises(ShapeError, match="row 0 has a response of 6 tokens, but full has 6"):
        codec.response_from_nested(full, torch.ones(2, 6))


def test_what_response_from_nested_refuses():
    good = jagged(torch.arange(5), torch.arange(4))
    with pytest.raises(ShapeError, match=r"full: got shape \(2,\), expected \(N, tokens, …\)"):
        codec.response_from_nested(torch.zeros(2), good)
    with pytest.raises(InputTypeError, match="response_mask: got list"):
        codec.response_from_nested(good, [1])
    with pytest.raises(ShapeError, match="got 1 rows, expected 2"):
        codec.response_from_nested(good, jagged(torch.ones(1)))
    with pytest.raises(InputError, match="full: got a nested tensor with holes"):
        codec.response_from_nested(with_holes(), good)
    with pytest.raises(InputError, match="response_mask: got a nested tensor with holes"):
        codec.response_from_nested(good, with_holes())


# ------------------------------------------------------------------------------------------------------- both ways


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=6),
    st.integers(0, 3),
    st.sampled_from([torch.int64, torch.int8, torch.bfloat16, torch.float32, torch.bool]),
)
def test_round_trip(lengths, wider, dtype):
    longest, rows = max(lengths), len(lengths)
    inside = torch.arange(longest + wider) < torch.tensor(lengths).unsqueeze(1)
    ids = (torch.randint(1, 100, inside.shape) * inside).to(dtype)
    experts = torch.randint(1, 9, (*inside.shape, 2, 2)) * inside[..., None, None]
    turns = objects(*[[row] * (row % 3) for row in range(rows)])
    fields = {"ids": ids, "experts": experts, "reward": torch.randn(rows), "turns": turns}
    names = {"ids", "experts"}
    packed = codec.pack_jagged_fields(fields, lengths=torch.tensor(lengths), token_aligned_fields=names)
    back = codec.materialize(packed, pad_to_seqlen=longest + wider, token_aligned_fields=names)
    assert list(back) == list(fields)
    assert torch.equal(back["ids"], ids)
    assert back["ids"].dtype == dtype
    assert torch.equal(back["experts"], experts)
    assert torch.equal(back["reward"], fields["reward"])
    assert back["turns"].tolist() == turns.tolist()


def test_a_round_trip_without_a_wire_keeps_the_shape_of_objects():
    uid = objects("a", ["b"], {"c": 1})
    packed = codec.pack_jagged_fields({"ids": rectangle(), "uid": uid}, lengths=LENGTHS)
    back = codec.materialize(packed)["uid"]
    assert (back.shape, back.dtype) == ((3,), object)
    assert back.tolist() == uid.tolist()
    part = codec.materialize(packed.select("uid")[1:3])
    assert part["uid"].tolist() == [["b"], {"c": 1}]


def test_wrappers_may_be_packed_again():
    fields = {"a": NonTensorStack("x", "y", "z"), "b": NonTensorData("same", batch_size=[3])}
    back = codec.materialize(codec.pack_jagged_fields(fields, lengths=LENGTHS))
    assert back["a"].tolist() == ["x", "y", "z"]
    assert back["b"].tolist() == ["same"] * 3
