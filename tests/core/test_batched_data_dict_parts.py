"""Batches with every kind of column are cut into parts, and joined with padding."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.core.batched_data_dict import BatchedDataDict, SlicedDataDict
from probe.errors import InputError, InputTypeError, MissingKeyError, ShapeError
from tests.core.columns_of_every_kind import batch_of, check, nested

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
        (
            [{"a": torch.ones(1).long()}, {"a": torch.ones(1)}],
            InputTypeError,
            "int64 and torch.float32 in different batches",
        ),
        ([{"a": nested([1], [1])}, {"a": nested([1], [1.0])}], ShapeError, "'a'"),
        ([{"a": np.ones((1, 2))}, {"a": np.ones((1, 3))}], ShapeError, "'a': got arrays of shapes"),
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
