"""A real job on a local Ray: its driver, ranks that learn late who they are, and an actor that is killed and restarted.

Ray lives in an environment of its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.runs.reader import Run

pytestmark = [
    pytest.mark.framework,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray, which lives in its own environment"),
    pytest.mark.filterwarnings("ignore"),  # what it and its dependencies warn of is theirs to mend
]

ACTOR = {"num_cpus": 0.1, "max_restarts": 1, "max_task_retries": 1}


class Worker:
    """As verl's workers: probe begins before the rank is in the environment."""

    def __init__(self, directory: str, rank: int) -> None:
        self.session = probe.start("ray", run_dir=directory)
        os.environ.update({"RANK": str(rank), "WORLD_SIZE": "2"})

    def step(self, number: int) -> int:
        with self.session.step(number), probe.phase("update"):
            pass
        self.session.flush()
        return os.getpid()

    def rank(self) -> int | None:
        return self.session.rank


class Judge:
    """An actor that is no rank."""

    def __init__(self, directory: str) -> None:
        self.session = probe.start("ray", run_dir=directory, role="reward")

    def score(self) -> None:
        with probe.phase("score"):
            pass
        self.session.flush()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    import ray

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


def train(ray: Any, directory: Path, *, killed: bool) -> None:
    """A job in which rank 1 dies after step 1 and is made again by Ray, or none does."""
    workers = [ray.remote(**ACTOR)(Worker).remote(str(directory), rank) for rank in range(2)]
    judge = ray.remote(num_cpus=0.1)(Judge).options(name="judge").remote(str(directory))
    with probe.start("ray", run_dir=directory, name="driver", role="driver") as session:
        for number in range(4):
            with session.step(number):
                before = ray.get([one.step.remote(number) for one in workers])
                ray.get(judge.score.remote())
            if killed and number == 1:
                ray.kill(workers[1], no_restart=False)
                assert ray.get(workers[1].rank.remote()) in (None, 1)  # there again
                assert ray.get(workers[1].step.remote(number)) != before[1]
        until = time.monotonic() + 60
        while ray.get([one.rank.remote() for one in workers]) != [0, 1]:
            assert time.monotonic() < until
            time.sleep(0.1)
    for one in (*workers, judge):
        with contextlib.suppress(Exception):
            ray.kill(one)


def test_b_a_job_on_ray_has_its_ranks_its_driver_and_the_others(ray: Any, tmp_path: Path) -> None:
    train(ray, tmp_path / "run", killed=True)
    with Run(tmp_path / "run") as run:
        assert run.attempts == [1]  # of an actor that Ray restarts too
        assert run.ranks == [0, 1]
        steps = run.sql(
            """select distinct who(rank, process) as who, step from memory where kind = 'step' and edge = 'leave'
            order by who, step"""
        )
        known = {name: list(group["step"]) for name, group in steps.groupby("who")}
        assert known == {"driver": [0, 1, 2, 3], "rank 0": [0, 1, 2, 3], "rank 1": [0, 1, 2, 3]}
        named = run.processes.set_index("process")
        assert named["role"]["reward"] == "reward"
        scored = run.memory[run.memory["process"] == "reward"]
        assert set(scored["phase"].dropna()) == {"score"}
        assert run.incidents.empty


def test_a_a_second_job_on_ray_is_another_attempt(ray: Any, tmp_path: Path) -> None:
    train(ray, tmp_path / "run", killed=False)
    ray.shutdown()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    train(ray, tmp_path / "run", killed=False)
    with Run(tmp_path / "run") as run:
        assert run.attempts == [1, 2]
        ended = run.sql("select who(rank, process) as who from memory where kind = 'step' and edge = 'leave'")
        assert ended["who"].value_counts().to_dict() == {"driver": 4, "rank 0": 4, "rank 1": 4}
