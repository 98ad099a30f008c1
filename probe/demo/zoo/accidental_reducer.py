"""A metric that is reduced by a word that only happens to be in its name."""

from __future__ import annotations

from typing import Any, ClassVar

from probe.demo.zoo.loop import Training


class Fault(Training):
    """“timing” holds “min”."""

    about: ClassVar[str] = "timing/step is reduced to its minimum, because “timing” contains “min”"
    finds: ClassVar[str] = "accidental_reducer"

    def metrics(self, step: int, rank: int) -> dict[str, Any]:
        drawing = self._drawing(step, rank, 7)
        return {**super().metrics(step, rank), "timing/step": [float(2 + self.strength * x) for x in drawing.random(4)]}
