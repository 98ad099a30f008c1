"""Memory of the device that a phase doesn't give back."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import MIB, Shape, Training


class Fault(Training):
    """128 MiB more after each sync_weights."""

    about: ClassVar[str] = "128 MiB stay on the device after each sync_weights"
    finds: ClassVar[str] = "device_leak"
    shape: ClassVar[Shape] = Shape(steps=40)
    phase: ClassVar[str] = "sync_weights"

    def kept(self, step: int, rank: int, what: str) -> int:
        return int(self.strength * 128 * MIB) if what == "sync_weights" else 0
