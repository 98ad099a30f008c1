"""A fake clock under all of probe, for as long as a training on it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest import mock

from probe import own_cost
from probe.devices import cpu
from probe.hooks import calls, guard, own_time, telling
from probe.recorders import memory

#: Modules that have read the clock under a name of their own.
_READERS: Final = (calls, cpu, guard, memory, own_time, telling)


@contextmanager
def fake_time(clock: Callable[[], int], wall_ns: int) -> Iterator[None]:
    """Let what probe records in this process tell the time by ``clock``.

    Args:
        clock: Tells nanoseconds.
        wall_ns: Wall-clock nanoseconds since the epoch at its 0.
    """
    with ExitStack() as stack:
        for module in _READERS:
            stack.enter_context(mock.patch.object(module, "_clock", clock))
        stack.enter_context(mock.patch.object(time, "monotonic_ns", clock))
        stack.enter_context(mock.patch.object(time, "time_ns", _later(clock, wall_ns)))
        defaults = own_cost.OwnCost.__init__.__kwdefaults__ or {}
        stack.enter_context(mock.patch.dict(defaults, {"clock": clock}))
        yield


def _later(clock: Callable[[], int], wall_ns: int) -> Callable[[], int]:
    def told() -> int:
        return wall_ns + clock()

    return told
