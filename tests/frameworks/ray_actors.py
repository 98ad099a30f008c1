"""The actors of :mod:`test_ray`, in a module of their own: a worker of Ray imports what it runs, and not the tests."""

from __future__ import annotations

import os
import time

import probe


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


class Copied:
    """An actor whose process has a copy made, and that never closes its session."""

    def __init__(self, directory: str, copy: str) -> None:
        self.session = probe.start("ray", run_dir=directory, rank=0, world_size=1, upload=copy)

    def train(self) -> int:
        for number in range(4):
            with self.session.step(number), probe.phase("update"):
                pass
        self.session.flush()
        while self.session.upload is not None and not self.session.upload.pid:
            time.sleep(0.01)
        return 0 if self.session.upload is None else self.session.upload.pid
