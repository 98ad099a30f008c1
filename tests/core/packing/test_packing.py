"""Bins: every sequence once, none overfull, as many as asked for, never further from the fewest than proven."""

from __future__ import annotations

import itertools
import math
import pickle
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe import hooks
from probe.core.packing import PackingAlgorithm, PackingMetrics, get_packer
from probe.core.packing.bins import concatenative, first_fit, first_fit_decreasing, modified_first_fit_decreasing
from probe.errors import CapacityError, InputError, InputTypeError, UnknownNameError

ALGORITHMS = [str(one) for one in PackingAlgorithm]
CAPACITY = 60
lengths_lists = st.lists(st.integers(0, CAPACITY), max_size=60)


class Packed(hooks.Listener):
    def __init__(self):
        self.told = []

    def fire(self, event):
        self.told.append(dict(event.values))

    def failed(self, event, error, count, switched_off):
        raise AssertionError(error)


def sums(lengths, bins):
    return [sum(lengths[row] for row in one) for one in bins]


# ------------------------------------------------------------------------- what holds for every packer


@settings(deadline=None, max_examples=75)
@given(
    lengths=lengths_lists,
    algorithm=st.sampled_from(ALGORITHMS),
    least=st.integers(0, 9),
    multiple=st.integers(1, 5),
    pad=st.sampled_from([1, 4, 20]),
)
def test_every_sequence_once_and_no_bin_overfull(lengths, algorithm, least, multiple, pad):
    packer = get_packer(algorithm, CAPACITY, least, multiple, sequence_length_pad_multiple=pad)
    try:
        bins = packer.pack(lengths)
    except InputError as error:
        assert "sequences, but none may be empty" in str(error)  # noqa: PT017  (either outcome is allowed)
        assert len(lengths) < max(least, multiple * math.ceil(len(lengths) / multiple))
        return
    padded = [-(-length // pad) * pad for length in lengths]
    assert sorted(row for one in bins for row in one) == list(range(len(lengths)))
    assert all(one == sorted(one) and one for one in bins)
    assert all(total <= CAPACITY for total in sums(padded, bins))
    assert len(bins) >= least
    assert len(bins) % multiple == 0


@st.composite
def filled_bins(draw):
    """Sequences cut from ``count`` full bins: the fewest bins are known."""
    count = draw(st.integers(1, 14))
    lengths = []
    for _ in range(count):
        cuts = draw(st.lists(st.integers(1, CAPACITY - 1), max_size=6, unique=True))
        edges = [0, *sorted(cuts), CAPACITY]
        lengths += [stop - start for start, stop in itertools.pairwise(edges)]
    return draw(st.permutations(lengths)), count


@settings(deadline=None, max_examples=100)
@given(filled_bins())
def test_never_further_from_the_optimum_than_proven(case):
    lengths, best = case
    assert len(first_fit_decreasing(lengths, CAPACITY)) <= 11 / 9 * best + 6 / 9
    assert len(modified_first_fit_decreasing(lengths, CAPACITY)) <= 71 / 60 * best + 1
    assert len(first_fit(lengths, range(len(lengths)), CAPACITY)) <= 1.7 * best
    assert len(get_packer("concatenative", CAPACITY).pack(lengths)) < 2 * best + 1


def plain_first_fit(lengths, order, capacity):
    bins, rooms = [], []
    for row in order:
        place = next((place for place, room in enumerate(rooms) if lengths[row] <= room), len(bins))
        if place == len(bins):
            bins.append([])
            rooms.append(capacity)
        bins[place].append(row)
        rooms[place] -= lengths[row]
    return bins


@settings(deadline=None, max_examples=100)
@given(lengths_lists, st.randoms(use_true_random=False))
def test_the_tree_finds_the_same_bin_as_looking_at_each(lengths, random):
    order = list(range(len(lengths)))
    random.shuffle(order)
    assert first_fit(lengths, order, CAPACITY) == plain_first_fit(lengths, order, CAPACITY)


@pytest.mark.parametrize("longest", [4, 30, 60])
def test_e_many_blocks_of_bins_are_found_as_looking_at_each(longest):
    rng = np.random.default_rng(longest)
    for _ in range(20):
        lengths = rng.integers(1, longest + 1, 400).tolist()
        order = rng.permutation(400).tolist()
        assert first_fit(lengths, order, CAPACITY) == plain_first_fit(lengths, order, CAPACITY)
        order.sort(key=lengths.__getitem__)  # ascending rooms are what makes the most work
        assert first_fit(lengths, order, CAPACITY) == plain_first_fit(lengths, order, CAPACITY)


@settings(deadline=None, max_examples=100)
@given(lengths_lists)
def test_e_first_fit_decreasing_takes_equal_lengths_in_their_order(lengths):
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    assert first_fit_decreasing(lengths, CAPACITY) == plain_first_fit(lengths, order, CAPACITY)


@settings(deadline=None, max_examples=100)
@given(lengths_lists)
def test_e_concatenative_opens_a_bin_where_the_next_sequence_does_not_fit(lengths):
    bins = []
    for row, length in enumerate(lengths):
        if not bins or sum(lengths[one] for one in bins[-1]) + length > CAPACITY:
            bins.append([])
        bins[-1].append(row)
    assert concatenative(lengths, CAPACITY) == bins
    assert concatenative(np.array(lengths, np.int64), CAPACITY) == bins


def plain_modified(lengths, capacity):
    """The five steps of Johnson and Garey with plain lists."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    large = [row for row in order if lengths[row] * 2 > capacity]
    medium = [row for row in order if capacity < lengths[row] * 3 and lengths[row] * 2 <= capacity]
    small = [row for row in order if capacity < lengths[row] * 6 and lengths[row] * 3 <= capacity]
    bins = [[row] for row in large]

    def room(one):
        return capacity - sum(lengths[row] for row in one)

    def largest(rows, most):
        return next((row for row in rows if lengths[row] <= most), None)

    paired = []
    for one in bins:
        if medium and lengths[medium[-1]] <= room(one):
            found = largest(medium, room(one))
            medium.remove(found)
            one.append(found)
            paired.append(one)
    for one in reversed(bins):
        if any(one is other for other in paired) or len(small) < 2:
            continue
        if lengths[small[-1]] + lengths[small[-2]] <= room(one):
            one.append(small.pop())
            found = largest(small, room(one))
            small.remove(found)
            one.append(found)
    rest = [row for row in order if row not in {row for one in bins for row in one}]
    for one in bins:
        while (found := largest(rest, room(one))) is not None:
            rest.remove(found)
            one.append(found)
    return bins + plain_first_fit(lengths, rest, capacity)


@settings(deadline=None, max_examples=100)
@given(lengths_lists)
def test_modified_first_fit_is_the_published_one(lengths):
    ours = modified_first_fit_decreasing(lengths, CAPACITY)
    theirs = plain_modified(lengths, CAPACITY)
    assert [sorted(lengths[row] for row in one) for one in ours] == [
        sorted(lengths[row] for row in one) for one in theirs
    ]


def test_modified_is_better_here_and_worse_there():
    better = [20, 17, 7, 6, 5, 5]
    assert [len(pack(better, 30)) for pack in (first_fit_decreasing, modified_first_fit_decreasing)] == [3, 2]
    worse = [20, 16, 6, 6, 5, 4, 3]
    assert [len(pack(worse, 30)) for pack in (first_fit_decreasing, modified_first_fit_decreasing)] == [2, 3]


def test_thousands_of_sequences_and_growing_trees():
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(6.5, 0.8, 5000).clip(1, 8192).astype(int)
    for algorithm in ("first_fit_decreasing", "modified_first_fit_decreasing"):
        packer = get_packer(algorithm, 8192)
        bins = packer.pack(lengths)
        assert sorted(row for one in bins for row in one) == list(range(5000))
        assert packer.metrics.bin_efficiency > 0.99
    # Sequences just above half a bin: twice as many bins as the sum promises, so the tree has to grow.
    assert len(first_fit_decreasing([31] * 700, 60)) == 700


# ---------------------------------------------------------------------------------------- single facts


def test_what_each_algorithm_does():
    lengths = [6, 3, 7, 4]
    assert get_packer("concatenative", 10).pack(lengths) == [[0, 1], [2], [3]]
    assert get_packer("first_fit_decreasing", 10).pack(lengths) == [[1, 2], [0, 3]]
    shuffles = {str(get_packer("first_fit_shuffle", 10, seed=seed).pack(lengths)) for seed in range(20)}
    assert len(shuffles) > 1
    again = [get_packer("FIRST_FIT_SHUFFLE", 10, seed=3).pack(lengths) for _ in range(2)]
    assert again[0] == again[1]


def test_more_bins_are_made_by_halving_the_fullest():
    bins = get_packer("first_fit_decreasing", 100, min_bin_count=3, bin_count_multiple=2).pack([50, 25, 25, 10, 10])
    assert sorted(map(tuple, bins)) == [(0,), (1,), (2,), (3, 4)]
    balanced = get_packer("concatenative", 100, bin_count_multiple=2).pack([10] * 8)
    assert [len(one) for one in balanced] == [4, 4]


def test_zero_lengths_and_nothing_at_all():
    for algorithm in ALGORITHMS:
        assert get_packer(algorithm, 5, min_bin_count=3).pack([0, 0, 0]) != []
        packer = get_packer(algorithm, 5, min_bin_count=0)
        assert packer.pack([]) == []
        assert packer.metrics.num_bins == 0
        assert math.isnan(packer.metrics.average_utilization)
        assert math.isnan(packer.metrics.waste_ratio)
    with pytest.raises(InputError, match="2 bins are needed for 0 sequences"):
        get_packer("concatenative", 5, min_bin_count=2).pack([])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_c_no_sequence_needs_no_bin(algorithm):
    assert get_packer(algorithm, 5).pack([]) == []
    assert get_packer(algorithm, 5, bin_count_multiple=4).pack(np.array([], dtype=np.int64)) == []


def test_metrics_count_real_tokens_and_not_rounded_ones():
    packer = get_packer("first_fit_decreasing", 16, sequence_length_pad_multiple=8)
    bins = packer.pack([5, 9, 3])
    assert bins == [[1], [0, 2]]
    assert packer.metrics == PackingMetrics(
        num_sequences=3,
        num_bins=2,
        total_sequence_length=17,
        total_bin_capacity=32,
        total_waste=15,
        average_utilization=17 / 32,
        waste_ratio=15 / 32,
        bin_balance=pytest.approx(1 - (0.5 / 16) / (17 / 32)),
        theoretical_min_bins=2,
        bin_efficiency=1.0,
    )
    assert packer.padded_tokens([5, 9, 3], [0, 2]) == 16


def test_e_metrics_are_of_the_packing_whatever_becomes_of_its_lists():
    lengths = [5, 9, 3, 16, 16]
    packer = get_packer("first_fit_decreasing", 16)
    bins = packer.pack(lengths)
    expected = PackingMetrics.from_bins(list(lengths), list(lengths), [list(one) for one in bins], 16)
    del bins[0][:]
    lengths[0] = 400
    assert pickle.loads(pickle.dumps(packer)).metrics == expected
    assert packer.metrics == expected
    assert packer.metrics is packer.metrics


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(0, CAPACITY), min_size=1, max_size=9), min_size=1, max_size=9))
def test_e_bin_balance_is_that_of_the_bins_utilisation(filled):
    lengths = [length for one in filled for length in one]
    rows = iter(range(len(lengths)))
    bins = [[next(rows) for _ in one] for one in filled]
    found = PackingMetrics.from_bins(lengths, lengths, bins, CAPACITY)
    utilisation = [sum(one) / CAPACITY for one in filled]
    mean = statistics.fmean(utilisation)
    assert found.average_utilization == pytest.approx(mean)
    assert found.bin_balance == pytest.approx(
        1 - statistics.pstdev(utilisation) / mean if mean else math.nan, nan_ok=True
    )
    if len({sum(one) for one in filled}) == 1 and mean:
        assert found.bin_balance == 1


def test_listeners_hear_of_every_packing():
    listener = Packed()
    with hooks.subscribe(listener, "packing.packed"):
        lengths = [5, 9, 3]
        packer = get_packer("first_fit_decreasing", 16, sequence_length_pad_multiple=8)
        bins = packer.pack(lengths, source="somewhere")
    (told,) = listener.told
    assert told["lengths"] == [5, 9, 3]
    assert told["padded_lengths"] == [8, 16, 8]
    assert told["bins"] == bins
    assert told["bins"][0] is not bins[0]  # the caller may change its own
    assert (told["capacity_tokens"], told["algorithm"], told["source"]) == (16, "first_fit_decreasing", "somewhere")
    assert told["metrics"] is packer.metrics


# ------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([3, 17], CapacityError, "sequence 1 has 17 tokens; a bin holds 16"),
        ([3, -2], InputError, "sequence 1 has length -2"),
        ([1.5], InputTypeError, "float64"),
        ([True], InputTypeError, "bool"),
        ([[1]], InputError, "one dimension"),
        ([1], InputError, "2 bins are needed for 1 sequences"),
        ([1, 1.5], InputTypeError, "float64"),
        ([1, "2"], InputTypeError, "expected whole numbers"),
        ([1, 2**70], InputTypeError, "object"),
        (np.array([3, 2**63], np.uint64), CapacityError, f"sequence 1 has {2**63} tokens"),
    ],
)
def test_bad_lengths(lengths, error, message):
    with pytest.raises(error, match=message):
        get_packer("first_fit_decreasing", 16, bin_count_multiple=2).pack(lengths)


def test_rounding_beyond_a_bin_is_named():
    with pytest.raises(CapacityError, match="sequence 0 has 15 tokens, 20 when rounded to a multiple of 10"):
        get_packer("concatenative", 16, sequence_length_pad_multiple=10).pack([15])


def test_bad_options():
    with pytest.raises(UnknownNameError, match="got 'best_fit', expected one of concatenative"):
        get_packer("best_fit", 16)
    with pytest.raises(InputError, match="bin_capacity: got 0"):
        get_packer("concatenative", 0)
    with pytest.raises(InputTypeError, match=r"bin_count_multiple: got 1\.5"):
        get_packer("concatenative", 4, bin_count_multiple=1.5)
    with pytest.raises(InputError, match="min_bin_count: got -1"):
        get_packer("concatenative", 4, min_bin_count=-1)
