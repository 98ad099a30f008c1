"""The one walker of nested values: it finds every place, and everything that compares agrees with it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, TensorDict

from probe.core.columns.equality import difference, same
from probe.core.columns.jagged import build_jagged
from probe.core.columns.walking import walk
from probe.inspection.comparison import compare
from probe.inspection.tensor_difference import difference_of_arrays, difference_of_tensors

NAN = float("nan")


def places(one, other):
    return [(found.path, found.what) for found in walk(one, other)]


def objects(*values):
    found = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):
        found[at] = value
    return found


def jagged(*rows):
    offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows]).tolist()])
    sizes = [len(row) for row in rows]
    return build_jagged(torch.tensor([one for row in rows for one in row]), offsets, min(sizes), max(sizes))


def test_every_place_is_found_in_order():
    one = {"a": [1, NAN, {"b": "x"}], "c": torch.tensor([1.0, NAN]), "d": objects([1], 2), "e": jagged([1], [2, 3])}
    other = {"a": [2, NAN, {"b": "y"}], "c": torch.tensor([1.0, 2.0]), "d": objects([0], 3), "e": jagged([1], [2, 4])}
    assert places(one, other) == [
        (("a", 0), "values"),
        (("a", 2, "b"), "values"),
        (("c",), "values"),
        (("d", (0,), 0), "values"),
        (("d", (1,)), "values"),
        (("e", 1), "values"),
    ]


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        ([1], (1,), "type"),
        ({"a": 1}, [1], "type"),
        (torch.ones(1), [1.0], "type"),
        (1.0, torch.ones(1), "type"),
        (np.ones(1), torch.ones(1), "type"),
        (TensorDict({}, [1]), {}, "type"),
        ({"a": 1}, {"b": 1}, "keys"),
        ([1], [1, 2], "length"),
        (torch.ones(1), torch.ones(2), "shape"),
        (np.ones(1), np.ones(2), "shape"),
        (TensorDict({}, [1]), TensorDict({}, [2]), "shape"),
        (jagged([1], [2]), jagged([1]), "shape"),
        (torch.ones(1), torch.ones(1, dtype=torch.float64), "dtype"),
        (np.ones(1), np.ones(1, dtype="f4"), "dtype"),
        (jagged([1]), jagged([1.0]), "dtype"),
        (torch.eye(2), torch.eye(2).to_sparse(), "layout"),
        (jagged([1]), torch.ones(1, 1), "layout"),
        (torch.ones(1, device="meta"), torch.ones(1, device="meta"), "values"),
        (NonTensorData([1, 2]), NonTensorData((1, 2)), "type"),
        (1, 2, "values"),
    ],
)
def test_what_differs_has_a_name(one, other, what):
    assert places(one, other) == [((), what)]
    assert not same(one, other)


def test_what_holds_itself_or_is_very_deep_is_compared_too():
    def loop(end):
        found: list[object] = [end]
        found.append({"again": objects(found)})
        return found

    assert same(loop(1), loop(1))
    assert places(loop(1), loop(2)) == [((0,), "values")]

    def deep(end):
        for _ in range(5000):
            end = [end]
        return end

    assert same(deep(1), deep(1))
    assert [len(found.path) for found in walk(deep(1), deep(2))] == [5000]


def test_the_words_lead_to_the_first_place():
    inner = {"b": torch.tensor([1, 2])}
    assert difference({"a": inner}, {"a": {"b": torch.tensor([1, 3])}}) == (
        "under 'a', under 'b', first difference at [1]: 2 and 3"
    )
    assert difference({"a": inner}, {"a": {}}) == "under 'a', only one of them has the key 'b'"
    assert difference(jagged([1], [2, 3]), jagged([1], [2, 4])) == "in row 1, first difference at [1]: 3 and 4"
    assert difference(jagged([1], [2, 3]), jagged([1], [2])) == "in row 1, shapes (2,) and (1,)"
    assert difference(objects("a", [1, 2]), objects("a", [1, 3])) == "first difference at [1]: [1, 2] and [1, 3]"
    assert difference(np.array([[1.0, NAN]]), np.array([[1.0, 2.0]])) == "first difference at [0, 1]: nan and 2.0"
    assert difference(np.array(1), np.array(2)) == "first difference at []: 1 and 2"
    assert difference([1, 2], [1, 3]) == "[1, 2] and [1, 3]"
    assert difference(torch.ones(1), torch.ones(1).double()) == "dtypes torch.float32 and torch.float64"


# ------------------------------------------------------------------- everything that compares says the same

numbers = st.sampled_from([0.0, -1.5, NAN, float("inf")])
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    numbers,
    st.text("ab", max_size=2),
    st.lists(numbers, max_size=3).map(torch.tensor),
    st.lists(numbers, max_size=3).map(np.array),
    st.lists(st.integers(0, 2), max_size=3).map(lambda some: np.array(some, dtype="M8[s]")),
    st.lists(st.lists(st.integers(0, 2), max_size=2), min_size=1, max_size=3).map(lambda rows: jagged(*rows)),
)
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(lambda some: objects(*some)),
        st.dictionaries(st.text("kl", max_size=2), inner, max_size=3),
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=75)
@given(one=nested, other=nested, copied=st.booleans())
def test_all_that_compares_agrees(one, other, copied):
    other = copy.deepcopy(one) if copied else other
    equal = not places(one, other)
    assert equal or not copied
    assert same(one, other) == equal
    assert same(other, one) == equal
    assert compare({"x": one}, {"x": other}).same == equal
    if not equal:
        assert difference(one, other)


@settings(deadline=None, max_examples=50)
@given(
    one=st.lists(numbers, min_size=1, max_size=6),
    other=st.lists(numbers, min_size=1, max_size=6),
    kind=st.sampled_from(["f2", "f4", "f8", "c8"]),
)
def test_tensors_and_arrays_agree_with_what_counts_their_differences(one, other, kind):
    size = min(len(one), len(other))
    mine, theirs = (np.array(some[:size], dtype=kind) for some in (one, other))
    tensors = torch.from_numpy(mine), torch.from_numpy(theirs)
    equal = same(mine, theirs)
    assert same(*tensors) == equal
    arrays_found, tensors_found = difference_of_arrays(mine, theirs), difference_of_tensors(*tensors)
    assert (tensors_found is None) == (arrays_found is None) == equal
    if not equal:
        assert arrays_found.index == tensors_found.index
        assert f"at {list(arrays_found.index)}:" in difference(mine, theirs)
