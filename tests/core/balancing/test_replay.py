"""A recorded partition is made again; verl's by its rule, which ``tests/frameworks`` holds beside verl's own."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from probe import hooks
from probe.core.balancing.replay import PACKERS, Cut, replay
from probe.core.balancing.verl_rule import verl_fixed_rows, verl_micro_batches, verl_partition
from probe.core.packing import get_packer
from probe.core.seqlen_balancing import get_seqlen_balanced_partitions, rearrange_micro_batches
from probe.errors import CapacityError, InputError, UnknownNameError


class Told(hooks.Listener):
    def fire(self, event):
        self.values = dict(event.values)


class Heard(hooks.Listener):
    times = 0

    def fire(self, event):
        self.times += 1


lengths_lists = st.lists(st.integers(1, 40), min_size=1, max_size=40)


@settings(deadline=None, max_examples=50)
@given(
    lengths_lists,
    st.integers(40, 200),
    st.sampled_from([None, 3]),
    st.sampled_from([None, 2]),
    st.booleans(),
    st.sampled_from(["tokens", "workload"]),
    st.booleans(),
)
def test_5_the_own_packer_is_replayed(lengths, cap, least, divisor, ordered, balance, strict):
    ids = torch.nested.as_nested_tensor([torch.zeros(one, dtype=torch.long) for one in lengths], layout=torch.jagged)
    told = Told()
    with hooks.subscribe(told, "seqlen_balancing.partition"):
        _, parts = rearrange_micro_batches(
            TensorDict({"input_ids": ids}, batch_size=[len(lengths)]),
            cap,
            num_batches_divided_by=divisor,
            min_num_micro_batch=least,
            use_dynamic_bsz_balance=ordered,
            balance=balance,
            strict=strict,
        )
    packer, arguments = told.values["packer"], json.loads(json.dumps(told.values["arguments"]))
    recorded = Cut.of_micro_batches(packer, arguments, lengths, len(parts))
    assert replay(recorded) == parts


def test_5_a_count_that_ranks_agreed_on_is_taken_from_the_record():
    for packer in ("seqlen_balancing.rearrange_micro_batches", "verl.rearrange_micro_batches"):
        alone = Cut(packer=packer, lengths=[5, 9, 5, 1], cap_tokens=10)
        agreed = Cut(packer=packer, lengths=[5, 9, 5, 1], cap_tokens=10, counts_agreed=True, count=4)
        assert (len(replay(alone)), len(replay(agreed))) == (2, 4)
        with pytest.raises(InputError, match="count: got None"):
            replay(Cut(packer=packer, lengths=[5], cap_tokens=10, counts_agreed=True))


@settings(deadline=None, max_examples=30)
@given(lengths_lists, st.sampled_from([None, 2]), st.sampled_from([1, 8]))
def test_5_bins_are_replayed_and_nobody_hears(lengths, divisor, pad):
    for algorithm in ("concatenative", "first_fit_decreasing", "modified_first_fit_decreasing"):
        packer = get_packer(algorithm, 48, 1, divisor, sequence_length_pad_multiple=pad)
        if divisor and len(lengths) == 1:
            continue
        bins, listener = packer.pack(lengths), Heard()
        recorded = Cut(
            packer=f"packing.{algorithm}",
            lengths=lengths,
            cap_tokens=48,
            minimum_count=1,
            divisor=divisor,
            pad_multiple=pad,
        )
        with hooks.subscribe(listener, "packing.packed"):
            assert replay(recorded) == bins
            assert listener.times == 0
            packer.pack(lengths)
        assert listener.times == 1


def test_5_parts_of_equal_size_are_replayed():
    lengths = [3, 1, 4, 1, 5, 9, 2, 6]
    recorded = Cut(packer="seqlen_balancing.equal_size", lengths=lengths, count=4, balance="tokens")
    assert replay(recorded) == get_seqlen_balanced_partitions(lengths, 4, equal_size=True)
    assert {len(part) for part in replay(Cut(packer="verl.equal_size", lengths=lengths, count=4))} == {2}


def test_5_what_cannot_be_replayed_is_said():
    with pytest.raises(UnknownNameError, match=r"got 'packing\.first_fit_shuffle'"):
        replay(Cut(packer="packing.first_fit_shuffle", lengths=[1]))
    for packer, missing in (("verl.fixed_rows", "rows_each"), ("verl.equal_size", "count")):
        with pytest.raises(InputError, match=f"{missing}: got None, expected a number: '{packer}'"):
            replay(Cut(packer=packer, lengths=[1, 2]))
    with pytest.raises(UnknownNameError, match="got 'openrlhf'"):
        Cut.of_micro_batches("openrlhf", {}, [1], 1)
    recorded = Cut.of_micro_batches("verl 0.9.1", {"max_token_len": 10, "min_num_micro_batch": 3}, [5, 9, 5, 1], 3)
    assert recorded.packer in PACKERS
    assert replay(recorded) == verl_micro_batches([5, 9, 5, 1], 10, min_num_micro_batch=3)


# ------------------------------------------------------------------------------------------------- verl's rule


@settings(deadline=None, max_examples=50)
@given(lengths_lists, st.integers(40, 200), st.sampled_from([1, 2]), st.sampled_from([None, 2, 3]))
def test_5_verls_micro_batches_hold_every_row_once_within_the_cap(lengths, cap, size, divisor):
    lengths = lengths * size
    try:
        parts = verl_micro_batches(lengths, cap * size, force_group_size=size, num_batches_divided_by=divisor)
    except InputError as error:
        assert "micro-batches are needed" in str(error)  # noqa: PT017  (either outcome is allowed)
        return
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    assert all(sum(lengths[row] for row in part) <= cap * size for part in parts)
    assert len(parts) % (divisor or 1) == 0
    assert all(part[at] + 1 == part[at + 1] for part in parts for at in range(0, len(part), size) if size == 2)


def test_5_verls_order_has_the_smallest_at_both_ends():
    lengths = [50, 10, 40, 20, 30]
    ordered = verl_micro_batches(lengths, 50, min_num_micro_batch=5)
    assert [lengths[one] for (one,) in ordered] == [10, 30, 50, 40, 20]
    plain = verl_micro_batches(lengths, 50, min_num_micro_batch=5, use_dynamic_bsz_balance=False)
    assert [lengths[one] for (one,) in plain] == [50, 40, 30, 20, 10]


def test_5_what_verl_refuses():
    with pytest.raises(CapacityError, match="got 9, below the 10 tokens"):
        verl_micro_batches([10, 2], 9)
    with pytest.raises(CapacityError, match="below the 16 tokens"):
        verl_micro_batches([10, 2], 12, width_tokens=16)
    with pytest.raises(InputError, match="got 3 rows, expected a positive multiple of force_group_size=2"):
        verl_micro_batches([1, 2, 3], 9, force_group_size=2)
    with pytest.raises(InputError, match="3 micro-batches are needed, but a rank has only 2"):
        verl_micro_batches([1, 2], 9, min_num_micro_batch=3)
    with pytest.raises(InputError, match="got 3 for 2 partitions, expected a multiple of 2"):
        verl_partition([1, 2, 3], 2, equal_size=True)
    with pytest.raises(InputError, match="got 5, expected a multiple of 4"):
        verl_fixed_rows(5, 2, 2)
