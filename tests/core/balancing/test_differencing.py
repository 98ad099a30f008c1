"""The differencing method: states in lists and in arrays give the same parts, those that were recorded before."""

from __future__ import annotations

import hashlib
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.core.balancing import differencing
from probe.core.balancing.partition import calculate_workload, karmarkar_karp, pack


def by_both(weights, k, equal_size):
    """The part of each of the ranked weights, by each kind of state."""
    ranked = np.sort(np.asarray(weights))[::-1]
    kinds = (differencing._InLists, differencing._InArrays)
    return [np.asarray(kind(ranked, k).parts(equal_size)).tolist() for kind in kinds]


def drawn(rng, n):
    """Weights of one of the kinds that try ties, zeros and rounding; of :mod:`random`, which stays as it is."""
    kind = rng.randrange(7)
    if kind == 0:
        return [7] * n
    if kind == 1:
        return [int(rng.random() * 4) for _ in range(n)]
    if kind == 2:
        return [int(rng.random() * 5) * 0.1 for _ in range(n)]
    if kind == 3:
        return [rng.random() * 1000 for _ in range(n)]
    if kind == 4:
        return [int(rng.random() ** 8 * 10**6) for _ in range(n)]
    if kind == 5:
        return calculate_workload([1 + int(rng.random() * 8192) for _ in range(n)])
    return [1 + int(rng.random() * 8192) for _ in range(n)]


def problem(rng):
    """Weights, a number of parts, and whether these are of equal size."""
    n = 1 + rng.randrange(rng.choice((8, 40, 130)))
    k = 1 + rng.randrange(n if rng.random() < 0.5 else min(n, 20))
    equal_size = rng.random() < 0.4
    return drawn(rng, n - n % k if equal_size else n), k, equal_size


weights = st.one_of(
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.lists(st.integers(0, 2**50), min_size=1, max_size=60),
    st.lists(st.floats(0, 1e6), min_size=1, max_size=60),
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3]), min_size=1, max_size=60),
)


@settings(deadline=None, max_examples=150)
@given(weights=weights, equal_size=st.booleans(), data=st.data())
def test_lists_and_arrays_give_the_same_parts(weights, equal_size, data):
    k = data.draw(st.integers(1, len(weights)))
    listed, arrayed = by_both(weights[: len(weights) - len(weights) % k] if equal_size else weights, k, equal_size)
    assert listed == arrayed


def test_lists_and_arrays_give_the_same_parts_of_thousands_of_batches():
    rng = random.Random(17)
    for _ in range(3000):
        listed, arrayed = by_both(*problem(rng))
        assert listed == arrayed


@pytest.mark.parametrize(
    ("n", "k", "kind"),
    [(96, 2, "_InLists"), (96, 16, "_InLists"), (96, 17, "_InArrays"), (2048, 2, "_InLists"), (2049, 2, "_InArrays")],
)
def test_few_parts_of_few_numbers_are_made_in_lists(n, k, kind, monkeypatch):
    other = {"_InLists": "_InArrays", "_InArrays": "_InLists"}[kind]
    monkeypatch.setattr(differencing, other, None)
    parts = differencing.difference(np.arange(n), k, equal_size=False)
    assert set(parts.tolist()) == set(range(k))


def digest(parts):
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def test_partitions_that_were_recorded_are_made_again():
    # Worked out before there were two kinds of states: what a run has recorded is replayed, and must come out equal.
    rng = random.Random(5)
    problems = [problem(rng) for _ in range(600)]
    by_difference = [differencing.difference(np.array(one), k, equal_size).tolist() for one, k, equal_size in problems]
    assert digest(by_difference) == "fe9eb714ca93ae39"
    whole = [one for one in problems if isinstance(one[0][0], int)]
    assert digest([karmarkar_karp(one, k, equal_size) for one, k, equal_size in whole]) == "492c0f38bfdeca24"
    tokens = [np.array([1 + int(rng.random() * 4096) for _ in range(1 + rng.randrange(80))]) for _ in range(200)]
    packed = [pack(one, calculate_workload(one), 4096 + rng.randrange(8192), 1) for one in tokens]
    assert digest(packed) == "ff19b36f5ef42b1e"
