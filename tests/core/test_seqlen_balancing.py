"""Micro-batches: every row once, never above the cap, the same count on every rank, and nobody hangs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from probe import hooks
from probe.core import seqlen_balancing as sb
from probe.core.protocol import DataProto
from probe.errors import (
    CapacityError,
    InputError,
    InputTypeError,
    MissingKeyError,
    PeerError,
    ShapeError,
    UnknownNameError,
)
from tests.ranks import run_ranks

lengths_lists = st.lists(st.integers(0, 40), min_size=0, max_size=40)


def padded(lengths, width=None):
    width = max([*lengths, 1]) if width is None else width
    mask = torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, width - length :] = 1
    ids = torch.arange(len(lengths) * width).reshape(len(lengths), width)
    return TensorDict({"input_ids": ids, "attention_mask": mask}, batch_size=[len(lengths)])


def jagged(lengths):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    kept = {"min_seqlen": min(lengths, default=0), "max_seqlen": max(lengths, default=0)}
    ids = torch.nested.nested_tensor_from_jagged(torch.arange(sum(lengths)), offsets, **kept)
    logprobs = torch.nested.nested_tensor_from_jagged(torch.rand(sum(lengths), 3), offsets, **kept)
    batch = TensorDict({"input_ids": ids, "reward": torch.arange(len(lengths))}, batch_size=[len(lengths)])
    batch["logprobs"] = logprobs
    return batch


def sums(lengths, partitions):
    return [sum(lengths[row] for row in part) for part in partitions]


# ------------------------------------------------------------------------------------------------------------- the cap


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**31), rows=st.sampled_from([32, 128, 256]))
def test_e_work_is_balanced_by_default_under_the_cap_on_tokens(seed, rows):
    lengths = np.clip(np.random.default_rng(seed).lognormal(6.5, 0.9, rows).astype(int), 16, 8192)
    batch = jagged(lengths.tolist())
    _, indices = sb.rearrange_micro_batches(batch, 16384)
    _, by_work = sb.rearrange_micro_batches(batch, 16384, balance="workload")
    _, by_tokens = sb.rearrange_micro_batches(batch, 16384, balance="tokens")
    assert indices == by_work
    work = sb.calculate_workload(lengths.astype(np.int64))
    heaviest = max(work[part].sum() for part in indices)
    assert max(lengths[part].sum() for part in indices) <= 16384
    assert len(indices) <= len(by_tokens)
    if len(indices) == len(by_tokens):
        assert heaviest <= max(work[part].sum() for part in by_tokens) * 1.0001


@settings(deadline=None, max_examples=75)
@given(lengths=lengths_lists, spare=st.integers(0, 60), balance=st.sampled_from(["tokens", "workload"]))
def test_every_row_once_and_never_above_the_cap(lengths, spare, balance):
    cap = max([*lengths, 1]) + spare
    batch = padded(lengths)
    parts, indices = sb.rearrange_micro_batches(batch, cap, balance=balance)
    assert sorted(row for part in indices for row in part) == list(range(len(lengths)))
    assert all(total <= cap for total in sums(lengths, indices))
    for part, rows in zip(parts, indices, strict=True):
        assert rows == sorted(rows)
        assert torch.equal(part["input_ids"], batch["input_ids"][rows])
        assert int(part["attention_mask"].sum()) == sum(lengths[row] for row in rows)
    if lengths:
        restored = sb.restore_dynamic_batch(torch.cat([part["input_ids"] for part in parts]), indices)
        assert torch.equal(restored, batch["input_ids"])


def test_the_known_overflow_of_the_cap():
    # verl up to 0.10.0.dev puts two of these into one micro-batch: 14 tokens where 8 are allowed.
    batch = padded([7] * 8)
    _, strict = sb.rearrange_micro_batches(batch, 8)
    _, loose = sb.rearrange_micro_batches(batch, 8, strict=False)
    assert len(strict) == 8
    assert len(loose) == 7
    assert max(sums([7] * 8, loose)) == 14


def test_the_cap_is_about_tokens_and_not_about_the_padded_width():
    _, indices = sb.rearrange_micro_batches(padded([3, 2, 4], width=100), 5)
    assert max(sums([3, 2, 4], indices)) <= 5


def test_a_row_that_cannot_fit_is_named_and_nothing_changed():
    batch = padded([3, 9, 2])
    before = batch.clone()
    with pytest.raises(CapacityError, match=r"row 1 has 9 tokens.*cap of 8"):
        sb.rearrange_micro_batches(batch, 8)
    assert (batch == before).all()


@pytest.mark.parametrize("lengths", [[0, 0, 0], [0], []])
def test_nothing_valid_or_nothing_at_all(lengths):
    parts, indices = sb.rearrange_micro_batches(padded(lengths), 4)
    assert sorted(row for part in indices for row in part) == list(range(len(lengths)))
    assert len(parts) == (1 if lengths else 0)


# ----------------------------------------------------------------------------------------------------------- the count


def test_more_than_rows_are_filled_with_empty_ones():
    parts, indices = sb.rearrange_micro_batches(padded([4, 3]), 10, min_num_micro_batch=5)
    assert indices == [[0], [1], [], [], []]
    assert [tuple(part["input_ids"].shape) for part in parts] == [(1, 4), (1, 4), (0, 4), (0, 4), (0, 4)]


def test_empty_ones_of_a_jagged_batch():
    parts, indices = sb.rearrange_micro_batches(jagged([4, 3]), 10, min_num_micro_batch=3)
    assert [len(rows) for rows in indices] == [1, 1, 0]
    assert parts[2]["input_ids"].values().numel() == 0
    assert parts[2].batch_size == torch.Size([0])


@pytest.mark.parametrize(("divisor", "count"), [(1, 3), (2, 4), (4, 4), (5, 5)])
def test_rounded_up_to_a_divisor(divisor, count):
    lengths = [5, 5, 5, 1, 1, 1]
    _, indices = sb.rearrange_micro_batches(padded(lengths), 6, num_batches_divided_by=divisor)
    assert len(indices) == count
    assert max(sums(lengths, indices)) <= 6


def test_groups_stay_together():
    lengths = [1, 2, 3, 4, 5, 6, 1, 1]
    _, indices = sb.rearrange_micro_batches(padded(lengths), 11, force_group_size=2)
    for part in indices:
        assert all(part[i] // 2 == part[i + 1] // 2 for i in range(0, len(part), 2))
    with pytest.raises(CapacityError, match="rows 4 to 5"):
        sb.rearrange_micro_batches(padded(lengths), 10, force_group_size=2)
    with pytest.raises(InputError, match="force_group_size"):
        sb.rearrange_micro_batches(padded(lengths), 10, force_group_size=3)


def test_largest_first_or_in_order():
    lengths = [1, 1, 9, 9]
    _, by_size = sb.rearrange_micro_batches(padded(lengths), 9)
    _, in_order = sb.rearrange_micro_batches(padded(lengths), 9, use_dynamic_bsz_balance=False)
    assert sums(lengths, by_size) == sorted(sums(lengths, by_size), reverse=True)
    assert [part[0] for part in in_order] == sorted(part[0] for part in in_order)


def test_the_same_input_gives_the_same_partition():
    lengths = np.random.default_rng(0).integers(1, 500, 300).tolist()
    first = sb.rearrange_micro_batches(padded(lengths), 2000)[1]
    assert first == sb.rearrange_micro_batches(padded(lengths), 2000)[1]


# ----------------------------------------------------------------------------------------------------- kinds of batches


@settings(deadline=None, max_examples=30)
@given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=20), spare=st.integers(0, 30))
def test_jagged_batches_round_trip(lengths, spare):
    batch = jagged(lengths)
    parts, indices = sb.rearrange_micro_batches(batch, max([*lengths, 1]) + spare)
    for part, rows in zip(parts, indices, strict=True):
        for key in ("input_ids", "logprobs"):
            assert all(torch.equal(mine, batch[key][row]) for mine, row in zip(part[key].unbind(), rows, strict=True))
        if rows:
            assert part["input_ids"]._get_max_seqlen() == max(lengths[row] for row in rows)
    order = [row for rows in indices for row in rows]
    together = torch.nested.as_nested_tensor([batch["input_ids"][row] for row in order], layout=torch.jagged)
    restored = sb.restore_dynamic_batch(together, indices)
    assert all(torch.equal(*pair) for pair in zip(restored.unbind(), batch["input_ids"].unbind(), strict=True))


def test_jagged_columns_that_could_be_combined_still_can():
    batch = jagged([3, 1, 4, 2])
    with_holes = torch.nested.nested_tensor_from_jagged(
        torch.arange(12), torch.tensor([0, 3, 6, 9, 12]), torch.tensor([1, 2, 0, 3])
    )
    batch["twice"] = batch["input_ids"] * 2
    batch["holes"] = with_holes
    batch["inner"] = TensorDict({"reward": batch["reward"] + 100}, batch_size=[4])
    for part, rows in zip(*sb.rearrange_micro_batches(batch, 5), strict=True):
        assert list(part.keys()) == list(batch.keys())
        assert torch.equal((part["twice"] - part["input_ids"]).values(), part["input_ids"].values())
        for mine, row in zip(part["holes"].unbind(), rows, strict=True):
            assert torch.equal(mine, with_holes.unbind()[row])
        assert part["inner", "reward"].tolist() == [row + 100 for row in rows]


def make_proto(lengths):
    names = np.array([f"row {row}" for row in range(len(lengths))], dtype=object)
    return DataProto(batch=padded(lengths), non_tensor_batch={"name": names}, meta_info={"temperature": 1.0})


def test_a_data_proto_keeps_its_non_tensors_with_their_rows():
    parts, indices = sb.prepare_dynamic_batch(make_proto([5, 1, 2, 2]), 5)
    for part, rows in zip(parts, indices, strict=True):
        assert part.non_tensor_batch["name"].tolist() == [f"row {row}" for row in rows]
        assert part.meta_info == {"temperature": 1.0}
    parts[0].meta_info["temperature"] = 2.0
    assert parts[1].meta_info == {"temperature": 1.0}


def test_a_micro_batch_is_a_copy():
    batch = padded([2, 2])
    parts, _ = sb.rearrange_micro_batches(batch, 4)
    parts[0]["input_ids"].zero_()
    assert batch["input_ids"].any()


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"max_token_len": 0}, InputError, "max_token_len"),
        ({"max_token_len": 3.5}, InputTypeError, "max_token_len"),
        ({"max_token_len": True}, InputTypeError, "max_token_len"),
        ({"max_token_len": 9, "num_batches_divided_by": 0}, InputError, "num_batches_divided_by"),
        ({"max_token_len": 9, "min_num_micro_batch": -1}, InputError, "min_num_micro_batch"),
        ({"max_token_len": 9, "force_group_size": 0}, InputError, "force_group_size"),
        ({"max_token_len": 9, "balance": "token"}, UnknownNameError, "tokens, workload"),
    ],
)
def test_bad_options(options, error, match):
    with pytest.raises(error, match=match):
        sb.rearrange_micro_batches(padded([1, 2]), **options)


def test_bad_batches():
    with pytest.raises(MissingKeyError, match="attention_mask"):
        sb.rearrange_micro_batches(TensorDict({"a": torch.zeros(2)}, batch_size=[2]), 4)
    with pytest.raises(InputTypeError, match="expected a TensorDict"):
        sb.rearrange_micro_batches({"attention_mask": torch.ones(1, 1)}, 4)
    with pytest.raises(ShapeError, match="attention_mask"):
        sb.rearrange_micro_batches(TensorDict({"attention_mask": torch.ones(2)}, batch_size=[2]), 4)
    with pytest.raises(InputError, match="no tensors"):
        sb.prepare_dynamic_batch(DataProto(non_tensor_batch={"a": np.zeros(2)}), 4)
    with pytest.raises(InputTypeError, match="unexpected argument 'cap', expected one of max_token_len"):
        sb.micro_batches(padded([1]), 4, cap=5)
    with pytest.raises(ShapeError, match="3 rows"):
        sb.restore_dynamic_batch(torch.zeros(3), [[0], [1]])


# ----------------------------------------------------------------------------------------------------- small functions


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_reverse_idx_keeps_the_kind(kind):
    given_, inverse = kind([2, 0, 1]), sb.get_reverse_idx(kind([2, 0, 1]))
    assert type(inverse) is type(given_)
    assert list(inverse) == [1, 2, 0]


@pytest.mark.parametrize("bad", [[0, 0], [0, 2], [-1, 0]])
def test_reverse_idx_of_no_permutation(bad):
    with pytest.raises(InputError, match="each of 0"):
        sb.get_reverse_idx(bad)


@given(st.permutations(range(12)))
def test_reverse_idx_twice_is_the_identity(order):
    assert sb.get_reverse_idx(sb.get_reverse_idx(order)) == order


def test_unbalance_by_hand():
    metrics = sb.log_seqlen_unbalance([10, 20, 1, 2], [[0, 2], [1, 3]], "global_seqlen")
    assert metrics == {
        "global_seqlen/min": 3,
        "global_seqlen/max": 30,
        "global_seqlen/minmax_diff": 27,
        "global_seqlen/balanced_min": 11,
        "global_seqlen/balanced_max": 22,
        "global_seqlen/mean": 16.5,
    }
    assert sb.log_seqlen_unbalance([5, 1], [[0], [1], []], "s")["s/min"] == 0
    assert sb.log_seqlen_unbalance([], [[], []], "s")["s/mean"] == 0
    with pytest.raises(InputError, match="partitions"):
        sb.log_seqlen_unbalance([1], [], "s")


def test_c_unbalance_where_rows_do_not_divide():
    lengths = [64 + 5 * row % 37 for row in range(56)]
    metrics = sb.log_seqlen_unbalance(lengths, [list(range(part, 56, 25)) for part in range(25)], "s")
    blocks = [sum(lengths[start : start + 2]) for start in range(0, 56, 2)]  # 56 // 25 rows each, 28 of them
    assert (metrics["s/min"], metrics["s/max"]) == (min(blocks), max(blocks))
    assert metrics["s/mean"] == sum(lengths) / 25
    uneven = sb.log_seqlen_unbalance([5, 1, 1, 2, 9], [[0, 1], [2, 3, 4]], "s")
    assert (uneven["s/min"], uneven["s/max"], uneven["s/minmax_diff"]) == (3, 9, 6)  # 5 + 1, 1 + 2, and 9 alone


# ------------------------------------------------------------------------------------------ hooks and scopes


class Hear(hooks.Listener):
    def __init__(self):
        self.told, self.scopes = [], []

    def fire(self, event):
        self.told.append(dict(event.values))

    def leave(self, event, state):
        if event.point is hooks.SCOPE:
            values = event.values
            self.scopes.append((event.scope.micro_batch, values["sequences"], values["tokens"], event.error))


def test_what_is_told_replays_to_the_same_partition():
    lengths = np.random.default_rng(1).integers(1, 50, 64).tolist()
    hear = Hear()
    with hooks.subscribe(hear, "seqlen_balancing.partition"):
        _, indices = sb.rearrange_micro_batches(padded(lengths, width=64), 100)
    (told,) = hear.told
    assert told["lengths"] == lengths
    assert told["partitions"] == indices
    assert (told["cap_tokens"], told["width_tokens"], told["strict"]) == (100, 64, True)
    assert told["workload"] == [24576 * length + length**2 for length in lengths]
    again = sb.rearrange_micro_batches(padded(told["lengths"]), told["cap_tokens"], strict=told["strict"])[1]
    assert again == told["partitions"]


@pytest.mark.parametrize("make", [padded, make_proto, jagged])
def test_each_micro_batch_has_its_own_scope(make):
    batch, hear = make([4, 4, 2, 2]), Hear()
    with hooks.subscribe(hear, "scope"):
        parts = sb.micro_batches(batch, 6)
        assert len(parts) == len(parts.indices) == 2
        for index, part in enumerate(parts):
            assert hooks.current_scope().micro_batch == index
            assert len(part) == len(parts.indices[index])
            assert type(part) is (DataProto if isinstance(batch, DataProto) else TensorDict)
    assert hooks.current_scope().kind == "process"
    assert hear.scopes == [(0, 2, 6, None), (1, 2, 6, None)]


def test_leaving_the_loop_early_leaves_the_scope_without_an_error():
    hear = Hear()
    with hooks.subscribe(hear, "scope"):
        for _ in sb.micro_batches(padded([4, 4]), 4):
            break
        assert hooks.current_scope().kind == "process"
    assert hear.scopes == [(0, 1, 4, None)]


def test_an_exception_in_the_body_passes_and_the_scope_around_is_restored():
    def body():
        for _ in sb.micro_batches(padded([4, 4]), 4):
            raise ZeroDivisionError

    with hooks.phase("update") as around, pytest.raises(ZeroDivisionError):
        body()
    assert around.scope not in hooks.current_scope().ancestors()


# -------------------------------------------------------------------------------------------------------------- ranks


def _rank(rank, world, store, results, lengths_of, options, failing):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        batch = padded(lengths_of[rank])
        if rank in failing:
            batch = batch.exclude("attention_mask")
        try:
            _, indices = sb.rearrange_micro_batches(batch, dp_group=dist.group.WORLD, **options)
            results[rank] = (len(indices), sums(lengths_of[rank], indices))
        except Exception as error:
            results[rank] = (type(error).__name__, str(error))
    finally:
        dist.destroy_process_group()


def on_ranks(tmp_path, lengths_of, *, failing=(), **options):
    with mp.Manager() as manager:
        results = manager.dict()
        arguments = (len(lengths_of), tmp_path / "store", results, lengths_of, options, failing)
        run_ranks(_rank, arguments, len(lengths_of))
        return [results[rank] for rank in range(len(lengths_of))]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_four_ranks_agree_on_the_count(tmp_path):
    lengths_of = [[5] * 8, [1], [], [7, 7, 1]]
    results = on_ranks(tmp_path, lengths_of, max_token_len=10, num_batches_divided_by=3)
    assert [count for count, _ in results] == [6, 6, 6, 6]
    assert all(max(totals) <= 10 for _, totals in results)
    assert [sum(totals) for _, totals in results] == [40, 1, 0, 15]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_one_rank_that_cannot_fit_stops_all_with_one_message(tmp_path):
    results = on_ranks(tmp_path, [[3, 3], [3, 99]], max_token_len=10)
    assert [name for name, _ in results] == [PeerError.__name__, CapacityError.__name__]
    assert results[0][1] == results[1][1]
    assert "rank 1 of the group: max_token_len: row 1 has 99 tokens" in results[0][1]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_rank_with_a_broken_batch_stops_all(tmp_path):
    results = on_ranks(tmp_path, [[3, 3], [3]], failing=(0,), max_token_len=10)
    assert [name for name, _ in results] == [MissingKeyError.__name__, PeerError.__name__]
    assert results[0][1] == results[1][1]
