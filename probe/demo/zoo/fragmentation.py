"""Much more memory reserved than allocated."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import Rank, Shape, Training
from probe.records import GIB


class Fault(Training):
    """What is reserved lies in pieces that fit no allocation, so that the cache is emptied and allocations are tried
    again.
    """

    about: ClassVar[str] = (
        "up to 50 GiB are reserved in blocks too small for any allocation, until the allocator retries one"
    )
    finds: ClassVar[str] = "fragmentation"
    shape: ClassVar[Shape] = Shape(steps=24)

    def after_step(self, rank: Rank, step: int) -> None:
        rank.device.fragment(int(self.strength * 15 * GIB))
