"""What the wall time of a step went for on both sides, in whole nanoseconds, so that the parts add up exactly.

A step lasts until the next one begins. Always,

* the trainer's parts sum to the step's wall time, and
* so do the parts of each replica.

Where several things go on at once, the first of :data:`TRAINER` counts, and of a replica the first of :data:`REPLICA`:
its own work, else what the trainer does meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from probe.analysis.ledger.slots import SAMPLING
from probe.analysis.long_tail.tail import Requests, between, covered, merged

#: Phases in which a trainer that samples elsewhere waits for answers. The names are those of verl 0.9.1 ("gen", and in
#: its asynchronous trainers "switch_wait", "wait_for_enough_samples" and "generate_async"), of NeMo-RL's asynchronous
#: GRPO ("exposed_generation"), of probe's demo, and plain ones.
WAITING: Final = (
    *SAMPLING,
    "generate_async",
    "switch_wait",
    "wait_for_enough_samples",
    "exposed_generation",
    "wait_for_samples",
    "wait_for_rollouts",
    "wait_for_batch",
)

#: Phases that bring the weights to the replicas, or devices from one side to the other, by the same frameworks' names.
WEIGHTS: Final = (
    "update_weights",
    "sync_weights",
    "weight_sync",
    "sync_rollout_weights",
    "param_sync",
    "refit",
    "engine_sleep",
    "engine_wake",
    "switch_to_rollout",
    "switch_to_trainer",
)

#: What the trainer's time goes for: phases of its own work; weights; waiting for answers; and what lies in no phase.
TRAINER: Final = ("work", "weights", "answers", "rest")

#: What a replica's time goes for: "sampling" while one of its requests is under way; else it is idle, while the trainer
#: works, brings weights, or waits for answers, and in the rest.
REPLICA: Final = ("sampling", "work", "weights", "answers", "rest")

Parts = Mapping[str, int]


class Step(NamedTuple):
    """A step's wall time.

    Attributes:
        step: Its number.
        begin_ns: When it began, wall-clock nanoseconds.
        wall_ns: Until the next one began; of the last until it ended.
        trainer: Nanoseconds by what they went for, of :data:`TRAINER`.
        replicas: The same of each, of :data:`REPLICA`.
        overlap_ns: In which the trainer works while any replica samples.
        sampling_ns: In which any replica samples.
    """

    step: int
    begin_ns: int
    wall_ns: int
    trainer: Parts
    replicas: Mapping[str, Parts]
    overlap_ns: int
    sampling_ns: int

    @property
    def waits(self) -> float:
        """The share of it in which the trainer waits for answers."""
        return self.trainer["answers"] / self.wall_ns

    @property
    def idle(self) -> float:
        """The share of the replicas' time in which they have no request under way."""
        return 1 - sum(one["sampling"] for one in self.replicas.values()) / (self.wall_ns * len(self.replicas))


class Trainer(NamedTuple):
    """When the trainer did what, as times that don't overlap, in order; see :data:`TRAINER`."""

    work: Requests
    weights: Requests
    answers: Requests


def step_of(step: int, begin_ns: int, wall_ns: int, trainer: Trainer, replicas: Mapping[str, Requests]) -> Step:
    """A step from when the trainer did what, and when replicas had requests under way.

    Args:
        step: Its number.
        begin_ns: When it began.
        wall_ns: How long it lasts, at least 1.
        trainer: As :func:`merged` gives it.
        replicas: Likewise, at least one.
    """
    end_ns = begin_ns + wall_ns
    here = Trainer(*(between(one, begin_ns, end_ns) for one in trainer))
    requests = {name: between(one, begin_ns, end_ns) for name, one in replicas.items()}
    every = merged(
        np.concatenate([one.begin_ns for one in requests.values()]),
        np.concatenate([one.end_ns for one in requests.values()]),
    )
    work, sampling = covered(*here.work, begin_ns, end_ns), covered(*every, begin_ns, end_ns)
    return Step(
        step,
        begin_ns,
        wall_ns,
        trainer=_parts(TRAINER, here, begin_ns, end_ns),
        replicas={name: _parts(REPLICA, (one, *here), begin_ns, end_ns) for name, one in requests.items()},
        overlap_ns=work + sampling - _covered([here.work, every], begin_ns, end_ns),
        sampling_ns=sampling,
    )


def _parts(names: Sequence[str], layers: Sequence[Requests], first: int, last: int) -> Parts:
    """How long each layer covers what none before it does, and last what none covers."""
    reached = [0, *(_covered(layers[: at + 1], first, last) for at in range(len(layers))), last - first]
    return {name: reached[at + 1] - reached[at] for at, name in enumerate(names)}


def _covered(layers: Sequence[Requests], first: int, last: int) -> int:
    begin, end = (np.concatenate([one[at] for one in layers]) for at in range(2))
    return covered(begin, end, first, last)
