"""Checkpoints of one process: training goes on from them, to stores, before machines end, and onto what doesn't fit."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from probe import hooks
from probe.core.checkpoint import (
    FSDPCheckpointManager,
    find_latest_ckpt_path,
    get_rng_state,
    should_save_ckpt_esi,
)
from probe.errors import (
    InputError,
    MissingKeyError,
    ShapeError,
)
from tests.core.checkpoint.checkpoint_training import Training, snapshot

pytestmark = pytest.mark.usefixtures("same_random_state")


# ------------------------------------------------------------------------------------------------------- continuation

OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adamw_tensor_lr": lambda params, lr: torch.optim.AdamW(params, lr=torch.tensor(lr), foreach=False),
    "amsgrad": lambda params, lr: torch.optim.Adam(params, lr=lr, amsgrad=True),
    "sgd": torch.optim.SGD,
    "sgd_momentum": lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
    "adafactor": torch.optim.Adafactor,
    "two_groups": lambda params, lr: torch.optim.AdamW(
        [{"params": (kept := list(params))[:1], "weight_decay": 0.5}, {"params": kept[1:]}], lr=lr
    ),
}
SCHEDULES = {
    "cosine": None,
    "multistep": lambda one: torch.optim.lr_scheduler.MultiStepLR(one, [2, 2, 4]),
    "onecycle": lambda one: torch.optim.lr_scheduler.OneCycleLR(one, 0.1, total_steps=20),
    "lambda": lambda one: torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step)),
    "sequential": lambda one: torch.optim.lr_scheduler.SequentialLR(
        one,
        [torch.optim.lr_scheduler.LinearLR(one), torch.optim.lr_scheduler.ExponentialLR(one, 0.9)],
        milestones=[4],
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 3])
def test_every_optimizer_goes_on_as_if_nothing_had_been(tmp_path, optimizer, before):
    training = Training(optimizer=OPTIMIZERS[optimizer])
    training.steps(before)
    training.manager.save_checkpoint(tmp_path / "one")
    reference = training.steps(4)
    other = Training(seed=1, optimizer=OPTIMIZERS[optimizer])
    other.steps(1)
    other.manager.load_checkpoint(tmp_path / "one")
    assert other.steps(4) == reference


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_goes_on(tmp_path, schedule):
    training = Training(schedule=SCHEDULES[schedule])
    training.steps(3)
    training.manager.save_checkpoint(tmp_path / "one")
    reference = training.steps(4), training.scheduler.get_last_lr()
    other = Training(seed=1, schedule=SCHEDULES[schedule])
    other.manager.load_checkpoint(str(tmp_path / "one"))
    assert (other.steps(4), other.scheduler.get_last_lr()) == reference


def test_state_keeps_its_dtype_and_a_frozen_parameter_its_lack_of_state(tmp_path):
    training = Training()
    training.model.to(torch.bfloat16)
    training.model[0].weight.requires_grad_(False)
    for parameter in training.optimizer.param_groups[0]["params"][1:]:
        training.optimizer.state[parameter] = {"master": torch.randn(parameter.shape, dtype=torch.float32), "count": 3}
    expected = [dict(one) for one in training.optimizer.state.values()]
    training.manager.save_checkpoint(tmp_path / "one")
    training.optimizer.state.clear()
    training.manager.load_checkpoint(tmp_path / "one")
    assert training.model[0].weight not in training.optimizer.state
    for ours, theirs in zip(training.optimizer.state.values(), expected, strict=True):
        assert ours["master"].dtype == torch.float32
        assert torch.equal(ours["master"], theirs["master"])
        assert ours["count"] == 3


def test_nan_stays_nan_and_buffers_and_shared_weights_come_back(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
        model[1].running_mean += 2
    FSDPCheckpointManager(model).save_checkpoint(tmp_path / "one")
    other = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    other[2].weight = other[0].weight
    FSDPCheckpointManager(other).load_checkpoint(tmp_path / "one")
    for ours, theirs in zip(other.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(ours.nan_to_num(7.5), theirs.nan_to_num(7.5))
    assert torch.isnan(other[2].weight[0, 0])


def test_only_what_is_asked_for_is_loaded(tmp_path):
    training = Training()
    training.steps(2)
    training.manager.save_checkpoint(tmp_path / "one")
    other = Training(seed=1, checkpoint_contents={"load": ["model"]})
    other.steps(1)
    state = get_rng_state()
    other.manager.load_checkpoint(tmp_path / "one")
    assert torch.equal(other.model[0].weight, training.model[0].weight)
    assert other.optimizer.state[other.model[0].weight]["step"] == 1
    assert other.scheduler.last_epoch == 1
    assert torch.equal(state["cpu"], torch.get_rng_state())


def test_none_is_no_checkpoint_and_nothing_is_done(tmp_path):
    training = Training()
    before = training.model[0].weight.clone()
    training.manager.load_checkpoint(find_latest_ckpt_path(tmp_path))
    assert torch.equal(before, training.model[0].weight)


def test_the_hooks_tell_what_happened(tmp_path):
    told = []

    class Hear(hooks.Listener):
        def fire(self, event):
            told.append((event.point.name, dict(event.values)))

        def leave(self, event, state):
            told.append((event.point.name, event.error))

    training = Training()
    with hooks.subscribe(Hear(), "checkpoint.*"):
        for step in (1, 2):
            training.manager.save_checkpoint(tmp_path / f"global_step_{step}", global_step=step, max_ckpt_to_keep=1)
        training.manager.load_checkpoint(find_latest_ckpt_path(tmp_path))
    names = [name for name, _ in told]
    assert names == [
        "checkpoint.saved",
        "checkpoint.save_checkpoint",
        "checkpoint.removed",
        "checkpoint.saved",
        "checkpoint.save_checkpoint",
        "checkpoint.find_latest_ckpt_path",
        "checkpoint.loaded",
        "checkpoint.load_checkpoint",
    ]
    assert told[2][1] == {"path": str(tmp_path / "global_step_1")}
    saved, loaded = told[3][1], told[6][1]
    size = sum(
        len(content) for name, content in snapshot(tmp_path / "global_step_2").items() if name != "manifest.json"
    )
    assert saved["total_bytes"] == loaded["total_bytes"] == size
    assert saved["global_step"] == 2
    assert saved["contents"] == ["model", "optimizer", "extra"]
    assert saved["failed"] == {}


# ---------------------------------------------------------------------------------------------------- what doesn't fit


def test_what_does_not_fit_changes_nothing(tmp_path):
    training = Training()
    training.steps(1)
    training.manager.save_checkpoint(tmp_path / "one")
    wide, before = Training(width=5), None
    before = [one.clone() for one in wide.model.parameters()]
    with pytest.raises(ShapeError, match=r"model.0.weight has shape \(4, 3\) in the checkpoint, but \(5, 3\) here"):
        wide.manager.load_checkpoint(tmp_path / "one")
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(wide.model.parameters(), before, strict=True))
    other = FSDPCheckpointManager(nn.Sequential(nn.Linear(3, 4)))
    with pytest.raises(MissingKeyError, match=r"only in the checkpoint: model.2.bias, model.2.weight"):
        other.load_checkpoint(tmp_path / "one")
    grouped = Training(optimizer=OPTIMIZERS["two_groups"])
    before = grouped.model[0].weight.clone()
    with pytest.raises(InputError, match=r"got groups of \[1, 3\] parameters, expected \[4\]"):
        grouped.manager.load_checkpoint(tmp_path / "one")
    assert torch.equal(before, grouped.model[0].weight)


def test_contents_that_were_not_saved_are_named(tmp_path):
    Training(checkpoint_contents={"save": ["model"]}).manager.save_checkpoint(tmp_path / "one")
    with pytest.raises(MissingKeyError, match="it lacks the contents extra, optimizer; it has model"):
        Training().manager.load_checkpoint(tmp_path / "one")


def test_nothing_there_is_an_error_that_says_what_is(tmp_path):
    manager = Training().manager
    with pytest.raises(InputError, match="no such directory"):
        manager.load_checkpoint(tmp_path / "none")
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "model_world_size_2_rank_0.pt").write_bytes(b"")
    with pytest.raises(InputError, match=r"no manifest.json.*found model_world_size_2_rank_0.pt"):
        manager.load_checkpoint(tmp_path / "some")
    (tmp_path / "other.incomplete").mkdir()
    with pytest.raises(InputError, match=r"other.incomplete is what an interrupted save has left"):
        manager.load_checkpoint(tmp_path / "other")


# ------------------------------------------------------------------------------------------------------------ remote


def test_to_a_store_and_back(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    training = Training()
    training.steps(2)
    url = "memory://checkpoints/run/global_step_2"
    training.manager.save_checkpoint(tmp_path / "global_step_2", hdfs_path=url, global_step=2)
    expected = snapshot(tmp_path / "global_step_2")
    training.manager.save_checkpoint(tmp_path / "global_step_2", hdfs_path=url, global_step=2)
    reference = training.steps(2)
    other = Training(seed=1)
    other.manager.load_checkpoint(tmp_path / "elsewhere" / "global_step_2", hdfs_path=url, del_local_after_load=True)
    assert other.steps(2) == reference
    assert not (tmp_path / "elsewhere" / "global_step_2").exists()
    store = fsspec.filesystem("memory")
    assert len(store.find("checkpoints/run")) == len(expected)
    store.rm_file("/checkpoints/run/global_step_2/shards/chunks.json")
    with pytest.raises(FileNotFoundError):
        other.manager.load_checkpoint(tmp_path / "elsewhere" / "global_step_2", hdfs_path=url)
    assert not (tmp_path / "elsewhere" / "global_step_2").exists()
    store.rm("/checkpoints", recursive=True)


def test_a_failed_copy_raises_and_the_local_one_is_complete(tmp_path):
    training = Training()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        training.manager.save_checkpoint(
            tmp_path / "global_step_1", hdfs_path=f"file://{tmp_path}/file/global_step_1", global_step=1
        )
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_1")


# ---------------------------------------------------------------------------------------------------- machines that end


@pytest.mark.parametrize("name", ["MLP", "SAGEMAKER"])
def test_c_an_end_that_has_passed_asks_for_nothing(monkeypatch, name):
    variable = f"{name}_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"
    for ago_s in (0, 5, 10**9):
        monkeypatch.setenv(variable, str(int(time.time()) - ago_s))
        assert should_save_ckpt_esi(1, 0) is False
        assert should_save_ckpt_esi(3600, 3600, 3600) is False


@pytest.mark.parametrize("name", ["MLP", "SAGEMAKER"])
def test_saving_before_the_machine_goes(monkeypatch, name):
    variable = f"{name}_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"
    assert not should_save_ckpt_esi(100)
    monkeypatch.setenv(variable, str(time.time() + 150))
    assert not should_save_ckpt_esi(10)
    assert should_save_ckpt_esi(100)
    assert should_save_ckpt_esi(10, save_ckpt_duration=145)
    assert should_save_ckpt_esi(10, redundant_time=90)
    assert not should_save_ckpt_esi(0, save_ckpt_duration=1000)
    with pytest.raises(InputError, match="max_steps_duration"):
        should_save_ckpt_esi(-1)
    with pytest.raises(InputError, match="redundant_time"):
        should_save_ckpt_esi(1, redundant_time=float("nan"))


def test_an_end_that_cannot_be_read_is_passed_over(monkeypatch, caplog):
    monkeypatch.setenv("MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP", "soon")
    assert not should_save_ckpt_esi(100)
    assert "got 'soon', expected seconds since 1970" in caplog.text
