"""Number partitioning: valid, exact, as good as the textbook's differencing method, and the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.partition import textbook
from probe.core.balancing import dealing
from probe.core.balancing import partition as pt
from probe.errors import CapacityError, ConflictError, InputError, InputTypeError, ShapeError

numbers = st.lists(st.integers(0, 5000), min_size=1, max_size=60)


def largest(weights, parts):
    return max(sum(weights[row] for row in part) for part in parts)


def assert_valid(weights, parts, k):
    assert len(parts) == k
    assert all(parts)
    assert sorted(row for part in parts for row in part) == list(range(len(weights)))


@settings(deadline=None, max_examples=150)
@given(weights=numbers, data=st.data())
def test_every_index_once_and_no_part_empty(weights, data):
    k = data.draw(st.integers(1, len(weights)))
    for partition in (pt.karmarkar_karp, pt.greedy_partition):
        parts = partition(weights, k, equal_size=False)
        assert_valid(weights, parts, k)
        assert parts == partition(weights, k, equal_size=False)


@settings(deadline=None, max_examples=75)
@given(k=st.integers(1, 8), each=st.integers(1, 8), data=st.data())
def test_equal_sizes(k, each, data):
    weights = data.draw(st.lists(st.integers(0, 5000), min_size=k * each, max_size=k * each))
    for partition in (pt.karmarkar_karp, pt.greedy_partition):
        parts = partition(weights, k, equal_size=True)
        assert_valid(weights, parts, k)
        assert {len(part) for part in parts} == {each}


@settings(deadline=None, max_examples=75)
@given(k=st.integers(2, 8), each=st.integers(2, 8), data=st.data())
def test_e_beside_a_giant_stand_the_smallest(k, each, data):
    weights = data.draw(st.lists(st.integers(0, 500), min_size=k * each - 1, max_size=k * each - 1))
    weights.insert(data.draw(st.integers(0, len(weights))), sum(weights) + 1)
    parts = pt.karmarkar_karp(weights, k, equal_size=True)
    assert_valid(weights, parts, k)
    assert {len(part) for part in parts} == {each}
    assert largest(weights, parts) == max(weights) + sum(sorted(weights)[: each - 1])
    assert pt._with_a_giant(pt.as_weights(weights, "weights"), k) is not None  # no search is needed for it


def test_e_nothing_is_dealt_where_a_giant_rules_it_out(monkeypatch):
    weights = pt.as_weights([200_000, *range(100, 611)], "weights")
    monkeypatch.setattr(dealing, "_dealt_blocks", lambda *_: pytest.fail("dealt for nothing"))
    assert dealing.near_optimal(weights, 16, equal_size=True) is None


DISTRIBUTIONS = {
    "lognormal": lambda rng, n: np.minimum(rng.lognormal(6, 0.9, n).astype(int) + 1, 8192),
    "uniform": lambda rng, n: rng.integers(1, 8193, n),
    "bimodal": lambda rng, n: np.where(rng.random(n) < 0.5, rng.integers(50, 300, n), rng.integers(4000, 8192, n)),
    "constant": lambda rng, n: np.full(n, 1024),
    "giant": lambda rng, n: np.concatenate(([200_000], rng.integers(1, 500, n - 1))),
    "zeros": lambda rng, n: np.zeros(n, int),
}


@pytest.mark.parametrize("equal_size", [False, True])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(("n", "k"), [(64, 2), (64, 16), (160, 10), (256, 64), (256, 16)])
def test_no_worse_than_the_textbook(name, n, k, equal_size):
    for seed in range(3):
        weights = DISTRIBUTIONS[name](np.random.default_rng(seed), n).tolist()
        ours = largest(weights, pt.karmarkar_karp(weights, k, equal_size))
        theirs = largest(weights, textbook(weights, k, equal_size))
        assert ours <= 1.001 * theirs, (name, n, k, seed)


@settings(deadline=None, max_examples=50)
@given(
    k=st.integers(1, 12),
    each=st.integers(16, 40),
    spare=st.integers(0, 11),
    shape=st.sampled_from([(1, 50), (100, 5000), (0, 2), (1, 10**6)]),
    others=st.sampled_from([0, 1, 3, 40]),
    equal_size=st.booleans(),
    seed=st.integers(0, 9),
)
def test_many_numbers_for_each_part(k, each, spare, shape, others, equal_size, seed):
    # The greedy shortcut: valid, and taken only where it is certain to be near the best.
    rng = np.random.default_rng(seed)
    n = k * each + (0 if equal_size else min(spare, k - 1))
    weights = rng.integers(*shape, n)
    weights[:others] = weights[:others] * 50 + 7  # some that fill a part alone, or a second mode
    parts = pt.karmarkar_karp(weights, k, equal_size)
    assert_valid(weights, parts, k)
    assert all(part == sorted(part) for part in parts)
    totals = [int(weights[part].sum()) for part in parts]
    assert totals == sorted(totals, reverse=True)
    assert len({len(part) for part in parts}) == 1 or not equal_size
    near = dealing.near_optimal(weights, k, equal_size)
    if near is not None:
        assert near == parts
        assert totals[0] <= dealing.NEAR * max(weights.sum() / k, weights.max())


def test_numbers_too_large_for_the_shortcut():
    weights = [2**55 + row for row in range(64)]
    parts = pt.karmarkar_karp(weights, 4, equal_size=False)
    assert_valid(weights, parts, 4)
    assert largest(weights, parts) <= 1.001 * sum(weights) / 4


def test_sums_beyond_what_a_double_holds_stay_exact():
    weights = [2**53 + 1, 2**53, 1, 2]
    assert sorted(sum(weights[row] for row in part) for part in pt.karmarkar_karp(weights, 2, False)) == [
        2**53 + 2,
        2**53 + 2,
    ]


def test_floats_and_arrays_and_tuples():
    expected = pt.karmarkar_karp([3, 1, 2, 2], 2, False)
    assert pt.karmarkar_karp(np.array([3, 1, 2, 2], np.int32), 2, False) == expected
    assert pt.karmarkar_karp((3.0, 1.0, 2.0, 2.0), 2, False) == expected


@pytest.mark.parametrize("partition", [pt.karmarkar_karp, pt.greedy_partition])
def test_bad_input(partition):
    with pytest.raises(InputError, match="2 lengths for 3 partitions"):
        partition([1, 2], 3, False)
    with pytest.raises(InputError, match="equal_size"):
        partition([1, 2, 3], 2, True)
    with pytest.raises(InputError, match="k_partitions"):
        partition([1, 2], 0, False)
    with pytest.raises(InputTypeError, match="k_partitions"):
        partition([1, 2], 1.5, False)
    with pytest.raises(InputError, match="-1 at 1"):
        partition([1, -1], 1, False)
    with pytest.raises(InputError, match="nan"):
        partition([1.0, float("nan")], 1, False)
    with pytest.raises(ShapeError):
        partition([[1, 2], [3, 4]], 1, False)
    with pytest.raises(InputTypeError, match="numbers"):
        partition(["a", "b"], 1, False)


@settings(deadline=None, max_examples=100)
@given(weights=st.lists(st.integers(0, 100), min_size=1, max_size=40), spare=st.integers(0, 150))
def test_packing_keeps_the_cap_and_is_near_the_bound(weights, spare):
    cap = max([*weights, 1]) + spare
    tokens = np.array(weights, np.int64)
    parts = pt.pack(tokens, tokens, cap, at_least=1)
    assert_valid(weights, parts, len(parts))
    assert largest(weights, parts) <= cap
    assert len(parts) >= pt.fewest_parts(tokens, cap)
    assert len(parts) <= max(1, 2 * pt.fewest_parts(tokens, cap))  # any method that fills parts does that well


def test_groups_stay_together_and_are_balanced():
    parts = pt.get_group_balanced_partitions([4, 4, 1, 1, 3, 3], ["a", "a", "b", "b", "c", "c"], 2)
    assert parts == [[0, 1], [2, 3, 4, 5]]
    with pytest.raises(InputError, match="3, the number of different uids"):
        pt.get_group_balanced_partitions([1, 2, 3], ["a", "b", "c"], 4)
    with pytest.raises(ShapeError, match="2 uids for 3"):
        pt.get_group_balanced_partitions([1, 2, 3], ["a", "b"], 1)


def test_small_arithmetic():
    assert pt.calculate_workload([2, 0]) == [24576 * 2 + 4, 0]
    assert pt.ceildiv(7, 2) == 4
    assert pt.roundup_divisible(9, 4) == 12
    with pytest.raises(InputError):
        pt.ceildiv(1, 0)
    assert issubclass(CapacityError, ValueError)


def test_c_workload_takes_verls_keyword_and_ours():
    assert pt.calculate_workload(seqlen_list=[2]) == pt.calculate_workload(seqlens=[2]) == pt.calculate_workload([2])
    assert pt.calculate_workload(seqlen_list=None, seqlens=[2]) == [24576 * 2 + 4]
    with pytest.raises(ConflictError, match="seqlen_list and seqlens"):
        pt.calculate_workload(seqlen_list=[1], seqlens=[2])
