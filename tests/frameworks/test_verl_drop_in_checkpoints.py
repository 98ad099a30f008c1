"""verl's FSDP policies, checkpoints and file systems beside probe's: the same results, each configuration is taken."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

if importlib.util.find_spec("verl") is None:
    pytest.skip("needs verl, which lives in its own environment", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what verl and its dependencies warn of when imported is theirs to mend
    import verl.protocol as their_protocol
    import verl.utils.fs as their_fs
    import verl.utils.fsdp_utils as their_fsdp
    import verl.utils.metric as their_metric
    import verl.utils.seqlen_balancing as their_balancing
    import verl.utils.torch_functional as their_torch
    import verl.utils.ulysses as their_ulysses
    from omegaconf import OmegaConf
    from verl.trainer.config import CheckpointConfig
    from verl.utils.checkpoint import checkpoint_manager as their_checkpoint
    from verl.workers.config.checkpoint import McoreCheckpointConfig

from probe.core import checkpoint, fs, fsdp
from tests.frameworks.verl_alike import check_alike, outcome

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]


# ---------------------------------------------------------------------------------------------------------------- FSDP


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)


class Model(nn.Module):
    _no_split_modules = ("Layer", "NotThere")

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 16).requires_grad_(False)
        self.layers = nn.ModuleList([Layer() for _ in range(4)])


@pytest.mark.parametrize("is_lora", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"min_num_params": 0},
        {"min_num_params": 300},
        {"min_num_params": 10**9},
        {"transformer_layer_cls_to_wrap": ["Embedding"]},
        {"transformer_layer_cls_to_wrap": ["Layer"], "min_num_params": 300},
        {"disable": True},
        {"transformer_layer_cls_to_wrap": ["NotThere"]},
    ],
)
def test_c_get_fsdp_wrap_policy(is_lora, config):
    model = Model()

    def wrapped(module):
        policy = module.get_fsdp_wrap_policy(model, config, is_lora)
        return policy and [
            name
            for name, part in model.named_modules()
            if policy(module=part, recurse=False, nonwrapped_numel=sum(one.numel() for one in part.parameters()))
        ]

    expected, got = outcome(lambda: wrapped(their_fsdp)), outcome(lambda: wrapped(fsdp))
    assert isinstance(got, Exception) if isinstance(expected, Exception) else expected == got


# ---------------------------------------------------------------------------------------------------------- checkpoints


@pytest.fixture
def alone(tmp_path):
    """A process group of this process: verl's managers need one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def verls_configurations():
    """Every configuration of checkpoints that verl has: its classes, and its generated configurations' sections."""
    yield CheckpointConfig()
    yield CheckpointConfig(load_contents=["model"], save_contents=["model", "hf_model"], save_lora_only=True)
    yield McoreCheckpointConfig(async_save=True, mbridge_config={"memory_efficient": True})
    yield None

    def sections(node, path=()):
        if isinstance(node, dict):
            if path[-1:] == ("checkpoint",) and "save_contents" in node:
                yield ".".join(path)
            for key, value in node.items():
                yield from sections(value, (*path, key))

    for path in sorted(Path(inspect.getfile(CheckpointConfig)).parent.glob("_generated_*.yaml")):
        whole = OmegaConf.load(path)
        for place in sections(OmegaConf.to_container(whole)):
            yield OmegaConf.select(whole, place)


def test_c_every_configuration_of_verls_is_taken(alone):
    found = list(verls_configurations())
    assert len(found) > 10
    for config in found:
        theirs = their_checkpoint.BaseCheckpointManager(nn.Linear(1, 1), None, checkpoint_config=config)
        ours = checkpoint.BaseCheckpointManager(nn.Linear(1, 1), object(), checkpoint_config=config)
        for name in dir(theirs):
            if name.startswith("should_"):
                assert getattr(ours, name) == getattr(theirs, name), (name, config)
        assert (ours.rank, ours.world_size) == (theirs.rank, theirs.world_size)
        checkpoint.FSDPCheckpointManager(nn.Linear(1, 1), None, None, None, config, trust_remote_code=False)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([None, 0, 1, 2, 3]), min_size=1, max_size=8))
def test_c_retention_of_the_base_manager(tmp_path_factory, limits):
    def kept(module, manager):
        place = tmp_path_factory.mktemp("checkpoints")
        seen = []
        for step, limit in enumerate(limits):
            manager.ensure_checkpoint_capacity(limit)
            seen.append(sorted(path.name for path in place.iterdir()))
            path = place / f"global_step_{step}" / "actor"
            path.mkdir(parents=True)
            (path / "shard.pt").write_text("weights")
            manager.register_checkpoint(str(path), limit)
            seen.append([Path(one).relative_to(place).as_posix() for one in manager.previous_saved_paths])
            seen.append(sorted(one.relative_to(place).as_posix() for one in place.rglob("shard.pt")))
        return [[name.removesuffix("/actor") for name in names] for names in seen]

    theirs = object.__new__(their_checkpoint.BaseCheckpointManager)  # its constructor wants a process group
    theirs.previous_saved_paths = []
    expected = kept(their_checkpoint, theirs)
    got = kept(checkpoint, checkpoint.BaseCheckpointManager(None))
    # verl leaves the step's empty directory behind, probe doesn't: what is in them is compared.
    assert got[1::3] == expected[1::3]
    assert got[2::3] == expected[2::3]


@pytest.mark.parametrize("left_s", [-(10**6), -3600, -5, 50, 100, 200, 10**6])
@pytest.mark.parametrize("durations", [(1, 0, 0), (60, 60, 0), (0, 60, 0), (30, 60, 50)])
def test_c_should_save_ckpt_esi(monkeypatch, left_s, durations):
    monkeypatch.setenv("MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP", str(time.time() + left_s))
    check_alike(
        lambda: their_checkpoint.should_save_ckpt_esi(*durations), lambda: checkpoint.should_save_ckpt_esi(*durations)
    )


# --------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-0.5B", "gpt2", "meta-llama/Llama-3.1-8B-Instruct"])
def test_c_copy_to_local(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for src in (name, str(tmp_path / "model"), "model"):
        check_alike(functools.partial(their_fs.copy_to_local, src), functools.partial(fs.copy_to_local, src))
    assert os.listdir(tmp_path) == ["model"]


def test_c_verl_takes_what_the_table_says_that_it_takes(alone, tmp_path, monkeypatch):
    """The second column of the table in ``docs/drop_in.md``; the third is asked in the ordinary tests."""
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
    from verl.utils.dataset import rl_dataset

    from tests.stricter import OF_VERL

    monkeypatch.chdir(tmp_path)
    checkpoints = SimpleNamespace(
        FSDPCheckpointManager=FSDPCheckpointManager, should_save_ckpt_esi=their_checkpoint.should_save_ckpt_esi
    )
    modules = {
        "checkpoint": checkpoints,
        "fs": their_fs,
        "fsdp": their_fsdp,
        "metric": their_metric,
        "protocol": their_protocol,
        "rl_dataset": rl_dataset,
        "seqlen_balancing": their_balancing,
        "torch_functional": their_torch,
        "ulysses": their_ulysses,
    }
    refused = {}
    for name, (module, use) in OF_VERL.items():
        try:
            use(modules[module])
        except Exception as error:
            refused[name] = error
    assert not refused
