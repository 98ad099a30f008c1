"""One rank has more tokens than the others."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import Shape, Training


class Fault(Training):
    """Sequences are sorted, and not dealt out by their lengths."""

    about: ClassVar[str] = "rank 3 of 4 has 1.6 times the tokens of the others"
    finds: ClassVar[str] = "uneven_ranks"
    kind: ClassVar[str] = "tuning"
    shape: ClassVar[Shape] = Shape(ranks=4)
    rank: ClassVar[int] = 3

    def lengths(self, step: int, rank: int) -> list[int]:
        more = 1 + 0.6 * self.strength if rank == 3 else 1.0
        return [int(one * more) for one in super().lengths(step, rank)]
