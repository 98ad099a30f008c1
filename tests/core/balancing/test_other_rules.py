"""Rules of peers that aren't installed here: worked examples, and what is true of every cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.core.balancing.other_rules import nemo_rl_dynamic, prime_rl_first_fit, slime_ranks
from probe.core.balancing.replay import COMPARED, PACKERS, Cut, keeps_the_cap, replay, replay_pieces, replay_ranks
from probe.core.balancing.trl_rule import STRATEGIES
from probe.core.batched_data_dict import BatchedDataDict
from probe.errors import CapacityError, InputError, UnknownNameError

lengths_lists = st.lists(st.integers(1, 40), min_size=2, max_size=40)


def test_1_prime_rl_fills_the_first_micro_batch_with_room_longest_rows_first():
    # By hand: 6 opens one, 5 a second, 3 goes to the second (6 + 3 > 8), 2 to the first, 1 finds no room and opens one.
    assert prime_rl_first_fit([2, 6, 3, 5, 1], 8) == [[1, 0], [3, 2], [4]]
    # Equal rows keep their order.
    assert prime_rl_first_fit([4, 4, 4], 8) == [[0, 1], [2]]
    with pytest.raises(CapacityError, match="below the 9 tokens of row 1"):
        prime_rl_first_fit([1, 9], 8)


@settings(deadline=None, max_examples=50)
@given(lengths_lists, st.integers(40, 120))
def test_1_prime_rl_keeps_the_cap_and_no_micro_batch_could_be_emptied_into_an_earlier_one(lengths, cap):
    parts = prime_rl_first_fit(lengths, cap)
    tokens = [sum(lengths[row] for row in part) for part in parts]
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    assert max(tokens) <= cap
    for later in range(1, len(parts)):
        first = lengths[parts[later][0]]
        assert all(
            sum(lengths[row] for row in parts[earlier] if (-lengths[row], row) < (-first, parts[later][0])) + first
            > cap
            for earlier in range(later)
        )


def test_1_slime_counts_by_first_fit_and_balances_by_tokens_without_asking_the_cap_again():
    # First fit under 10 in order: 6+4, 6+4 → 2; the other rank 9, 9, 9 → 3, and both make 3.
    assert [len(one) for one in slime_ranks([[6, 4, 6, 4], [9, 9, 9, 1]], 10)] == [3, 3]
    # Three rows of 4 under 9 need 2 by first fit, and one of them has 8 tokens.
    (parts,) = slime_ranks([[4, 4, 4]], 9)
    assert sorted(map(len, parts)) == [1, 2]
    # With a count that was agreed on, a part may be above the cap: nobody asks again.
    assert max(sum([5, 5, 5][row] for row in part) for part in slime_ranks([[5, 5, 5]], 5, agreed_count=2)[0]) == 10


def test_1_nemo_rl_deals_neighbours_by_length_and_cuts_all_ranks_alike():
    # Sorted: 1 2 | 3 4 | 5 6; rank 0 gets 1 3 5, rank 1 gets 2 4 6. Rectangles of 2 × 4 fit under 8, 3 × 6 don't.
    assert nemo_rl_dynamic([6, 5, 4, 3, 2, 1], 2, 8) == [
        ([[5, 3], [1]], [4, 6]),
        ([[4, 2], [0]], [4, 6]),
    ]
    with pytest.raises(InputError, match="3 rows can't be shared equally by 2 ranks"):
        nemo_rl_dynamic([1, 2, 3], 2, 8)
    with pytest.raises(CapacityError, match="below the 12 tokens that a row takes after rounding"):
        nemo_rl_dynamic([9, 1], 2, 10, round_to=4)


@settings(deadline=None, max_examples=30)
@given(lengths_lists, st.sampled_from([1, 2]), st.sampled_from([1, 8]))
def test_1_nemo_rls_rule_is_the_one_that_batched_data_dict_carries_out(lengths, ranks, multiple):
    lengths = lengths[: len(lengths) // ranks * ranks]
    width, cap = 64, 128
    data = BatchedDataDict(
        {"input_ids": torch.zeros(len(lengths), width, dtype=torch.long), "input_lengths": torch.tensor(lengths)}
    )
    arguments = {
        "max_tokens_per_microbatch": cap,
        "sequence_length_round": multiple,
        "input_key": "input_ids",
        "input_lengths_key": "input_lengths",
    }
    shards, _ = data.shard_by_batch_size(ranks, batch_size=None, dynamic_batching_args=arguments)
    found = nemo_rl_dynamic(lengths, ranks, cap, round_to=multiple, width_tokens=width)
    for shard, (parts, widths) in zip(shards, found, strict=True):
        assert shard["input_lengths"].tolist() == [lengths[row] for part in parts for row in part]
        assert shard.micro_batch_lengths == [widths]
        assert [end - begin for begin, end in shard.micro_batch_indices[0]] == [len(part) for part in parts]


@settings(deadline=None, max_examples=30)
@given(lengths_lists, st.integers(1, 30), st.sampled_from(STRATEGIES))
def test_1_packed_sequences_lose_only_what_bfd_cuts_off(lengths, size, strategy):
    parts = replay_pieces(Cut(packer=f"trl.packed.{strategy}", lengths=lengths, cap_tokens=size))
    assert max(sum(tokens for _, tokens in part) for part in parts) <= size
    kept = [0] * len(lengths)
    for part in parts:
        for row, tokens in part:
            kept[row] += tokens
    assert kept == ([min(one, size) for one in lengths] if strategy == "bfd" else lengths)


@settings(deadline=None, max_examples=30)
@given(lengths_lists, st.integers(40, 200), st.sampled_from(["probe", "verl", "slime"]))
def test_1_ranks_together_make_as_many_and_each_alone_makes_the_same_given_that_count(lengths, cap, whose):
    packer = {
        "probe": "seqlen_balancing.rearrange_micro_batches",
        "verl": "verl.rearrange_micro_batches",
        "slime": "slime.dynamic_batch_size",
    }[whose]
    ranks = [lengths, [max(2, one // 2) for one in lengths]]
    together = replay_ranks([Cut(packer=packer, lengths=one, cap_tokens=cap, counts_agreed=True) for one in ranks])
    counts = {len(parts) for parts in together}
    assert len(counts) == 1
    for mine, parts in zip(ranks, together, strict=True):
        alone = Cut(packer=packer, lengths=mine, cap_tokens=cap, counts_agreed=True, count=len(parts))
        assert replay(alone) == parts


def test_1_what_is_not_compared_with_the_package_is_known_by_name():
    assert {"prime_rl.first_fit", "slime.dynamic_batch_size", "nemo_rl.dynamic_batching"}.isdisjoint(COMPARED)
    assert {"verl.rearrange_micro_batches", "trl.packed.bfd", "trl.steps_per_generation"} <= COMPARED <= set(PACKERS)
    with pytest.raises(UnknownNameError, match="got 'bfd_shuffled'"):
        replay_pieces(Cut(packer="trl.packed.bfd_shuffled", lengths=[1], cap_tokens=4))
    with pytest.raises(InputError, match="got none, expected one for each rank"):
        replay_ranks([])


def test_1_verl_before_0_9_1_does_not_keep_its_cap():
    lengths, arguments = [7] * 8, {"max_token_len": 8, "use_dynamic_bsz": True, "use_dynamic_bsz_balance": True}
    loose = replay(Cut.of_micro_batches("verl 0.7.1", arguments, lengths, 7))
    strict = replay(Cut.of_micro_batches("verl 0.9.1", arguments, lengths, 8))
    assert (len(loose), len(strict)) == (7, 8)  # ceil(56 / 8) parts, of which one has two rows of 7
    assert not keeps_the_cap("0.9.0")


def test_1_fixed_rows_and_agreement_are_read_from_what_verls_adapter_records():
    fixed = {"use_dynamic_bsz": False, "force_group_size": 1, "micro_batch_size_per_gpu": 2}
    assert replay(Cut.of_micro_batches("verl 0.9.1", fixed, [1, 2, 3, 4], 2)) == [[0, 1], [2, 3]]
    agreed = {"use_dynamic_bsz": True, "max_token_len": 10, "same_micro_num_in_dp": True, "dp_size": 2}
    assert Cut.of_micro_batches("verl 0.9.1", agreed, [5, 5], 2).counts_agreed
