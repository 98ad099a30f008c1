"""A training whose ranks sample with an engine each, which tells when each answer was asked for and ended."""

from __future__ import annotations

import math
from typing import ClassVar

from probe.demo.zoo.loop import SECOND, Rank, Shape, Training
from probe.sampled import samples


class Served(Training):
    """All answers of a step are requested at once. The time of an answer is proportional to its tokens."""

    shape: ClassVar[Shape] = Shape(ranks=4)

    #: Seconds for a token of one answer among the others.
    answer_token_s: ClassVar[float] = 2e-3

    def answers_s(self, step: int, rank: int) -> list[float]:
        """Seconds from request to end, of each answer of a rank."""
        drawing = self._drawing(step, rank, 7)
        noise = [math.exp(0.05 * drawing.normal()) for _ in range(self.shape.sequences)]
        return [self.answer_token_s * one * by for one, by in zip(self.rows(step, rank), noise, strict=True)]

    def seconds(self, step: int, rank: int, what: str, tokens: float, index: int = 0) -> float:
        return (
            max(self.answers_s(step, rank)) if what == "generate" else super().seconds(step, rank, what, tokens, index)
        )

    def sampled(self, running: Rank, step: int, begin_ns: int) -> None:
        took, lengths = self.answers_s(step, running.rank), self.rows(step, running.rank)
        samples(
            lengths,
            begin_ns=[begin_ns] * len(took),
            end_ns=[begin_ns + int(one * SECOND) for one in took],
            replicas=f"engine {running.rank}",
            weight_versions=[step] * len(took),
            trainer_version=step,
            clipped=False,
        )
