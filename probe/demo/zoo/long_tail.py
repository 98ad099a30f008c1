"""A few answers that take far longer than all others."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.served import Served


class Fault(Served):
    """From step 6 on one answer of the step waits for a tool, on another engine each time."""

    about: ClassVar[str] = "from step 6 on one answer of 64 takes six times as long as the longest of the others"
    finds: ClassVar[str] = "long_tail"
    kind: ClassVar[str] = "tuning"

    def answers_s(self, step: int, rank: int) -> list[float]:
        found = super().answers_s(step, rank)
        if step >= 6 and rank == step % self.shape.ranks:
            found[step % len(found)] = max(found) * (1 + 5 * self.strength)
        return found
