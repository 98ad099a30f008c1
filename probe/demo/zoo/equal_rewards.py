"""Rewards that are equal within each group, so that nothing is learned."""

from __future__ import annotations

from typing import Any, ClassVar

from probe.demo.zoo.loop import Training


class Fault(Training):
    """From step 8 on the reward function gives every answer the same."""

    about: ClassVar[str] = "from step 8 on all answers to a prompt get the same reward, so all advantages are 0"
    finds: ClassVar[str] = "equal_rewards"

    def metrics(self, step: int, rank: int) -> dict[str, Any]:
        found = super().metrics(step, rank)
        if step >= 8:
            found |= {"reward/mean": [0.0], "frac_reward_zero_std": [self.strength]}
        return found
