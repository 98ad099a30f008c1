"""Memory of the process that a step doesn't give back."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from probe.demo.zoo.loop import MIB, Rank, Shape, Training


class Fault(Training):
    """A list that keeps an array of every step."""

    about: ClassVar[str] = "host memory grows by 8 MiB in each step, on a machine without an accelerator"
    finds: ClassVar[str] = "host_leak"
    shape: ClassVar[Shape] = Shape(ranks=1, steps=40)
    device: ClassVar[bool] = False

    def after_step(self, rank: Rank, step: int) -> None:
        size = int(self.strength * 8 * MIB)
        kept: Any = np.ones(size, dtype=np.uint8)  # written to, so that it is resident
        rank.host.append(kept)
        rank.wait(0.01)
