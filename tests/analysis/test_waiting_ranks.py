"""Item 7 of the verdict on real processes: ranks that wait for each other in a collective of gloo."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from probe.analysis import rank_times, waiting
from probe.core.micro_batch import micro_batch
from probe.hooks import phase
from probe.runs.reader import Run
from probe.session import start
from tests.ranks import run_ranks

RANKS = 3
STEPS = 10
TOKENS = 100
TOKEN_S = 2e-4  # long beside what a busy machine adds

#: Of the rank that has it: seconds a token, tokens of a micro-batch, seconds in "load_batch".
FAULTS = {
    "machine": (1, 5 * TOKEN_S, TOKENS, 0.002),
    "tokens": (2, TOKEN_S, 5 * TOKENS, 0.002),
    "data": (0, TOKEN_S, TOKENS, 0.16),
    "none": (0, TOKEN_S, TOKENS, 0.002),
}


def _train(rank: int, store: Path, root: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    for fault, (culprit, token_s, tokens, load_s) in FAULTS.items():
        own = (token_s, tokens, load_s) if rank == culprit else (TOKEN_S, TOKENS, 0.002)
        dist.barrier()
        with start("waiting", fault, run_dir=root / fault, rank=rank, world_size=RANKS, device="cpu") as session:
            for step in range(STEPS):
                with session.step(step):
                    _step(*own)
    dist.destroy_process_group()


def _step(token_s: float, tokens: int, load_s: float) -> None:
    with phase("load_batch"):
        time.sleep(load_s)
    with phase("update"):
        for index in range(2):
            with micro_batch(index, lengths=[tokens], width=tokens, count=2):
                time.sleep(tokens * token_s)
        dist.all_reduce(torch.zeros(4))


@pytest.mark.slow
@pytest.mark.multiprocess
def test_real_ranks_that_wait_tell_the_slow_the_fuller_and_the_starved_apart(tmp_path: Path) -> None:
    run_ranks(_train, (tmp_path / "store", tmp_path), RANKS)
    for fault, (culprit, *_) in FAULTS.items():
        run = Run(tmp_path / fault)
        phases = waiting.of_rows(run.sql(waiting.query(0, STEPS - 1)))
        clock = rank_times.clocks(phases)
        assert clock.phase == "update"
        found = [one for one in waiting.judge(phases) if one.culprit is not None]
        if fault == "none":
            assert [one for one in found if one.lag_s > 0.08] == []
            continue
        assert found, fault
        assert (found[0].phase, found[0].culprit, found[0].cause) == ("update", culprit, fault)
        assert found[0].lag_s > 0.08
        assert set(found[0].waits) == set(range(RANKS))
        assert found[0].waits[culprit] < min(wait for rank, wait in found[0].waits.items() if rank != culprit)
