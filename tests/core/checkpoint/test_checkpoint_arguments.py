"""Arguments of checkpoint managers: ours, verl's, and those that can't be used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from probe.core.checkpoint import (
    BaseCheckpointManager,
    FSDPCheckpointManager,
)
from probe.errors import (
    ConflictError,
    InputError,
    InputTypeError,
    SerializationError,
    UnknownNameError,
)
from tests.core.checkpoint.checkpoint_training import Tokenizer, Training, snapshot

pytestmark = pytest.mark.usefixtures("same_random_state")


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
        ({"load": ["model"], "load_contents": ["model", "extra"]}, InputError, "only one of the two keys"),
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
    with pytest.raises(InputTypeError, match="expected a tokenizer or processor with save_pretrained"):
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
