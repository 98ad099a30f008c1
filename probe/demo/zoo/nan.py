"""One sample of one micro-batch gives NaN."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from probe.demo.zoo.loop import Shape, Training


class Fault(Training):
    """Its mask is empty, and its mean is 0 ÷ 0. The optimizer's step then makes all weights NaN, and so all that comes
    after it on every rank. A weaker one leaves less to be seen: the step of the optimizer is left out, so that one
    value of a rank that logs nothing is all; weaker still it is in the last step.
    """

    about: ClassVar[str] = (
        "the loss of micro-batch 1 of step 9 on rank 1 is NaN, then all losses are (strength 0.5: only that value; "
        "0.25: only that value, in the last step)"
    )
    finds: ClassVar[str] = "nan"
    rank: ClassVar[int] = 1
    phase: ClassVar[str] = "update"
    micro_batch: ClassVar[int] = 1
    step: ClassVar[int] = 9
    shape: ClassVar[Shape] = Shape(steps=16)

    @property
    def at(self) -> int:
        """The step."""
        return self.shape.steps - 1 if self.strength <= 0.25 else 9

    def place(self) -> dict[str, int | str | None]:
        return super().place() | ({"step": self.at} if self.strength <= 0.25 else {})

    def losses(self, step: int, rank: int, count: int) -> list[float]:
        found = super().losses(step, rank, count)
        if (step, rank) == (self.at, self.rank):
            found[self.micro_batch] = math.nan
        if self.strength > 0.5 and step >= self.at:
            spoilt = self.least(self.mini_batches(step, rank)[0]) if step == self.at else 0  # the optimizer's step
            found[spoilt:] = [math.nan] * (count - spoilt)
        return found

    def metrics(self, step: int, rank: int) -> dict[str, Any]:
        found = super().metrics(step, rank)
        if self.strength > 0.5 and step >= self.at:
            found["actor/grad_norm"] = [math.nan]
        return found
