"""Checkpoints of one process: what is kept, checked and refused, and that nothing in a file is ever run."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torch import nn

from probe import hooks
from probe.core.checkpoint import (
    BaseCheckpointManager,
    FSDPCheckpointManager,
    find_latest_ckpt_path,
    get_rng_state,
    load_rng_state,
    should_save_ckpt_esi,
)
from probe.core.checkpoint import files as checkpoint_files
from probe.core.checkpoint import hf as checkpoint_hf
from probe.core.checkpoint.plain_state import decode, encode, read_plain, write_plain
from probe.errors import (
    ConflictError,
    InputError,
    InputTypeError,
    MissingKeyError,
    ProbeError,
    SerializationError,
    ShapeError,
    UnknownNameError,
)


@pytest.fixture(autouse=True)
def _same_random_state():
    state = get_rng_state()
    yield
    load_rng_state(state)


class Training:
    def __init__(self, seed=0, optimizer=torch.optim.AdamW, width=4, schedule=None, **kwargs):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, width), nn.Dropout(0.3), nn.Linear(width, 2))
        self.optimizer = optimizer(self.model.parameters(), lr=1e-2)
        schedule = schedule or (lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 10))
        self.scheduler = schedule(self.optimizer)
        self.manager = FSDPCheckpointManager(self.model, self.optimizer, self.scheduler, **kwargs)

    def steps(self, count):
        losses = []
        for _ in range(count):
            x = torch.randn(4, 3) + float(np.random.rand()) + random.random()  # noqa: NPY002  (the global generator is what is tested)
            loss = self.model(x).square().mean()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def snapshot(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


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


# -------------------------------------------------------------------------------------------------------- arguments


def test_contents_in_both_spellings_and_as_omegaconf():
    ours = {"load": ["model"], "save": ["model", "hf_model"]}
    theirs = {"load_contents": ["model"], "save_contents": ["model", "hf_model"], "async_save": False}
    for config in (ours, OmegaConf.create(theirs)):
        manager = FSDPCheckpointManager(nn.Linear(1, 1), checkpoint_config=config)
        assert manager.checkpoint_contents == {"load": ["model"], "save": ["model", "hf_model"]}


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"save": ["model", "optimiser"]}, UnknownNameError, "optimiser"),
        ({"save": ["extra"]}, InputError, "expected 'model' among them"),
        ({"save": "model"}, InputTypeError, "expected a list of names"),
        ({"load": ["model"], "load_contents": ["model", "extra"]}, InputError, "one of the two spellings"),
        ({"saves": ["model"]}, UnknownNameError, "saves"),
        ({"saves": []}, UnknownNameError, "saves"),
        (["model"], InputTypeError, "expected a mapping"),
    ],
)
def test_contents_that_cannot_be_used(given, error, text):
    with pytest.raises(error, match=text):
        FSDPCheckpointManager(nn.Linear(1, 1), checkpoint_contents=given)


def test_other_arguments_that_cannot_be_used(tmp_path):
    model = nn.Linear(1, 1)
    with pytest.raises(InputTypeError, match="unexpected argument 'checkpoint_content'"):
        FSDPCheckpointManager(model, checkpoint_content={"save": ["model"]})
    with pytest.raises(InputTypeError, match=r"model: got int, expected a torch.nn.Module"):
        FSDPCheckpointManager(3)
    with pytest.raises(InputTypeError, match="has no save_pretrained"):
        FSDPCheckpointManager(model, tokenizer=object())
    with pytest.raises(ConflictError, match="processing_class and tokenizer"):
        FSDPCheckpointManager(model, processing_class=Tokenizer("a"), tokenizer=Tokenizer("b"))
    manager = FSDPCheckpointManager(model)
    for wrong in ({"local_path": None}, {"local_path": ""}, {"local_path": "a", "global_step": "7"}):
        with pytest.raises(InputTypeError):
            manager.save_checkpoint(**wrong)
    for wrong in ({"max_ckpt_to_keep": -1}, {"global_step": -1}):
        with pytest.raises(InputError, match="expected at least 0"):
            manager.save_checkpoint(tmp_path / "a", **wrong)
    with pytest.raises(InputError, match="aren't complete"):
        manager.save_checkpoint(tmp_path / "a.incomplete")
    assert not list(tmp_path.iterdir())


#: What verl 0.9.1 hands to its checkpoint managers, from its default configuration.
VERL_DEFAULT = {
    "_target_": "verl.trainer.config.CheckpointConfig",
    "save_contents": ["model", "optimizer", "extra"],
    "load_contents": "${.save_contents}",
    "async_save": False,
    "strict": True,
    "save_lora_only": False,
    "trust_remote_code": False,
    "mbridge_config": {},
}


def test_c_verls_default_configuration_is_taken_whole(tmp_path, caplog):
    config = OmegaConf.create(VERL_DEFAULT)
    training = Training()
    manager = FSDPCheckpointManager(training.model, training.optimizer, None, None, config, trust_remote_code=False)
    assert manager.checkpoint_contents == {part: ["model", "optimizer", "extra"] for part in ("load", "save")}
    manager.save_checkpoint(tmp_path / "global_step_1", global_step=1)
    manager.load_checkpoint(str(tmp_path / "global_step_1"))
    assert not [record for record in caplog.records if record.name.startswith("probe")]
    FSDPCheckpointManager(
        training.model, checkpoint_config={**VERL_DEFAULT, "load_contents": ["model"], "save_lora_only": True}
    )
    assert "all weights are saved" in caplog.text
    with pytest.raises(UnknownNameError, match="stricct"):
        FSDPCheckpointManager(training.model, checkpoint_config={"stricct": True})


def test_c_an_optimizer_that_isnt_there_is_missed_when_it_is_needed(tmp_path):
    manager = FSDPCheckpointManager(nn.Linear(1, 1), checkpoint_config=OmegaConf.create(VERL_DEFAULT))
    for call in (manager.save_checkpoint, manager.load_checkpoint):
        with pytest.raises(AssertionError, match="asks for the optimizer, but optimizer is None"):
            call(str(tmp_path / "global_step_1"))
    assert not list(tmp_path.iterdir())
    manager.load_checkpoint(None)


class Own(BaseCheckpointManager):
    """A manager as a trainer writes one for a way of sharding of its own: here a file of text."""

    def save_checkpoint(self, local_path, hdfs_path=None, global_step=0, max_ckpt_to_keep=None):
        self.ensure_checkpoint_capacity(max_ckpt_to_keep)
        Path(local_path, "shard").mkdir(parents=True)
        Path(local_path, "shard", "weights.txt").write_text(f"{self.model} {self.should_save_optimizer}")
        self.previous_global_step = global_step
        self.register_checkpoint(local_path, max_ckpt_to_keep)

    def load_checkpoint(self, local_path, hdfs_path=None, del_local_after_load=False):
        self.model = Path(local_path, "shard", "weights.txt").read_text().split()[0]


@pytest.mark.parametrize(
    ("keep", "before", "after"), [(1, [3], [4]), (2, [3], [3, 4]), (None, [1, 2, 3], [1, 2, 3, 4])]
)
def test_c_a_subclass_of_the_base_manager_keeps_the_newest(tmp_path, keep, before, after):
    manager = Own(["stage 0", "stage 1"], checkpoint_config=OmegaConf.create(VERL_DEFAULT))
    steps = {step: str(tmp_path / f"global_step_{step}") for step in range(1, 5)}
    for step in (1, 2, 3):
        manager.save_checkpoint(steps[step], global_step=step, max_ckpt_to_keep=keep)
    assert manager.previous_global_step == 3
    manager.ensure_checkpoint_capacity(keep)
    assert manager.previous_saved_paths == [
        steps[step] for step in before
    ]  # with 1 the only one stays until there is another
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"global_step_{step}" for step in before]
    manager.save_checkpoint(steps[4], global_step=4, max_ckpt_to_keep=keep)
    assert manager.previous_saved_paths == [steps[step] for step in after]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"global_step_{step}" for step in after]
    manager.register_checkpoint(steps[4], keep)  # once more: it is still one
    assert manager.previous_saved_paths == [steps[step] for step in after]
    manager.load_checkpoint(steps[4])
    assert manager.model == "['stage"
    with pytest.raises(ValueError, match="max_ckpt_to_keep"):
        manager.ensure_checkpoint_capacity(-1)


def test_c_the_base_manager_says_what_is_saved_and_loaded():
    config = {"save_contents": ["model", "hf_model"], "load_contents": ["model", "extra"], "save_lora_only": True}
    manager = BaseCheckpointManager(model=object(), optimizer=object(), checkpoint_config=config)
    saved = {
        part: getattr(manager, f"should_save_{part}")
        for part in ("model", "optimizer", "extra", "hf_model", "lora_only")
    }
    assert saved == {"model": True, "optimizer": False, "extra": False, "hf_model": True, "lora_only": True}
    loaded = {part: getattr(manager, f"should_load_{part}") for part in ("model", "optimizer", "extra", "hf_model")}
    assert loaded == {"model": True, "optimizer": False, "extra": True, "hf_model": False}
    assert (manager.rank, manager.world_size, manager.previous_saved_paths) == (0, 1, [])
    plain = BaseCheckpointManager(object(), object())
    assert plain.checkpoint_load_contents == plain.checkpoint_save_contents == ["model", "optimizer", "extra"]
    assert plain.should_save_lora_only is False
    for missing in (lambda: plain.save_checkpoint("a"), lambda: plain.load_checkpoint("a")):
        with pytest.raises(NotImplementedError, match="BaseCheckpointManager has no"):
            missing()
    assert BaseCheckpointManager.checkpath("a", "hdfs://b") == (True, "a")
    assert BaseCheckpointManager.checkpath(None, "hdfs://b") == (False, "hdfs://b")
    with pytest.raises(AssertionError, match="local_path"):
        BaseCheckpointManager.checkpath(None, None)
    assert BaseCheckpointManager.is_lora_only_state_dict({"a.lora_A.weight": 1, "b.adapter_c": 2})
    assert not BaseCheckpointManager.is_lora_only_state_dict({"a.lora_A.weight": 1, "b.weight": 2})
    assert not BaseCheckpointManager.is_lora_only_state_dict({})


def test_a_scheduler_that_needs_pickle_is_named(tmp_path):
    class Odd:
        def state_dict(self):
            return {"inner": [object()]}

    training = Training()
    training.manager.save_checkpoint(tmp_path / "global_step_1", global_step=1)
    before = snapshot(tmp_path)
    training.manager.lr_scheduler = Odd()
    with pytest.raises(SerializationError, match=r"inner\.0: got object"):
        training.manager.save_checkpoint(tmp_path / "global_step_2", global_step=2)
    assert snapshot(tmp_path) == before


def test_a_stranger_in_the_optimizer_is_named(tmp_path):
    training = Training()
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(9))]})
    with pytest.raises(InputError, match=r"group 1 has parameters that aren't the model's, of shapes \[\(9,\)\]"):
        training.manager.save_checkpoint(tmp_path / "one")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------------- what doesn't fit


def test_what_does_not_fit_changes_nothing(tmp_path):
    training = Training()
    training.steps(1)
    training.manager.save_checkpoint(tmp_path / "one")
    wide, before = Training(width=5), None
    before = [one.clone() for one in wide.model.parameters()]
    with pytest.raises(ShapeError, match=r"model.0.weight is \(4, 3\) there and \(5, 3\) here"):
        wide.manager.load_checkpoint(tmp_path / "one")
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(wide.model.parameters(), before, strict=True))
    other = FSDPCheckpointManager(nn.Sequential(nn.Linear(3, 4)))
    with pytest.raises(MissingKeyError, match=r"only in the checkpoint: model.2.bias, model.2.weight"):
        other.load_checkpoint(tmp_path / "one")
    grouped = Training(optimizer=OPTIMIZERS["two_groups"])
    before = grouped.model[0].weight.clone()
    with pytest.raises(InputError, match=r"\[1, 3\] parameters in 2 groups here, \[4\] there"):
        grouped.manager.load_checkpoint(tmp_path / "one")
    assert torch.equal(before, grouped.model[0].weight)


def test_contents_that_were_not_saved_are_named(tmp_path):
    Training(checkpoint_contents={"save": ["model"]}).manager.save_checkpoint(tmp_path / "one")
    with pytest.raises(MissingKeyError, match="it has no extra, optimizer; it holds model"):
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


@pytest.mark.parametrize("verify", [True, False])
def test_damage_is_found_before_anything_is_loaded(tmp_path, verify):
    training = Training(verify_checksums=verify)
    training.manager.save_checkpoint(tmp_path / "one")
    for name in snapshot(tmp_path / "one"):
        path = tmp_path / "one" / name
        content = path.read_bytes()
        path.write_bytes(content[:-3])
        assert not checkpoint_files.is_complete(tmp_path / "one")
        with pytest.raises((InputError, SerializationError), match=name.rpartition("/")[2]):
            training.manager.load_checkpoint(tmp_path / "one")
        path.write_bytes(content)
        if verify and name != "manifest.json":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            with pytest.raises(InputError, match="is corrupted"):
                training.manager.load_checkpoint(tmp_path / "one")
            path.write_bytes(content)
    training.manager.load_checkpoint(tmp_path / "one")


# ----------------------------------------------------------------------------------------------- nothing is ever run


class Attack:
    """Its pickle makes a directory when it is read."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def vouch(checkpoint):
    """Let the manifest list what is there now, as an attacker would."""
    told = checkpoint_files.Manifest.read(checkpoint)
    files = checkpoint_files.entries(checkpoint, checkpoint_files.files_of(checkpoint))
    checkpoint_files.Manifest(told.global_step, told.world_size, told.contents, files).write(checkpoint)


def test_no_file_of_a_checkpoint_is_executed(tmp_path):
    ran = tmp_path / "ran"
    attack = pickle.dumps(Attack(ran))
    pickle.loads(attack)
    assert ran.is_dir(), "the attack works"
    ran.rmdir()
    training = Training()
    training.steps(1)
    one = tmp_path / "one"
    training.manager.save_checkpoint(one)
    names = snapshot(one)
    for name, content in names.items():
        (one / name).write_bytes(attack)
        if name != "manifest.json":
            vouch(one)
        with pytest.raises((SerializationError, InputError)):
            training.manager.load_checkpoint(one)
        (one / name).write_bytes(content)
        vouch(one)
    # A whole torch file with the attack inside, where the list of chunks says that a tensor is.
    torch.save(Attack(ran), one / "shards" / "__0_0.distcp")
    size = (one / "shards" / "__0_0.distcp").stat().st_size
    chunks = json.loads((one / "shards" / "chunks.json").read_text())
    for tensor in chunks["tensors"].values():
        for chunk in tensor["chunks"]:
            chunk[3:] = [0, size]
    (one / "shards" / "chunks.json").write_text(json.dumps(chunks))
    (one / "shards" / ".metadata").write_bytes(attack)
    vouch(one)
    with pytest.raises(SerializationError, match="doesn't hold the tensors"):
        training.manager.load_checkpoint(one)
    assert not ran.exists()


def test_a_checkpoint_cannot_name_files_outside_of_it(tmp_path):
    training = Training()
    one = tmp_path / "one"
    training.manager.save_checkpoint(one)
    text = (one / "shards" / "chunks.json").read_text()
    (one / "shards" / "chunks.json").write_text(text.replace("__0_0.distcp", "../../../etc/passwd"))
    vouch(one)
    with pytest.raises(SerializationError, match="isn't the name of a file"):
        training.manager.load_checkpoint(one)
    (one / "manifest.json").write_text((one / "manifest.json").read_text().replace("shards/chunks", "../chunks"))
    with pytest.raises(SerializationError, match="outside the checkpoint"):
        training.manager.load_checkpoint(one)


# ------------------------------------------------------------------------------------------------------ plain state

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from([torch.bfloat16, np.float32(0.1), np.int64(7)]),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(st.integers(), inner)
        | st.dictionaries(st.tuples(st.integers(), st.text()), inner)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=40)
@given(value=values)
def test_plain_state_comes_back_the_same(value):
    tree, tensors = encode(value)
    again = decode(json.loads(json.dumps(tree)), lambda name, node: tensors[name])
    assert again == value
    assert repr(again) == repr(value), "types, too"


def test_tensors_and_arrays_come_back_the_same(tmp_path):
    value = {
        "t": torch.tensor([1.5, torch.nan], dtype=torch.bfloat16),
        "a": (np.arange(3, dtype=np.uint32), np.array(2.5)),
        "c": Counter({2: 3}),
        "nan": float("nan"),
        "empty": torch.empty(0, 3),
    }
    write_plain(tmp_path / "one", value)
    again = read_plain(tmp_path / "one")
    assert torch.equal(again["t"].view(torch.int16), value["t"].view(torch.int16))
    assert again["a"][0].dtype == np.uint32
    assert np.array_equal(again["a"][0], value["a"][0])
    assert again["a"][1].shape == ()
    assert again["c"] == value["c"]
    assert type(again["c"]) is Counter
    assert again["nan"] != again["nan"]
    assert again["empty"].shape == (0, 3)
    with pytest.raises(SerializationError, match="two tensors"):
        encode({"a.b": torch.zeros(1), "a": {"b": torch.zeros(1)}})
    with pytest.raises(SerializationError, match=r"\$evil: not a tag"):
        decode({"$evil": 1}, lambda name, node: None)


def test_random_state_comes_back_through_the_disk(tmp_path):
    write_plain(tmp_path / "rng", BaseCheckpointManager.get_rng_state())

    def draw():
        return torch.rand(2).tolist(), np.random.randn(3).tolist(), random.gauss(0, 1), random.random()  # noqa: NPY002  (the global generator is what is tested)

    random.gauss(0, 1)  # keeps a second number in store
    np.random.randn(1)  # noqa: NPY002  (the global generator is what is tested)
    write_plain(tmp_path / "rng", get_rng_state())
    expected = draw()
    BaseCheckpointManager.load_rng_state(rng_state=read_plain(tmp_path / "rng"))
    assert draw() == expected
    with pytest.raises(MissingKeyError, match="no numpy, random"):
        load_rng_state({"cpu": torch.get_rng_state()})


# ----------------------------------------------------------------------------------------------------- hugging face


class Tokenizer:
    def __init__(self, text, fails=False):
        self.text, self.fails = text, fails

    def save_pretrained(self, folder):
        (Path(folder) / "tokenizer.json").write_text(self.text)
        (Path(folder) / "more").mkdir()
        (Path(folder) / "more" / "template.jinja").write_text("x")
        if self.fails:
            raise ZeroDivisionError("on purpose")


@pytest.fixture
def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("limit", [5_000_000_000, 3_000])
def test_the_full_model_loads_in_transformers(tmp_path, llama, monkeypatch, limit):
    import transformers

    monkeypatch.setattr(checkpoint_hf, "MAX_FILE_BYTES", limit)
    contents = {"save": ["model", "hf_model"]}
    manager = FSDPCheckpointManager(llama, processing_class=Tokenizer("hello"), checkpoint_contents=contents)
    manager.save_checkpoint(tmp_path / "one")
    folder = tmp_path / "one" / "huggingface"
    files = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert {"config.json", "generation_config.json", "tokenizer.json", "template.jinja"} <= set(files)
    assert ("model.safetensors.index.json" in files) == (limit == 3_000)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert llama.config.architectures is None, "the model's own config is left alone"
    again = transformers.AutoModelForCausalLM.from_pretrained(folder)
    for name, tensor in llama.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_an_optional_part_that_fails_costs_only_itself(tmp_path, caplog, llama):
    manager = FSDPCheckpointManager(llama, processing_class=Tokenizer("hello", fails=True))
    manager.save_checkpoint(tmp_path / "global_step_1", global_step=1)
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_1")
    manager.load_checkpoint(tmp_path / "global_step_1")
    manifest = json.loads((tmp_path / "global_step_1" / "manifest.json").read_text())
    assert manifest["failed"] == {"processing_class": "ZeroDivisionError: on purpose"}
    assert [path.name for path in (tmp_path / "global_step_1" / "huggingface").iterdir() if "token" in path.name] == []
    assert "huggingface/config.json" in manifest["files"]
    ours = [record for record in caplog.records if record.name == "probe.checkpoint"]
    assert [record.levelno for record in ours] == [logging.ERROR]
    assert "processing_class couldn't be written" in caplog.text


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


# ---------------------------------------------------------------------------- damaged under a checksum that fits


def forged(path, name, content):
    """Replace a file of a checkpoint, and its checksum with it."""
    (path / name).write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))


def everything_of(training):
    tensors = [*training.model.state_dict().values()]
    tensors += [one for state in training.optimizer.state.values() for one in state.values()]
    return (
        [one.clone() for one in tensors if isinstance(one, torch.Tensor)],
        training.scheduler.state_dict(),
        torch.get_rng_state(),
    )


def unchanged(before, after):
    return all(map(torch.equal, before[0], after[0])) and before[1] == after[1] and torch.equal(before[2], after[2])


@pytest.fixture
def saved(tmp_path):
    first = Training()
    first.steps(3)
    first.manager.save_checkpoint(tmp_path / "step", global_step=3)
    other = Training(seed=7)
    other.steps(2)
    return tmp_path / "step", other


def test_a_damaged_shard_under_a_fitting_checksum_leaves_everything_untouched(saved):
    path, training = saved
    [shard] = [one for one in (path / "shards").iterdir() if one.suffix == ".distcp"]
    content = shard.read_bytes()
    before = everything_of(training)
    for begin in range(0, len(content), max(1, len(content) // 23)):
        forged(path, f"shards/{shard.name}", content[:begin] + bytes(200) + content[begin + 200 :])
        try:
            training.manager.load_checkpoint(path)
        except SerializationError:
            assert unchanged(before, everything_of(training)), begin
        else:  # bytes of a number, which no reader can tell
            training.manager.save_checkpoint(path.with_name("again"))
            before = everything_of(training)


@pytest.mark.parametrize("kind", ["chunk of another dtype", "hole", "outside"])
def test_a_list_of_chunks_that_does_not_fit_leaves_everything_untouched(saved, kind):
    path, training = saved
    chunks = json.loads((path / "shards/chunks.json").read_bytes())
    before = everything_of(training)
    tensor = chunks["tensors"]["model.2.weight"]
    if kind == "hole":
        tensor["chunks"] = []
    elif kind == "outside":
        tensor["chunks"][0][0] = [5, 5]
    else:
        tensor["chunks"][0][2:] = chunks["tensors"]["model.2.bias"]["chunks"][0][2:]
    forged(path, "shards/chunks.json", json.dumps(chunks).encode())
    with pytest.raises(SerializationError):
        training.manager.load_checkpoint(path)
    assert unchanged(before, everything_of(training))


def places(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield (*path, key)
        yield from places(one, (*path, key))


def test_a_crafted_structure_with_the_right_checksum_is_an_error_of_ours_and_changes_nothing(saved):
    path, training = saved
    name = "shards/structure.json"
    whole = (path / name).read_bytes()
    before = everything_of(training)
    found = [one for one in places(json.loads(whole)) if "lr" not in one and len(one) < 5]
    refused = 0
    for place in found[:: max(1, len(found) // 25)]:
        for wrong in (None, 7, "words", [], {"$tensor": "nowhere"}, {"$dict": [[{}, 1]]}, {"$tuple": 3}):
            trees = json.loads(whole)
            inner = trees
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = wrong
            forged(path, name, json.dumps(trees).encode())
            try:
                training.manager.load_checkpoint(path)
            except ProbeError:
                refused += 1
                assert unchanged(before, everything_of(training)), (place, wrong)
            else:
                before = everything_of(training)
    assert refused > 20
    for content in (b"[" * 100_000, b"\xff\xfe", b"", b"null", b'{"model": 3}', b'{"model": {}}'):
        forged(path, name, content)
        with pytest.raises(ProbeError):
            training.manager.load_checkpoint(path)
        assert unchanged(before, everything_of(training))


def test_a_damaged_scheduler_or_generator_state_leaves_the_model_untouched(saved):
    path, training = saved
    before = everything_of(training)
    for name in ("extra/lr_scheduler.safetensors", "extra/rng_rank_00000.safetensors"):
        content = (path / name).read_bytes()
        forged(path, name, content[:20])
        with pytest.raises(SerializationError):
            training.manager.load_checkpoint(path)
        assert unchanged(before, everything_of(training))
        forged(path, name, content)
