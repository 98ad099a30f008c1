"""A jump of the gradient that one micro-batch caused."""

from __future__ import annotations

from typing import Any, ClassVar

from probe.demo.zoo.loop import Shape, Training


class Fault(Training):
    """Its loss is a thousand times that of the others."""

    about: ClassVar[str] = "in step 14 micro-batch 2 of rank 0 has a loss of 400, so the gradient jumps"
    finds: ClassVar[str] = "gradient_spike"
    rank: ClassVar[int] = 0
    phase: ClassVar[str] = "update"
    micro_batch: ClassVar[int] = 2
    step: ClassVar[int] = 14
    shape: ClassVar[Shape] = Shape(steps=20)

    def losses(self, step: int, rank: int, count: int) -> list[float]:
        found = super().losses(step, rank, count)
        if (step, rank) == (14, 0):
            found[2] = 400.0 * self.strength
        return found

    def metrics(self, step: int, rank: int) -> dict[str, Any]:
        found = super().metrics(step, rank)
        if step == 14:
            found["actor/grad_norm"] = [120.0 * self.strength]
        return found
