"""A mean of means of unlike many values."""

from __future__ import annotations

from typing import Any, ClassVar

from probe.demo.zoo.loop import Training
from probe.session import Session


class Fault(Training):
    """Rank 0 has nine values and rank 1 has one, and what is logged is the mean of the two means."""

    about: ClassVar[str] = "0.5 is logged as the mean; the mean of all values is 0.107"
    finds: ClassVar[str] = "mean_of_unequal_means"

    def values(self, rank: int) -> list[float]:
        """What a rank has: nine small values, or one that is larger."""
        return [0.009] * 9 if rank == 0 else [0.009 + 0.982 * self.strength]

    def metrics(self, step: int, rank: int) -> dict[str, Any]:
        return {**super().metrics(step, rank), "actor/clip_ratio": self.values(rank)}

    def log(self, session: Session, values: dict[str, float], step: int, rank: int) -> None:
        means = [sum(self.values(one)) / len(self.values(one)) for one in range(self.shape.ranks)]
        super().log(session, values | {"actor/clip_ratio": sum(means) / len(means)}, step, rank)
