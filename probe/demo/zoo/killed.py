"""A rank that is killed."""

from __future__ import annotations

import os
import signal
from typing import ClassVar

from probe.demo.zoo.processes import Processes


class Fault(Processes):
    """As by the kernel's out-of-memory killer. A weaker one leaves less to be seen: it comes in a phase that takes no
    time, and weaker still between two phases.
    """

    about: ClassVar[str] = (
        "SIGKILL ends rank 1 in micro-batch 2 of step 4 (strength 0.5: as it enters sync_weights; 0.25: between phases)"
    )
    finds: ClassVar[str] = "killed"
    rank: ClassVar[int] = 1
    phase: ClassVar[str | None] = "update"
    micro_batch: ClassVar[int | None] = 2
    step: ClassVar[int] = 4

    def place(self) -> dict[str, int | str | None]:
        within: dict[str, int | str | None] = {"phase": "update", "micro_batch": 2}
        if self.strength <= 0.25:
            within = {"phase": None, "micro_batch": None}
        elif self.strength <= 0.5:
            within = {"phase": "sync_weights", "micro_batch": None}
        return super().place() | within

    def act(self, step: int, rank: int, index: int) -> None:
        self._kill(step, rank, "update", index)

    def entered(self, step: int, rank: int, phase: str | None) -> None:
        self._kill(step, rank, phase, None)

    def _kill(self, step: int, rank: int, phase: str | None, index: int | None) -> None:
        here, asked = (phase, index), self.place()
        if (step, rank) == (4, 1) and here == (asked["phase"], asked["micro_batch"]):
            os.kill(os.getpid(), signal.SIGKILL)
