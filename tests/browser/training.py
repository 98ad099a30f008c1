"""A small stand-in for a trainer: real sessions, batches and micro-batches, as slow as a test wants it.

``python training.py DIRECTORY STEPS PAUSE_S`` records a run from a process of its own. Its batches are cut by probe's
rule and, in a phase that verl has a key for, by verl's.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import torch

import probe
from probe.core.balancing.verl_rule import verl_micro_batches
from probe.core.protocol import DataProto
from probe.moments import tell_partition


def batch(step: int, rows: int = 16, width: int = 32) -> DataProto:
    lengths = torch.randint(4, width, (rows,), generator=torch.Generator().manual_seed(step))
    mask = (torch.arange(width)[None] < lengths[:, None]).long()
    return DataProto.from_dict({"input_ids": mask.clone(), "attention_mask": mask})


@probe.watch(role="actor", phase="update")
def update(data: DataProto, pause_s: float) -> None:
    for micro in probe.micro_batches(data, max_token_len=128):
        held = torch.zeros(int(micro.batch["attention_mask"].sum()) * 2000)
        time.sleep(pause_s)
        del held


@probe.watch(role="actor", phase="update_actor")
def update_as_verl(data: DataProto) -> None:
    """Cut as verl 0.9.1 does it, and told as verl's adapter tells it."""
    lengths = data.batch["attention_mask"].sum(-1).tolist()  # type: ignore[index]  # it has one
    tell_partition(
        lengths=lengths,
        partitions=verl_micro_batches(lengths, 128),
        source="verl.rearrange_micro_batches",
        cap_tokens=128,
        packer="verl 0.9.1",
        arguments={"use_dynamic_bsz": True, "max_token_len": 128, "sp_size": 1},
    )


def train(session: probe.Session, steps: int, pause_s: float = 0.02, first: int = 0, as_verl: bool = False) -> None:
    for step in range(first, first + steps):
        with session.step(step):
            with probe.phase("generate", role="rollout"):
                data = batch(step)
            update(data, pause_s)
            if as_verl:
                update_as_verl(data)
        session.log({"reward/mean": step / 10, "loss": 1 / (step + 1)}, step)


def train_until(session: probe.Session, file: str, pause_s: float = 0.02) -> None:
    """Train until there is such a file: a cell that is busy for as long as a test wants it."""
    for step in itertools.count():
        if Path(file).exists():
            return
        train(session, 1, pause_s, first=step)


if __name__ == "__main__":
    actor = {"ppo_max_token_len_per_gpu": 128, "use_dynamic_bsz": True}
    settings = {"actor_rollout_ref": {"actor": actor}, "trainer": {"balance_batch": False}}
    with probe.start("another process", run_dir=sys.argv[1], config=settings) as recording:
        train(recording, int(sys.argv[2]), float(sys.argv[3]), as_verl=True)
