"""Shards: every row once, global batches spread over all ranks, micro-batches that fit, and outputs that go back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe import hooks
from probe.core.batched_data_dict import BatchedDataDict
from probe.errors import (
    CapacityError,
    InputError,
    InputTypeError,
    MissingKeyError,
    ShapeError,
    UnknownNameError,
)

CAP = 64


def dynamic(**changed):
    return {"max_tokens_per_microbatch": CAP, "input_key": "ids", "input_lengths_key": "length"} | changed


packing = dynamic  # the keys that both need are the same


def batch_of(lengths, jagged=False, width=None):
    """Columns of every kind, of which each row tells its number."""
    width = max([*lengths, 1]) if width is None else width
    count = len(lengths)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    bounds = {"min_seqlen": min(lengths, default=0), "max_seqlen": max(lengths, default=0)}
    flat = torch.repeat_interleave(torch.arange(count), torch.tensor(lengths, dtype=torch.long))
    nested = torch.nested.nested_tensor_from_jagged(flat, offsets, **bounds)
    objects = np.empty(count, dtype=object)
    objects[:] = [{"row": row} for row in range(count)]
    return BatchedDataDict(
        {
            "ids": nested if jagged else torch.arange(count)[:, None].repeat(1, width),
            "length": torch.tensor(lengths, dtype=torch.long),
            "row": torch.arange(count),
            "text": [f"row {row}" for row in range(count)],
            "object": objects,
            "nested": nested if jagged else nested + 0,
            "image": torch.arange(count)[:, None, None].repeat(1, 99, 2),
        }
    )


def rows_of(shard):
    """The rows that a shard holds, after all columns agreed on them."""
    found = shard["row"].tolist()
    assert shard["text"] == [f"row {row}" for row in found]
    assert [one["row"] for one in shard["object"]] == found
    assert shard["object"].dtype == object
    for row, ids, nested in zip(found, shard["ids"].unbind(), shard["nested"].unbind(), strict=True):
        assert set(ids.tolist()) | set(nested.tolist()) <= {row}
    assert shard["image"][:, 0, 0].tolist() == found
    assert shard["image"].shape[1] == 99
    return found


class Told(hooks.Listener):
    def __init__(self):
        self.values = []

    def fire(self, event):
        self.values.append(dict(event.values))

    def failed(self, event, error, count, switched_off):
        raise AssertionError(error)


# ------------------------------------------------------------------------------------------ plain


def test_each_global_batch_is_spread_over_all_shards():
    batch = batch_of([3] * 8)
    assert [rows_of(shard) for shard in batch.shard_by_batch_size(2, batch_size=4)] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [rows_of(shard) for shard in batch.shard_by_batch_size(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [rows_of(shard.get_batch(1, 2)) for shard in batch.shard_by_batch_size(2, batch_size=4)] == [[4, 5], [6, 7]]


def test_uneven_shards():
    batch = batch_of([2] * 10)
    found = [rows_of(shard) for shard in batch.shard_by_batch_size(4, allow_uneven_shards=True)]
    assert found == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    few = batch_of([2]).shard_by_batch_size(3, allow_uneven_shards=True)
    assert [shard.size for shard in few] == [1, 0, 0]
    assert few[2]["nested"].shape[0] == 0


def test_shards_are_copies():
    batch = batch_of([2, 2])
    shards = batch.shard_by_batch_size(2)
    shards[0]["ids"].fill_(7)
    assert rows_of(batch) == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shards": 3}, InputError, "shards: a global batch of 8 rows can't be shared equally by 3"),
        ({"shards": 2, "batch_size": 3}, InputError, "batch_size: 8 rows can't be cut into global batches of 3"),
        ({"shards": 4, "batch_size": 2}, InputError, "batch_size: a global batch of 2 rows"),
        ({"shards": 0}, InputError, "shards: got 0"),
        ({"shards": 2.0}, InputTypeError, "shards: got 2.0"),
        ({"shards": 2, "batch_size": 4, "allow_uneven_shards": True}, InputError, "batch_size: got 4 with"),
        (
            {"shards": 2, "allow_uneven_shards": True, "dynamic_batching_args": dynamic()},
            InputError,
            "allow_uneven_shards",
        ),
        (
            {"shards": 2, "sequence_packing_args": packing(), "dynamic_batching_args": dynamic()},
            InputError,
            "one of the two",
        ),
    ],
)
def test_what_cannot_be_shared(arguments, error, message):
    batch = batch_of([3] * 8)
    with pytest.raises(error, match=message):
        batch.shard_by_batch_size(**arguments)


# ----------------------------------------------------------------------------------- both kinds of micro-batches


def length_lists(multiple=1):
    return st.lists(st.integers(0, CAP), min_size=1, max_size=24).map(lambda one: one * multiple)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    lengths=length_lists(4),
    shards=st.sampled_from([1, 2, 4]),
    chunks=st.sampled_from([1, 2]),
    multiple=st.sampled_from([1, 8, 16]),
    jagged=st.booleans(),
)
def test_dynamic_batching(lengths, shards, chunks, multiple, jagged):
    if len(lengths) // chunks % shards:
        chunks = 1
    batch = batch_of(lengths, jagged)
    args = dynamic(sequence_length_round=multiple)
    made, order = batch.shard_by_batch_size(shards, len(lengths) // chunks, dynamic_batching_args=args)
    check_round_trip(batch, made, order)
    plans = {str((shard.micro_batch_indices, shard.micro_batch_lengths)) for shard in made}
    assert len(plans) == 1  # all ranks take the same steps, of the same shapes
    for shard in made:
        assert shard.elem_counts_per_gb == [len(lengths) // chunks // shards] * chunks
        parts = list(shard.make_microbatch_iterator_with_dynamic_shapes())
        widths = [width for widths in shard.micro_batch_lengths for width in widths]
        assert shard.get_microbatch_iterator_dynamic_shapes_len() == len(parts) == len(widths)
        assert [row for part in parts for row in rows_of(part)] == rows_of(shard)
        for part, width in zip(parts, widths, strict=True):
            assert part.size * width <= CAP
            assert max(part["length"].tolist()) <= width
            assert jagged or part["ids"].shape[1] == width
            assert [len(row) for row in part["nested"].unbind()] == part["length"].tolist()


@settings(deadline=None, max_examples=30)
@given(
    lengths=length_lists(2),
    shards=st.integers(1, 4),
    chunks=st.sampled_from([1, 2]),
    multiple=st.sampled_from([1, 8]),
    algorithm=st.sampled_from(["first_fit_decreasing", "modified_first_fit_decreasing", "concatenative"]),
    largest_first=st.booleans(),
    jagged=st.booleans(),
)
def test_sequence_packing(lengths, shards, chunks, multiple, algorithm, largest_first, jagged):
    batch = batch_of(lengths, jagged)
    args = packing(algorithm=algorithm, sequence_length_pad_multiple=multiple, largest_first=largest_first)
    try:
        made, order = batch.shard_by_batch_size(shards, len(lengths) // chunks, sequence_packing_args=args)
    except InputError as error:
        assert "bins are needed for" in str(error)  # noqa: PT017  (few rows: either outcome is allowed)
        assert len(lengths) < 2 * shards * (len(lengths) // chunks)
        return
    check_round_trip(batch, made, order)
    assert len({tuple(map(len, shard.micro_batch_indices)) for shard in made}) == 1  # as many steps on every rank
    for shard in made:
        parts = list(shard.make_microbatch_iterator_for_packable_sequences())
        packed = [one for lengths in shard.micro_batch_lengths for one in lengths]
        assert shard.get_microbatch_iterator_for_packable_sequences_len() == (len(parts), max(packed))
        assert [row for part in parts for row in rows_of(part)] == rows_of(shard)
        for part, total in zip(parts, packed, strict=True):
            assert total == sum(-(-one // multiple) * multiple for one in part["length"].tolist()) <= CAP
        if largest_first:
            assert all(one == sorted(one, reverse=True) for one in shard.micro_batch_lengths)
        again = [shard.get_batch(number) for number in range(chunks)]
        assert [row for one in again for row in rows_of(one)] == rows_of(shard)
        found = [rows_of(part) for one in again for part in one.make_microbatch_iterator_for_packable_sequences()]
        assert found == [rows_of(part) for part in parts]


def check_round_trip(batch, shards, order):
    """Outputs of all shards, put together and back in order, are the batch."""
    assert [row for shard in shards for row in rows_of(shard)] == order
    assert sorted(order) == list(range(batch.size))
    restored = BatchedDataDict.from_batches(shards)
    restored.reorder_data(order)
    assert rows_of(restored) == list(range(batch.size))


def test_dynamic_batching_in_numbers():
    batch = batch_of([9, 30, 2, 31, 10, 8, 32, 3], width=40)
    args = dynamic(sequence_length_round=8)
    told = Told()
    with hooks.subscribe(told, "batched_data_dict.partition"):
        shards, order = batch.shard_by_batch_size(2, dynamic_batching_args=args)
    assert order == [2, 5, 4, 3, 7, 0, 1, 6]
    for shard, tokens in zip(shards, ([10, 41], [12, 62]), strict=True):
        assert shard.micro_batch_indices == [[[0, 2], [2, 4]]]
        assert shard.micro_batch_lengths == [[16, 32]]  # 9 and 32 are the longest over both shards
        assert shard.micro_batch_tokens == [tokens]
    (values,) = told.values
    assert values.pop("batch") is batch.data
    assert values == {
        "lengths": [9, 30, 2, 31, 10, 8, 32, 3],
        "partitions": [[2, 5], [7, 0], [4, 3], [1, 6]],
        "shards": [0, 1, 0, 1],
        "widths": [16, 16, 32, 32],
        "longest": [9, 9, 32, 32],
        "cap_tokens": CAP,
        "width_tokens": 40,
        "first_row": 0,
        "source": "batched_data_dict.shard_by_batch_size",
    }


def test_a_width_never_goes_beyond_the_padded_one():
    (shard,), _ = batch_of([30, 30], width=33).shard_by_batch_size(
        1, dynamic_batching_args=dynamic(sequence_length_round=32, max_tokens_per_microbatch=66)
    )
    assert shard.micro_batch_lengths == [[32]]
    (shard,), _ = batch_of([30, 30], width=31).shard_by_batch_size(
        1, dynamic_batching_args=dynamic(sequence_length_round=32, max_tokens_per_microbatch=62)
    )
    assert shard.micro_batch_lengths == [[31]]


def test_sequence_packing_in_numbers():
    batch = batch_of([9, 30, 2, 31, 10, 8, 32, 3])
    args = packing(sequence_length_pad_multiple=8, algorithm="first_fit_decreasing")
    told = Told()
    with hooks.subscribe(told, "packing.packed"):
        shards, order = batch.shard_by_batch_size(2, sequence_packing_args=args)
    (values,) = told.values
    assert values["padded_lengths"] == [16, 32, 8, 32, 16, 8, 32, 8]
    assert values["capacity_tokens"] == CAP
    assert values["batch"] is batch.data
    assert values["source"] == "batched_data_dict.shard_by_batch_size"
    assert len(values["bins"]) == 4  # the sum needs 3, a multiple of the shards is 4
    assert order == [row for number in range(2) for one in values["bins"][number::2] for row in one]
    assert sum(map(sum, (length for shard in shards for length in shard.micro_batch_lengths))) == 152


def test_nothing_is_told_where_nobody_listens(monkeypatch):
    monkeypatch.setattr("probe.core.batched.sharding.emit", None)
    monkeypatch.setattr("probe.core.packing.emit", None)
    batch = batch_of([3, 4])
    assert len(batch.shard_by_batch_size(2, dynamic_batching_args=dynamic())[0]) == 2
    assert len(batch.shard_by_batch_size(2, sequence_packing_args=packing())[0]) == 2


def test_lengths_may_be_lists_and_arrays():
    batch = batch_of([3, 4])
    for lengths in ([3, 4], np.array([3, 4]), np.array([3, 4], dtype=object), torch.tensor([3, 4], dtype=torch.int32)):
        batch["length"] = lengths
        (shard,), _ = batch.shard_by_batch_size(1, sequence_packing_args=packing())
        assert shard.micro_batch_tokens == [[7]]


# -------------------------------------------------------------------------------------------------- bad arguments


@pytest.mark.parametrize("kind", ["dynamic_batching_args", "sequence_packing_args"])
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"sequence_len_round": 3}, UnknownNameError, "got 'sequence_len_round', expected one of .*input_key"),
        ({"max_tokens_per_microbatch": 31}, CapacityError, "row 2|sequence 2"),
        ({"max_tokens_per_microbatch": 0}, InputError, "max_tokens_per_microbatch.*got 0"),
        ({"input_key": "idz"}, MissingKeyError, "input_key: no column 'idz'; there are ids, length"),
        ({"input_key": "text"}, InputTypeError, "'text': got .*, expected a tensor of 2 dimensions"),
        ({"input_lengths_key": "ids"}, ShapeError, "'ids': got shape"),
        ({"input_lengths_key": "text"}, InputTypeError, "'text'"),
    ],
)
def test_bad_arguments(kind, changed, error, message):
    batch = batch_of([3, 4, 32, 6])
    with pytest.raises(error, match=message):
        batch.shard_by_batch_size(2, **{kind: dynamic(**changed)})
    assert rows_of(batch) == [0, 1, 2, 3]


def test_arguments_that_lack_something():
    args = packing()
    del args["input_key"]
    with pytest.raises(MissingKeyError, match="sequence_packing_args: lacks 'input_key'; it has max_tokens"):
        batch_of([1]).shard_by_batch_size(1, sequence_packing_args=args)
    with pytest.raises(UnknownNameError, match="algorithm: got 'magic'"):
        batch_of([1]).shard_by_batch_size(1, sequence_packing_args=packing(algorithm="magic"))


@pytest.mark.parametrize("jagged", [False, True])
@pytest.mark.parametrize(("lengths", "row"), [([3, 5], 1), ([-1, 4], 0)])
def test_lengths_that_are_none(jagged, lengths, row):
    batch = batch_of([3, 4], jagged)
    batch["length"] = torch.tensor(lengths)
    with pytest.raises(InputError, match=f"'length': row {row} has length {lengths[row]}, expected 0 to "):
        batch.shard_by_batch_size(1, dynamic_batching_args=dynamic())


def test_a_rounded_length_beyond_the_cap_is_named():
    batch = batch_of([3, 60], width=99)
    with pytest.raises(CapacityError, match=r"row 1 has 60 tokens, 80 when rounded to a multiple of 40; the cap is 64"):
        batch.shard_by_batch_size(1, dynamic_batching_args=dynamic(sequence_length_round=40))
    late = batch_of([3, 3, 3, 60])
    with pytest.raises(CapacityError, match=r"begins with row 2: .*sequence 1 has 60 tokens"):
        late.shard_by_batch_size(1, 2, sequence_packing_args=packing(max_tokens_per_microbatch=32))


def test_fewer_rows_than_bins():
    with pytest.raises(InputError, match="4 bins are needed for 3 sequences"):
        batch_of([1, 1, 1]).shard_by_batch_size(4, sequence_packing_args=packing())
