"""DataProto: making one, rows, columns, looks."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import inspect
import pickle
import types
import typing

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from probe import hooks
from probe.core import protocol
from probe.core.data_proto import exchange as data_exchange
from probe.core.protocol import (
    DataProto,
    DataProtoConfig,
    DataProtoItem,
    collate_fn,
    fold_batch_dim,
    list_of_dict_to_dict_of_list,
    pad_dataproto_to_divisor,
    unfold_batch_dim,
    union_two_dict,
    unpad_dataproto,
)
from probe.errors import (
    ConflictError,
    InputError,
    InputTypeError,
    MissingDependencyError,
    MissingKeyError,
    ShapeError,
)


class Special(DataProto):
    """A subclass: methods must return it."""


def jagged(lengths, trailing=(), offsets=None):
    if offsets is None:
        offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    values = torch.arange(float(offsets[-1])).reshape(-1, *[1] * len(trailing)).expand(-1, *trailing).clone()
    bounds = (min(lengths), max(lengths)) if lengths else (0, 0)
    return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=bounds[0], max_seqlen=bounds[1])


def make(rows=4, cls=DataProto, with_jagged=False, meta=None):
    tensors = {"a": torch.arange(rows), "b": torch.arange(rows * 3.0).reshape(rows, 3)}
    if with_jagged:
        lengths = [1 + (row * 2) % 5 for row in range(rows)]
        tensors["j"] = jagged(lengths)
        tensors["k"] = jagged(lengths, (2,), tensors["j"].offsets())
    uid = np.array([f"u{row}" for row in range(rows)], dtype=object)
    return cls.from_dict(tensors, {"uid": uid, "n": np.arange(rows) * 0.5}, {"t": 1.0} if meta is None else meta)


def ids(data):
    return data.batch["a"].tolist()


def rows_of(data, key="j"):
    return [row.tolist() for row in data.batch[key].unbind()]


# -------------------------------------------------------------------------------- making one


def test_three_members_have_their_defaults():
    empty = DataProto()
    assert (empty.batch, empty.non_tensor_batch, empty.meta_info, len(empty)) == (None, {}, {}, 0)
    assert [field.name for field in dataclasses.fields(DataProto)] == [
        "batch",
        "non_tensor_batch",
        "meta_info",
    ]
    assert DataProto().meta_info is not empty.meta_info


def test_from_dict_leaves_the_callers_dicts_alone():
    tensors, objects, meta = {"a": torch.zeros(2)}, {"uid": ["x", "y"]}, {"t": 1}
    data = DataProto.from_dict(tensors, objects, meta, auto_padding=True)
    data.meta_info["more"] = 1
    data.non_tensor_batch["more"] = np.zeros(2)
    data.batch["more"] = torch.zeros(2)
    assert list(tensors) == ["a"]
    assert objects == {"uid": ["x", "y"]}
    assert meta == {"t": 1}


def test_from_dict_keeps_lists_of_equal_length_as_objects():
    data = DataProto.from_dict(non_tensors={"turns": [[1, 2], [3, 4]]})
    assert data.non_tensor_batch["turns"].shape == (2,)
    assert data.non_tensor_batch["turns"][1] == [3, 4]
    assert (data.batch, len(data)) == (None, 2)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"a": torch.zeros(2, 3), "b": torch.zeros(4)}, ["'a'", "'b'", "(2, 3)", "(4,)"]),
        ({"a": torch.tensor(1.0)}, ["'a'", "()", "at least 1"]),
    ],
)
def test_from_dict_names_both_keys_and_shapes(tensors, words):
    with pytest.raises(ShapeError) as caught:
        DataProto.from_dict(tensors)
    assert all(word in str(caught.value) for word in words)


def test_from_dict_refuses_what_it_cant_use():
    with pytest.raises(InputError, match="num_batch_dims"):
        DataProto.from_dict({"a": torch.zeros(2)}, num_batch_dims=0)
    with pytest.raises(InputTypeError, match=r"tensors\['a'\].*list"):
        DataProto.from_dict({"a": [1, 2]})
    with pytest.raises(InputTypeError, match=r"non_tensors\['s'\].*str"):
        DataProto.from_dict(non_tensors={"s": "abc"})
    with pytest.raises(ShapeError, match=r"non_tensor_batch\['n'\].*\(3,\).*2 rows"):
        DataProto.from_dict({"a": torch.zeros(2)}, {"n": np.zeros(3)})


@pytest.mark.parametrize(
    "make_one",
    [
        lambda: DataProto.from_dict({"a": torch.zeros(4, 3, 2), "b": torch.zeros(4, 3)}, num_batch_dims=2),
        lambda: DataProto.from_dict({"a": torch.zeros(4, 3)}, {"uid": list("abcd")}, num_batch_dims=2),
        lambda: DataProto.from_dict(non_tensors={"uid": list("abcd")}, num_batch_dims=2),
        lambda: DataProto.from_tensordict(TensorDict({"a": torch.zeros(4, 3)}, [4, 3]), num_batch_dims=2),
        lambda: DataProto(batch=TensorDict({"a": torch.zeros(4, 3)}, [4, 3])),
        lambda: DataProto(batch=TensorDict({"a": torch.tensor(1.0)}, [])),
    ],
)
def test_c_a_batch_has_one_batch_dimension(make_one):
    with pytest.raises(AssertionError, match="num_batch_dims"):
        make_one()


def test_c_no_arrays_at_all_is_an_empty_batch():
    data = DataProto(non_tensor_batch=None)
    assert (len(data), data.non_tensor_batch) == (0, {})
    assert len(DataProto(batch=TensorDict({"a": torch.zeros(3)}, [3]), non_tensor_batch=None)) == 3


@pytest.mark.parametrize(
    "misuse",
    [
        lambda data: data.chunk(3),
        lambda data: data.make_iterator(3, 1),
        lambda data: data.pop(["x"]),
        lambda data: data.pop(non_tensor_batch_keys=["x"]),
        lambda data: data.pop(meta_info_keys=["x"]),
        lambda data: data.fold_batch_dim(3),
        lambda data: data.sample_level_repeat([1.5] * 4),
        lambda data: DataProto.from_dict({"a": torch.zeros(2), "b": torch.zeros(3)}),
        lambda data: DataProto(non_tensor_batch={"uid": [1]}),
    ],
)
def test_c_what_verl_asserts_is_an_assertion_error(misuse):
    data = make()
    with pytest.raises(AssertionError):
        misuse(data)
    assert data == make()


def test_c_columns_of_equal_lists_are_unfolded():
    labels = [["a1", "a2"], ["b1", "b2"], ["c1", "c2"]]
    data = DataProto.from_dict({"obs": torch.arange(12).reshape(3, 4)}, {"labels": labels, "uid": ["x", "y", "z"]})
    got = data.unfold_column_chunks(2, ["obs", "labels"])
    assert got.non_tensor_batch["labels"].tolist() == [["a1"], ["a2"], ["b1"], ["b2"], ["c1"], ["c2"]]
    assert got.non_tensor_batch["uid"].tolist() == ["x", "x", "y", "y", "z", "z"]
    assert got.batch["obs"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    ragged = DataProto.from_dict(non_tensors={"labels": [["a"], ["b", "c"]]})
    with pytest.raises(ShapeError, match="'labels'"):
        ragged.unfold_column_chunks(2, ["labels"])


def test_c_union_two_dict_adds_what_is_missing_or_nothing():
    mine = {"step": 1, "lr": float("nan"), "ids": np.array([1, 2])}
    assert union_two_dict(mine, {"lr": float("nan"), "ids": np.array([1, 2]), "new": 3}) is mine
    assert mine["new"] == 3
    before = dict(mine)
    with pytest.raises(AssertionError, match="'step'"):
        union_two_dict(mine, {"other": 5, "step": 2})
    assert mine.keys() == before.keys()


def test_c_dicts_become_a_dict_of_lists():
    assert list_of_dict_to_dict_of_list([]) == {}
    assert list_of_dict_to_dict_of_list([{"a": 1, "b": "x"}, {"b": "y", "a": 2}]) == {"a": [1, 2], "b": ["x", "y"]}
    assert list_of_dict_to_dict_of_list([{"a": 1, "b": 2}, {"a": 3}]) == {"a": [1, 3], "b": [2]}
    with pytest.raises(AssertionError, match="'b'"):
        list_of_dict_to_dict_of_list([{"a": 1}, {"a": 2, "b": 3}])


def test_from_single_dict_splits_by_type():
    data = DataProto.from_single_dict({"a": torch.zeros(2), "n": np.zeros(2)}, {"t": 1}, auto_padding=True)
    assert (list(data.batch.keys()), list(data.non_tensor_batch)) == (["a"], ["n"])
    assert data.is_padding_enabled()
    with pytest.raises(ValueError, match=r"data\['x'\].*list"):
        DataProto.from_single_dict({"x": [1]})


def test_unequal_lengths_are_found_without_tensors():
    with pytest.raises(ShapeError, match=r"'b'.*\(3,\).*2 rows.*'a'"):
        DataProto(None, {"a": np.zeros(2), "b": np.zeros(3)})
    with pytest.raises(InputTypeError, match="numpy array"):
        DataProto(None, {"a": [1, 2]})
    with pytest.raises(InputTypeError, match="TensorDict"):
        DataProto({"a": torch.zeros(2)})


# -------------------------------------------------------------------------------- indexing


@pytest.mark.parametrize("with_jagged", [False, True])
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
def test_every_form_of_many_rows(index, expected, with_jagged):
    data = make(with_jagged=with_jagged)
    got = data[index]
    assert type(got) is DataProto
    assert len(got) == len(expected)
    assert ids(got) == expected
    assert got.non_tensor_batch["uid"].tolist() == [f"u{row}" for row in expected]
    assert got.non_tensor_batch["n"].dtype == np.float64
    assert got.batch.batch_size == (len(expected),)
    if with_jagged:
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


# -------------------------------------------------------------------------------- columns


def test_select_shares_tensors_and_never_the_dicts():
    data = make()
    got = data.select()
    assert got == data
    assert got.batch["a"].data_ptr() == data.batch["a"].data_ptr()
    got.batch["new"] = torch.zeros(4)
    got.non_tensor_batch["new"] = np.zeros(4)
    got.meta_info["new"] = 1
    assert not {"new"} & {*data.batch.keys(), *data.non_tensor_batch, *data.meta_info}


def test_select_by_key():
    got = make().select(batch_keys=["b"], non_tensor_batch_keys=["n"], meta_info_keys=["absent"])
    assert (list(got.batch.keys()), list(got.non_tensor_batch), got.meta_info) == (["b"], ["n"], {})
    none = make().select(batch_keys=[])
    assert (len(none), list(none.batch.keys())) == (4, [])
    with pytest.raises(MissingKeyError, match=r"batch: there is no 'x'.*'a', 'b'"):
        make().select(["a", "x"])


def test_c_select_leaves_out_an_array_that_isnt_there():
    got = make().select(non_tensor_batch_keys=["uid", "x"])
    assert list(got.non_tensor_batch) == ["uid"]
    assert list(got.batch.keys()) == list(make().batch.keys())


def test_a_deep_copy_shares_nothing():
    data = make(with_jagged=True, meta={"list": [1]})
    data.non_tensor_batch["uid"][0] = ["mutable"]
    for got in (data.select(deepcopy=True), copy.deepcopy(data)):
        assert got == data
        got.batch["a"][0] = 99
        got.batch["j"].values()[0] = 99
        got.non_tensor_batch["uid"][0].append(1)
        got.meta_info["list"].append(2)
        assert got.batch["j"].offsets() is got.batch["k"].offsets()
        assert got.batch["j"]._maybe_max_seqlen == 5
    assert data == make(with_jagged=True, meta={"list": [1]}) or data.non_tensor_batch["uid"][0] == ["mutable"]
    assert ids(data) == [0, 1, 2, 3]
    assert data.meta_info == {"list": [1]}


def test_a_shallow_copy_shares_tensors_only():
    data = make()
    got = copy.copy(data)
    got.meta_info["new"] = got.non_tensor_batch["new"] = got.batch["new"] = torch.zeros(4)
    assert got.batch["a"] is data.batch["a"]
    assert "new" not in data.meta_info
    assert "new" not in data


def test_pop_is_all_or_nothing():
    data = make(cls=Special)
    with pytest.raises(MissingKeyError, match="'x'"):
        data.pop(["a"], ["uid"], ["x"])
    assert data == make(cls=Special)
    taken = data.pop("a", ["uid"], ["t"])
    assert type(taken) is Special
    assert (list(taken.batch.keys()), list(taken.non_tensor_batch), taken.meta_info) == (
        ["a"],
        ["uid"],
        {"t": 1.0},
    )
    assert (list(data.batch.keys()), list(data.non_tensor_batch), data.meta_info) == (["b"], ["n"], {})
    data.batch.lock_()
    assert list(data.pop(["b"]).batch.keys()) == ["b"]
    assert len(data) == 4


def test_rename_one_many_and_swapped():
    data = make()
    assert data.rename("a", "x") is data
    assert list(data.batch.keys()) == ["x", "b"]
    data.rename(["x", "b"], ["b", "x"])
    assert data.batch["x"].shape == (4, 3)
    for olds, news, error in (
        (["x", "b"], ["y"], InputError),
        (["gone"], ["y"], MissingKeyError),
        ("x", "b", InputError),
        (["x", "b"], ["y", "y"], InputError),
        (3, 4, InputTypeError),
    ):
        before = copy.copy(data)
        with pytest.raises(error):
            data.rename(olds, news)
        assert data == before
    assert data.rename() is data


# -------------------------------------------------------------------------------- cutting, padding


def test_chunk_and_split():
    data = make(6, with_jagged=True)
    parts = data.chunk(3)
    assert [ids(part) for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert parts[0].batch["a"].data_ptr() == data.batch["a"].data_ptr()
    assert all(part.batch["j"].offsets() is part.batch["k"].offsets() for part in parts)
    parts[0].meta_info["new"] = 1
    assert "new" not in parts[1].meta_info
    assert [len(part) for part in data.split(4)] == [4, 2]
    assert make(0).split(4) == []
    assert [len(part) for part in make(0).chunk(2)] == [0, 0]
    for bad in (0, -1):
        with pytest.raises(InputError, match="chunks"):
            data.chunk(bad)
        with pytest.raises(InputError, match="split_size"):
            data.split(bad)
    with pytest.raises(InputError, match="4 for 6 rows"):
        data.chunk(4)
    with pytest.raises(InputTypeError):
        data.chunk(2.0)


@pytest.mark.parametrize(
    ("rows", "chunks", "pads"),
    [(6, 4, [0, 0, 0, 2]), (5, 4, [0, 0, 1, 2]), (7, 3, [0, 0, 2]), (1, 4, [0, 1, 1, 1]), (8, 4, None)],
)
def test_chunk_pads_and_says_how_many_rows(rows, chunks, pads):
    data = DataProto.from_dict({"a": torch.arange(rows)}, {"u": list(range(rows))}, auto_padding=True)
    data.meta_info["metrics"] = {"loss": 1.0}
    heard = []

    class Hear(hooks.Listener):
        def fire(self, event):
            heard.append((event.values["rows"], event.values["pad_rows"], event.values["source"]))

    with hooks.subscribe(Hear(), "data_proto.padded"):
        parts = data.chunk(chunks)
    assert {len(part) for part in parts} == {-(-rows // chunks)}
    if pads is None:
        assert not heard
        assert all("pad_rows" not in part.meta_info for part in parts)
        return
    assert [part.meta_info["pad_rows"] for part in parts] == pads
    assert heard == [(rows, sum(pads), "data_proto.chunk")]
    assert all(part.meta_info["metrics"] == {"loss": 1.0} for part in parts)
    joined = DataProto.concat(parts)
    assert joined.meta_info["pad_rows"] == sum(pads)
    assert ids(joined)[rows:] == [row % rows for row in range(sum(pads))]
    back = unpad_dataproto(joined, joined.meta_info["pad_rows"])
    assert ids(back) == list(range(rows))
    assert "pad_rows" not in back.meta_info
    assert "pad_rows" not in joined[:2].meta_info


@pytest.mark.parametrize("name", ["PROBE_AUTO_PADDING", "VERL_AUTO_PADDING"])
def test_auto_padding_by_environment_and_by_config(monkeypatch, name):
    assert not DataProtoConfig.auto_padding
    monkeypatch.setenv(name, "TRUE")
    assert DataProtoConfig.auto_padding
    assert [len(part) for part in make(3).chunk(2)] == [2, 2]
    monkeypatch.delenv(name)
    DataProtoConfig.auto_padding = True
    try:
        assert make(3).is_padding_enabled()
    finally:
        DataProtoConfig.auto_padding = False
    assert not make(3).is_padding_enabled()
    with pytest.raises(InputTypeError):
        DataProtoConfig.auto_padding = "yes"


def test_padding_copies_first_or_last():
    data = make(2, with_jagged=True)
    data.padding(2, "first")
    assert ids(data) == [0, 1, 0, 0]
    data.padding(1)
    assert ids(data) == [0, 1, 0, 0, 0]
    data.padding(0)
    assert data.non_tensor_batch["uid"].tolist() == ["u0", "u1", "u0", "u0", "u0"]
    with pytest.raises(InputError, match="padding_size"):
        data.padding(-1)
    with pytest.raises(InputError, match="without rows"):
        make(0).padding(1)


def test_pad_to_divisor_and_back(caplog):
    data = make(2, cls=Special, with_jagged=True, meta={"metrics": {"l": 1.0}})
    padded, added = pad_dataproto_to_divisor(data, 7)
    assert (type(padded), len(padded), added) == (Special, 7, 5)
    assert ids(padded) == [0, 1, 0, 1, 0, 1, 0]
    assert padded.meta_info == {"metrics": {"l": 1.0}}
    assert unpad_dataproto(padded, added) == data
    assert pad_dataproto_to_divisor(data, 2) == (data, 0)
    assert pad_dataproto_to_divisor(data, 2)[0] is data
    assert unpad_dataproto(data, 0) is data
    empty = make(0)
    assert pad_dataproto_to_divisor(empty, 4) == (empty, 0)
    assert "can't be padded" in caplog.text
    for bad in (3, -1):
        with pytest.raises(InputError, match="pad_size"):
            unpad_dataproto(data, bad)
    with pytest.raises(InputError, match="size_divisor"):
        pad_dataproto_to_divisor(data, 0)
    with pytest.raises(InputTypeError, match="data"):
        pad_dataproto_to_divisor({"a": 1}, 2)


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


@pytest.mark.parametrize("form", [list, np.array, torch.tensor])
def test_reorder_in_place(form):
    data = make(3, with_jagged=True)
    want = [rows_of(data)[row] for row in (2, 0, 1)]
    assert data.reorder(form([2, 0, 1])) is None
    assert ids(data) == [2, 0, 1]
    assert rows_of(data) == want
    with pytest.raises(IndexError):
        data.reorder(form([0, 1, 3]))
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


# -------------------------------------------------------------------------------- iterators


def test_make_iterator_in_order_and_with_its_own_meta():
    data = make(6, cls=Special, with_jagged=True)
    parts = list(data.make_iterator(2, epochs=2))
    assert [ids(part) for part in parts] == [[0, 1], [2, 3], [4, 5]] * 2
    assert {type(part) for part in parts} == {Special}
    assert parts[0].non_tensor_batch["n"].dtype == np.float64
    assert parts[0].batch["j"].is_nested
    parts[0].meta_info["new"] = 1
    assert "new" not in data.meta_info
    assert "new" not in parts[1].meta_info


def test_make_iterator_shuffles_reproducibly():
    def order(seed):
        parts = make(8).make_iterator(2, epochs=2, seed=seed, dataloader_kwargs={"shuffle": True})
        return [row for part in parts for row in ids(part)]

    first = order(1)
    assert first == order(1)
    assert first != order(2)
    assert sorted(first[:8]) == sorted(first[8:]) == list(range(8))
    assert first[:8] != first[8:]


def test_make_iterator_raises_at_once():
    with pytest.raises(InputError, match=r"mini_batch_size: got 4.*6 rows"):
        make(6).make_iterator(4, 1)
    with pytest.raises(InputError, match="collate_fn"):
        make(6).make_iterator(2, 1, dataloader_kwargs={"collate_fn": list})
    with pytest.raises(InputError, match="mini_batch_size"):
        make(6).make_iterator(0, 1)
    assert list(make(0).make_iterator(2, 1)) == []
    only_objects = DataProto(None, {"n": np.arange(4)})
    assert [p.non_tensor_batch["n"].tolist() for p in only_objects.make_iterator(2, 1)] == [[0, 1], [2, 3]]


def test_collate_stacks_items():
    data = make(3, with_jagged=True)
    data.non_tensor_batch["wide"] = np.arange(6).reshape(3, 2)
    got = collate_fn([data[2], data[0]])
    assert got.select(["a", "b"]) == data[[2, 0]].select(["a", "b"])
    assert rows_of(got) == rows_of(data[[2, 0]])
    assert got.batch["j"].offsets() is got.batch["k"].offsets()
    assert got.non_tensor_batch["wide"].dtype == np.int64
    with pytest.raises(InputError):
        collate_fn([])
    with pytest.raises(MissingKeyError, match="'uid'"):
        collate_fn([data[0], data.select(non_tensor_batch_keys=["n", "wide"])[1]])
    lists = DataProto.from_dict(non_tensors={"l": [[1], [2]]})
    assert collate_fn(list(lists)) == lists


# -------------------------------------------------------------------------------- TensorDict with all


def test_to_and_from_tensordict_keep_dtypes_and_shapes():
    objects = np.empty(2, dtype=object)
    objects[:] = [np.arange(2), np.arange(2)]
    arrays = {
        "i": np.array([1, 2], dtype=np.int16),
        "s": np.array(["x", "long"]),
        "wide": np.arange(6.0).reshape(2, 3),
        "arrays": objects,
        "lists": np.array([[1], None], dtype=object),
    }
    meta = {"t": 1.5, "tensor": torch.ones(2), "none": None, "metrics": {"a": [1]}, "array": np.zeros(2)}
    data = DataProto.from_dict({"a": torch.zeros(2)}, arrays, meta)
    both = data.to_tensordict()
    assert isinstance(both.get("lists"), NonTensorStack)
    back = DataProto.from_tensordict(both)
    assert back == data
    assert {k: v.dtype for k, v in back.non_tensor_batch.items()} == {k: v.dtype for k, v in arrays.items()}
    assert type(back.non_tensor_batch["wide"]) is np.ndarray
    assert DataProto.from_tensordict(data[:0].to_tensordict()) == data[:0]
    assert DataProto.from_tensordict(both[1:]) == data[1:]


def test_tensordict_conflicts_are_errors():
    with pytest.raises(ConflictError, match="'a'"):
        DataProto.from_dict({"a": torch.zeros(2)}, {"a": ["x", "y"]}).to_tensordict()
    with pytest.raises(ConflictError, match="'a'"):
        DataProto.from_dict({"a": torch.zeros(2)}, meta_info={"a": 1}).to_tensordict()
    both = DataProto.from_dict({"a": torch.zeros(2)}, meta_info={"t": 1}).to_tensordict()
    assert DataProto.from_tensordict(both, {"u": 2}).meta_info == {"t": 1, "u": 2}
    with pytest.raises(ConflictError, match="'t'"):
        DataProto.from_tensordict(both, {"t": 2})
    with pytest.raises(InputTypeError):
        DataProto.from_tensordict({"a": torch.zeros(2)})
    with pytest.raises(InputError, match="num_batch_dims"):
        DataProto.from_tensordict(both, num_batch_dims=2)


def test_an_old_tensordict_is_said_to_be_too_old(monkeypatch):
    data = make()
    both = data.to_tensordict()
    monkeypatch.setattr(data_exchange.tensordict, "__version__", "0.9.1")
    for call in (data.to_tensordict, lambda: DataProto.from_tensordict(both)):
        with pytest.raises(MissingDependencyError, match=r"tensordict>=0\.10; found 0\.9\.1"):
            call()
    plain = DataProto.from_dict({"a": torch.zeros(2)})
    assert DataProto.from_tensordict(plain.to_tensordict()) == plain


# -------------------------------------------------------------------------------- equality, looks


def test_equality_is_by_content_and_never_raises():
    class Rude:
        def __eq__(self, other):
            raise RuntimeError("no")

        __hash__ = None

    nan = {"x": torch.tensor([1.0, float("nan")])}
    one, two = (
        DataProto.from_dict(nan, {"n": [float("nan"), "s"]}),
        DataProto.from_dict(nan, {"n": [float("nan"), "s"]}),
    )
    assert one == two
    two.batch["x"] = torch.tensor([1.0, float("nan")])
    assert one == two
    assert one != DataProto.from_dict({"x": torch.tensor([1.0, 2.0])}, {"n": [float("nan"), "s"]})
    assert make(with_jagged=True) == make(with_jagged=True)
    assert make() != make(cls=Special)
    assert make() != 3
    assert make(meta={"r": Rude()}) != make(meta={"r": Rude()})
    loop = [1]
    loop.append(loop)
    assert make(meta={"l": loop}) == make(meta={"l": loop})
    assert make(meta={"t": torch.ones(2)}) == make(meta={"t": torch.ones(2)})
    assert make()[0] == make()[0] != make()[1]
    with pytest.raises(TypeError):
        hash(make())


def test_subclasses_come_back_from_every_method():
    data = make(4, cls=Special)
    data.extra = "kept"
    made = [
        data[1:],
        data[[0]],
        data.select(),
        data.select_idxs([0]),
        data.slice(0, 1),
        *data.chunk(2),
        *data.split(3),
        data.repeat(),
        data.sample_level_repeat([1] * 4),
        data.unfold_column_chunks(1),
        DataProto.concat([data, data]),
        data.select(non_tensor_batch_keys=[]).fold_batch_dim(2),
        copy.copy(data),
        copy.deepcopy(data),
    ]
    assert {type(one) for one in made} == {Special}
    assert {one.extra for one in made} == {"kept"}


def test_repr_names_columns_and_reads_no_values():
    text = repr(make(2, with_jagged=True))
    assert text == (
        "DataProto(2 rows; batch: a int64(2,), b float32(2, 3), j float32 jagged(2, j≤3), "
        "k float32 jagged(2, j≤3, 2); non_tensor_batch: uid object(2,), n float64(2,); meta_info: t)"
    )
    assert repr(DataProto()) == "DataProto(0 rows)"
    assert repr(make()[0]).startswith("DataProtoItem(batch: a int64()")


def test_html_is_escaped_and_shows_the_share_of_valid_tokens():
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
    data = DataProto.from_dict({"attention_mask": mask, "<b>": torch.zeros(2)}, {"<i>": ["x", "y"]}, {"<u>": "<s>"})
    page = data._repr_html_()
    assert "<b>" not in page
    assert "<i>" not in page
    assert "<s>" not in page
    for words in (
        "&lt;b&gt;",
        "&lt;i&gt;",
        "&lt;s&gt;",
        "37.5% valid tokens",
        "(2, 4)",
        "int64",
        "cpu",
        "64 B",
        "2 rows",
    ):
        assert words in page
    bundle = data._repr_mimebundle_()
    assert bundle == {"text/plain": repr(data), "text/html": page}
    assert set(data._repr_mimebundle_(include={"text/plain"})) == {"text/plain"}
    lengths = DataProto.from_dict({"response_mask": jagged([1, 3]).bool()})
    assert "valid tokens" in lengths._repr_html_()


def test_print_size_counts_what_objects_hold(capsys):
    data = DataProto.from_dict({"a": torch.zeros(1024, 1024)}, {"s": ["x" * 2**20] * 1024})
    data.print_size("before")
    out = capsys.readouterr().out
    assert out.startswith("before, Size of tensordict: 0.00390625 GB, size of non_tensor_batch: 0.0009")
    data.print_size()
    assert capsys.readouterr().out.startswith("Size of tensordict")


def test_data_info_lists_every_key():
    info = make(with_jagged=True).get_data_info()
    for words in (
        "rows: 4",
        "b: (4, 3) float32 cpu",
        "j: (4, j≤5) float32 jagged cpu",
        "uid: (4,) object",
        "t: float",
    ):
        assert words in info


def test_each_operation_is_one_point():
    heard = []

    class Hear(hooks.Listener):
        def leave(self, event, state):
            heard.append(event.point.name.removeprefix("data_proto."))

    data = make(4)
    with hooks.subscribe(Hear(), "data_proto.*"):
        (
            data.select(["a"]),
            data.select_idxs([0]),
            data.slice(0, 1),
            data.chunk(2),
            data.split(2),
            data.repeat(),
        )
        data.sample_level_repeat([1] * 4), data.reorder([3, 2, 1, 0]), data.unfold_column_chunks(1)
        list(data.make_iterator(2, 1)), DataProto.concat([data, data]), data.padding(1), data.union(data)
        (
            unpad_dataproto(*pad_dataproto_to_divisor(data, 2)),
            data.to("cpu"),
            DataProto.from_tensordict(data.to_tensordict()),
        )
        DataProto.from_single_dict({"a": torch.zeros(2)}), data.rename("a", "z"), data.pop("z")
        DataProto.from_dict({"a": torch.zeros(2)}).fold_batch_dim(1).unfold_batch_dim()
    assert heard == [
        "select", "select_idxs", "slice", "chunk", "split", "repeat", "sample_level_repeat",
        "reorder", "unfold_column_chunks", "make_iterator", "concat", "padding", "union", "pad_to_divisor",
        "unpad", "to", "to_tensordict", "from_tensordict", "from_single_dict", "rename", "pop", "from_dict",
        "fold_batch_dim", "unfold_batch_dim",
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------- methods in several classes


METHODS = (types.FunctionType, classmethod, staticmethod)


def inherited() -> list[str]:
    groups = [vars(group) for group in DataProto.__mro__[1:-1]]
    return [name for group in groups for name, one in group.items() if isinstance(one, METHODS) and name != "__init__"]


@pytest.mark.parametrize("name", inherited())
def test_an_inherited_method_has_the_name_under_which_users_know_it(name):
    method = getattr(DataProto, name)
    function = getattr(method, "__func__", method)
    for one in (method, function, inspect.unwrap(function)):
        assert (one.__module__, one.__qualname__) == ("probe.core.protocol", f"DataProto.{name}")
    assert pickle.loads(pickle.dumps(method)) == method
    assert typing.get_type_hints(function)


def test_listeners_are_told_that_name():
    heard = []

    class Names(hooks.Listener):
        def leave(self, event, state):
            heard.append(f"{event.function.__module__}.{event.function.__qualname__}")

    with hooks.subscribe(Names(), "data_proto.select"):
        DataProto.from_dict({"a": torch.zeros(2)}).select("a")
    assert heard == ["probe.core.protocol.DataProto.select"]


def test_its_fields_are_the_three_members_and_its_bases_add_none():
    assert [one.name for one in dataclasses.fields(DataProto)] == ["batch", "non_tensor_batch", "meta_info"]
    assert list(DataProto.__annotations__) == ["batch", "non_tensor_batch", "meta_info"]
    assert type(DataProto) is type
    assert DataProto.__hash__ is None


def test_a_patched_method_is_the_base_classes_again_afterwards(monkeypatch):
    data = DataProto.from_dict({"a": torch.zeros(2)})
    before = DataProto.select
    with monkeypatch.context() as patched:
        patched.setattr(DataProto, "select", lambda self, *names: names)
        assert data.select("a") == ("a",)
    assert DataProto.select is before
    assert "select" not in vars(DataProto)


def test_a_subclass_reaches_an_inherited_method():
    class Counting(DataProto):
        def chunk(self, chunks):
            return super().chunk(chunks)[:1]

    (part,) = Counting.from_dict({"a": torch.arange(4)}).chunk(2)
    assert type(part) is Counting


def test_doctest_finds_the_examples_of_inherited_methods():
    found = {one.name.partition("__test__.")[2]: len(one.examples) for one in doctest.DocTestFinder().find(protocol)}
    shown = [name for name in inherited() if ">>>" in (getattr(DataProto, name).__doc__ or "")]
    assert len(shown) > 15
    assert all(found[f"DataProto.{name}"] for name in shown)
