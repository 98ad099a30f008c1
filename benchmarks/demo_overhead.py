"""The demo's step with probe on and off: the very same steps, taking turns, in one process."""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Size, row
from probe.demo.data import read_problems, write_problems
from probe.demo.settings import Settings
from probe.demo.trainer import Trainer
from probe.session import Session, start

ROUNDS = 40

#: As few rows as a step can have.
SMALL = Settings(prompts_per_rank=2, group_size=2, mini_batch_per_rank=2)


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    rounds = size.pick(1, ROUNDS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    settings = size.pick(SMALL, Settings())
    try:
        with tempfile.TemporaryDirectory() as folder:
            problems = read_problems(write_problems(Path(folder) / "problems.parquet", rows=200, seed=0), settings)
            trainer = Trainer(settings, problems)
            for index in range(size.pick(1, 20)):
                trainer.actor.imitate(trainer.solved(trainer.draw(index)))
            on, off = _take_turns(trainer, Path(folder), rounds)
    finally:
        torch.set_num_threads(threads)
    ours, theirs = statistics.median(on), statistics.median(off)
    pairs = statistics.median(one / other for one, other in zip(on, off, strict=True))
    note = f"{(pairs - 1) * 100:+.2f} % is the median over {rounds} pairs of the same step"
    return [row("one step of the demo with probe on / off", ours, theirs, "0.5 % more", note)]


def _take_turns(trainer: Trainer, folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    on: list[float] = []
    off: list[float] = []
    for index in range(rounds):
        before = _state(trainer)
        for kept, observed in ((on, True), (off, False))[:: 1 if index % 2 else -1]:
            _restore(trainer, before)
            if not observed:
                kept.append(_timed(trainer, index, None))
                continue
            with start("benchmark", run_dir=folder / f"run-{index}") as session:
                time.sleep(0.3)  # what a session does once, as it starts, is over
                kept.append(_timed(trainer, index, session))
    return on, off


def _timed(trainer: Trainer, index: int, session: Session | None) -> float:
    begin = time.perf_counter()
    if session is None:
        trainer.step(index)
    else:
        with session.step(index):
            trainer.step(index)
    return time.perf_counter() - begin


def _state(trainer: Trainer) -> tuple[Any, ...]:
    actor = trainer.actor
    return (
        copy.deepcopy(actor.policy.state_dict()),
        copy.deepcopy(actor.optimizer.state_dict()),
    )


def _restore(trainer: Trainer, state: tuple[Any, ...]) -> None:
    weights, optimizer = state
    trainer.actor.policy.load_state_dict(weights)
    trainer.actor.optimizer.load_state_dict(copy.deepcopy(optimizer))


if __name__ == "__main__":
    for one in rows():
        print(one)
