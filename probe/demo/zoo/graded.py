"""A training whose ranks sample answers in groups and grade them, some of which fail in each step."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from probe.demo.zoo.loop import Rank, Shape, Training
from probe.sampled import samples

GROUP = 4  #: answers to a prompt


class Graded(Training):
    """Rollouts that fail are left out of the mean of their group, and out of the loss."""

    shape: ClassVar[Shape] = Shape(ranks=2)

    #: The share of answers whose rollout fails: of their environment, a tool, the engine.
    failing: ClassVar[float] = 0.1

    def sampled(self, running: Rank, step: int, begin_ns: int) -> None:
        self.graded(running, step, self.failing, failed_count=False)

    def graded(self, running: Rank, step: int, failing: float, *, failed_count: bool) -> None:
        """Tell of a step's answers, of which so many fail; whether these make up the baselines, too."""
        lengths, drawing = self.rows(step, running.rank), self._drawing(step, running.rank, 8)
        rewards = (drawing.random(len(lengths)) < 0.5).astype(np.float64)
        failed = drawing.random(len(lengths)) < failing
        rewards[failed] = 0.0
        advantages = _advantages(rewards, ~failed | failed_count)
        samples(
            lengths,
            mask=[np.full(length, not bad) for length, bad in zip(lengths, failed, strict=True)],
            groups=[f"{step}/{running.rank}/{at // GROUP}" for at in range(len(lengths))],
            has_error=failed,
            rewards=rewards,
            advantages=np.where(failed, 0.0, advantages),
            clipped=False,
        )


def _advantages(rewards: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """By how many deviations of its group's counted answers each is above their mean; 0 where none counts."""
    found = np.zeros(len(rewards))
    for begin in range(0, len(rewards), GROUP):
        inside = slice(begin, begin + GROUP)
        theirs = rewards[inside][counts[inside]]
        if len(theirs):
            found[inside] = (rewards[inside] - theirs.mean()) / (theirs.std() + 1e-6)
    return found
