"""Every method with every kind of column: tensors, jagged tensors, lists, NumPy arrays."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from probe import hooks
from probe.core.batched_data_dict import BatchedDataDict, SlicedDataDict
from probe.errors import InputError, InputTypeError, MissingKeyError, PeerError, SessionError, ShapeError
from tests.ranks import run_ranks

COLUMNS = {"ids", "jagged", "more", "deep", "text", "object", "number"}


def nested(lengths, fill, ragged_dim=1, offsets=None):
    """A jagged tensor whose row i is full of ``fill[i]``; with ragged_dim 2 each row is (3, length)."""
    fill = torch.tensor(fill) if fill else torch.zeros(0, dtype=torch.long)
    flat = torch.repeat_interleave(fill, torch.tensor(lengths, dtype=torch.long))
    if offsets is None:
        offsets = torch.tensor([0, *lengths]).cumsum(0)
    values = flat if ragged_dim == 1 else flat.expand(3, -1)
    bounds = {"min_seqlen": min(lengths, default=0), "max_seqlen": max(lengths, default=0)}
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=ragged_dim, **bounds)


def batch_of(lengths, first=0, width=None):
    """Columns of every kind, each row of which tells its number (``first`` and on); jagged ones share offsets."""
    numbers = list(range(first, first + len(lengths)))
    objects = np.empty(len(lengths), dtype=object)
    objects[:] = [{"row": number, "tensor": torch.tensor([number])} for number in numbers]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    width = max([*lengths, 0]) if width is None else width
    ids = torch.full((len(lengths), width), -1)
    for row, length in enumerate(lengths):
        ids[row, :length] = numbers[row]
    return BatchedDataDict(
        {
            "ids": ids,
            "jagged": nested(lengths, numbers, offsets=offsets),
            "more": nested(lengths, numbers, offsets=offsets),
            "deep": nested(lengths, numbers, ragged_dim=2),
            "text": [f"row {number}" for number in numbers],
            "object": objects,
            "number": np.array(numbers, dtype=np.int64),
        }
    )


def check(batch, numbers, lengths):
    """``batch`` holds the rows ``numbers``, in every column."""
    assert set(batch) == COLUMNS
    assert batch.size == len(numbers)
    assert batch["number"].tolist() == numbers
    assert batch["text"] == [f"row {number}" for number in numbers]
    assert batch["object"].shape == (len(numbers),)
    assert [one["row"] for one in batch["object"]] == numbers
    assert batch["ids"].shape[0] == len(numbers)
    for row, number in enumerate(numbers):
        length = lengths[row]
        assert batch["ids"][row].tolist() == [number] * length + [-1] * (batch["ids"].shape[1] - length)
    for key in ("jagged", "more", "deep"):
        found = [row.reshape(-1).tolist() for row in batch[key].unbind()]
        times = 3 if key == "deep" else 1
        assert found == [[number] * length * times for number, length in zip(numbers, lengths, strict=True)]
    assert batch["jagged"].offsets() is batch["more"].offsets()
    if numbers:
        assert (batch["jagged"] + batch["more"]).shape[0] == len(numbers)  # torch refuses where offsets aren't shared
        assert batch["jagged"]._maybe_max_seqlen == max(lengths)  # without which torch pads to the sum of lengths


lengths_lists = st.lists(st.integers(0, 5), max_size=8)


# --------------------------------------------------------------------------------------------------- parts and joining


@settings(deadline=None, max_examples=30)
@given(lengths_lists, st.data())
def test_cut_and_joined_again(lengths, data):
    batch = batch_of(lengths)
    edges = sorted(data.draw(st.lists(st.integers(0, len(lengths)), max_size=3)))
    edges = [0, *edges, len(lengths)]
    parts = [batch.slice(start, stop) for start, stop in itertools.pairwise(edges)]
    for part, start, stop in zip(parts, edges, edges[1:], strict=False):
        assert type(part) is SlicedDataDict
        check(part, list(range(start, stop)), lengths[start:stop])
    joined = BatchedDataDict.from_batches(parts)
    assert type(joined) is BatchedDataDict
    assert list(joined) == list(batch)
    check(joined, list(range(len(lengths))), lengths)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(lengths_lists, st.data())
def test_selected_and_put_back(lengths, data):
    count = len(lengths)
    batch = batch_of(lengths)
    chosen = data.draw(st.lists(st.integers(-count, count - 1), max_size=9)) if count else []
    rows = [row % count for row in chosen]
    for index in (chosen, np.array(chosen, dtype=np.int64), torch.tensor(chosen, dtype=torch.long), tuple(chosen)):
        check(batch.select_indices(index), rows, [lengths[row] for row in rows])
    order = data.draw(st.permutations(range(count)))
    shuffled = batch.select_indices(list(order))
    assert shuffled.reorder_data(list(order)) is None
    check(shuffled, list(range(count)), lengths)
    check(batch, list(range(count)), lengths)


@settings(deadline=None, max_examples=30)
@given(lengths_lists, st.integers(0, 3))
def test_every_row_repeated(lengths, times):
    repeated = batch_of(lengths).repeat_interleave(times)
    rows = [row for row in range(len(lengths)) for _ in range(times)]
    check(repeated, rows, [lengths[row] for row in rows])
    assert len({id(one) for one in repeated["object"]}) == len(rows)


@settings(deadline=None, max_examples=30)
@given(lengths_lists, st.integers(1, 3), st.integers(1, 3))
def test_chunks_and_micro_batches(lengths, chunks, size):
    lengths = lengths * chunks * size
    batch = batch_of(lengths)
    each = len(lengths) // chunks
    for rank in range(chunks):
        rows = list(range(rank * each, (rank + 1) * each))
        check(batch.chunk(rank, chunks), rows, [lengths[row] for row in rows])
    found = [part["number"].tolist() for part in batch.make_microbatch_iterator(size)]
    assert found == [list(range(start, start + size)) for start in range(0, len(lengths), size)]


def test_slices_are_views_chunks_are_copies():
    batch = batch_of([2, 2])
    batch.slice(0, 1)["ids"].fill_(9)
    assert batch["ids"].tolist() == [[9, 9], [1, 1]]
    batch.chunk(1, 2)["ids"].fill_(7)
    batch.chunk(1, 2)["jagged"].values().fill_(7)
    batch.chunk(1, 2)["number"][:] = 7
    batch.chunk(1, 2)["text"].clear()
    check(batch.slice(1, None), [1], [2])


def test_slices_are_read_as_pythons_own():
    batch = batch_of([1, 2, 3])
    assert batch.slice(1, 99)["number"].tolist() == [1, 2]
    assert batch.slice(-1, None)["number"].tolist() == [2]
    assert batch.slice(2, 1).size == 0


def test_what_cannot_be_cut():
    batch = batch_of([1, 2, 3])
    with pytest.raises(InputError, match="chunks: 3 rows can't be shared equally by 2"):
        batch.chunk(0, 2)
    with pytest.raises(InputError, match="rank: got 3, expected 0 to 2"):
        batch.chunk(3, 3)
    with pytest.raises(InputError, match="microbatch_size: 3 rows"):
        batch.make_microbatch_iterator(2)  # at once, not at the first micro-batch
    with pytest.raises(IndexError, match="row 3"):
        batch.select_indices([0, 3])
    for wrong in ([0, 1], [0, 1, 1], [0, 1, 3], [-1, 0, 1]):
        with pytest.raises(InputError, match="reordered_indices"):
            batch.reorder_data(wrong)
    with pytest.raises(InputTypeError, match="reordered_indices: got float64"):
        batch.reorder_data([0.0, 1.0, 2.0])
    check(batch, [0, 1, 2], [1, 2, 3])


# ------------------------------------------------------------------------------------------------------------- joining


def test_padding_goes_to_the_widest_with_the_value_of_the_column():
    first = {
        "a": torch.tensor([[1, 2, 3]]),
        "b": torch.ones(1, 3, 2),
        "c": torch.tensor([1.5]),
        "mask": torch.ones(1, 3).bool(),
    }
    second = {
        "a": torch.tensor([[4]]),
        "b": torch.ones(1, 1, 2),
        "c": torch.tensor([2.5]),
        "mask": torch.ones(1, 1).bool(),
    }
    joined = BatchedDataDict.from_batches([second, first], {"a": -100, "b": float("nan"), "not there": 3})
    assert joined["a"].tolist() == [[4, -100, -100], [1, 2, 3]]
    assert joined["b"].shape == (2, 3, 2)
    assert joined["b"][0, 1:].isnan().all()
    assert joined["b"].isnan().sum() == 4
    assert joined["c"].tolist() == [2.5, 1.5]
    assert joined["mask"].dtype == torch.bool
    assert joined["mask"].tolist() == [[True, False, False], [True, True, True]]


def test_padding_carries_gradients():
    weights = torch.ones(1, 2, requires_grad=True)
    joined = BatchedDataDict.from_batches([{"a": weights}, {"a": torch.zeros(1, 3)}])
    joined["a"].sum().backward()
    assert weights.grad.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.uint16, torch.bool, torch.float8_e4m3fn])
def test_dtypes_survive(dtype):
    parts = [{"a": torch.ones(2, width).to(dtype)} for width in (2, 3)]
    joined = BatchedDataDict.from_batches(parts)
    assert joined["a"].dtype == dtype
    assert joined["a"].float().tolist() == [[1, 1, 0]] * 2 + [[1, 1, 1]] * 2


def test_jagged_beside_plain_stays_jagged():
    plain = {"a": torch.tensor([[1, 1], [2, 2]]), "d": torch.ones(2, 3, 2)}
    ragged = {"a": nested([1, 0], [3, 4]), "d": nested([1, 0], [1.0, 1.0], ragged_dim=2)}
    for parts in ([plain, ragged], [ragged, plain]):
        joined = BatchedDataDict.from_batches(parts, {"a": 7})
        assert {len(row) for row in joined["a"].unbind()} == {0, 1, 2}
        assert torch.cat(joined["a"].unbind()).sum() == 1 + 1 + 2 + 2 + 3
        assert [tuple(row.shape) for row in joined["d"].unbind()][:1] in ([(3, 2)], [(3, 1)])
        assert joined["a"]._maybe_max_seqlen == 2


EMPTY = [
    {},
    {"ids": torch.tensor([]), "len": torch.tensor([]), "text": [], "meta": []},
    {"ids": [], "len": [], "text": [], "meta": np.empty(0, dtype=object)},
    {"ids": torch.zeros(0, 9), "len": torch.zeros(0, dtype=torch.int32), "text": [], "meta": []},
]


@pytest.mark.parametrize("empty", EMPTY)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_c_a_batch_without_rows_adds_nothing_and_takes_no_column(empty, place):
    objects = np.array([{"x": 1}, None], dtype=object)
    full = {"ids": torch.tensor([[1, 2], [3, 4]]), "len": torch.tensor([2, 1]), "text": ["a", "b"], "meta": objects}
    wide = {"ids": torch.tensor([[5, 6, 7]]), "len": torch.tensor([3]), "text": ["c"], "meta": objects[:1]}
    parts = [full, wide]
    parts.insert(place, empty)
    joined = BatchedDataDict.from_batches(parts, {"ids": -1})
    expected = BatchedDataDict.from_batches([full, wide], {"ids": -1})
    assert list(joined) == list(full if place or not empty else empty)
    assert joined["ids"].tolist() == [[1, 2, -1], [3, 4, -1], [5, 6, 7]]
    assert joined["ids"].dtype == torch.int64
    assert (joined["len"].tolist(), joined["text"]) == ([2, 1, 3], ["a", "b", "c"])
    assert joined["meta"].tolist() == expected["meta"].tolist()


def test_c_only_batches_without_rows_keep_their_columns():
    parts = [{}, {"ids": torch.zeros(0, 4, dtype=torch.int64), "text": []}, {"ids": torch.tensor([]), "text": []}]
    joined = BatchedDataDict.from_batches(parts)
    assert (list(joined), joined.size, joined["ids"].shape) == (["ids", "text"], 0, (0, 4))
    none = BatchedDataDict({"a": nested([1], [2, 3])}).slice(0, 0)
    assert BatchedDataDict.from_batches([none, {"a": torch.ones(2, 3)}])["a"].is_nested  # as where it has rows


def test_c_what_nemo_rl_asserts_is_an_assertion_error():
    batch = BatchedDataDict({"ids": torch.zeros(6, 4), "len": torch.full((6,), 4)})
    long = {"max_tokens_per_microbatch": 3, "sequence_length_round": 1, "input_key": "ids", "input_lengths_key": "len"}
    for misuse in (
        lambda: batch.shard_by_batch_size(4),
        lambda: batch.shard_by_batch_size(2, batch_size=5),
        lambda: batch.shard_by_batch_size(4, batch_size=6),
        lambda: batch.shard_by_batch_size(2, dynamic_batching_args=long),
        lambda: batch.chunk(0, 4),
        lambda: BatchedDataDict.from_batches([]),
    ):
        with pytest.raises(AssertionError):
            misuse()


def test_lists_beside_arrays():
    array = np.array([{"x": 1}, None], dtype=object)
    joined = BatchedDataDict.from_batches([{"a": array, "n": np.arange(2)}, {"a": ["y"], "n": np.arange(1)}])
    assert isinstance(joined["a"], np.ndarray)
    assert joined["a"].tolist() == [{"x": 1}, None, "y"]
    assert joined["n"].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ([], InputError, "batches: got none"),
        ([{"a": torch.ones(1)}, {"b": torch.ones(0)}], MissingKeyError, r"batches\[1\]: has no column 'a'"),
        ([{"a": [1]}, {"a": [1], "b": [2]}], MissingKeyError, r"batches\[0\]: has no column 'b'"),
        (
            [{"a": torch.ones(1, 2, 3)}, {"a": torch.ones(1, 2, 4)}],
            ShapeError,
            r"'a': batches\[1\] has shape \(1, 2, 4\)",
        ),
        ([{"a": torch.ones(1, 2)}, {"a": torch.ones(1)}], ShapeError, "'a'"),
        ([{"a": torch.ones(1, 2)}, {"a": [1]}], InputTypeError, r"'a': got a tensor in .* list in batches\[1\]"),
        ([{"a": [1]}, {"a": torch.ones(1)}], InputTypeError, "'a': got Tensor, list"),
        ([{"a": nested([1], [1])}, {"a": torch.ones(1)}], InputTypeError, r"'a': got shape \(1,\)"),
        ([{"a": nested([1], [1])}, {"a": ["x"]}], InputTypeError, "'a': got list"),
        ([{"a": torch.ones(1).long()}, {"a": torch.ones(1)}], InputTypeError, "int64 in one batch and torch.float32"),
        ([{"a": nested([1], [1])}, {"a": nested([1], [1.0])}], ShapeError, "'a'"),
        ([{"a": np.ones((1, 2))}, {"a": np.ones((1, 3))}], ShapeError, "'a': arrays of shapes"),
        ([{"a": torch.ones(2), "b": [1]}], ShapeError, "'b': has 1 rows, but 'a' has 2"),
    ],
)
def test_what_cannot_be_joined(parts, error, message):
    with pytest.raises(error, match=message):
        BatchedDataDict.from_batches(parts)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.int64, 1.5), (torch.uint8, -1), (torch.bool, 2), (torch.int8, 200), (torch.int32, float("nan"))],
)
def test_a_pad_value_that_the_column_cannot_hold(dtype, value):
    parts = [{"a": torch.ones(1, width).to(dtype)} for width in (1, 2)]
    with pytest.raises(InputError, match=r"pad_value_dict\['a'\]: got"):
        BatchedDataDict.from_batches(parts, {"a": value})


# ---------------------------------------------------------------------------------------------------------- one by one


def test_size_and_columns_without_rows():
    assert BatchedDataDict().size == 0
    assert BatchedDataDict(a=[1, 2]).size == 2
    for column, error in (("text", InputTypeError), (torch.tensor(1), ShapeError), ({"x": 1}, InputTypeError)):
        with pytest.raises(error, match="'b'"):
            _ = BatchedDataDict(a=[1, 2], b=column).size


# torch warns of every nested tensor that isn't jagged
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype:UserWarning")
def test_strided_nested_tensors_are_refused():
    strided = torch.nested.as_nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.strided)
    with pytest.raises(InputTypeError, match=r"layout torch\.strided, expected jagged"):
        BatchedDataDict(a=strided).slice(0, 1)


def test_it_is_a_mapping_that_can_be_copied_and_pickled():
    batch = batch_of([2, 1])
    (shard,), _ = batch.shard_by_batch_size(
        1, sequence_packing_args={"max_tokens_per_microbatch": 4, "input_key": "ids", "input_lengths_key": "number"}
    )
    for other in (pickle.loads(pickle.dumps(shard)), copy.deepcopy(shard), shard.copy()):
        assert type(other) is SlicedDataDict
        assert other.micro_batch_indices == shard.micro_batch_indices == [[[0, 2]]]
        assert other["text"] == shard["text"]
    plain = batch.get_dict()
    assert type(plain) is dict
    plain.clear()
    assert set(batch) == COLUMNS
    assert BatchedDataDict[dict](a=[1])["a"] == [1]


def test_objects_are_repeated_as_deep_copies_but_media_may_be_shared():
    batch = batch_of([1, 1])
    apart = batch.repeat_interleave(2)
    apart["object"][0]["row"] = "changed"
    apart["object"][0]["tensor"].fill_(9)
    assert [one["row"] for one in apart["object"]] == ["changed", 0, 1, 1]
    assert batch["object"][0] == {"row": 0, "tensor": torch.tensor([0])}
    shared = batch.repeat_interleave(2, share_immutable_media=True)
    assert shared["object"][0] is not shared["object"][1]
    assert shared["object"][0]["tensor"] is shared["object"][1]["tensor"] is batch["object"][0]["tensor"]


def test_truncation():
    batch = batch_of([4, 1, 3])
    batch["image"] = torch.ones(3, 9)
    with pytest.raises(MissingKeyError, match="keys: no column 'x'"):
        batch.truncate_tensors(1, 2, keys=["x"])
    before = batch["jagged"]
    batch.truncate_tensors(1, 2, keys=["ids", "jagged", "more"])
    assert batch["ids"].tolist() == [[0, 0], [1, -1], [2, 2]]
    assert [row.tolist() for row in batch["jagged"].unbind()] == [[0, 0], [1], [2, 2]]
    assert batch["jagged"].offsets() is batch["more"].offsets()
    assert batch["jagged"]._maybe_max_seqlen == 2
    assert len(before.unbind()[0]) == 4
    assert batch["image"].shape == (3, 9)
    batch.truncate_tensors(2, 2)
    assert [tuple(row.shape) for row in batch["deep"].unbind()] == [(3, 2), (3, 1), (3, 2)]
    batch.truncate_tensors(1, 1)
    assert [tuple(row.shape) for row in batch["deep"].unbind()] == [(1, 2), (1, 1), (1, 2)]
    assert batch["image"].shape == (3, 1)
    assert batch["text"] == ["row 0", "row 1", "row 2"]
    for dim, length in ((0, 1), (1, -1)):
        with pytest.raises(InputError, match=r"(dim|truncated_len): got"):
            batch.truncate_tensors(dim, length)


def test_to_moves_what_is_a_tensor_and_keeps_sharing():
    batch = batch_of([2, 1])
    assert batch.to("cpu") is batch
    check(batch, [0, 1], [2, 1])
    batch.pop("deep")
    batch.to("meta")
    assert {batch[key].device.type for key in ("ids", "jagged", "more")} == {"meta"}
    assert batch["jagged"].offsets() is batch["more"].offsets()
    assert batch["text"] == ["row 0", "row 1"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_to_a_gpu():
    batch = batch_of([2, 1]).to("cuda")
    assert batch["jagged"].device.type == "cuda"
    taken = batch.select_indices([1, 0])
    assert [row.tolist() for row in taken["jagged"].unbind()] == [[1], [0, 0]]
    check(taken.to("cpu"), [1, 0], [1, 2])


def test_rows_with_holes_between_them():
    holes = torch.nested.nested_tensor_from_jagged(
        torch.arange(9), torch.tensor([0, 3, 6, 9]), torch.tensor([2, 0, 3]), min_seqlen=0, max_seqlen=3
    )
    batch = BatchedDataDict(a=holes)
    assert [row.tolist() for row in batch.select_indices([2, 0])["a"].unbind()] == [[6, 7, 8], [0, 1]]
    assert [row.tolist() for row in batch.slice(1, 3)["a"].unbind()] == [[], [6, 7, 8]]
    batch.truncate_tensors(1, 1)
    assert [row.tolist() for row in batch["a"].unbind()] == [[0], [], [6]]


def test_global_batches_without_a_plan():
    batch = batch_of([1] * 5)
    assert [batch.get_batch(number, 2)["number"].tolist() for number in range(3)] == [[0, 1], [2, 3], [4]]
    with pytest.raises(IndexError, match="batch_idx: got 3, expected 0 to 2"):
        batch.get_batch(3, 2)
    with pytest.raises(InputError, match="batch_size: got None"):
        batch.get_batch(0)
    for iterate in (
        batch.make_microbatch_iterator_with_dynamic_shapes,
        batch.get_microbatch_iterator_dynamic_shapes_len,
        batch.make_microbatch_iterator_for_packable_sequences,
        batch.get_microbatch_iterator_for_packable_sequences_len,
    ):
        with pytest.raises(InputError, match="no micro-batches are planned: call shard_by_batch_size with"):
            iterate()


def test_a_plan_that_came_over_the_wire():
    batch = batch_of([3, 1, 2, 0])
    batch.micro_batch_indices = [[[0, 1], [1, 2]], [[0, 2]]]
    batch.micro_batch_lengths = [[3, 1], [2]]
    parts = list(batch.make_microbatch_iterator_with_dynamic_shapes())
    assert [part["number"].tolist() for part in parts] == [[0], [1], [2, 3]]
    assert [part["ids"].shape[1] for part in parts] == [3, 1, 2]
    second = batch.get_batch(1, 2)
    assert second["number"].tolist() == [2, 3]
    assert second.get_microbatch_iterator_for_packable_sequences_len() == (1, 2)
    assert [part.size for part in second.make_microbatch_iterator_for_packable_sequences()] == [2]


def test_reordering_drops_the_plan():
    args = {"max_tokens_per_microbatch": 4, "input_key": "ids", "input_lengths_key": "number"}
    (shard,), _ = batch_of([2, 1]).shard_by_batch_size(1, dynamic_batching_args=args)
    shard.reorder_data([1, 0])
    assert shard.micro_batch_indices is None
    assert shard.elem_counts_per_gb is None


# --------------------------------------------------------------------------------------------------------------- hooks


class Calls(hooks.Listener):
    def __init__(self):
        self.names, self.scopes = [], []

    def leave(self, event, state):
        if event.point is hooks.SCOPE:
            values = dict(event.values)
            values.pop("content", None)  # what is known of it while it runs
            self.scopes.append((event.scope.kind, event.scope.micro_batch, values))
            assert event.error is None
        else:
            self.names.append(event.point.name)


def test_each_micro_batch_is_a_scope_of_its_own():
    batch = batch_of([3, 1, 2, 0])
    batch["length"] = torch.tensor([3, 1, 2, 0])
    args = {"max_tokens_per_microbatch": 4, "input_key": "ids", "input_lengths_key": "length"}
    (shard,), _ = batch.shard_by_batch_size(1, dynamic_batching_args=args)
    calls = Calls()
    with hooks.subscribe(calls, "scope"):
        seen = [hooks.current_scope().micro_batch for _ in shard.make_microbatch_iterator_with_dynamic_shapes()]
        for _ in batch.make_microbatch_iterator(2):
            break
    assert seen == [0, 1, 2]
    assert hooks.current_scope().micro_batch is None
    assert calls.scopes == [
        ("micro_batch", 0, {"sequences": 2, "tokens": 1}),
        ("micro_batch", 1, {"sequences": 1, "tokens": 2}),
        ("micro_batch", 2, {"sequences": 1, "tokens": 3}),
        ("micro_batch", 0, {"sequences": 2}),
    ]


def test_the_methods_are_points():
    calls = Calls()
    batch = batch_of([2, 2])
    with hooks.subscribe(calls, "batched_data_dict.*"):
        BatchedDataDict.from_batches([batch])
        batch.chunk(0, 2)
        batch.select_indices([0])
        batch.reorder_data([1, 0])
        batch.repeat_interleave(2)
        batch.truncate_tensors(1, 1)
        batch.shard_by_batch_size(2)
        batch.get_batch(0, 1)
    assert [name.removeprefix("batched_data_dict.") for name in calls.names] == [
        "from_batches",
        "chunk",
        "select_indices",
        "reorder_data",
        "repeat_interleave",
        "truncate_tensors",
        "shard_by_batch_size",
        "get_batch",
    ]


# ----------------------------------------------------------------------------------------------------------- all ranks


def _rank(rank, world, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        results[rank] = _gathered(rank)
    finally:
        dist.destroy_process_group()


def _gathered(rank):
    lengths = [[2, 0, 3], []][rank]
    batch = batch_of(lengths, first=3 * rank, width=[3, 5][rank])
    batch["mixed"] = torch.tensor([[7, 7]] * 3) if rank == 0 else nested([], [])
    everything = batch.all_gather(pad_value_dict={"ids": -1})
    mixed = everything.pop("mixed")
    assert [row.tolist() for row in mixed.unbind()] == [[7, 7]] * 3
    check(everything, [0, 1, 2], lengths or [2, 0, 3])
    assert everything["ids"].shape == (3, 5)
    half = BatchedDataDict(a=torch.full((1 + rank, 1), rank, dtype=torch.bfloat16), t=[rank] * (1 + rank)).all_gather()
    assert half["a"].tolist() == [[0.0], [1.0], [1.0]]
    assert half["a"].dtype == torch.bfloat16
    assert half["t"] == [0, 1, 1]
    messages = []
    for columns in (
        {"a": [1]} if rank else {"b": [1]},
        {"a": [1]} if rank else {"a": torch.ones(1)},
        {"a": torch.ones(1, 2, 3 + rank)},
        {"a": "text" if rank else [1]},
        {"a": [lambda: None]},
    ):
        with pytest.raises((PeerError, MissingKeyError, ShapeError)) as raised:
            BatchedDataDict(columns).all_gather()
        messages.append(str(raised.value))
    return messages


@pytest.mark.multiprocess
@pytest.mark.slow
def test_all_gather(tmp_path):
    with mp.Manager() as manager:
        results = manager.dict()
        run_ranks(_rank, (2, tmp_path / "store", results), 2)
        first, second = results[0], results[1]
    assert first == second
    for message, expected in zip(
        first,
        (
            "has the column 'a'",
            "'a' is a tensor on only one",
            "'a' is (1, 2, 3) on rank 0",
            "rank 1 can't take part",
            "rank 0 can't",
        ),
        strict=True,
    ):
        assert expected in message


def test_all_gather_without_a_group():
    with pytest.raises(SessionError, match="there is no process group"):
        batch_of([1]).all_gather()
