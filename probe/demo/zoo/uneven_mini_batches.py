"""Ranks whose whole batches are balanced, and whose mini-batches aren't."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import Shape, Training


class Fault(Training):
    """The first mini-batch of one rank is long and its second short, and the other way round on the next."""

    about: ClassVar[str] = (
        "ranks have equal tokens per step, but their mini-batches have 1.5 and 0.5 times the mean tokens"
    )
    finds: ClassVar[str] = "uneven_mini_batches"
    kind: ClassVar[str] = "tuning"
    shape: ClassVar[Shape] = Shape(ranks=4)

    def lengths(self, step: int, rank: int) -> list[int]:
        drawn, half = super().lengths(step, rank), self.shape.sequences // 2
        sign = 0.5 * self.strength * (1 if rank % 2 else -1)
        return [max(8, int(one * (1 + (sign if at < half else -sign)))) for at, one in enumerate(drawn)]
