"""Whose work a rank's is: processes may have paces of their own, see :mod:`probe.analysis.time_model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probe.analysis.time_model import TimeModel
from probe.analysis.what_if.batches import Round, StepBatch
from probe.analysis.what_if.numbers import StepNumbers
from probe.text import ratio


def processes_of(first: Round, time: TimeModel | None) -> list[str]:
    """Of each data-parallel rank of a round the process whose pace it has: of those that share its sequences the
    slowest, for which the others wait.

    Args:
        first: The round.
        time: The model that knows the paces; without one it is the first that shares them.
    """
    each = len(first.calls) // len(first.data_ranks)
    groups = [[call.process for call in first.calls[at : at + each]] for at in range(0, len(first.calls), each)]
    return [group[0] if time is None else max(group, key=time.pace) for group in groups]


def named(numbers: StepNumbers, processes: Sequence[str]) -> StepNumbers:
    """The numbers of a step, the work of each rank with its process.

    Args:
        numbers: Of the step.
        processes: Of each rank; of more ranks than the run had nothing is foretold.
    """
    for works in numbers.works:
        for work, process in zip(works, processes, strict=False):
            work.process = process
    return numbers


def told(time: TimeModel, first: Round) -> list[str]:
    """Which ranks take other times than the others for the same work, a sentence each.

    Args:
        time: The model that knows the paces.
        first: A round of its role and phase.
    """
    ranks = {call.process: call.process if call.rank is None else f"rank {call.rank}" for call in first.calls}
    return [
        f"{time.phase or 'no phase'}: {ranks.get(process, process)} takes {ratio(pace)} the time of the others for the "
        f"same work; its seconds are predicted so."
        for process, pace in sorted(time.paces.items())
    ]


def knowing(models: Mapping[Any, TimeModel], batches: Sequence[StepBatch]) -> dict[Any, TimeModel]:
    """Models of the roles and phases of some batches. Where a process has a pace of its own, and its batches aren't
    known, such as those that a driver told of, its rows aren't either, and there is none.

    Args:
        models: By role and phase.
        batches: That are replayed.
    """
    found = {}
    for key, model in models.items():
        told = [one for one in batches if (one.role, one.phase) == key]
        if told and all(model.paces.keys() <= {call.process for call in one.rounds[0].calls} for one in told):
            found[key] = model
    return found
