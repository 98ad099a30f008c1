"""Training that can't keep up with the engines, which have nothing left to do."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.ahead import Ahead


class Fault(Ahead):
    """From step 6 on a token takes longer in the update; engines have sampled as far ahead as they may, and wait."""

    about: ClassVar[str] = "sampling runs one step ahead; from step 6 on an update takes three times as long as before"
    finds: ClassVar[str] = "idle_rollout"
    kind: ClassVar[str] = "tuning"

    def token_s(self, step: int, rank: int, what: str) -> float:
        slower = 1 + 2 * self.strength if step >= 6 and what == "update" else 1
        return super().token_s(step, rank, what) * slower
