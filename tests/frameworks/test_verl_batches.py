"""What is told of verl's batches: partitions, tokens of the loss, groups left untrained, a micro-batch that fails."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import probe
from probe.session import Session
from tests.frameworks.verl_rows import LENGTHS, batch, partitions

if importlib.util.find_spec("verl") is None:
    pytest.skip("needs verl, which lives in its own environment", allow_module_level=True)

pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("without_trl"),
]


# ---------------------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 128}, {}),
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 64, "sp_size": 2}, {"min_num_micro_batch": 6}),
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 200, "force_group_size": 2}, {}),
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 128}, {"num_batches_divided_by": 4}),
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 128}, {"use_dynamic_bsz_balance": False}),
        ({"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 3}, {}),
        ({"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 3, "sp_size": 2}, {}),
    ],
)
def test_5_a_partition_is_told_with_all_that_its_packer_was_given(attached, session, settings, options):
    from verl.workers.engine import utils

    parts, indices = utils.prepare_micro_batches(batch(LENGTHS, **settings), **options)
    session.flush()
    rows = session.run.micro_batches
    assert [list(row) for row in rows["lengths"]] == [part["input_ids"].offsets().diff().tolist() for part in parts]
    if indices is not None:
        assert [list(row) for row in rows["indices"]] == indices
    assert sum(list(row["indices"]) != [] for row in rows.to_dict("records")) == len(parts)
    assert rows["effective_tokens"].tolist() == [int(part["loss_mask"].values().sum()) for part in parts]
    (told,) = partitions(session)
    assert told["packer"] == "verl 0.9.1"
    for key, value in (settings | options).items():
        assert told["arguments"][key] == value
    if settings["use_dynamic_bsz"]:
        cap = settings["max_token_len_per_gpu"] * settings.get("sp_size", 1)
        assert told["arguments"]["max_token_len"] == cap
        assert set(rows["cap_tokens"]) == {cap}
        assert told["arguments"]["same_micro_num_in_dp"] is False  # no group: nothing is agreed
    else:
        assert rows["cap_tokens"].isna().all()
        assert told["arguments"]["sp_size"] == settings.get("sp_size", 1)


def test_5_a_partition_can_be_made_again_from_its_row(attached, session):
    from verl.workers.engine import utils

    settings = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 100}
    utils.prepare_micro_batches(batch(LENGTHS, **settings), min_num_micro_batch=5)
    (told,) = partitions(session)
    rows = session.run.micro_batches
    lengths = dict(pair for row in rows.to_dict("records") for pair in zip(row["indices"], row["lengths"], strict=True))
    again = [lengths[index] for index in range(len(lengths))]
    names = ("min_num_micro_batch", "num_batches_divided_by", "use_dynamic_bsz_balance")
    given = {name: told["arguments"][name] for name in names}
    kept = {name: told["arguments"][name] for name in ("use_dynamic_bsz", "max_token_len_per_gpu", "sp_size")}
    _, indices = utils.prepare_micro_batches(batch(again, **kept), **given)
    assert indices == [list(row) for row in rows["indices"]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32, torch.bfloat16])
def test_1_tokens_of_the_loss_are_counted_in_masks_of_any_type(attached, session, dtype):
    from verl.workers.engine import utils

    data = batch(LENGTHS, use_dynamic_bsz=False, micro_batch_size_per_gpu=4)
    masks = [torch.arange(length) % 4 == 1 for length in [0, *LENGTHS[1:]]]
    data["loss_mask"] = torch.nested.as_nested_tensor([mask.to(dtype) for mask in masks], layout=torch.jagged)
    utils.prepare_micro_batches(data)
    session.flush()
    expected = [int(sum(mask.sum() for mask in masks[begin : begin + 4])) for begin in (0, 4, 8)]
    assert session.run.micro_batches["effective_tokens"].tolist() == expected


def test_1_columns_are_told_with_the_bytes_of_a_token(attached, session):
    from verl.workers.engine import utils

    utils.prepare_micro_batches(batch([4, 2], use_dynamic_bsz=True, max_token_len_per_gpu=8, use_remove_padding=False))
    session.flush()
    padding = session.run.padding
    assert dict(zip(padding["field"], padding["bytes"], strict=True)) == {
        "input_ids": 2 * 8,
        "position_ids": 2 * 8,
        "attention_mask": 2 * 4,
    }
    assert set(padding["tokens"]) == {2}


def test_5_where_verl_refuses_a_batch_nothing_is_told(attached, session):
    from verl.workers.engine import utils

    with pytest.raises(AssertionError, match="max_token_len must be greater"):
        utils.prepare_micro_batches(batch([9], use_dynamic_bsz=True, max_token_len_per_gpu=4))
    assert partitions(session) == []
    assert session.run.incidents.empty


def test_1_other_code_that_asks_for_dynamic_batching_is_seen(attached, session):
    from verl.protocol import DataProto
    from verl.utils.seqlen_balancing import prepare_dynamic_batch

    mask = torch.tensor([[1] * length + [0] * (8 - length) for length in (8, 3, 5, 2)])
    data = DataProto.from_dict({"input_ids": mask.clone(), "attention_mask": mask})
    parts, _ = prepare_dynamic_batch(data, max_token_len=10)
    session.flush()
    rows = session.run.micro_batches
    assert rows["tokens"].tolist() == [int(part.batch["attention_mask"].sum()) for part in parts]
    assert set(rows["width_tokens"]) == {8}


def test_1_dummy_rows_are_told_and_marked_where_rows_are_dealt(attached, session, monkeypatch):
    """verl's own functions; the store that it takes and puts rows from is a dict here."""
    from verl.trainer.ppo import padding_utils
    from verl.trainer.ppo.v1 import trainer_base

    row = {"input_ids": torch.arange(5), "position_ids": torch.arange(5), "uid": "a"}
    store = SimpleNamespace(kv_batch_get=lambda **_: [row], kv_batch_put=lambda **_: None)
    monkeypatch.setattr(padding_utils, "tq", store)
    tags = [{"seq_len": length} for length in (50, 20, 70)]
    meta = padding_utils.KVBatchMeta(partition_id="train", keys=["a_0_0", "a_1_0", "a_2_0"], tags=tags)
    workers = SimpleNamespace(_dispatch_info={"actor": [0, 1]})
    trainer = SimpleNamespace(
        actor_rollout_wg=workers,
        tokenizer=SimpleNamespace(eos_token_id=2),
        _get_required_batch_multiple=lambda _: 4,
    )
    metrics: dict[str, Any] = {}
    trainer_base.PPOTrainer._balance_batch(trainer, meta, metrics)
    (dealt,) = partitions(session)
    assert (dealt["level"], dealt["padded_rows"]) == ("ranks", 1)
    assert list(dealt["lengths"]) == [50, 20, 70, padding_utils.SYNTHETIC_PADDING_SEQ_LEN]
    assert [min(dealt["parts_tokens"]), max(dealt["parts_tokens"])] == [
        metrics["global_seqlen/balanced_min"],
        metrics["global_seqlen/balanced_max"],
    ]
    added = session.run.padding
    assert added["cause"].tolist() == ["filler_rows"]
    assert added["tokens"].tolist() == [padding_utils.SYNTHETIC_PADDING_SEQ_LEN]
    assert added["valid_tokens"].tolist() == [140]


# ------------------------------------------------------------------------------------------------- what isn't trained


def test_15_2_groups_that_leave_verls_replay_buffer_untrained_are_samples_with_the_reason(
    attached, session, monkeypatch
):
    """verl's own buffers decide and clear; the store that they take rewards from is a dict here."""
    from verl.trainer.ppo.v1 import replay_buffer

    rewards = {"same_0_0": 1.0, "same_1_0": 1.0, "mixed_0_0": 0.0, "mixed_1_0": 1.0, "old_0_0": 0.0, "old_1_0": 1.0}
    cleared: list[str] = []
    store = SimpleNamespace(
        kv_batch_get=lambda keys, **_: {"rm_scores": [torch.tensor([rewards[key]]) for key in keys]},
        kv_clear=lambda keys, **_: cleared.extend(keys),
    )
    monkeypatch.setattr(replay_buffer, "tq", store)
    buffer = replay_buffer.ReplayBufferAsync(
        "colocate_async", None, 3, "drop", {}, refill_fn=lambda *_: None, filter_groups_metric="reward"
    )
    tags = {key: {"response_len": 5 + at, "prompt_len": 3} for at, key in enumerate([*rewards, "broken_0_0"])}
    buffer.partitions["train"] = {**tags, "broken_1_0": {}}  # one failed before it had a length
    buffer.finished_keys["train"] = {"same", "mixed", "old"}
    buffer.failure_keys["train"] = {"broken"}
    buffer.prompt_global_steps["train"] = {"same": 7, "mixed": 7, "old": 2, "broken": 7}
    with session.step(7):
        evicted, *_ = buffer._evict_terminal_groups(7, "train", buffer._terminal_eviction_reasons(7, "train"))
    assert evicted == {"same", "old", "broken"}
    assert set(buffer.partitions["train"]) == {"mixed_0_0", "mixed_1_0"}  # as without probe
    assert {"same", "old", "broken"} <= set(cleared)
    session.flush()
    rows = session.run.samples
    told = sorted(zip(rows["group"], rows["dropped"], rows["response_tokens"], strict=True))
    assert told == [
        ("broken", "failed", 11),
        ("old", "stale", 9),
        ("old", "stale", 10),
        ("same", "filtered", 5),
        ("same", "filtered", 6),
    ]
    fates = session.run.token_fates
    assert fates["tokens"].sum() == 41
    assert set(fates["step"]) == {7}
    assert session.run.incidents.empty


# -------------------------------------------------------------------------------------------------------- failures


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("attached", "alone")
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_5_an_exception_in_a_micro_batch_of_verl_s_engine_has_it_with_its_lengths_and_columns(
    session: Session, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """verl's own engine cuts the batch and runs forward and backward; its model raises in the third micro-batch."""
    from verl.utils import seqlen_balancing
    from verl.workers.engine.fsdp import transformer_impl

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return raised("backward", gradient)

    def raised(here: str, value: torch.Tensor) -> torch.Tensor:
        if len(seen) == 3 and here == where:
            raise ValueError("theirs")
        return value

    class Engine(transformer_impl.FSDPEngineWithLMHead):
        ulysses_sequence_parallel_size = 1
        _autocast_dtype = torch.float32

        def __init__(self) -> None:
            pass

        def get_data_parallel_group(self) -> Any:
            return torch.distributed.group.WORLD

        def get_data_parallel_size(self) -> int:
            return 1

        def _gradient_sync_context(self, **_: Any) -> Any:
            return torch.autograd.set_detect_anomaly(False)

        def prepare_model_inputs(self, micro_batch: TensorDict) -> Any:
            return {"ids": micro_batch["input_ids"].values()}, {}

        def module(self, ids: torch.Tensor, **_: Any) -> torch.Tensor:
            seen.append(ids)
            weight = torch.ones((), requires_grad=True)
            return raised("forward", Backward.apply(weight * ids.float().mean()))

        def prepare_model_outputs(self, output: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
            return {"loss": output}

    seen: list[torch.Tensor] = []
    monkeypatch.setattr(transformer_impl, "get_device_id", lambda: "cpu")
    for module in (transformer_impl, seqlen_balancing):
        monkeypatch.setattr(module, "get_device_name", lambda: "cpu")
    data = batch(LENGTHS, use_dynamic_bsz=True, max_token_len_per_gpu=128)
    with pytest.raises(ValueError, match="theirs") as caught, session.step(3), probe.phase("update_actor"):
        Engine().forward_backward_batch(data, lambda model_output, **_: (model_output["loss"], {}))
    assert not any("adapters" in one.path.parts and one.name != "run" for one in caught.traceback)
    (found,) = session.run.failures().to_dict("records")
    rows = session.run.micro_batches.query("micro_batch == 2")
    assert (found["step"], found["phase"], found["micro_batch"]) == (3, "update_actor", 2)
    assert (found["scope_kind"], found["outermost"]) == ("micro_batch", "step")
    assert list(found["lengths"]) == list(rows["lengths"].iloc[0])
    assert len(seen[2]) == sum(found["lengths"])
    assert set(json.loads(found["fields"])) >= {"input_ids", "position_ids", "loss_mask"}
    assert session.run.post_mortem().events[0].where.micro_batch == 2
