"""Rollouts that failed and enter the mean of their group as reward 0."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.graded import Graded
from probe.demo.zoo.loop import Rank


class Fault(Graded):
    """A failed rollout has no reward; the trainer takes it for an answer that is wrong."""

    about: ClassVar[str] = "10 % of the rollouts fail and count as reward 0 in their group's mean (strength 0.5: 5 %)"
    finds: ClassVar[str] = "failed_in_baseline"

    def sampled(self, running: Rank, step: int, begin_ns: int) -> None:
        self.graded(running, step, self.failing * self.strength, failed_count=True)
