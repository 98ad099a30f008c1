"""One rank needs longer for each token."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import Shape, Training


class Fault(Training):
    """Its device is slower, such as by heat."""

    about: ClassVar[str] = "rank 1 of 4 takes twice as long per token as the others"
    finds: ClassVar[str] = "slow_rank"
    shape: ClassVar[Shape] = Shape(ranks=4)
    rank: ClassVar[int] = 1

    def token_s(self, step: int, rank: int, what: str) -> float:
        slow = 1 + self.strength if rank == 1 and what != "generate" else 1.0
        return super().token_s(step, rank, what) * slow
