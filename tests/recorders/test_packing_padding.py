"""Causes of padding in bins and dynamic micro-batches: they sum exactly, and every token is in one of them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe import hooks
from probe.core.batched_data_dict import BatchedDataDict
from probe.core.packing import get_packer
from probe.recorders.packing_padding import POINTS, deferred_packing_rows, packing_rows

CAP = 48


class Collect(hooks.Listener):
    def __init__(self, make=packing_rows):
        self.make, self.found = make, []

    def fire(self, event):
        self.found.append(self.make(event))

    def failed(self, event, error, count, switched_off):
        raise AssertionError(error)


def told(do, make=packing_rows):
    listener = Collect(make)
    with hooks.subscribe(listener, *POINTS):
        do()
    (found,) = listener.found
    return found


def batch_of(lengths, jagged=False):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    values = torch.zeros(sum(lengths), dtype=torch.long)
    nested = torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=0, max_seqlen=max(lengths))
    ids = nested if jagged else torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    logprobs = torch.zeros(len(lengths), max(lengths), dtype=torch.bfloat16)
    return BatchedDataDict(ids=ids, length=torch.tensor(lengths), logprobs=logprobs, text=["x"] * len(lengths))


def args(**more):
    return {"max_tokens_per_microbatch": CAP, "input_key": "ids", "input_lengths_key": "length"} | more


def check(rows, lengths, fields):
    """Of each micro-batch and field the causes sum to rectangle − valid; all micro-batches hold all tokens."""
    batches = {}
    for row in rows:
        batches.setdefault((row.batch_id, row.field), []).append(row)
    for parts in batches.values():
        assert len({(part.rectangle_tokens, part.valid_tokens, part.micro_batch) for part in parts}) == 1
        assert sum(part.tokens for part in parts) == parts[0].rectangle_tokens - parts[0].valid_tokens
        assert all(part.tokens > 0 for part in parts) or [part.cause for part in parts] == ["none"]
        assert all(part.bytes == part.tokens * fields[part.field] for part in parts)
    for field in fields:
        chosen = [parts[0] for (_, name), parts in batches.items() if name == field]
        assert sum(part.valid_tokens for part in chosen) == sum(lengths)
        assert sum(part.rows for part in chosen) == len(lengths)
        assert [part.micro_batch for part in chosen] == list(range(len(chosen)))
    assert {name for _, name in batches} == set(fields)


lengths_lists = st.lists(st.integers(0, CAP), min_size=2, max_size=20).filter(any)


@settings(deadline=None, max_examples=50)
@given(lengths_lists, st.sampled_from([1, 8, 16]))
def test_dynamic_batching(lengths, multiple):
    lengths = lengths * 2
    batch = batch_of(lengths)
    rows = told(lambda: batch.shard_by_batch_size(2, dynamic_batching_args=args(sequence_length_round=multiple)))
    check(rows, lengths, {"ids": 8, "logprobs": 2})
    assert {row.cause for row in rows} <= {"none", "longest_row", "fixed_width", "rounding"}
    assert multiple > 1 or not any(row.cause == "rounding" for row in rows)
    assert all(row.rectangle_tokens == row.rows * row.width_tokens <= CAP for row in rows)


@settings(deadline=None, max_examples=50)
@given(lengths_lists, st.sampled_from([1, 8, 16]))
def test_packing(lengths, multiple):
    batch = batch_of(lengths)
    rows = told(lambda: batch.shard_by_batch_size(1, sequence_packing_args=args(sequence_length_pad_multiple=multiple)))
    check(rows, lengths, {"ids": 8, "logprobs": 2})
    assert {row.cause for row in rows} <= ({"none", "rounding"} if multiple > 1 else {"none"})
    assert {row.source for row in rows} == {"packing.packed"}


def test_each_cause_in_numbers():
    batch = batch_of([9, 30, 2, 31, 10, 8, 32, 3])
    way = args(sequence_length_round=8, max_tokens_per_microbatch=64)
    rows = told(lambda: batch.shard_by_batch_size(2, dynamic_batching_args=way))
    found = [{row.cause: row.tokens for row in rows if row.field == "ids" and row.micro_batch == n} for n in range(4)]
    assert found == [
        {"longest_row": 6, "fixed_width": 2, "rounding": 14},  # 2 and 8 tokens; 9 on the other rank; 16 wide
        {"longest_row": 6, "rounding": 14},  # 3 and 9
        {"longest_row": 21, "fixed_width": 2},  # 10 and 31; 32 on the other rank
        {"longest_row": 2},  # 30 and 32
    ]


def test_jagged_rows_are_not_padded():
    batch = batch_of([3, 9], jagged=True)
    rows = told(lambda: batch.shard_by_batch_size(1, dynamic_batching_args=args(sequence_length_round=8)))
    check(rows, [3, 9], {"ids": 8})
    assert [(row.cause, row.rectangle_tokens) for row in rows] == [("none", 12)]


def test_a_packer_without_a_batch():
    packer = get_packer("concatenative", 16, sequence_length_pad_multiple=8)
    rows = told(lambda: packer.pack([3, 9]))
    check(rows, [3, 9], {"tokens": 0})
    assert [(row.cause, row.tokens, row.rectangle_tokens) for row in rows] == [("rounding", 5, 8), ("rounding", 7, 16)]


@pytest.mark.parametrize("kind", ["dynamic_batching_args", "sequence_packing_args"])
def test_nothing_of_the_batch_is_kept_until_the_rows_are_built(kind):
    kept, deferred = sharded(kind)
    gc.collect()
    assert kept() is None
    check(list(deferred.build()), [3, 9], {"ids": 8, "logprobs": 2})


def sharded(kind):
    batch = batch_of([3, 9])
    deferred = told(lambda: batch.shard_by_batch_size(1, **{kind: args()}), deferred_packing_rows)
    return weakref.ref(batch["ids"]), deferred
