"""A batch with every kind of column: copies, truncation, devices, plans, hooks and all ranks."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from probe import hooks
from probe.core.batched_data_dict import BatchedDataDict, SlicedDataDict
from probe.errors import InputError, InputTypeError, MissingKeyError, PeerError, SessionError, ShapeError
from tests.core.columns_of_every_kind import COLUMNS, batch_of, check, nested
from tests.ranks import run_ranks

# ---------------------------------------------------------------------------------------------------------- one by one


def test_size_and_columns_without_rows():
    assert BatchedDataDict().size == 0
    assert BatchedDataDict(a=[1, 2]).size == 2
    for column, error in (("text", InputTypeError), (torch.tensor(1), ShapeError), ({"x": 1}, InputTypeError)):
        with pytest.raises(error, match="'b'"):
            _ = BatchedDataDict(a=[1, 2], b=column).size


# torch warns of every nested tensor that isn't jagged
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype:UserWarning")
def test_strided_nested_tensors_are_refused():
    strided = torch.nested.as_nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.strided)
    with pytest.raises(InputTypeError, match=r"layout torch\.strided, expected jagged"):
        BatchedDataDict(a=strided).slice(0, 1)


def test_it_is_a_mapping_that_can_be_copied_and_pickled():
    batch = batch_of([2, 1])
    (shard,), _ = batch.shard_by_batch_size(
        1, sequence_packing_args={"max_tokens_per_microbatch": 4, "input_key": "ids", "input_lengths_key": "number"}
    )
    for other in (pickle.loads(pickle.dumps(shard)), copy.deepcopy(shard), shard.copy()):
        assert type(other) is SlicedDataDict
        assert other.micro_batch_indices == shard.micro_batch_indices == [[[0, 2]]]
        assert other["text"] == shard["text"]
    plain = batch.get_dict()
    assert type(plain) is dict
    plain.clear()
    assert set(batch) == COLUMNS
    assert BatchedDataDict[dict](a=[1])["a"] == [1]


def test_objects_are_repeated_as_deep_copies_but_media_may_be_shared():
    batch = batch_of([1, 1])
    apart = batch.repeat_interleave(2)
    apart["object"][0]["row"] = "changed"
    apart["object"][0]["tensor"].fill_(9)
    assert [one["row"] for one in apart["object"]] == ["changed", 0, 1, 1]
    assert batch["object"][0] == {"row": 0, "tensor": torch.tensor([0])}
    shared = batch.repeat_interleave(2, share_immutable_media=True)
    assert shared["object"][0] is not shared["object"][1]
    assert shared["object"][0]["tensor"] is shared["object"][1]["tensor"] is batch["object"][0]["tensor"]


def test_truncation():
    batch = batch_of([4, 1, 3])
    batch["image"] = torch.ones(3, 9)
    with pytest.raises(MissingKeyError, match="keys: no column 'x'"):
        batch.truncate_tensors(1, 2, keys=["x"])
    before = batch["jagged"]
    batch.truncate_tensors(1, 2, keys=["ids", "jagged", "more"])
    assert batch["ids"].tolist() == [[0, 0], [1, -1], [2, 2]]
    assert [row.tolist() for row in batch["jagged"].unbind()] == [[0, 0], [1], [2, 2]]
    assert batch["jagged"].offsets() is batch["more"].offsets()
    assert batch["jagged"]._maybe_max_seqlen == 2
    assert len(before.unbind()[0]) == 4
    assert batch["image"].shape == (3, 9)
    batch.truncate_tensors(2, 2)
    assert [tuple(row.shape) for row in batch["deep"].unbind()] == [(3, 2), (3, 1), (3, 2)]
    batch.truncate_tensors(1, 1)
    assert [tuple(row.shape) for row in batch["deep"].unbind()] == [(1, 2), (1, 1), (1, 2)]
    assert batch["image"].shape == (3, 1)
    assert batch["text"] == ["row 0", "row 1", "row 2"]
    for dim, length in ((0, 1), (1, -1)):
        with pytest.raises(InputError, match=r"(dim|truncated_len): got"):
            batch.truncate_tensors(dim, length)


def test_to_moves_what_is_a_tensor_and_keeps_sharing():
    batch = batch_of([2, 1])
    assert batch.to("cpu") is batch
    check(batch, [0, 1], [2, 1])
    batch.pop("deep")
    batch.to("meta")
    assert {batch[key].device.type for key in ("ids", "jagged", "more")} == {"meta"}
    assert batch["jagged"].offsets() is batch["more"].offsets()
    assert batch["text"] == ["row 0", "row 1"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_to_a_gpu():
    batch = batch_of([2, 1]).to("cuda")
    assert batch["jagged"].device.type == "cuda"
    taken = batch.select_indices([1, 0])
    assert [row.tolist() for row in taken["jagged"].unbind()] == [[1], [0, 0]]
    check(taken.to("cpu"), [1, 0], [1, 2])


def test_rows_with_holes_between_them():
    holes = torch.nested.nested_tensor_from_jagged(
        torch.arange(9), torch.tensor([0, 3, 6, 9]), torch.tensor([2, 0, 3]), min_seqlen=0, max_seqlen=3
    )
    batch = BatchedDataDict(a=holes)
    assert [row.tolist() for row in batch.select_indices([2, 0])["a"].unbind()] == [[6, 7, 8], [0, 1]]
    assert [row.tolist() for row in batch.slice(1, 3)["a"].unbind()] == [[], [6, 7, 8]]
    batch.truncate_tensors(1, 1)
    assert [row.tolist() for row in batch["a"].unbind()] == [[0], [], [6]]


def test_global_batches_without_a_plan():
    batch = batch_of([1] * 5)
    assert [batch.get_batch(number, 2)["number"].tolist() for number in range(3)] == [[0, 1], [2, 3], [4]]
    with pytest.raises(IndexError, match="batch_idx: got 3, expected 0 to 2"):
        batch.get_batch(3, 2)
    with pytest.raises(InputError, match="batch_size: got None"):
        batch.get_batch(0)
    for iterate in (
        batch.make_microbatch_iterator_with_dynamic_shapes,
        batch.get_microbatch_iterator_dynamic_shapes_len,
        batch.make_microbatch_iterator_for_packable_sequences,
        batch.get_microbatch_iterator_for_packable_sequences_len,
    ):
        with pytest.raises(InputError, match="no micro-batches are planned: call shard_by_batch_size with"):
            iterate()


def test_a_plan_that_came_over_the_wire():
    batch = batch_of([3, 1, 2, 0])
    batch.micro_batch_indices = [[[0, 1], [1, 2]], [[0, 2]]]
    batch.micro_batch_lengths = [[3, 1], [2]]
    parts = list(batch.make_microbatch_iterator_with_dynamic_shapes())
    assert [part["number"].tolist() for part in parts] == [[0], [1], [2, 3]]
    assert [part["ids"].shape[1] for part in parts] == [3, 1, 2]
    second = batch.get_batch(1, 2)
    assert second["number"].tolist() == [2, 3]
    assert second.get_microbatch_iterator_for_packable_sequences_len() == (1, 2)
    assert [part.size for part in second.make_microbatch_iterator_for_packable_sequences()] == [2]


def test_reordering_drops_the_plan():
    args = {"max_tokens_per_microbatch": 4, "input_key": "ids", "input_lengths_key": "number"}
    (shard,), _ = batch_of([2, 1]).shard_by_batch_size(1, dynamic_batching_args=args)
    shard.reorder_data([1, 0])
    assert shard.micro_batch_indices is None
    assert shard.elem_counts_per_gb is None


# --------------------------------------------------------------------------------------------------------------- hooks


class Calls(hooks.Listener):
    def __init__(self):
        self.names, self.scopes = [], []

    def leave(self, event, state):
        if event.point is hooks.SCOPE:
            values = dict(event.values)
            values.pop("content", None)  # what is known of it while it runs
            self.scopes.append((event.scope.kind, event.scope.micro_batch, values))
            assert event.error is None
        else:
            self.names.append(event.point.name)


def test_each_micro_batch_is_a_scope_of_its_own():
    batch = batch_of([3, 1, 2, 0])
    batch["length"] = torch.tensor([3, 1, 2, 0])
    args = {"max_tokens_per_microbatch": 4, "input_key": "ids", "input_lengths_key": "length"}
    (shard,), _ = batch.shard_by_batch_size(1, dynamic_batching_args=args)
    calls = Calls()
    with hooks.subscribe(calls, "scope"):
        seen = [hooks.current_scope().micro_batch for _ in shard.make_microbatch_iterator_with_dynamic_shapes()]
        for _ in batch.make_microbatch_iterator(2):
            break
    assert seen == [0, 1, 2]
    assert hooks.current_scope().micro_batch is None
    assert calls.scopes == [
        ("micro_batch", 0, {"sequences": 2, "tokens": 1}),
        ("micro_batch", 1, {"sequences": 1, "tokens": 2}),
        ("micro_batch", 2, {"sequences": 1, "tokens": 3}),
        ("micro_batch", 0, {"sequences": 2}),
    ]


def test_the_methods_are_points():
    calls = Calls()
    batch = batch_of([2, 2])
    with hooks.subscribe(calls, "batched_data_dict.*"):
        BatchedDataDict.from_batches([batch])
        batch.chunk(0, 2)
        batch.select_indices([0])
        batch.reorder_data([1, 0])
        batch.repeat_interleave(2)
        batch.truncate_tensors(1, 1)
        batch.shard_by_batch_size(2)
        batch.get_batch(0, 1)
    assert [name.removeprefix("batched_data_dict.") for name in calls.names] == [
        "from_batches",
        "chunk",
        "select_indices",
        "reorder_data",
        "repeat_interleave",
        "truncate_tensors",
        "shard_by_batch_size",
        "get_batch",
    ]


# ----------------------------------------------------------------------------------------------------------- all ranks


def _rank(rank, world, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        results[rank] = _gathered(rank)
    finally:
        dist.destroy_process_group()


def _gathered(rank):
    lengths = [[2, 0, 3], []][rank]
    batch = batch_of(lengths, first=3 * rank, width=[3, 5][rank])
    batch["mixed"] = torch.tensor([[7, 7]] * 3) if rank == 0 else nested([], [])
    everything = batch.all_gather(pad_value_dict={"ids": -1})
    mixed = everything.pop("mixed")
    assert [row.tolist() for row in mixed.unbind()] == [[7, 7]] * 3
    check(everything, [0, 1, 2], lengths or [2, 0, 3])
    assert everything["ids"].shape == (3, 5)
    half = BatchedDataDict(a=torch.full((1 + rank, 1), rank, dtype=torch.bfloat16), t=[rank] * (1 + rank)).all_gather()
    assert half["a"].tolist() == [[0.0], [1.0], [1.0]]
    assert half["a"].dtype == torch.bfloat16
    assert half["t"] == [0, 1, 1]
    messages = []
    for columns in (
        {"a": [1]} if rank else {"b": [1]},
        {"a": [1]} if rank else {"a": torch.ones(1)},
        {"a": torch.ones(1, 2, 3 + rank)},
        {"a": "text" if rank else [1]},
        {"a": [lambda: None]},
    ):
        with pytest.raises((PeerError, MissingKeyError, ShapeError)) as raised:
            BatchedDataDict(columns).all_gather()
        messages.append(str(raised.value))
    return messages


@pytest.mark.multiprocess
@pytest.mark.slow
def test_all_gather(tmp_path):
    with mp.Manager() as manager:
        results = manager.dict()
        run_ranks(_rank, (2, tmp_path / "store", results), 2)
        first, second = results[0], results[1]
    assert first == second
    for message, expected in zip(
        first,
        (
            "has the column 'a'",
            "'a' is a tensor on only one",
            "'a' has shape (1, 2, 3) on rank 0",
            "rank 1 can't take part",
            "rank 0 can't",
        ),
        strict=True,
    ):
        assert expected in message


def test_all_gather_without_a_group():
    with pytest.raises(SessionError, match="there is no process group"):
        batch_of([1]).all_gather()
