"""A small stand-in for a trainer: real sessions, batches and micro-batches, as slow as a test wants it.

``python training.py DIRECTORY STEPS PAUSE_S`` records a run from a process of its own.
"""

from __future__ import annotations

import sys
import time

import torch

import probe
from probe.core.protocol import DataProto


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


def train(session: probe.Session, steps: int, pause_s: float = 0.02, first: int = 0) -> None:
    for step in range(first, first + steps):
        with session.step(step):
            with probe.phase("generate", role="rollout"):
                data = batch(step)
            update(data, pause_s)
        session.log({"reward/mean": step / 10, "loss": 1 / (step + 1)}, step)


if __name__ == "__main__":
    with probe.start("another process", run_dir=sys.argv[1]) as recording:
        train(recording, int(sys.argv[2]), float(sys.argv[3]))
