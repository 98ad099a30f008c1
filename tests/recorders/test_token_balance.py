from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from probe import hooks
from probe.core.batched_data_dict import BatchedDataDict
from probe.core.packing import get_packer
from probe.recorders.token_balance import PREFIX, TokenBalanceRecorder, micro_batch_rows
from probe.records import MicroBatch
from probe.testing import Collect

PARTITION = hooks.point("seqlen_balancing.partition")


def partition(
    lengths,
    parts,
    *,
    cap=None,
    width=None,
    packed=False,
    workload=None,
    source="seqlen_balancing.rearrange_micro_batches",
):
    batch = TensorDict({"input_ids": torch.zeros(len(lengths), width or 1)}, batch_size=[len(lengths)])
    hooks.emit(
        PARTITION,
        lengths=lengths,
        partitions=parts,
        cap_tokens=cap,
        width_tokens=width,
        packed=packed,
        batch=batch,
        workload=workload,
        source=source,
        strict=True,
    )


@pytest.fixture
def collect():
    listener = Collect(TokenBalanceRecorder())
    with hooks.subscribe(listener, *TokenBalanceRecorder.points):
        yield listener


def test_every_field(collect):
    lengths, parts = [5, 3, 9, 0], [[2], [0, 1], [], [3]]
    partition(lengths, parts, cap=8, width=10, workload=[2.0, 1.0, 4.0, 0.5])
    lengths.clear()  # the caller goes on with its own lists
    parts[0].append(7)
    rows = collect.rows()
    assert len({row.batch_id for row in rows}) == 1
    assert all(isinstance(row, MicroBatch) and row.micro_batches == 4 for row in rows)
    assert [row.micro_batch for row in rows] == [0, 1, 2, 3]
    assert [row.lengths for row in rows] == [[9], [5, 3], [], [0]]
    assert [row.indices for row in rows] == [[2], [0, 1], [], [3]]
    assert [row.tokens for row in rows] == [9, 8, 0, 0]
    assert [row.sequences for row in rows] == [1, 2, 0, 1]
    assert [row.utilisation_ratio for row in rows] == [9 / 8, 1.0, 0.0, 0.0]
    assert [row.over_cap for row in rows] == [True, False, False, False]
    assert [row.workload for row in rows] == [4.0, 3.0, 0.0, 0.5]
    assert {(row.width_tokens, row.cap_tokens) for row in rows} == {(10, 8)}
    assert {row.source for row in rows} == {"seqlen_balancing.rearrange_micro_batches"}


def test_what_is_unknown_stays_unknown(collect):
    partition([4, 4], [[0, 1]])
    (row,) = collect.rows()
    assert (row.cap_tokens, row.width_tokens, row.utilisation_ratio, row.workload) == (None, None, None, None)
    assert row.over_cap is False


def test_workload_of_each_part():
    rows = micro_batch_rows(
        [1, 2, 3],
        [[0, 1], [2]],
        batch_id=1,
        workload=[7.0, 8.0],
        cap_tokens=None,
        width_tokens=None,
        source="x",
    )
    assert [row.workload for row in rows] == [7.0, 8.0]


def test_batches_have_ids_of_their_own(collect):
    partition([1], [[0]])
    partition([1], [[0]])
    first, second = collect.rows()
    assert first.batch_id != second.batch_id


def test_metrics(collect):
    partition([6, 2, 0], [[0], [1], [2]], cap=4)
    partition([3, 3], [[0], [1]], cap=6)
    metrics = {key: metric.aggregate() for key, metric in collect.recorder.metrics(collect.rows()).items()}
    assert metrics == {
        f"{PREFIX}micro_batch_imbalance_ratio_max": pytest.approx(6 * 3 / 8),
        f"{PREFIX}utilisation_ratio_mean": pytest.approx((1.5 + 0.5 + 0 + 0.5 + 0.5) / 5),
        f"{PREFIX}largest_micro_batch_tokens": 6.0,
        f"{PREFIX}micro_batches": 5.0,
        f"{PREFIX}cap_violations": 1.0,
        f"{PREFIX}rank_tokens": 14.0,
    }
    assert set(metrics) <= set(TokenBalanceRecorder.keys)


def test_workload_imbalance_and_empty_batches(collect):
    partition([0, 0], [[0], [1]])
    assert f"{PREFIX}micro_batch_imbalance_ratio_max" not in collect.recorder.metrics(collect.rows())
    partition([2, 2], [[0], [1]], workload=[3.0, 1.0])
    metrics = collect.recorder.metrics(collect.rows())
    assert metrics[f"{PREFIX}micro_batch_workload_imbalance_ratio_max"].aggregate() == 1.5
    assert collect.recorder.metrics([]) == {}


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(1, 6), st.integers(1, 60))
def test_nothing_is_lost(lengths, count, cap):
    parts = [list(range(start, len(lengths), count)) for start in range(count)]
    rows = micro_batch_rows(lengths, parts, batch_id=1, workload=None, cap_tokens=cap, width_tokens=None, source="x")
    assert sum(row.tokens for row in rows) == sum(lengths)
    assert sorted(index for row in rows for index in row.indices) == list(range(len(lengths)))
    assert sum(row.over_cap for row in rows) == sum(row.tokens > cap for row in rows)


# ------------------------------------------------------------------------- dynamic batching and packing


LENGTHS = [9, 30, 2, 31, 10, 8, 32, 3]
ARGS = {"max_tokens_per_microbatch": 64, "input_key": "ids", "input_lengths_key": "length"}


def batch_of(lengths):
    return BatchedDataDict(ids=torch.zeros(len(lengths), 40, dtype=torch.long), length=torch.tensor(lengths))


def test_micro_batches_of_dynamic_batching(collect):
    args = ARGS | {"sequence_length_round": 8}
    shards, _ = batch_of(LENGTHS * 2).shard_by_batch_size(2, 8, dynamic_batching_args=args)
    *rows, dealt = collect.rows()
    assert (dealt.level, dealt.packer, dealt.parts) == ("ranks", "nemo_rl.dynamic_batching", 2)
    assert dealt.lengths == LENGTHS * 2
    assert json.loads(dealt.arguments) == {**args, "shards": 2, "batch_size": 8, "width_tokens": 40}
    assert [row.indices for row in rows[:4]] == [[2, 5], [7, 0], [4, 3], [1, 6]]
    assert [row.indices for row in rows[4:]] == [[10, 13], [15, 8], [12, 11], [9, 14]]
    assert [row.width_tokens for row in rows] == [16, 16, 32, 32] * 2
    assert [row.lengths for row in rows[:4]] == [[2, 8], [3, 9], [10, 31], [30, 32]]
    assert {(row.cap_tokens, row.micro_batches) for row in rows} == {(64, 4)}
    assert {row.source for row in rows} == {"batched_data_dict.shard_by_batch_size"}
    assert len({row.batch_id for row in rows}) == 2
    assert sum(row.tokens for row in rows) == sum(sum(shard["length"].tolist()) for shard in shards)
    assert not any("packing" in key for key in collect.recorder.metrics(rows))


def test_bins_of_packing(collect):
    args = ARGS | {"sequence_length_pad_multiple": 8, "algorithm": "first_fit_decreasing"}
    batch_of(LENGTHS).shard_by_batch_size(2, sequence_packing_args=args)
    get_packer("concatenative", 10).pack([10, 5])
    rows = [one for one in collect.rows() if isinstance(one, MicroBatch)]
    first, second = rows[:4], rows[4:]
    assert sorted(row for part in first for row in part.indices) == list(range(8))
    assert [part.lengths for part in first] == [[LENGTHS[row] for row in part.indices] for part in first]
    assert {(part.source, part.width_tokens, part.cap_tokens) for part in first} == {("packing.packed", None, 64)}
    assert [(part.indices, part.utilisation_ratio) for part in second] == [([0], 1.0), ([1], 0.5)]
    metrics = {key: metric.aggregate() for key, metric in collect.recorder.metrics(rows).items()}
    used = [sum(LENGTHS) / 4 / 64, 0.75]
    assert metrics[f"{PREFIX}packing/utilisation_ratio_mean"] == pytest.approx(sum(used) / 2)
    assert metrics[f"{PREFIX}packing/waste_ratio_mean"] == pytest.approx(1 - sum(used) / 2)
    assert metrics[f"{PREFIX}packing/bins"] == 6
    assert set(metrics) <= set(TokenBalanceRecorder.keys)


def test_balance_is_that_of_the_packers_own_metrics(collect):
    packer = get_packer("first_fit_decreasing", 50)
    packer.pack([49, 30, 30, 1])
    metrics = collect.recorder.metrics(collect.rows())
    for ours, theirs in (("balance", "bin_balance"), ("utilisation", "average_utilization"), ("waste", "waste_ratio")):
        found = metrics[f"{PREFIX}packing/{ours}_ratio_mean"].aggregate()
        assert found == pytest.approx(getattr(packer.metrics, theirs))


def test_a_packing_of_nothing_but_empty_sequences(collect):
    get_packer("concatenative", 5).pack([0, 0])
    metrics = collect.recorder.metrics(collect.rows())
    assert metrics[f"{PREFIX}packing/waste_ratio_mean"].aggregate() == 1
    assert f"{PREFIX}packing/balance_ratio_mean" not in metrics


@pytest.mark.parametrize("packed", [True, False])
def test_d_micro_batches_that_the_model_packs_have_no_width(collect, packed):
    partition([3, 1], [[0], [1]], width=4, packed=packed)
    assert {row.width_tokens for row in collect.rows()} == {None if packed else 4}
