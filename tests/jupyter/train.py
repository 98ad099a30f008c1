"""A training under torchrun, on the CPU: two ranks over gloo, a little model, probe's core as anybody would use it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import probe

#: A name that some page may take for markup.
PROJECT = "lab <img src=x onerror=globalThis.__hurt=1>"


def main(run: Path, steps: int, pause_s: float) -> None:
    dist.init_process_group("gloo")
    model = torch.nn.Linear(16, 16)
    with probe.start(PROJECT, run.name, run_dir=run) as session:
        print(f"pid {dist.get_rank()} {os.getpid()}", flush=True)
        for number in range(steps):
            with session.step(number):
                for index in range(2):
                    with probe.phase("update", role="actor"), probe.micro_batch(index, lengths=[7, 5 + number % 3]):
                        model(torch.ones(4, 16)).sum().backward()
                for one in model.parameters():
                    dist.all_reduce(one.grad)
                with probe.phase("generate", role="rollout"):
                    time.sleep(pause_s)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
