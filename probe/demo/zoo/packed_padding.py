"""Batches that are mostly padding, of which none is computed: no problem."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import Shape, Training


class Fault(Training):
    """Micro-batches are packed before they are computed. Of a weaker one lengths differ less."""

    about: ClassVar[str] = "batches hold padding, but the model packs it away before it computes: no problem"
    finds: ClassVar[str] = "packed"
    kind: ClassVar[str] = "fine"
    shape: ClassVar[Shape] = Shape(spread=0.9, cap=4096, width=2048)

    def lengths(self, step: int, rank: int) -> list[int]:
        mean = self.shape.mean_tokens
        return [round(mean + self.strength * (one - mean)) for one in super().lengths(step, rank)]
