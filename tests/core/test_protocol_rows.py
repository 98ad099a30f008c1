"""Rows of a DataProto: indexing, repeating, reordering and folding."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from probe.core.protocol import (
    DataProto,
    DataProtoItem,
    fold_batch_dim,
    unfold_batch_dim,
)
from probe.errors import (
    ConflictError,
    InputError,
    InputTypeError,
    MissingKeyError,
    ShapeError,
)
from tests.core.numbered_batches import ids, jagged, make, rows_of

# -------------------------------------------------------------------------------- indexing


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(1, 3), [1, 2]),
        (slice(None, None, 2), [0, 2]),
        (slice(None, None, -1), [3, 2, 1, 0]),
        (slice(-2, None), [2, 3]),
        (slice(3, 1), []),
        (slice(0, 99), [0, 1, 2, 3]),
        ([2, 0], [2, 0]),
        ([-1, 1], [3, 1]),
        ([], []),
        (range(1, 3), [1, 2]),
        ([True, False, False, True], [0, 3]),
        ([np.int32(1), 2], [1, 2]),
        (np.array([3, -4]), [3, 0]),
        (np.array([3, 1, 2])[::-1], [2, 1, 3]),
        (np.array([3, 1], dtype=np.uint8), [3, 1]),
        (np.array([False, True, True, False]), [1, 2]),
        (torch.tensor([1, 1]), [1, 1]),
        (torch.tensor([-1], dtype=torch.int32), [3]),
        (torch.tensor([True, True, False, False]), [0, 1]),
        (torch.tensor([], dtype=torch.int64), []),
    ],
)
def test_every_form_of_many_rows(index, expected):
    data = make(with_jagged=True)
    got = data[index]
    assert type(got) is DataProto
    assert len(got) == len(expected)
    assert ids(got) == expected
    assert got.non_tensor_batch["uid"].tolist() == [f"u{row}" for row in expected]
    assert got.non_tensor_batch["n"].dtype == np.float64
    assert got.batch.batch_size == (len(expected),)
    source = rows_of(data)
    assert rows_of(got) == [source[row] for row in expected]
    assert rows_of(got, "k") == [[[v, v] for v in source[row]] for row in expected]
    assert got.batch["j"].offsets() is got.batch["k"].offsets()
    longest = max((len(row) for row in rows_of(got)), default=0)
    assert got.batch["j"]._maybe_max_seqlen == got.batch["k"]._maybe_max_seqlen == longest
    got.meta_info["new"] = 1
    assert "new" not in data.meta_info


@pytest.mark.parametrize("index", [1, -3, np.int64(1), torch.tensor(1), np.array(1)])
def test_every_form_of_one_row(index):
    item = make(with_jagged=True)[index]
    assert type(item) is DataProtoItem
    assert item.batch["a"].item() == 1
    assert item.batch["j"].tolist() == [1.0, 2.0, 3.0]
    assert item.non_tensor_batch == {"uid": "u1", "n": 0.5}
    assert item.meta_info == {"t": 1.0}


@pytest.mark.parametrize(
    ("index", "number"), [(4, 4), (-5, -5), (torch.tensor(9), 9), ([0, 7], 7), (np.array([-6]), -6)]
)
def test_a_row_outside_is_named_with_the_size(index, number):
    with pytest.raises(IndexError, match=rf"row {number}\b.*4 rows"):
        make()[index]


@pytest.mark.parametrize(
    ("index", "error"),
    [
        ([True, False], ShapeError),
        (torch.zeros(3, dtype=torch.bool), ShapeError),
        (torch.zeros(2, 2, dtype=torch.int64), ShapeError),
        ([1, True], InputTypeError),
        ([0.5], InputTypeError),
        (torch.tensor([0.5]), InputTypeError),
        (np.array(["a"]), InputTypeError),
        (1.0, InputTypeError),
        (True, InputTypeError),
        ((0, 1), InputTypeError),
        (slice("a", None), InputTypeError),
        (None, InputTypeError),
    ],
)
def test_what_cant_be_an_index(index, error):
    with pytest.raises(error, match="index"):
        make()[index]


def test_iteration_and_membership():
    data = make(3)
    assert [item.batch["a"].item() for item in data] == [0, 1, 2]
    assert "a" in data
    assert "uid" in data
    assert "t" not in data
    assert 0 not in data
    assert [] not in data


def test_slices_are_views_and_picked_rows_are_copies():
    data = make()
    data[1:3].batch["a"][0] = 70
    data[[1]].batch["a"][0] = 80
    assert ids(data) == [0, 70, 2, 3]
    assert ids(data.slice(1, end=4, step=2)) == [70, 3]
    assert ids(data.select_idxs(np.array([True, False, False, True]))) == [0, 3]
    with pytest.raises(InputTypeError):
        data.select_idxs(1)


def test_jagged_columns_with_holes_and_other_ragged_dims():
    offsets = torch.tensor([0, 3, 6, 9])
    holes = torch.nested.nested_tensor_from_jagged(
        torch.arange(9), offsets, lengths=torch.tensor([1, 3, 2]), min_seqlen=1, max_seqlen=3
    )
    turned = jagged([2, 1, 3], (4,)).transpose(1, 2)
    data = DataProto.from_dict({"h": holes, "t": turned})
    assert rows_of(data[[2, 0]], "h") == [[6, 7], [0]]
    assert rows_of(data[1:], "h") == [[3, 4, 5], [6, 7]]
    assert rows_of(DataProto.concat([data[:1], data[1:]]), "h") == rows_of(data, "h")
    for got in (data[[2, 0]], data[[1, 2, 0]][1:]):
        assert rows_of(got, "t") == [rows_of(data, "t")[row] for row in (2, 0)]
    assert DataProto.concat([data, data[:1]]).batch["t"].shape[:2] == (4, 4)


def test_nested_tensordicts_and_objects_in_the_batch():
    inner = TensorDict({"x": torch.arange(8).reshape(4, 2), "j": jagged([1, 2, 1, 3])}, batch_size=[4])
    objects = NonTensorStack(*[NonTensorData(word) for word in "abcd"])
    data = DataProto(TensorDict({"inner": inner, "o": objects, "same": NonTensorData(5, batch_size=[4])}, [4]))
    for got, rows in ((data[[3, 0]], (3, 0)), (data[1:3], (1, 2)), (data.split(2)[1], (2, 3))):
        assert got.batch["inner", "x"].tolist() == [[2 * row, 2 * row + 1] for row in rows]
        assert rows_of(got, ("inner", "j")) == [rows_of(data, ("inner", "j"))[row] for row in rows]
        assert got.batch.get("o").tolist() == ["abcd"[row] for row in rows]
        assert got.batch.get("same").data == 5
    assert DataProto.concat(data.chunk(2)) == data
    fewer = DataProto(data.batch.exclude(("inner", "j")))
    for pair in ([data, fewer], [fewer, data]):
        with pytest.raises(ShapeError, match="'inner'"):
            DataProto.concat(pair)
    other = DataProto(TensorDict({"same": NonTensorData(6, batch_size=[4])}, [4]))
    with pytest.raises(ConflictError, match=r"same.*5.*data\[1\].*6"):
        DataProto.concat([data.select(["same"]), other])


# -------------------------------------------------------------------------------- repeating, order


@pytest.mark.parametrize("with_jagged", [False, True])
def test_repeat(with_jagged):
    data = make(2, with_jagged=with_jagged)
    data.batch = data.batch.to("cpu")
    assert ids(data.repeat()) == [0, 0, 1, 1]
    tiled = data.repeat(repeat_times=3, interleave=False)
    assert ids(tiled) == [0, 1] * 3
    assert tiled.non_tensor_batch["uid"].tolist() == ["u0", "u1"] * 3
    assert tiled.batch.device == torch.device("cpu")
    assert len(data.repeat(0)) == 0
    if with_jagged:
        assert rows_of(tiled) == rows_of(data) * 3
    with pytest.raises(InputError, match="repeat_times"):
        data.repeat(-1)


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor])
def test_sample_level_repeat(form):
    data = make(3)
    got = data.sample_level_repeat(form([2, 0, 1]))
    assert ids(got) == [0, 0, 2]
    assert got.non_tensor_batch["uid"].tolist() == ["u0", "u0", "u2"]
    with pytest.raises(ShapeError, match=r"\(2,\).*\(3,\)"):
        data.sample_level_repeat(form([1, 1]))
    with pytest.raises(InputError, match="-1"):
        data.sample_level_repeat(form([1, -1, 1]))
    with pytest.raises(InputTypeError):
        data.sample_level_repeat(form([1.0, 1.0, 1.0]))


def test_reorder_in_place():
    data = make(3, with_jagged=True)
    want = [rows_of(data)[row] for row in (2, 0, 1)]
    assert data.reorder(torch.tensor([2, 0, 1])) is None
    assert ids(data) == [2, 0, 1]
    assert rows_of(data) == want
    with pytest.raises(IndexError):
        data.reorder(torch.tensor([0, 1, 3]))
    assert ids(data) == [2, 0, 1]


def test_unfold_column_chunks():
    pair = torch.arange(8).reshape(2, 4)
    data = DataProto.from_dict({"p": pair, "a": torch.arange(2)}, {"q": np.arange(8).reshape(2, 4), "u": ["x", "y"]})
    got = data.unfold_column_chunks(2, ["p", "q"])
    assert got.batch["p"].tolist() == got.non_tensor_batch["q"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert ids(got) == [0, 0, 1, 1]
    assert got.non_tensor_batch["u"].tolist() == ["x", "x", "y", "y"]
    assert (list(got.batch.keys()), list(got.non_tensor_batch)) == (["p", "a"], ["q", "u"])
    assert ids(data.unfold_column_chunks(2)) == [0, 0, 1, 1]
    with pytest.raises(ShapeError, match="'p'"):
        data.unfold_column_chunks(3, ["p"])
    with pytest.raises(ShapeError, match="'a'"):
        data.unfold_column_chunks(2, "a")
    with pytest.raises(MissingKeyError, match="'z'"):
        data.unfold_column_chunks(2, ["z"])


def test_fold_and_unfold_leave_their_input_alone():
    data = DataProto.from_dict({"a": torch.arange(12).reshape(6, 2)}, {"u": list("abcdef")}, {"t": 1})
    before = copy.deepcopy(data)
    folded = fold_batch_dim(data, 2)
    assert folded.batch["a"].shape == (2, 3, 2)
    assert folded.non_tensor_batch["u"].shape == (2, 3)
    assert len(folded) == 2
    assert unfold_batch_dim(folded) == data == before
    assert folded.non_tensor_batch["u"].shape == (2, 3)
    with pytest.raises(InputError, match="new_batch_size"):
        data.fold_batch_dim(4)
    with pytest.raises(ShapeError, match="'j'"):
        make(2, with_jagged=True).fold_batch_dim(1)
    with pytest.raises(ShapeError, match="'u'"):
        DataProto.from_dict({"a": torch.zeros(2, 3)}, {"u": np.zeros(2)}).unfold_batch_dim()


def test_to_returns_itself_and_keeps_objects():
    data = make(with_jagged=True)
    assert data.to("cpu") is data
    assert data.batch.device == torch.device("cpu")
    assert data.batch["j"].offsets() is data.batch["k"].offsets()
    empty = DataProto(None, {"n": np.zeros(2)})
    assert empty.to("cpu") is empty
