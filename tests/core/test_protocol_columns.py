"""Columns of a DataProto: selecting, copying, renaming, comparing and showing them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from probe.core.protocol import (
    DataProto,
)
from probe.errors import (
    InputError,
    InputTypeError,
    MissingKeyError,
)
from tests.core.numbered_batches import Special, ids, jagged, make

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
