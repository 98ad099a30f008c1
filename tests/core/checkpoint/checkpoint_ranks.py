"""One rank of a small training, in several scenarios."""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from probe.core.checkpoint import FSDPCheckpointManager, find_latest_ckpt_path

KINDS = ("fsdp2", "fsdp1", "fsdp1_flat")
ALL = {"save": ["model", "optimizer", "extra", "hf_model"]}


class Tiny(nn.Module):
    """Odd sizes, so that shards are uneven; dropout, so that random state matters; a frozen parameter and a buffer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(5, 7)
        self.second = nn.Sequential(nn.Dropout(0.3), nn.Linear(7, 3), nn.BatchNorm1d(3))
        self.last = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.second(torch.relu(self.first(x))))


def wrap(model: nn.Module, kind: str) -> nn.Module:
    if kind == "plain":
        return model
    if kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for part in (*model.children(), model):
            fully_shard(part, mesh=mesh)
        return model
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    return FSDP(model, device_id=torch.device("cpu"), use_orig_params=kind == "fsdp1")


class Training:
    def __init__(self, kind: str, seed: int = 0, **kwargs: Any) -> None:
        self.model = wrap(Tiny(seed), kind)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.manager = FSDPCheckpointManager(self.model, self.optimizer, self.scheduler, **kwargs)

    def steps(self, count: int) -> list[float]:
        losses = []
        for _ in range(count):
            x = torch.randn(4, 5) + float(np.random.rand()) + random.random()  # noqa: NPY002  (the global generator is what is tested)
            loss = self.model(x).square().mean()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def seed_rank(rank: int) -> None:
    torch.manual_seed(100 + rank)
    np.random.seed(200 + rank)  # noqa: NPY002  (the global generator is what is tested)
    random.seed(300 + rank)


def raised(action: Callable[[], Any]) -> list[str] | None:
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


def train(rank: int, folder: Path) -> dict[str, Any]:
    """Save in the middle, go on; load into another model, go on again; then all that may go wrong."""
    told: dict[str, Any] = {}
    for kind in KINDS:
        root = folder / kind
        training = Training(kind, checkpoint_contents=ALL)
        seed_rank(rank)
        training.manager.save_checkpoint(root / "global_step_0", global_step=0)
        untouched = len(training.optimizer.state)
        training.steps(3)
        training.manager.save_checkpoint(root / "global_step_3", global_step=3)
        reference = training.steps(4)
        other = Training(kind, seed=1)
        other.manager.load_checkpoint(find_latest_ckpt_path(root))
        continued = other.steps(4)
        other.manager.load_checkpoint(root / "global_step_0")
        fresh = [other.steps(3), len(other.optimizer.state)]
        told[kind] = {"reference": reference, "continued": continued, "untouched": untouched}
        told[kind]["from_zero"] = fresh[0]
        other.manager.load_checkpoint(root / "global_step_3")
        told[kind]["again"] = other.steps(4)
    told["failures"] = failures(rank, folder)
    return told


class BrokenState(nn.Module):
    """A part of the model whose state can't be taken on one rank."""

    def __init__(self, action: Callable[[], Any], rank: int) -> None:
        super().__init__()
        self.action, self.rank = action, rank

    def get_extra_state(self) -> dict[str, int]:
        if dist.get_rank() == self.rank:
            self.action()
        return {"a": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


def fail() -> None:
    raise ZeroDivisionError("on purpose")


def failures(rank: int, folder: Path) -> dict[str, Any]:
    root = folder / "fsdp2"
    step_3, step_9 = root / "global_step_3", root / "global_step_9"
    told: dict[str, Any] = {}
    training = Training("fsdp2")
    # An exception in the middle, on the other rank than the first.
    broken = Training("plain")
    broken.model.broken = BrokenState(fail, rank=1)
    told["exception"] = raised(lambda: broken.manager.save_checkpoint(step_9, global_step=9))
    # The same step again: the old one stays.
    told["overwrite"] = raised(lambda: broken.manager.save_checkpoint(step_3, global_step=3))
    # A file that can't grow, on one rank.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    sharded = wrap(nn.Sequential(nn.Linear(300, 400)), "fsdp2")
    manager = FSDPCheckpointManager(sharded)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    told["disk"] = raised(lambda: manager.save_checkpoint(step_9, global_step=9))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    dist.barrier()
    told["left"] = sorted(path.name for path in root.iterdir())
    told["latest"] = find_latest_ckpt_path(root)
    told["loads"] = raised(lambda: training.manager.load_checkpoint(told["latest"]))
    # A shard that isn't what it was.
    dist.barrier()
    shard = step_3 / "shards" / "__1_0.distcp"
    content = shard.read_bytes()
    dist.barrier()
    if rank == 0:
        shard.write_bytes(content[:-700] + bytes([content[-700] ^ 1]) + content[-699:])
    dist.barrier()
    told["corrupt"] = raised(lambda: training.manager.load_checkpoint(step_3))
    dist.barrier()
    if rank == 0:
        shard.unlink()
    dist.barrier()
    told["missing"] = raised(lambda: training.manager.load_checkpoint(step_3))
    dist.barrier()
    if rank == 0:
        shard.write_bytes(content)
    dist.barrier()
    return told


def resume(rank: int, folder: Path) -> dict[str, list[float]]:
    """Load what another number of ranks saved, and save it again."""
    told = {}
    for kind in KINDS:
        for source in ("fsdp2", "fsdp1"):
            seed_rank(rank)
            training = Training(kind, seed=1)
            training.manager.load_checkpoint(folder / source / "global_step_3")
            training.manager.save_checkpoint(folder / f"{kind}_of_{source}", global_step=3)
            told[f"{kind}_of_{source}"] = training.steps(2)
    return told


def killed(rank: int, folder: Path) -> list[str] | None:
    """Rank 1 is killed in the middle of its second save."""
    training = Training("fsdp2")
    seed_rank(rank)
    training.steps(1)
    training.manager.save_checkpoint(folder / "killed" / "global_step_1", global_step=1)
    training.model.broken = BrokenState(lambda: os.kill(os.getpid(), signal.SIGKILL), rank=1)
    return raised(lambda: training.manager.save_checkpoint(folder / "killed" / "global_step_2", global_step=2))


def main(scenario: str, rank: int, world: int, folder: Path) -> None:
    """One rank, from joining the others to leaving them."""
    torch.set_num_threads(1)
    store = folder / f"store_{scenario}"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        scenarios: dict[str, Callable[[int, Path], Any]] = {"train": train, "resume": resume, "killed": killed}
        told = scenarios[scenario](rank, folder)
        (folder / f"{scenario}_{rank}.json").write_text(json.dumps(told))
    finally:
        gc.collect()  # FSDP holds the group in a cycle, and a group that outlives the interpreter aborts the process
        dist.destroy_process_group()
