"""union and concat: what they merge, what they refuse, and that a refusal changes nothing."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from probe.core.metric import Metric
from probe.core.protocol import DataProto, union_numpy_dict, union_tensor_dict
from probe.errors import ConflictError, InputError, InputTypeError, MissingKeyError, ShapeError

NAN = float("nan")


def proto(tensors=None, objects=None, meta=None):
    return DataProto.from_dict(tensors, objects, meta)


def jagged(rows):
    offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows]).tolist()])
    lengths = [len(row) for row in rows]
    values = torch.tensor([value for row in rows for value in row], dtype=torch.float32)
    return torch.nested.nested_tensor_from_jagged(
        values, offsets, min_seqlen=min(lengths, default=0), max_seqlen=max(lengths, default=0)
    )


# -------------------------------------------------------------------------------- union


def test_union_adds_what_is_new_and_keeps_what_is_equal():
    mine = proto({"a": torch.tensor([1.0, NAN])}, {"u": np.array([NAN, 1.0])}, {"t": torch.ones(2), "n": NAN})
    kept = mine.batch["a"]
    other = proto(
        {"a": torch.tensor([1.0, NAN]), "b": torch.zeros(2)},
        {"u": np.array([NAN, 1.0]), "v": ["x", "y"]},
        {"t": torch.ones(2), "n": NAN, "s": 3},
    )
    before = copy.deepcopy(other)
    assert mine.union(other) is mine
    assert mine.batch["a"] is kept
    assert set(mine.batch.keys()) == {"a", "b"}
    assert (list(mine.non_tensor_batch), list(mine.meta_info)) == (["u", "v"], ["t", "n", "s"])
    assert other == before
    mine.batch["later"] = torch.zeros(2)
    assert other == before


def test_union_without_tensors_on_either_side():
    only_meta = DataProto(meta_info={"s": 1})
    assert proto({"a": torch.zeros(2)}).union(only_meta).meta_info == {"s": 1}
    empty = DataProto(meta_info={"s": 1})
    source = proto({"a": torch.zeros(2)}, {"u": ["x", "y"]})
    empty.union(source)
    empty.batch["new"] = torch.zeros(2)
    assert "new" not in source
    assert len(empty) == 2
    assert "u" in empty
    objects = proto(None, {"u": ["x", "y"]})
    assert list(objects.union(proto({"a": torch.zeros(2)})).batch.keys()) == ["a"]
    with pytest.raises(ConflictError, match="2 rows and 3 rows"):
        proto(None, {"u": ["x", "y"]}).union(proto({"a": torch.zeros(3)}))
    with pytest.raises(ConflictError, match="2 rows and 3 rows"):
        proto({"a": torch.zeros(2)}).union(proto(None, {"u": ["x", "y", "z"]}))


def test_union_with_a_locked_batch_and_with_itself():
    mine = proto({"a": torch.zeros(2)})
    mine.batch.lock_()
    assert set(mine.union(proto({"b": torch.zeros(2)})).batch.keys()) == {"a", "b"}
    assert mine.union(mine) is mine
    with pytest.raises(InputTypeError, match="other"):
        mine.union({"a": 1})


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (proto({"a": torch.zeros(3)}), ["(2,)", "(3,)"]),
        (proto({"a": torch.tensor([[1.0, 2.0], [3.0, 5.0]])}), ["batch['a']", "[1, 1]", "4.0", "5.0"]),
        (proto({"a": torch.tensor([[1.0, 2.0], [3.0, NAN]])}), ["batch['a']", "[1, 1]", "nan"]),
        (proto({"a": torch.zeros(2, 3)}), ["batch['a']", "(2, 2)", "(2, 3)"]),
        (proto({"a": torch.zeros(2, 2, dtype=torch.int64)}), ["batch['a']", "float32", "int64"]),
        (proto({"j": jagged([[1.0], [2.0, 4.0]])}), ["batch['j']", "row 1", "[1]", "3.0", "4.0"]),
        (proto({"j": torch.zeros(2, 2)}), ["batch['j']", "j≤2"]),
        (
            proto({"b": torch.zeros(2)}, {"u": np.array(["x", "z"], object)}),
            ["non_tensor_batch['u']", "[1]", "'z'"],
        ),
        (proto({"b": torch.zeros(2)}, None, {"t": 2}), ["meta_info['t']", "1 and 2"]),
        (proto({"b": torch.zeros(2)}, None, {"m": torch.tensor([0.0, 1.0])}), ["meta_info['m']", "[1]"]),
        (
            proto({"b": torch.zeros(2)}, None, {"d": {"k": [1, 3]}}),
            ["meta_info['d']", "'k'", "[1, 2]", "[1, 3]"],
        ),
    ],
)
def test_a_refused_union_names_the_difference_and_changes_nothing(other, words):
    def make():
        tensors = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "j": jagged([[1.0], [2.0, 3.0]])}
        meta = {"t": 1, "m": torch.zeros(2), "d": {"k": [1, 2]}}
        return proto(tensors, {"u": np.array(["x", "y"], object)}, meta)

    mine, theirs = make(), copy.deepcopy(other)
    with pytest.raises(AssertionError) as caught:
        mine.union(other)
    assert type(caught.value) is ConflictError
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert mine == make()
    assert other == theirs


def test_the_free_unions_are_atomic_too():
    one, two = (
        TensorDict({"a": torch.ones(2)}, [2]),
        TensorDict({"b": torch.zeros(2), "a": torch.zeros(2)}, [2]),
    )
    with pytest.raises(ConflictError, match="'a'"):
        union_tensor_dict(one, two)
    assert list(one.keys()) == ["a"]
    assert union_tensor_dict(one, two.exclude("a")) is one
    arrays = {"a": np.array([1.0, NAN]), "o": np.array([[1], None], dtype=object)}
    same = {"a": np.array([1.0, NAN]), "o": np.array([[1], None], dtype=object), "b": np.zeros(2)}
    assert union_numpy_dict(arrays, same) is arrays
    assert list(arrays) == ["a", "o", "b"]
    with pytest.raises(ConflictError, match=r"'a'.*\[1\]: .*nan.*2\.0"):
        union_numpy_dict(arrays, {"c": np.zeros(2), "a": np.array([1.0, 2.0])})
    assert list(arrays) == ["a", "o", "b"]


sections = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 1), max_size=4)


@settings(deadline=None, max_examples=30)
@given(st.tuples(sections, sections, sections), st.tuples(sections, sections, sections))
def test_union_is_all_or_nothing(first, second):
    def make(spec):
        tensors, objects, meta = spec
        batch = TensorDict({key: torch.full((2,), value) for key, value in tensors.items()}, batch_size=[2])
        return DataProto(batch, {key: np.full(2, value, dtype=object) for key, value in objects.items()}, dict(meta))

    mine, theirs = make(first), make(second)
    fits = all(a[key] == b[key] for a, b in zip(first, second, strict=True) for key in a.keys() & b.keys())
    if fits:
        assert mine.union(theirs) == make([{**a, **b} for a, b in zip(first, second, strict=True)])
    else:
        with pytest.raises(ConflictError):
            mine.union(theirs)
        assert mine == make(first)
    assert theirs == make(second)


# -------------------------------------------------------------------------------- concat


def test_concat_of_nothing_and_of_something_else():
    with pytest.raises(InputError, match="empty list"):
        DataProto.concat([])
    with pytest.raises(InputTypeError, match=r"data\[1\]: got dict"):
        DataProto.concat([proto({"a": torch.zeros(1)}), {}])
    assert DataProto.concat([DataProto(meta_info={"s": 1}), DataProto(meta_info={"u": 2})]).meta_info == {
        "s": 1,
        "u": 2,
    }


def test_concat_joins_jagged_columns_and_shares_their_offsets():
    parts = []
    for rows in ([[1.0], [2.0, 3.0]], [], [[4.0, 5.0, 6.0]]):
        column = jagged(rows)
        twin = torch.nested.nested_tensor_from_jagged(
            column.values() * 10,
            column.offsets(),
            min_seqlen=column._min_seqlen,
            max_seqlen=column._max_seqlen,
        )
        parts.append(proto({"j": column, "k": twin, "lone": jagged(rows)}))
    got = DataProto.concat(parts)
    assert [row.tolist() for row in got.batch["j"].unbind()] == [[1.0], [2.0, 3.0], [4.0, 5.0, 6.0]]
    assert got.batch["j"].offsets() is got.batch["k"].offsets() is got.batch["lone"].offsets()
    assert (got.batch["j"]._maybe_min_seqlen, got.batch["j"]._maybe_max_seqlen) == (1, 3)
    assert (got.batch["j"] + got.batch["k"]).values().tolist() == [11.0, 22.0, 33.0, 44.0, 55.0, 66.0]
    assert torch.nested.to_padded_tensor(got.batch["k"], 0.0).shape == (3, 3)


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ([{"a": torch.zeros(2, 3)}, {"a": torch.zeros(1, 3)}, {"a": torch.zeros(2, 4)}], ShapeError,
         ["batch['a']", "(2, 3)", "(2, 4)", "data[0]", "data[2]", "(1, 3) at data[1]"]),
        ([{"a": torch.zeros(2)}, {"b": torch.zeros(2)}], MissingKeyError,
         ["batch['a']", "data[0]", "data[1]"]),
        ([{"a": torch.zeros(2)}, {"a": torch.zeros(2), "b": torch.zeros(2)}], MissingKeyError,
         ["batch['b']", "in data[1]", "not in data[0]"]),
        ([{"a": torch.zeros(2)}, None], MissingKeyError, ["batch['a']", "not in data[1]"]),
        ([{"a": jagged([[1.0]])}, {"a": torch.zeros(1, 1)}], ShapeError, ["batch['a']", "jagged", "data[1]"]),
        ([{"a": torch.zeros(1, 1)}, {"a": jagged([[1.0]])}], ShapeError, ["batch['a']", "jagged", "data[1]"]),
    ],
)  # fmt: skip
def test_concat_names_the_column_that_doesnt_fit(columns, error, words):
    with pytest.raises(error) as caught:
        DataProto.concat([proto(one) for one in columns])
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_concat_of_objects():
    def join(*columns):
        return DataProto.concat([proto(None, {"o": column}) for column in columns]).non_tensor_batch["o"]

    assert join(np.array([1, 2]), np.array([0.5])).tolist() == [1.0, 2.0, 0.5]
    assert join(np.array([1]), np.array(["x"])).tolist() == [1, "x"]
    assert join(np.array(["x"]), np.array(["long"])).dtype == np.dtype("<U4")
    assert join([[1]], [[2, 3]]).tolist() == [[1], [2, 3]]
    with pytest.raises(ShapeError, match=r"'o'.*\(1, 2\).*data\[1\].*\(1, 3\)"):
        join(np.zeros((1, 2)), np.zeros((1, 3)))
    with pytest.raises(MissingKeyError, match=r"non_tensor_batch\['o'\] is in data\[0\] but not in data\[1\]"):
        DataProto.concat([proto(None, {"o": [1]}), proto(None, {"p": [1]})])


def test_concat_pools_metrics_and_counts_what_is_missing():
    parts = [
        proto({"a": torch.zeros(1)}, None, {"t": 1.0, "metrics": {"loss": 0.5, "lists": [1, 2]}}),
        proto(
            {"a": torch.zeros(1)},
            None,
            {"metrics": [{"loss": 0.7}, None, {"loss": 0.8, "kl": 0.1}], "t": 1.0},
        ),
        proto({"a": torch.zeros(1)}, None, {"metrics": None}),
        proto({"a": torch.zeros(1)}, None, {"t": 1.0, "metrics": {"lists": [3]}}),
    ]
    before = copy.deepcopy(parts)
    joined = DataProto.concat(parts)
    assert joined.meta_info == {
        "t": 1.0,
        "metrics": {"loss": [0.5, 0.7, 0.8], "lists": [1, 2, 3], "kl": [0.1]},
        "metrics_missing": {"loss": 2, "lists": 2, "kl": 3},
    }
    assert parts == before
    again = DataProto.concat([joined, parts[0]]).meta_info
    assert again["metrics"]["loss"] == [0.5, 0.7, 0.8, 0.5]
    assert again["metrics_missing"] == {"loss": 2, "lists": 2, "kl": 4}


def test_concat_merges_typed_metrics_and_keeps_the_parts():
    parts = [proto({"a": torch.zeros(1)}, None, {"metrics": {"m": Metric("sum", value)}}) for value in (1, 2)]
    assert DataProto.concat(parts).meta_info["metrics"]["m"].aggregate() == 3.0
    assert parts[0].meta_info["metrics"]["m"].aggregate() == 1.0
    with pytest.raises(InputTypeError, match=r"data\[1\].*float"):
        DataProto.concat([parts[0], proto({"a": torch.zeros(1)}, None, {"metrics": 1.0})])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, 1.0, 0.7], ["'t'", "data[0] has 1.0", "data[2] has 0.7"]),
        (
            [torch.zeros(2), torch.zeros(2), torch.tensor([0.0, 2.0])],
            ["'t'", "data[2]", "[1]", "0.0 and 2.0"],
        ),
        ([np.zeros(2), np.zeros(3)], ["'t'", "data[1]", "(2,)", "(3,)"]),
    ],
)
def test_concat_names_meta_info_that_differs(values, words):
    parts = [proto({"a": torch.zeros(1)}, None, {"t": value}) for value in values]
    before = copy.deepcopy(parts)
    with pytest.raises(ConflictError) as caught:
        DataProto.concat(parts)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert parts == before


def test_concat_counts_nan_and_equal_tensors_as_equal():
    parts = [proto({"a": torch.zeros(1)}, None, {"n": NAN, "t": torch.tensor([NAN]), "only": 1}) for _ in range(2)]
    del parts[1].meta_info["only"]
    assert DataProto.concat(parts).meta_info["only"] == 1


def test_counts_of_missing_metrics_dont_make_unions_conflict():
    one = proto({"a": torch.zeros(1)}, None, {"metrics_missing": {"x": 1}})
    two = proto({"b": torch.zeros(1)}, None, {"metrics_missing": {"y": 2}})
    assert one.union(two).meta_info["metrics_missing"] == {"x": 1, "y": 2}


def test_concat_of_parts_of_which_only_some_were_padded():
    """A part that says nothing of padded rows has none."""
    whole = DataProto.from_dict({"a": torch.arange(3)}, auto_padding=True)
    padded = whole.chunk(2)[1]
    assert padded.meta_info["pad_rows"] == 1
    plain = DataProto.from_dict({"a": torch.arange(2)})
    for parts in ([padded, plain], [plain, padded], [plain, padded, plain, padded]):
        joined = DataProto.concat(parts)
        assert joined.meta_info["pad_rows"] == sum(part is padded for part in parts)
    assert "pad_rows" not in DataProto.concat([plain, plain]).meta_info
