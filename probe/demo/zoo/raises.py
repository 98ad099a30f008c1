"""One rank raises in a micro-batch, and the others fail after it."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import Rank, Training


class Fault(Training):
    """The others see that a connection is closed."""

    about: ClassVar[str] = "rank 1 raises ValueError in micro-batch 2 of step 6, then rank 0 fails"
    finds: ClassVar[str] = "failed"
    rank: ClassVar[int] = 1
    phase: ClassVar[str] = "update"
    micro_batch: ClassVar[int] = 2
    step: ClassVar[int] = 6

    def batch(self, running: Rank, step: int, index: int) -> None:
        if step != 6 or index < 2:
            return
        if running.rank == 1:
            raise ValueError("labels hold 151936, which is no token of the vocabulary")
        if index == 3:
            running.wait(0.4 * self.strength)
            raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:41233")
