"""One rank of the fidelity test. Trains without and with a session, and saves what came out to ``rank-N.pt``."""

from __future__ import annotations

import gc
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from probe.core.fsdp import get_fsdp_full_state_dict
from probe.demo.data import read_problems
from probe.demo.settings import Settings
from probe.demo.trainer import Trainer
from probe.session import Session, start

SETTINGS = Settings(
    steps=2,
    warmup_steps=3,
    problems=60,
    prompts_per_rank=6,
    group_size=4,
    mini_batch_per_rank=12,
    max_tokens=80,
)


def trained(directory: Path, session: Session | None) -> dict[str, Any]:
    """The weights and the metrics of all steps."""
    trainer = Trainer(SETTINGS, read_problems(directory / "problems.parquet", SETTINGS), session)
    history = list(trainer.train())
    return {
        "weights": get_fsdp_full_state_dict(trainer.actor.policy, rank0_only=False),
        "history": history,
    }


def updated(rank: int, ranks: int, directory: Path) -> dict[str, torch.Tensor]:
    """The weights after one update, to which each rank has given rows of its own: the more, the higher its rank."""
    alone = Trainer(replace(SETTINGS, prompts_per_rank=12), read_problems(directory / "problems.parquet", SETTINGS))
    alone.rank = 0  # all draw the same
    data = alone.solved(alone.draw(0))
    batch: Any = data.batch  # it has one
    batch["old_log_probs"] = alone.actor.log_prob(batch).detach()
    batch["advantages"] = torch.linspace(-1, 2, 12)[:, None].expand_as(batch["response_mask"]).clone()
    batch["sample"] = torch.arange(12)
    cuts = [0, 3, 12] if ranks == 2 else [0, 12]
    alone.actor.update(data[cuts[rank] : cuts[rank + 1]])
    return get_fsdp_full_state_dict(alone.actor.policy, rank0_only=False)


def main(rank: int, ranks: int, directory: Path) -> None:
    """Everything that one rank does."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(directory / "meeting"), ranks)  # type: ignore[attr-defined]  # it is documented there
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=300))
    found: dict[str, Any] = {"plain": trained(directory, None), "updated": updated(rank, ranks, directory)}
    with start("fidelity", run_dir=directory / "run", track=["file"]) as session:
        found["observed"] = trained(directory, session)
    torch.save(found, directory / f"rank-{rank}.pt")
    gc.collect()  # FSDP holds the group in a cycle, and a group that outlives the interpreter aborts the process
    dist.destroy_process_group()
