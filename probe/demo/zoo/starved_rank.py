"""The data of one rank come late."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import Shape, Training


class Fault(Training):
    """A loader that is slow on one rank: the others wait for it where they meet."""

    about: ClassVar[str] = "rank 2 of 4 waits 3 s for its data in each step"
    finds: ClassVar[str] = "data_late"
    shape: ClassVar[Shape] = Shape(ranks=4)
    rank: ClassVar[int] = 2

    def data_s(self, step: int, rank: int) -> float:
        return 0.01 + (3.0 * self.strength if rank == 2 else 0.0)
