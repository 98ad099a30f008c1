"""A peak that only steps with validation have."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import Rank, Shape, Training
from probe.hooks import phase
from probe.records import GIB


class Fault(Training):
    """Every fifth step validates, on much larger batches than it trains on."""

    about: ClassVar[str] = "every fifth step validates, which takes 30 GiB more than training"
    finds: ClassVar[str] = "validation_peak"
    kind: ClassVar[str] = "tuning"
    shape: ClassVar[Shape] = Shape(steps=30)
    phase: ClassVar[str] = "validation"

    def after_step(self, rank: Rank, step: int) -> None:
        if step % 5 == 4:
            with phase("validation"):
                used = rank.device.allocate(int(GIB * (2.5 + self.strength * 30)))
                rank.wait(0.5)
                used.free()
