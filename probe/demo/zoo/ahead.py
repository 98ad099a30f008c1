"""A training that samples one step ahead, on engines of their own beside the ranks that train."""

from __future__ import annotations

from typing import ClassVar

from probe.demo.zoo.loop import SECOND, Rank
from probe.demo.zoo.served import Served


class Ahead(Served):
    """While one step trains, the engines sample the next. The next step is requested as soon as the weights of the step
    before are there. An engine begins with it when it has finished its share of the step before. A rank waits in
    ``generate`` until all engines have finished. When healthy, both sides work nearly all the time.
    """

    answer_token_s: ClassVar[float] = 2.45e-3

    def __init__(self, strength: float = 1.0, seed: int = 0) -> None:
        super().__init__(strength, seed)
        #: Of each rank that runs, when its steps began, nanoseconds on its clock.
        self.begun: dict[int, list[int]] = {}

    def generated_s(self, running: Rank, step: int, begin_ns: int, alone_s: float) -> float:
        self.begun.setdefault(running.rank, []).append(begin_ns)
        ends = [self.engine(running, step, one)[1] for one in range(self.shape.ranks)]
        return max(max(ends) - begin_ns, 0) / SECOND

    def engine(self, running: Rank, step: int, engine: int) -> tuple[int, int]:
        """When an engine begins with its answers of a step, and when it has them; nanoseconds."""
        begun, end_ns = self.begun[running.rank], 0
        for at in range(len(begun)):
            begin_ns = max(end_ns, begun[max(at - 1, 0)])
            end_ns = begin_ns + int(max(self.answers_s(at, engine)) * SECOND)
        return begin_ns, end_ns

    def sampled(self, running: Rank, step: int, begin_ns: int) -> None:
        asked_ns, _ = self.engine(running, step, running.rank)
        super().sampled(running, step, asked_ns)
