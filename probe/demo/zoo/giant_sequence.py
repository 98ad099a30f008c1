"""One sequence that is as long as many others together."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import Shape, Training


class Fault(Training):
    """No balancing can divide it."""

    about: ClassVar[str] = "one sequence has 6,000 tokens, the others 300"
    finds: ClassVar[str] = "giant_sequence"
    kind: ClassVar[str] = "tuning"
    shape: ClassVar[Shape] = Shape(ranks=4, width=8192, cap=8192, sequences=8, mini_batches=1)

    def lengths(self, step: int, rank: int) -> list[int]:
        drawn = super().lengths(step, rank)
        if rank == step % self.shape.ranks:
            drawn[0] = int(6000 * self.strength)
        return drawn
