"""Memory that grows because batches grow, which is no leak."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import Shape, Training


class Fault(Training):
    """Sequences grow over the run, and a cache that follows the largest batch with them."""

    about: ClassVar[str] = "sequences grow by half over the run, and memory grows with them: no leak"
    finds: ClassVar[str] = "memory_follows_tokens"
    kind: ClassVar[str] = "fine"
    shape: ClassVar[Shape] = Shape(steps=40)

    def lengths(self, step: int, rank: int) -> list[int]:
        grown = 1 + self.strength * 0.5 * step / self.shape.steps
        wave = 1 + 0.03 * float(self._drawing(step, 0, 9).normal())
        return [int(max(8, min(one * grown * wave, self.shape.width))) for one in super().lengths(step, rank)]

    def kept(self, step: int, rank: int, what: str) -> int:
        if what != "sync_weights":
            return 0
        sizes = [sum(self.lengths(one, rank)) for one in range(step + 1)]
        before = max(sizes[:-1], default=0)
        return int(max(0, sizes[-1] - before) * 2 * 1024 * 1024)
