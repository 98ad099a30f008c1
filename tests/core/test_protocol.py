"""DataProto: making one, and to a TensorDict with all of it and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from probe.core.data_proto import exchange as data_exchange
from probe.core.protocol import (
    DataProto,
    list_of_dict_to_dict_of_list,
    union_two_dict,
)
from probe.errors import (
    ConflictError,
    InputError,
    InputTypeError,
    MissingDependencyError,
    ShapeError,
)
from tests.core.numbered_batches import make

# -------------------------------------------------------------------------------- making one


def test_three_members_have_their_defaults():
    empty = DataProto()
    assert (empty.batch, empty.non_tensor_batch, empty.meta_info, len(empty)) == (None, {}, {}, 0)
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
