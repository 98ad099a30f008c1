"""The demo as a job: ranks that train together, and one that dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from probe.demo.launch import launch
from probe.demo.settings import Settings
from probe.errors import PeerError
from probe.runs.layout import create_run
from probe.runs.reader import Run

TINY = Settings(steps=2, warmup_steps=2, problems=60, prompts_per_rank=6, group_size=4, mini_batch_per_rank=12)


@pytest.mark.multiprocess
def test_ranks_record_to_one_run_and_tell_of_each_step(tmp_path: Path) -> None:
    steps: dict[int, Mapping[str, float]] = {}
    directory = create_run("demo", run_dir=tmp_path / "run 1%20?")
    locations = launch(TINY, directory, ranks=2, track=["file"], on_step=steps.__setitem__)
    assert locations == {"file": str(directory / "metrics.jsonl")}
    assert list(steps) == [-2, -1, 0, 1]
    assert {"reward/mean", "actor/policy_loss", "actor/clipped_ratio"} <= steps[1].keys()
    with Run(directory) as run:
        assert run.ranks == [0, 1]
        assert set(run.processes["world_size"]) == {2}
        assert set(run.micro_batches["rank"]) == {0, 1}
        assert set(run.scalars.query("source == 'user'")["rank"]) == {0}


@pytest.mark.multiprocess
def test_a_rank_that_is_killed_ends_the_job_and_is_named(tmp_path: Path) -> None:
    directory = create_run("demo", run_dir=tmp_path / "run")
    killed: list[int] = []

    def kill_the_last(step: int, metrics: Mapping[str, float]) -> None:
        if not killed:
            victim = max(multiprocessing.active_children(), key=lambda child: child.pid or 0)
            killed.append(victim.pid or 0)
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(PeerError, match=r"rank 1 of 2 .*SIGKILL"):
        launch(replace(TINY, steps=100_000), directory, ranks=2, track=[], on_step=kill_the_last)
    assert not multiprocessing.active_children()
    with Run(directory) as run:  # what was seen before can be read
        assert 0 in run.ranks


@pytest.mark.multiprocess
def test_a_rank_that_raises_ends_the_job_with_its_error(tmp_path: Path) -> None:
    directory = create_run("demo", run_dir=tmp_path / "run")
    too_small = replace(TINY, max_tokens=3)  # no sequence fits a micro-batch
    with pytest.raises(PeerError, match=r"(?s)rank 0 of 1 .*CapacityError"):
        launch(too_small, directory, ranks=1, track=[], on_step=lambda step, metrics: None)
    assert not multiprocessing.active_children()
