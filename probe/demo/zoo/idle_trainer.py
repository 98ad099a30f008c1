"""Engines that can't keep up with training, which waits for them."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.ahead import Ahead


class Fault(Ahead):
    """From step 6 on a token takes longer on all engines, as where answers got longer or requests are queued."""

    about: ClassVar[str] = "sampling runs one step ahead; from step 6 on it takes three times as long as training"
    finds: ClassVar[str] = "idle_trainer"
    kind: ClassVar[str] = "tuning"

    def answers_s(self, step: int, rank: int) -> list[float]:
        slower = 1 + 2 * self.strength if step >= 6 else 1
        return [one * slower for one in super().answers_s(step, rank)]
