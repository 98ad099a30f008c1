"""A training of real processes, for faults that a fake clock can't have: ranks that wait for each other over gloo."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from probe.analysis.verdict import Findings
from probe.core.seqlen_balancing import micro_batches
from probe.demo.zoo.loop import Shape, Training, tensors_of
from probe.guard import Guard
from probe.hooks import phase
from probe.session import start


class Processes(Training):
    """Two ranks, each a process, that sum a tensor in every micro-batch."""

    shape: ClassVar[Shape] = Shape(ranks=2, steps=8, sequences=8, mini_batches=1, mean_tokens=50, width=120, cap=128)
    micro_s: ClassVar[float] = 0.02  #: how long a micro-batch takes
    patience_s: ClassVar[float] = 120.0  #: after so many seconds processes that are still there are killed

    def act(self, step: int, rank: int, index: int) -> None:
        """What a rank does in a micro-batch before it waits for the others."""

    def entered(self, step: int, rank: int, phase: str | None) -> None:
        """What a rank does as it has entered sync_weights, and before that in no phase, which is None."""

    def count(self, step: int, rank: int) -> int:
        """How many micro-batches a rank cuts in a step."""
        return 5

    def found(self, directory: Path) -> Findings:
        """Run it until all processes have ended, or what is planted was found, and say what was found."""
        directory.parent.mkdir(parents=True, exist_ok=True)  # where the ranks meet
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=_rank, args=(type(self), self.strength, self.seed, rank, str(directory)))
            for rank in range(self.shape.ranks)
        ]
        for one in ranks:
            one.start()
        failed = "the run can't be read while it is written"
        reading = Guard("zoo.processes", failed, tell=None, most=None, level=logging.DEBUG)
        deadline = time.monotonic() + self.patience_s
        try:
            while time.monotonic() < deadline:
                if not any(one.is_alive() for one in ranks):
                    break
                if (directory / "run.json").exists():
                    found = reading.call(lambda: _found(directory), otherwise=Findings())
                    if self.is_named_by(found):
                        return found
                time.sleep(0.5)
        finally:
            for one in ranks:
                one.kill()
                one.join()
        return _found(directory)


def _found(directory: Path) -> Findings:
    from probe.opened import Run

    with Run(directory) as run:
        return run.findings()


def _rank(kind: type[Processes], strength: float, seed: int, rank: int, directory: str) -> None:
    training = kind(strength, seed)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}.store", rank=rank, world_size=training.shape.ranks)
    with start("zoo", run_dir=directory, rank=rank, world_size=training.shape.ranks, config=training.config) as session:
        for step in range(training.shape.steps):
            with session.step(step):
                _step(training, step, rank)
    os._exit(0)  # nobody waits for the process group's own end


def _step(training: Processes, step: int, rank: int) -> None:
    lengths = training.rows(step, rank)
    with phase("update"):
        cuts: Any = micro_batches(
            tensors_of(lengths), training.shape.cap, min_num_micro_batch=training.count(step, rank)
        )
        for index, _ in enumerate(cuts):
            time.sleep(training.micro_s)
            training.act(step, rank, index)
            dist.all_reduce(torch.ones(8))
    training.entered(step, rank, None)
    with phase("sync_weights"):
        training.entered(step, rank, "sync_weights")
        dist.barrier()
