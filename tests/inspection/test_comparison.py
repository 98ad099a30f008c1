"""What two batches differ in: found, counted, and said without ever raising."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict, lazy_stack

from probe.core.batched_data_dict import BatchedDataDict
from probe.core.columns.equality import same
from probe.core.columns.jagged import build_jagged
from probe.core.protocol import DataProto
from probe.inspection import tensor_difference
from probe.inspection.comparison import compare

NAN = float("nan")


def only(a, b):
    """The one difference of one column."""
    (found,) = compare({"x": a}, {"x": b}).differences
    return found


def jagged(rows):
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    sizes = [len(row) for row in rows]
    return build_jagged(torch.tensor([one for row in rows for one in row]), offsets, min(sizes), max(sizes))


def test_equal_batches_are_the_same():
    def make():
        return DataProto.from_dict(
            {"a": torch.tensor([[1.0, NAN]]), "b": torch.tensor([3])},
            {"uid": [{"x": [NAN, 1]}]},
            {"t": NAN, "m": {"k": [1]}},
        )

    found = compare(make(), make())
    assert found.same
    assert found.equal == ["batch.a", "batch.b", "non_tensor_batch.uid", "meta_info.t", "meta_info.m"]
    assert repr(found) == "DataProto, 1 rows: 5 keys are the same"
    assert compare(one := make(), one).same


def test_keys_on_one_side():
    found = compare({"a": torch.zeros(2), "b": [1]}, {"b": [1], "c": np.zeros((1, 2))})
    assert [(one.where, one.what) for one in found.differences] == [("a", "only in a"), ("c", "only in b")]
    assert "c: only in b: float64(1, 2)" in repr(found)
    assert found.equal == ["b"]


def test_values_counts_and_amounts():
    one = torch.tensor([[0.0, 1.0, NAN, NAN], [math.inf, -math.inf, 2.0, 3.0]])
    other = torch.tensor([[0.0, 1.5, NAN, 1.0], [math.inf, -math.inf, 2.0, -1.0]])
    found = only(one, other)
    assert (found.what, found.index, found.a, found.b) == ("values", (0, 1), "1.0", "1.5")
    assert (found.count, found.of, found.max_abs, found.nan) == (3, 8, 4.0, 1)
    assert only(torch.tensor([math.inf]), torch.tensor([-math.inf])).max_abs == math.inf
    assert only(torch.tensor([NAN]), torch.tensor([1.0])).max_abs is None
    assert only(torch.tensor(3), torch.tensor(4)).index == ()
    assert only(torch.tensor([1, 2]), torch.tensor([1, 3])).max_abs is None


def test_a_difference_beyond_the_first_block(monkeypatch):
    monkeypatch.setattr(tensor_difference, "BLOCK", 8)
    one = torch.zeros(100, 3)
    other = one.clone()
    other[57, 2] = 1
    other[99, 0] = -2
    found = only(one, other)
    assert (found.index, found.count, found.max_abs) == ((57, 2), 2, 2.0)


def test_dtype_and_values_are_both_told():
    found = compare({"x": torch.tensor([1.0, 2.1])}, {"x": torch.tensor([1.0, 2.1], dtype=torch.bfloat16)}).differences
    assert [one.what for one in found] == ["dtype", "values"]
    assert found[1].index == (1,)
    assert [
        one.what for one in compare({"x": torch.tensor([1])}, {"x": torch.tensor([1], dtype=torch.int8)}).differences
    ] == ["dtype"]
    whole = compare({"x": torch.tensor([2**60 + 1])}, {"x": torch.tensor([2**60])}).differences
    assert whole[0].count == 1


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int64",
        "float16",
        "bfloat16",
        "float8_e5m2",
        "float64",
        "complex64",
    ],
)
def test_every_dtype(dtype):
    one, other = torch.tensor([0, 1, 1]).to(getattr(torch, dtype)), torch.tensor([0, 1, 0]).to(getattr(torch, dtype))
    assert compare({"x": one}, {"x": one.clone()}).same
    assert only(one, other).index == (2,)


def test_shapes_layouts_and_kinds():
    assert only(torch.zeros(2, 3), torch.zeros(3, 2)).what == "shape"
    assert only(jagged([[1], [2, 3]]), torch.zeros(2, 2, dtype=torch.long)).what == "type"
    assert only(torch.eye(2), torch.eye(2).to_sparse()).what == "type"
    assert only([1, 2], torch.tensor([1, 2])).what == "type"
    assert only(torch.eye(2).to_sparse(), 2 * torch.eye(2).to_sparse()).index == (0, 0)
    assert compare({"x": torch.zeros(2, device="meta")}, {"x": torch.zeros(2, device="meta")}).same
    assert [one.what for one in compare({"x": torch.zeros(2, device="meta")}, {"x": torch.zeros(2)}).differences] == [
        "device"
    ]


# torch says so when the first one is made.
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_jagged_rows():
    one = jagged([[1, 2], [3, 4, 5], [6]])
    assert compare({"x": one}, {"x": jagged([[1, 2], [3, 4, 5], [6]])}).same
    found = only(one, jagged([[1, 2], [3, 9, 5], [6]]))
    assert (found.index, found.a, found.b) == ((1, 1), "4", "9")
    lengths = compare({"x": one}, {"x": jagged([[1, 2], [3, 4], [7]])}).differences
    assert [(each.what, each.index, each.a, each.b) for each in lengths] == [
        ("lengths", (1,), "3", "2"),
        ("values", (2, 0), "6", "7"),
    ]
    assert only(one, jagged([[1, 2]])).what == "shape"
    holes = build_jagged(
        torch.tensor([1, 2, 0, 3, 4, 5, 0, 6]), torch.tensor([0, 3, 7, 8]), 1, 3, lengths=torch.tensor([2, 3, 1])
    )
    assert compare({"x": one}, {"x": holes}).same

    def strided(*rows):
        return torch.nested.nested_tensor([torch.tensor(row) for row in rows])

    assert only(strided([1.0], [1.0, 2.0]), strided([1.0], [1.0, 3.0])).index == (1, 1)


@pytest.mark.parametrize("values", [[], [1.0, 2.0]], ids=["empty", "with the same values"])
def test_an_array_of_objects_is_not_one_of_numbers(values):
    numbers = np.array(values)
    found = compare({"x": numbers.astype(object)}, {"x": numbers})
    assert [(each.what, each.a, each.b) for each in found.differences] == [("dtype", "object", "float64")]
    assert not same(numbers.astype(object), numbers)


def test_arrays_and_objects():
    assert only(np.array([1.0, NAN]), np.array([1.0, 2.0])).index == (1,)
    assert only(np.array(["a", "b"]), np.array(["a", "c"])).a == "'b'"
    assert compare({"x": np.array(["a"])}, {"x": np.array(["a"], dtype="<U9")}).differences[0].what == "dtype"
    stamps = np.array(["2020-01-01", "NaT"], dtype="datetime64[D]")
    assert compare({"x": stamps}, {"x": stamps.copy()}).same
    assert only(np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3)[:, ::-1]).index == (0, 0)
    one, other = np.empty(2, dtype=object), np.empty(2, dtype=object)
    one[:] = [{"a": [1, torch.tensor([1.0])]}, 2]
    other[:] = [{"a": [1, torch.tensor([2.0])]}, 2]
    found = only(one, other)
    assert (found.index, found.count, found.of) == ((0,), 1, 2)
    assert "first difference" in found.b or "under 'a'" in found.b
    assert [each.what for each in compare({"x": ["a"]}, {"x": np.array(["a"], dtype=object)}).differences] == ["type"]
    assert only(["a"], ["a", "b"]).what == "shape"


def test_batches_of_different_kinds_are_matched_by_name():
    ids = torch.arange(4).reshape(2, 2)
    proto = DataProto.from_dict({"ids": ids}, {"uid": ["a", "b"]})
    found = compare(proto, BatchedDataDict({"ids": ids.clone(), "uid": ["a", "c"]}))
    assert found.equal == ["ids"]
    assert {one.where for one in found.differences} == {"uid"}
    assert repr(found).startswith("DataProto and BatchedDataDict, 2 rows: 1 of 2 keys differ")
    table = TensorDict({"ids": ids}, [2])
    assert compare(table, {"ids": ids}).same
    stacks = [
        lazy_stack([TensorDict({"a": torch.tensor(row)}, []) for row in rows])
        for rows in ([[1], [2, 3]], [[1], [2, 4]])
    ]
    (inner,) = compare(*stacks).differences
    assert inner.index == (1,)


def test_odd_content_never_raises():
    class Odd:
        def __eq__(self, other):
            raise RuntimeError("no")

        def __repr__(self):
            raise RuntimeError("no")

        __hash__ = None

    class Broken(dict):
        def items(self):
            raise RuntimeError("no")

    loop: list[object] = []
    loop.append(loop)
    found = compare({"x": Odd(), "loop": loop, "m": torch.zeros(1)}, {"x": Odd(), "loop": [loop], "m": "text"})
    assert {one.where for one in found.differences} >= {"x", "m"}
    assert repr(found)
    assert found._repr_html_()
    assert repr(compare(Broken(a=1), Broken(a=1)))
    assert repr(compare(None, 3))
    assert compare(3, 3).same
    assert only(Odd(), 1).what in ("type", "values")


def test_names_from_users_are_escaped_and_kept_on_a_line():
    nasty = "<script>alert(1)</script>\nx"
    found = compare({nasty: [nasty]}, {nasty: ["a" + nasty]})
    assert "<script>" not in found._repr_html_()
    assert len(repr(found).splitlines()) == 2


def test_many_differences_are_cut_in_the_text_and_whole_in_the_list():
    found = compare({str(at): [at] for at in range(100)}, {str(at): [-1] for at in range(100)})
    assert len(found.differences) == 100
    assert "… 40 more" in repr(found)


@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(st.sampled_from([0.0, 1.0, -2.5, NAN, math.inf]), min_size=1, max_size=24),
    changes=st.dictionaries(st.integers(0, 23), st.sampled_from([0.0, 7.0, NAN]), max_size=4),
)
def test_the_first_difference_is_the_first(values, changes):
    one = torch.tensor(values)
    other = one.clone()
    for at, value in changes.items():
        if at < len(values):
            other[at] = value
    expected = [
        at
        for at, (a, b) in enumerate(zip(one.tolist(), other.tolist(), strict=True))
        if a != b and not (a != a and b != b)
    ]
    found = compare({"x": one}, {"x": other})
    assert found.same == (not expected)
    if expected:
        (difference,) = found.differences
        assert (difference.index, difference.count) == ((expected[0],), len(expected))
