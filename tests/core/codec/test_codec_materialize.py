"""From the wire to rectangles: widths, caches, layouts, stripped payloads; and what listeners are told of it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict

from probe import hooks
from probe.core import codec
from probe.core.batched_data_dict import BatchedDataDict
from probe.core.codec.wire import unwrap_wire_stripped_payload
from probe.errors import InputError, InputTypeError, ShapeError, UnknownNameError


def jagged(lengths, *trailing, dtype=torch.int64, cached=True):
    total = sum(lengths)
    values = torch.arange(1, total * int(np.prod(trailing)) + 1).view(total, *trailing).to(dtype)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    bounds = {"min_seqlen": min(lengths), "max_seqlen": max(lengths)} if cached else {}
    return torch.nested.nested_tensor_from_jagged(values, offsets, **bounds)


def turned(lengths, rows=3, *, cached=True):
    """(N, rows, j): ragged in dimension 2, as the position ids of models with several axes."""
    values = torch.arange(1, rows * sum(lengths) + 1).view(rows, sum(lengths))
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    bounds = {"min_seqlen": min(lengths), "max_seqlen": max(lengths)} if cached else {}
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=2, **bounds)


class Hear(hooks.Listener):
    def __init__(self):
        self.told = []

    def fire(self, event):
        self.told.append((event.point.name, dict(event.values)))


def told_of(td, **options):
    hear = Hear()
    with hooks.subscribe(hear, "codec.materialized"):
        batch = codec.materialize(td, **options)
    ((_, values),) = hear.told
    return batch, values, {field.name: field for field in values["fields"]}


# ----------------------------------------------------------------------------------------------------------- padding


def test_what_it_returns():
    td = TensorDict({"ids": jagged([2, 4, 1]), "reward": torch.ones(3), "uid": NonTensorStack("a", "b", "c")}, [3])
    batch = codec.materialize(td, pad_value_dict={"ids": -1})
    assert type(batch) is BatchedDataDict
    assert batch["ids"].tolist() == [[1, 2, -1, -1], [3, 4, 5, 6], [7, -1, -1, -1]]
    assert batch["reward"] is td.get("reward")
    assert (batch["uid"].dtype, batch["uid"].tolist()) == (object, ["a", "b", "c"])
    assert batch.size == 3


@pytest.mark.parametrize("cached", [True, False])
def test_padding_never_believes_a_missing_cache(cached):
    lengths = [10, 400, 30, 7]
    batch, _, told = told_of(TensorDict({"ids": jagged(lengths, cached=cached)}, [4]))
    assert batch["ids"].shape == (4, 400)
    assert batch["ids"][2, :31].tolist() == [*range(411, 441), 0]
    assert told["ids"].cache == ("known" if cached else "missing")


@pytest.mark.parametrize("cached", [True, False])
def test_rows_ragged_in_dimension_2(cached):
    lengths = [100, 300, 50]
    batch, _, _ = told_of(TensorDict({"position_ids": turned(lengths, cached=cached)}, [3]))
    assert batch["position_ids"].shape == (3, 3, 300)
    assert batch["position_ids"].is_contiguous()
    rows = turned(lengths).unbind()
    for row, length in enumerate(lengths):
        assert torch.equal(batch["position_ids"][row, :, :length], rows[row])
        assert (batch["position_ids"][row, :, length:] == 0).all()


def test_a_wrong_cache_is_not_believed_either():
    values, offsets = torch.arange(5), torch.tensor([0, 1, 5])
    wrong = torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=1, max_seqlen=2)
    batch, _, told = told_of(TensorDict({"ids": wrong}, [2]))
    assert batch["ids"].tolist() == [[0, 0, 0, 0], [1, 2, 3, 4]]
    assert told["ids"].cache == "wrong"


def test_after_a_pickle_that_loses_the_cache():
    td = TensorDict({"ids": jagged([10, 400, 30, 7])}, [4])
    sent = pickle.loads(pickle.dumps(td.consolidate()))
    batch = codec.materialize(sent)
    assert torch.equal(batch["ids"], codec.materialize(td)["ids"])
    assert batch["ids"].shape == (4, 400)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64, torch.uint16, torch.bool, torch.bfloat16])
def test_dtypes_that_torch_may_not_pad(dtype):
    batch = codec.materialize(TensorDict({"x": jagged([1, 3], dtype=dtype)}, [2]), pad_value_dict={"x": 1})
    assert batch["x"].dtype == dtype
    assert batch["x"].shape == (2, 3)
    assert (batch["x"][0, 1:].to(torch.complex64) == 1).all()


def test_gradients_flow_through():
    leaf = torch.randn(5, requires_grad=True)
    nested = torch.nested.nested_tensor_from_jagged(leaf, torch.tensor([0, 2, 5]), min_seqlen=2, max_seqlen=3)
    padded = codec.materialize(TensorDict({"x": nested}, [2]), pad_to_seqlen=4)["x"]
    (padded * torch.arange(8.0).view(2, 4)).sum().backward()
    assert leaf.grad.tolist() == [0, 1, 4, 5, 6]


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors is in prototype stage"
)  # of strided ones; torch's
def test_strided_nested_tensors():
    ragged = torch.nested.nested_tensor([torch.arange(2), torch.arange(4)], layout=torch.strided)
    equal = torch.nested.nested_tensor([torch.arange(2), torch.arange(2)], layout=torch.strided)
    batch = codec.materialize(TensorDict({"a": ragged, "b": equal}, [2]))
    assert batch["a"].tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]
    assert batch["b"].tolist() == [[0, 1], [0, 1]]
    both = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 2)], layout=torch.strided)
    with pytest.raises(ShapeError, match="differ in dimensions"):
        codec.materialize(TensorDict({"a": both}, [2]))


def test_a_lazy_stack_of_ragged_rows():
    parts = [TensorDict({"ids": torch.arange(n), "r": torch.tensor(n), "o": NonTensorData(str(n))}, []) for n in (2, 4)]
    batch = codec.materialize(LazyStackedTensorDict(*parts, stack_dim=0))
    assert batch["ids"].tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]
    assert batch["r"].tolist() == [2, 4]
    assert batch["o"].tolist() == ["2", "4"]


def test_all_rows_empty():
    assert codec.materialize(TensorDict({"x": jagged([0, 0])}, [2]))["x"].shape == (2, 0)
    assert codec.materialize(TensorDict({"x": jagged([0, 0])}, [2]), pad_to_seqlen=3)["x"].tolist() == [[0] * 3] * 2


# ------------------------------------------------------------------------------------------------------------ widths


def wire(lengths=(3, 5)):
    rows = len(lengths)
    return TensorDict(
        {
            "input_ids": jagged(lengths),
            "prev_logprobs": jagged(lengths, dtype=torch.float32),
            "routed_experts": jagged(lengths, 2, 2),
            "position_ids": turned(lengths),
            "token_mask": torch.ones(rows, max(lengths)),  # rectangular, as wide as the longest row
            "grid": torch.ones(rows, 2),
            "pixels": torch.ones(rows, 2, 5),
            "patches": jagged([2] * rows, 3),  # a rectangle that the wire made jagged
            "reward": torch.ones(rows),
        },
        [rows],
    )


def test_only_fields_that_follow_the_tokens_are_widened():
    batch = codec.materialize(wire(), pad_to_seqlen=8)
    shapes = {name: tuple(column.shape) for name, column in batch.items()}
    assert shapes == {
        "input_ids": (2, 8),
        "prev_logprobs": (2, 8),
        "routed_experts": (2, 8, 2, 2),
        "position_ids": (2, 3, 8),
        "token_mask": (2, 8),
        "grid": (2, 2),
        "pixels": (2, 2, 5),
        "patches": (2, 2, 3),
        "reward": (2,),
    }
    assert (batch["token_mask"][:, 5:] == 0).all()


def test_named_fields_alone_are_widened():
    names = {"grid", "input_ids", "reward"}
    batch = codec.materialize(wire(), pad_to_seqlen=8, token_aligned_fields=names, pad_value_dict={"grid": 7})
    assert batch["grid"].tolist() == [[1, 1] + [7] * 6] * 2
    assert (batch["input_ids"].shape, batch["prev_logprobs"].shape) == ((2, 8), (2, 5))
    assert batch["token_mask"].shape == (2, 5)


def test_without_input_ids_the_longest_jagged_field_tells():
    td = wire().exclude("input_ids")
    batch = codec.materialize(td, pad_to_seqlen=8)
    assert (batch["prev_logprobs"].shape, batch["patches"].shape) == ((2, 8), (2, 2, 3))


def test_rectangles_alone():
    td = TensorDict({"input_ids": torch.ones(2, 5), "values": torch.ones(2, 5), "grid": torch.ones(2, 3)}, [2])
    batch = codec.materialize(td, pad_to_seqlen=8)
    assert [tuple(column.shape) for column in batch.values()] == [(2, 8), (2, 8), (2, 3)]
    assert td["input_ids"].shape == (2, 5)


def test_a_rectangle_that_a_framework_rounded_up():
    td = TensorDict({"input_ids": jagged([3, 5]), "prev_logprobs": torch.ones(2, 6), "image": torch.ones(2, 6)}, [2])
    batch, _, told = told_of(td, pad_to_seqlen=8)
    assert [tuple(column.shape) for column in batch.values()] == [(2, 8), (2, 8), (2, 6)]
    field = told["prev_logprobs"]
    assert (field.decision, field.valid_tokens, field.longest_tokens, field.width_tokens) == ("widened", 8, 5, 8)


def test_nothing_is_ever_cut():
    batch = codec.materialize(wire(), pad_to_seqlen=4)
    assert batch["input_ids"].shape == (2, 5)


@pytest.mark.parametrize(
    ("options", "width", "reason", "rounded"),
    [
        ({}, 5, "longest_row", 5),
        ({"pad_to_multiple": 4}, 8, "rounding", 8),
        ({"pad_to_seqlen": 5}, 5, "longest_row", 5),
        ({"pad_to_seqlen": 7}, 7, "fixed_width", 5),
        ({"pad_to_seqlen": 16, "pad_to_multiple": 4}, 16, "fixed_width", 8),
        ({"pad_to_seqlen": 8, "pad_to_multiple": 4}, 8, "rounding", 8),
        ({"pad_to_seqlen": 6, "pad_to_multiple": 4}, 8, "rounding", 8),
    ],
)
def test_why_a_field_is_so_wide(options, width, reason, rounded):
    batch, values, told = told_of(wire(), width_from="all_ranks", **options)
    for name in ("input_ids", "routed_experts", "position_ids", "token_mask"):
        field = told[name]
        assert (field.width_tokens, field.reason, field.rounded_tokens) == (width, reason, rounded), name
        assert (field.rows, field.valid_tokens, field.longest_tokens, field.token_aligned) == (2, 8, 5, True), name
    assert batch["position_ids"].shape == (2, 3, width)
    assert {name: field.bytes_per_token for name, field in told.items() if field.token_aligned} == {
        "input_ids": 8,
        "prev_logprobs": 4,
        "routed_experts": 32,
        "position_ids": 24,
        "token_mask": 4,
    }
    assert (told["grid"].decision, told["grid"].reason) == ("rectangular", "not_token_aligned")
    assert (told["patches"].width_tokens, told["patches"].token_aligned) == (2, False)
    assert (values["rows"], values["layout"], values["width_from"]) == (2, "padded", "all_ranks")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(0, 20), st.integers(1, 8), st.integers(0, 3))
def test_what_is_told_is_what_was_made(lengths, least, multiple, wider):
    ids = torch.ones(len(lengths), max(lengths) + wider, dtype=torch.int64)
    td = codec.pack_jagged_fields({"input_ids": ids}, lengths=torch.tensor(lengths), token_aligned_fields={"input_ids"})
    batch, _, told = told_of(td, pad_to_seqlen=least, pad_to_multiple=multiple, pad_value_dict={"input_ids": 0})
    field = told["input_ids"]
    assert batch["input_ids"].shape == (len(lengths), field.width_tokens)
    assert int(batch["input_ids"].sum()) == field.valid_tokens == sum(lengths)
    assert max(lengths) == field.longest_tokens <= field.rounded_tokens <= field.width_tokens


# ----------------------------------------------------------------------------------------------------------- layouts


def test_the_jagged_layout():
    td = TensorDict(
        {"ids": jagged([2, 4], cached=False), "mask": torch.ones(2, 4), "uid": NonTensorStack("a", "b")}, [2]
    )
    batch, _, told = told_of(td, layout="jagged", pad_to_seqlen=6)
    assert batch["ids"].is_nested
    assert batch["ids"]._maybe_max_seqlen == 4
    assert torch.nested.to_padded_tensor(batch["ids"], 0).shape == (2, 4)
    assert batch["mask"].shape == (2, 6)
    assert batch["uid"].tolist() == ["a", "b"]
    assert (told["ids"].decision, told["ids"].valid_tokens, told["ids"].cache) == ("jagged", 6, "missing")
    known = TensorDict({"ids": jagged([2, 4])}, [2])
    assert codec.materialize(known, layout="jagged")["ids"] is known.get("ids")


def test_a_materialised_batch_goes_through_the_methods_of_batched_data_dict():
    batch = codec.materialize(wire().set("uid", NonTensorStack("a", "b")), layout="jagged")
    chosen = batch.select_indices([1])
    assert chosen["uid"].tolist() == ["b"]
    assert chosen["input_ids"].unbind()[0].tolist() == [4, 5, 6, 7, 8]


# ----------------------------------------------------------------------------------------------------------- payloads

STRIPPED = {"data": "hello", "_metadata": None, "_is_non_tensor": True}


@pytest.mark.parametrize(
    ("item", "payload"),
    [
        (NonTensorData("hello"), "hello"),
        (NonTensorData(None), None),
        (NonTensorData("same", batch_size=[3]), "same"),
        (STRIPPED, "hello"),
        (NonTensorData(STRIPPED), "hello"),
        (TensorDict({}, []), None),
        ("hello", "hello"),
        (None, None),
        ({"data": 1}, {"data": 1}),
        ({**STRIPPED, "more": 1}, {**STRIPPED, "more": 1}),
        ([1, 2], [1, 2]),
    ],
)
def test_every_form_of_a_payload(item, payload):
    assert unwrap_wire_stripped_payload(item) == payload


@pytest.mark.parametrize("item", [TensorDict({}, [1]), TensorDict({"a": torch.ones(1)}, []), NonTensorStack("a", "b")])
def test_real_data_is_never_dropped(item):
    assert unwrap_wire_stripped_payload(item) is item


def test_what_was_stripped_is_counted():
    hear = Hear()
    td = TensorDict({"uid": NonTensorStack("a", "b", "c"), "all": TensorDict({}, [3])}, [3])
    stack = td.get("uid")
    stack.tensordicts[0] = TensorDict({}, [])
    stack.tensordicts[1] = NonTensorData(STRIPPED)
    with hooks.subscribe(hear, "codec.*ed", "codec.stripped_payload"):
        assert unwrap_wire_stripped_payload(TensorDict({}, [])) is None
        assert unwrap_wire_stripped_payload("plain") == "plain"
        batch = codec.materialize(td)
    assert batch["uid"].tolist() == [None, "hello", "c"]
    assert batch["all"].tolist() == [None] * 3
    stripped = [values for name, values in hear.told if name == "codec.stripped_payload"]
    assert stripped == [
        {"field": "", "rows": 1, "dicts": 0, "lost": 1},
        {"field": "uid", "rows": 3, "dicts": 1, "lost": 1},
        {"field": "all", "rows": 3, "dicts": 0, "lost": 3},
    ]
    fields = {field.name: (field.dicts, field.lost) for field in hear.told[-1][1]["fields"]}
    assert fields == {"uid": (1, 1), "all": (0, 3)}


def test_none_that_was_sent_is_not_counted_as_lost():
    _, _, told = told_of(TensorDict({"uid": NonTensorStack(None, "a")}, [2]))
    assert told["uid"].lost == 0


def test_one_payload_for_all_rows_and_an_array_in_one_wrapper():
    array = np.empty(3, dtype=object)
    array[:] = ["a", "b", "c"]
    td = TensorDict({"same": NonTensorData("same", batch_size=[3]), "array": array}, [3])
    batch = codec.materialize(td)
    assert batch["same"].tolist() == ["same"] * 3
    assert (batch["array"].shape, batch["array"].tolist()) == ((3,), ["a", "b", "c"])


def test_lists_of_equal_length_stay_lists():
    td = codec.pack_jagged_fields({"turns": _objects([1, 2], [3, 4])}, lengths=torch.tensor([1, 1]))
    assert codec.materialize(td)["turns"].tolist() == [[1, 2], [3, 4]]
    nested = TensorDict({"turns": NonTensorStack(NonTensorStack("a", "b"), NonTensorStack("c", "d"))}, [2])
    assert codec.materialize(nested)["turns"].tolist() == [["a", "b"], ["c", "d"]]


def _objects(*items):
    made = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        made[place] = item
    return made


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"layout": "ragged"}, UnknownNameError, "layout: got 'ragged', expected one of jagged, padded"),
        ({"pad_to_seqlen": -1}, InputError, "pad_to_seqlen: got -1"),
        ({"pad_to_seqlen": 1.5}, InputTypeError, "pad_to_seqlen: got 1.5"),
        ({"pad_to_seqlen": True}, InputTypeError, "pad_to_seqlen: got True"),
        ({"pad_to_multiple": 0}, InputError, "pad_to_multiple: got 0"),
        ({"token_aligned_fields": "ids"}, InputTypeError, "token_aligned_fields"),
        ({"pad_value_dict": {"ids": 1.5}}, InputError, r"pad_value_dict\['ids'\]: got 1.5"),
        ({"pad_value_dict": {"ids": float("nan")}}, InputError, "pad_value_dict"),
    ],
)
def test_options_that_cant_be_used(options, error, match):
    td = TensorDict({"ids": jagged([1, 2])}, [2])
    with pytest.raises(error, match=match):
        codec.materialize(td, **options)


def test_batches_that_cant_be_used():
    with pytest.raises(InputTypeError, match="td: got dict"):
        codec.materialize({"ids": jagged([1, 2])})
    with pytest.raises(ShapeError, match="without a batch dimension"):
        codec.materialize(TensorDict({"a": torch.ones(2)}, []))
    with pytest.raises(TypeError, match="unexpected leaf type for 'inner'"):
        codec.materialize(TensorDict({"inner": TensorDict({"a": torch.ones(2)}, [2])}, [2]))


@pytest.mark.parametrize("layout", ["padded", "jagged"])
def test_nested_tensors_with_holes_are_refused(layout):
    values = torch.arange(8)
    holes = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 4, 8]), torch.tensor([2, 3]))
    with pytest.raises(InputError, match="'ids': got a nested tensor with holes"):
        codec.materialize(TensorDict({"ids": holes}, [2]), layout=layout)
    outside = torch.nested.nested_tensor_from_jagged(values, torch.tensor([1, 4, 6]))
    with pytest.raises(InputError, match=r"'ids': got a nested tensor with holes .*1 to 6 of 8"):
        codec.materialize(TensorDict({"ids": outside}, [2]), layout=layout)


# --------------------------------------------------------------------------------------------------------- fidelity


def test_nothing_changes_when_somebody_listens():
    td = wire()
    alone = codec.materialize(td, pad_to_seqlen=8)
    heard, _, _ = told_of(td, pad_to_seqlen=8)
    assert all(torch.equal(alone[name], heard[name]) for name in alone)
