"""Faults that are planted in small trainings, and what must be found first: the tests of the verdict.

``probe demo --fault NAME`` plants one; ``probe demo --fault list`` says which there are.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from probe.errors import UnknownNameError

if TYPE_CHECKING:
    from probe.demo.zoo.loop import Training

#: Every fault is a module of this package, with a class ``Fault``.
FAULTS: Final = (
    "hang",
    "killed",
    "raises",
    "out_of_memory",
    "device_leak",
    "host_leak",
    "growing_batches",
    "fragmentation",
    "non_torch_growth",
    "validation_peak",
    "slow_rank",
    "starved_rank",
    "uneven_ranks",
    "uneven_mini_batches",
    "giant_sequence",
    "computed_padding",
    "packed_padding",
    "wide_row",
    "accidental_reducer",
    "unequal_means",
    "last_one_wins",
    "averaged_extreme",
    "scaled_sum",
    "uneven_counts",
    "nan",
    "equal_rewards",
    "truncated",
    "gradient_spike",
    "long_tail",
    "mismatch_temperature",
    "mismatch_unsynced",
    "retokenised",
    "failed_rollouts",
    "idle_trainer",
    "idle_rollout",
)


def fault(name: str) -> type[Training]:
    """The training that a fault is planted in.

    Raises:
        UnknownNameError: There is none of this name.
    """
    if name not in FAULTS:
        raise UnknownNameError(f"fault: got {name!r}, expected one of {', '.join(FAULTS)}")
    found: type[Training] = import_module(f"probe.demo.zoo.{name}").Fault
    return found
