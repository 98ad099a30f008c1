"""The device runs out of memory in one micro-batch."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import Rank, Shape, Training
from probe.records import GIB


class Fault(Training):
    """A micro-batch of step 8 takes more than is left."""

    about: ClassVar[str] = "in micro-batch 1 of step 8 rank 1 asks for 60 GiB more than its device has free"
    finds: ClassVar[str] = "out_of_memory"
    rank: ClassVar[int] = 1
    phase: ClassVar[str] = "update"
    micro_batch: ClassVar[int] = 1
    step: ClassVar[int] = 8
    shape: ClassVar[Shape] = Shape(steps=12)

    def batch(self, running: Rank, step: int, index: int) -> None:
        if step != 8:
            return
        if running.rank == 1 and index == 1:
            running.device.allocate(int(running.device.total_bytes - 20 * GIB + self.strength * 60 * GIB))
        if running.rank == 0 and index == 2:
            running.wait(0.4)
            raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:41233")
