"""A metric that is logged once for each mini-batch, so that the last one stays."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import Training
from probe.session import Session


class Fault(Training):
    """Each call replaces what the one before said of the step."""

    about: ClassVar[str] = "actor/kl is logged three times in each step, and only the last value is kept"
    finds: ClassVar[str] = "last_one_wins"

    def log(self, session: Session, values: dict[str, float], step: int, rank: int) -> None:
        super().log(session, values, step, rank)
        if rank == 0:
            for value in 0.02 * (1 + self.strength * self._drawing(step, rank, 7).random(3)):
                session.log({"actor/kl": float(value)}, step)
