"""Memory of the device that isn't PyTorch's, and grows."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import MIB, Rank, Shape, Training


class Fault(Training):
    """Such as a communication library that takes buffers in each step."""

    about: ClassVar[str] = "non-PyTorch memory grows by 256 MiB in each step"
    finds: ClassVar[str] = "non_torch_growth"
    shape: ClassVar[Shape] = Shape(steps=40)

    def after_step(self, rank: Rank, step: int) -> None:
        rank.device.non_torch_bytes += int(self.strength * 256 * MIB)
