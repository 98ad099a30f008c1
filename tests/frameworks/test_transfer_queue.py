"""Packed batches through the real TransferQueue: its encoder alone, and a whole queue on a local Ray.

TransferQueue and Ray live in an environment of their own. Of the encoder's ways this matters to the codec: rectangles
come back jagged, tuples as lists, and wrappers of objects lose their payload where a whole TensorDict is encoded.
"""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest
import torch
from tensordict import NonTensorData

from probe import hooks
from probe.core import codec

pytestmark = [
    pytest.mark.framework,
    pytest.mark.skipif(
        importlib.util.find_spec("transfer_queue") is None or importlib.util.find_spec("ray") is None,
        reason="needs TransferQueue and Ray, which live in their own environment",
    ),
    # What they and their dependencies warn of when they are imported is theirs to mend.
    pytest.mark.filterwarnings("ignore"),
]

LENGTHS = [5, 1, 8, 3, 8, 2]
TOKENS = {"input_ids", "prev_logprobs", "reference_policy_logprobs", "token_mask", "routed_experts", "hidden"}
PAD = {"input_ids": 7, "prev_logprobs": -1.5}


def objects(*items):
    made = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        made[place] = item
    return made


def batch():
    """Columns of every kind: per token (of several dtypes, one wider than the rest), per row, uniform, objects."""
    rows, width = len(LENGTHS), max(LENGTHS)
    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.randint(0, 100, (rows, width), generator=generator),
        "prev_logprobs": torch.randn(rows, width + 3, generator=generator),
        "hidden": torch.randn(rows, width, 4, generator=generator).bfloat16(),
        "token_mask": torch.rand(rows, width, generator=generator) < 0.5,
        "routed_experts": torch.randint(0, 9, (rows, width, 2, 2), generator=generator, dtype=torch.uint8),
        "grid": torch.randint(0, 9, (rows, 3), generator=generator),
        "pixels": torch.randn(rows, 2, 5, generator=generator),
        "reward": torch.randn(rows, generator=generator),
        "uid": objects(*[f"row {row}" for row in range(rows)]),
        "turns": objects(*[[{"role": "user", "content": "é" * row}] * row for row in range(rows)]),
        "none": objects(*[None, 1, 2.5, True, "x", {"nested": [None]}]),
    }


def packed(fields, rows=None):
    lengths = torch.tensor([LENGTHS[row] for row in (range(len(LENGTHS)) if rows is None else rows)])
    return codec.pack_jagged_fields(fields, lengths=lengths, token_aligned_fields=TOKENS)


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, column in one.items():
        if isinstance(column, np.ndarray):
            assert column.tolist() == other[name].tolist(), name
        else:
            assert (column.dtype, column.shape) == (other[name].dtype, other[name].shape), name
            assert torch.equal(column, other[name]), name


class Hear(hooks.Listener):
    def __init__(self):
        self.told = []

    def fire(self, event):
        self.told.append(dict(event.values))


# ------------------------------------------------------------------------------------------------- its encoder alone


def through_the_encoder(value):
    from transfer_queue.utils.serial_utils import decode, encode

    return decode([bytes(frame) for frame in encode(value)])


def test_tensors_through_the_encoder():
    fields = {name: value for name, value in batch().items() if isinstance(value, torch.Tensor)}
    sent = packed(fields)
    options = {"pad_value_dict": PAD, "pad_to_seqlen": 12, "token_aligned_fields": TOKENS}
    assert_equal(codec.materialize(through_the_encoder(sent), **options), codec.materialize(sent, **options))


def test_objects_that_the_encoder_strips_are_counted_as_lost():
    sent = packed({"uid": batch()["uid"], "reward": batch()["reward"]})
    hear = Hear()
    with hooks.subscribe(hear, "codec.stripped_payload"):
        back = codec.materialize(through_the_encoder(sent))
    assert back["uid"].tolist() == [None] * len(LENGTHS)
    assert hear.told == [{"field": "uid", "rows": 6, "dicts": 0, "lost": 6}]


def test_a_lone_payload_through_the_encoder():
    stripped = through_the_encoder(NonTensorData({"a": [1, "é"]}))
    assert not isinstance(stripped, NonTensorData)
    assert codec.unwrap_wire_stripped_payload(stripped) == {"a": [1, "é"]}


def test_objects_as_the_queue_itself_sends_them():
    fields = batch()
    sent = packed({name: fields[name] for name in ("uid", "turns", "none")})
    for name in sent.keys():  # noqa: SIM118  (iterating over a TensorDict gives rows)
        assert list(through_the_encoder(sent[name])) == fields[name].tolist()


def test_views_of_a_large_tensor_dont_travel_whole():
    from transfer_queue.utils.serial_utils import encode

    large = torch.zeros(64, 4096)
    sent = packed({"log": objects(*[{"ids": large[row, :10]} for row in range(len(LENGTHS))])})
    assert sum(len(bytes(frame)) for frame in encode(sent["log"])) < 16 * 1024


# ------------------------------------------------------------------------------------------------------- a whole queue


@pytest.fixture(scope="module")
def queue():
    """TransferQueue on a local Ray: about half a minute and 1.2 GB. One storage unit: each actor takes a whole CPU."""
    before = dict(os.environ)
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    import ray
    import transfer_queue
    from omegaconf import OmegaConf

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    try:
        storage = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
        transfer_queue.init(OmegaConf.create({"backend": storage, "controller": {"polling_mode": True}}))
        yield transfer_queue
        transfer_queue.close()
    finally:
        ray.shutdown()
        os.environ.clear()
        os.environ |= before


def put(queue, sent, keys):
    queue.kv_batch_put(keys=keys, partition_id="train", fields=sent, tags=[{} for _ in keys])


@pytest.mark.slow
def test_batches_through_a_real_queue(queue):
    fields = batch()
    keys = [f"sample-{row}" for row in range(len(LENGTHS))]
    put(queue, packed(fields), keys)

    # Some rows, in another order: as wide as their own longest row, and as wide as the trainer wants them.
    order = [4, 0, 5, 3]
    got = queue.kv_batch_get(keys=[keys[row] for row in order], partition_id="train", select_fields=list(fields))
    assert got.get("grid").is_nested  # rectangles come back jagged, and have to come out as rectangles
    chosen = {name: column[order] for name, column in fields.items()}
    for least in (0, 12):
        options = {"pad_value_dict": PAD, "pad_to_seqlen": least, "token_aligned_fields": TOKENS}
        back = codec.materialize(got, **options)
        assert_equal({name: back[name] for name in fields}, codec.materialize(packed(chosen, order), **options))
        assert back["hidden"].shape == (4, max(least, 8), 4)
        assert (back["grid"].shape, back["pixels"].shape) == ((4, 3), (4, 2, 5))

    # A worker writes a field of its own later, padded to a multiple; the heuristics know it by its name.
    put(queue, packed({"reference_policy_logprobs": torch.ones(len(LENGTHS), 16)}), keys)
    names = ["input_ids", "reference_policy_logprobs", "grid"]
    got = queue.kv_batch_get(keys=keys, partition_id="train", select_fields=names)
    back = codec.materialize(got, pad_to_seqlen=16)
    assert {name: tuple(back[name].shape) for name in names} == {
        "input_ids": (6, 16),
        "reference_policy_logprobs": (6, 16),
        "grid": (6, 3),
    }
    inside = torch.arange(16) < torch.tensor(LENGTHS).unsqueeze(1)
    assert torch.equal(back["reference_policy_logprobs"], inside.float())
