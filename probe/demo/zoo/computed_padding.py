"""Padding that is computed."""

from __future__ import annotations

from typing import Any, ClassVar

from probe.demo.zoo.loop import Shape, Training


class Fault(Training):
    """Micro-batches are rectangles, and lengths differ a lot."""

    about: ClassVar[str] = "rows of different lengths are computed as padded rectangles"
    finds: ClassVar[str] = "computed_padding"
    kind: ClassVar[str] = "tuning"
    packed: ClassVar[bool] = False
    without: ClassVar[dict[str, Any]] = {"packed": True}
    shape: ClassVar[Shape] = Shape(spread=0.9, cap=4096, width=2048)

    def lengths(self, step: int, rank: int) -> list[int]:
        mean = self.shape.mean_tokens
        drawn = super().lengths(step, rank)
        return [max(8, int(mean + self.strength * (one - mean))) for one in drawn]
