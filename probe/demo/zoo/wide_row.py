"""One row that imposes its width on all others of its micro-batch."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import Shape, Training


class Fault(Training):
    """Micro-batches are rectangles, and one row of each is several times as long."""

    about: ClassVar[str] = "one row has 1,600 tokens, the others 300; all are computed as a rectangle"
    finds: ClassVar[str] = "wide_row"
    kind: ClassVar[str] = "tuning"
    packed: ClassVar[bool] = False
    shape: ClassVar[Shape] = Shape(spread=0.05, cap=16384, width=2048, mini_batches=1)

    def least(self, lengths: list[int]) -> int:
        return 1

    def lengths(self, step: int, rank: int) -> list[int]:
        drawn = super().lengths(step, rank)
        drawn[step % len(drawn)] = 300 + int(1300 * self.strength)
        return drawn
