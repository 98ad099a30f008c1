"""A mean over micro-batches that is summed over them."""

from __future__ import annotations

from typing import Any, ClassVar

from probe.demo.zoo.loop import Training
from probe.session import Session


class Fault(Training):
    """What accumulates over micro-batches isn't divided by how many they are. A weaker one is off by less: it is summed
    over the two ranks, and weaker still in one step of four.
    """

    about: ClassVar[str] = (
        "actor/kl_loss is logged as the sum over four micro-batches, four times its true value (strength 0.5: as "
        "the sum over two ranks; 0.25: only in one step of four)"
    )
    finds: ClassVar[str] = "scaled_sum"

    def values(self, rank: int) -> list[float]:
        """What a rank has, one of each micro-batch."""
        return [0.011 + 0.003 * rank, 0.012, 0.014, 0.009]

    def metrics(self, step: int, rank: int) -> dict[str, Any]:
        return {**super().metrics(step, rank), "actor/kl_loss": self.values(rank)}

    def log(self, session: Session, values: dict[str, float], step: int, rank: int) -> None:
        means = [sum(self.values(one)) / len(self.values(one)) for one in range(self.shape.ranks)]
        mean = sum(means) / len(means)
        if self.strength > 0.5:
            mean *= len(self.values(rank))
        elif self.strength > 0.25 or step % 4 == 3:
            mean *= self.shape.ranks
        super().log(session, values | {"actor/kl_loss": mean}, step, rank)
