"""The largest value of each rank, averaged over the ranks."""

from __future__ import annotations

from typing import Any, ClassVar

from probe.demo.zoo.loop import Shape, Training
from probe.session import Session


class Fault(Training):
    """Each rank knows its longest answer, and what is logged as the longest is the mean of these."""

    about: ClassVar[str] = "the longest answer is logged as 650, the mean of the ranks' maxima; the true maximum is 900"
    finds: ClassVar[str] = "averaged_extreme"
    shape: ClassVar[Shape] = Shape(ranks=4)

    def longest(self, rank: int) -> float:
        """The longest answer of a rank."""
        return 400.0 if rank == 0 else 400.0 + 500.0 * self.strength * rank / (self.shape.ranks - 1)

    def metrics(self, step: int, rank: int) -> dict[str, Any]:
        return {**super().metrics(step, rank), "response_length/max": [200.0, self.longest(rank), 300.0]}

    def log(self, session: Session, values: dict[str, float], step: int, rank: int) -> None:
        longest = [self.longest(one) for one in range(self.shape.ranks)]
        super().log(session, values | {"response_length/max": sum(longest) / len(longest)}, step, rank)
