"""Ranks that have no value of a metric, and count as 0 in its mean."""

from __future__ import annotations

from typing import Any, ClassVar

from probe.demo.zoo.loop import Shape, Training
from probe.session import Session


class Fault(Training):
    """Two of four ranks have tool calls, and the sum of their means is divided by four. Weaker, only one rank has none,
    and weaker still in one step of four.
    """

    about: ClassVar[str] = (
        "0.2 is logged, but the mean is 0.4: two of four ranks have no value and count as 0 (strength 0.5: "
        "one such rank; 0.25: only in one step of four)"
    )
    finds: ClassVar[str] = "uneven_counts"
    shape: ClassVar[Shape] = Shape(ranks=4)

    def values(self, step: int, rank: int) -> list[float]:
        """What a rank has in a step: two values, or none."""
        without = 2 if self.strength > 0.5 else 1 if self.strength > 0.25 or step % 4 == 3 else 0
        return [0.25 + 0.1 * rank, 0.45 + 0.1 * rank] if rank < self.shape.ranks - without else []

    def metrics(self, step: int, rank: int) -> dict[str, Any]:
        found, values = super().metrics(step, rank), self.values(step, rank)
        return {**found, "reward/tool_call": values} if values else found

    def log(self, session: Session, values: dict[str, float], step: int, rank: int) -> None:
        means = [sum(self.values(step, one)) / 2 for one in range(self.shape.ranks)]
        super().log(session, values | {"reward/tool_call": sum(means) / len(means)}, step, rank)
