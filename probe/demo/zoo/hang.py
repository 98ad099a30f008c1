"""Ranks with unlike numbers of micro-batches: one waits for another that never comes."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import ClassVar

from probe.demo.zoo.processes import Processes


class Fault(Processes):
    """Rank 1 cuts one micro-batch fewer in step 3, and never enters the sum of the last one of rank 0."""

    about: ClassVar[str] = (
        "in step 3 rank 1 has one micro-batch less than rank 0; rank 0 waits for it and is stopped after a minute"
    )
    finds: ClassVar[str] = "hang"
    rank: ClassVar[int] = 1
    phase: ClassVar[str] = "update"
    step: ClassVar[int] = 3
    waits_s: ClassVar[float] = 60.0  #: a weaker one is ended earlier, as by a limit of the scheduler

    def count(self, step: int, rank: int) -> int:
        return 6 if step == 3 and rank == 0 else 5

    def act(self, step: int, rank: int, index: int) -> None:
        if (step, rank, index) == (3, 0, 5):
            threading.Thread(target=_end_after, args=(self.waits_s * self.strength**1.5,), daemon=True).start()


def _end_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
