"""What micro-batches under a cap are made even in: their work or their tokens.

Even work makes ranks that go in step wait less for each other at each micro-batch. Even tokens keep the largest peak
low. Which of both is better is a matter of the lengths, and of what the model's own times say.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from probe.analysis.time_model import TimeModel
from probe.analysis.what_if.answering import Replayer, width_of
from probe.analysis.what_if.cutting import Made, recorded_cut
from probe.analysis.what_if.numbers import RankWork, Width
from probe.analysis.what_if.settings import Settings


def other_way(own: Replayer) -> str | None:
    """What micro-batches aren't made even in, and could be; None where the packer leaves no choice.

    Args:
        own: Batches of one role and phase.
    """
    cut = recorded_cut(own.dealings[0].batch.rounds[0].calls[0])
    if cut is None or cut.packer != "seqlen_balancing.rearrange_micro_batches":
        return None
    return "tokens" if cut.balance == "workload" else "workload"


def in_step(own: Replayer) -> bool:
    """Whether ranks agreed on the number of micro-batches, as those do that wait for each other at each of them.

    Args:
        own: Batches of one role and phase.
    """
    first = own.dealings[0].batch.rounds[0]
    cut = recorded_cut(first.calls[0])
    return cut is not None and cut.counts_agreed and len(first.data_ranks) > 1


def saved_in_step(own: Replayer, model: TimeModel, settings: Settings) -> tuple[float, float]:
    """Seconds of a step that are saved where ranks wait for each other after each micro-batch, the mean over steps, and
    how far the interval reaches.

    Args:
        own: Batches of one role and phase.
        model: Of the same.
        settings: That are changed.

    Raises:
        InputError: A batch can't be cut so.
    """
    told: tuple[list[RankWork], list[RankWork]] = ([], [])
    for at, dealing in enumerate(own.dealings):
        width = width_of(dealing.batch.rounds[0], settings.round_to)
        for works, one in zip(told, (Settings(), settings), strict=True):
            works.extend(_slowest(own.cut(at, one)[0], width, model, own.processes(at)))
    value, reach = model.saved(*told)
    return value / len(own.dealings), reach / len(own.dealings)


def _slowest(rounds: Sequence[Made], width: Width, model: TimeModel, processes: Sequence[str]) -> list[RankWork]:
    """Of each micro-batch the work of the rank that has most in it, by the model."""
    return model.slowest(
        [_work(lengths, width, process) for lengths, process in zip(place, processes, strict=True)]
        for made in rounds
        for place in itertools.zip_longest(*made, fillvalue=())
    )


def _work(lengths: Sequence[int], width: Width, process: str) -> RankWork:
    return RankWork(1, width.computed(lengths, sum(lengths)), sum(one * one for one in lengths), process)
