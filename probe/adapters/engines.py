"""What engines that sample tell: phases in which their memory changes, and how loaded their scheduler is.

An engine's iterations are too many to be scopes: they are added up, and told about once a second and when nothing is
left to do.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Generator
from typing import Any, Final

from probe.adapters.seams import Call, Seam
from probe.hooks import current_scope, phase
from probe.moments import tell_engine_load

#: How long iterations are added up before they are told, nanoseconds.
KEPT_NS: Final = 1_000_000_000

#: What an engine's process is to the job.
ROLE: Final = "engine"


class Load:
    """Iterations of a scheduler that aren't told yet.

    Args:
        source: The function whose calls they are.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._where: tuple[int | None, str | None] = None, None
        self._preempted = 0
        self._begin()

    def _begin(self) -> None:
        self._iterations = self._begin_ns = self._end_ns = 0
        self._prefill = self._decode = 0
        self._running = [0, 0]
        self._waiting = [0, 0]
        self._ratio: list[float] | None = None

    def preempted(self, requests: int = 1) -> None:
        """Requests have lost their place in the cache.

        Args:
            requests: How many.
        """
        self._preempted += requests

    def iterated(
        self, *, prefill_tokens: int, decode_tokens: int, running: int, waiting: int, cache_ratio: float | None
    ) -> None:
        """An iteration has ended; what was added up before it is told where that is due.

        Args:
            prefill_tokens: Computed in prefill.
            decode_tokens: Computed in decoding.
            running: Requests that ran.
            waiting: Requests that waited.
            cache_ratio: The share of the KV cache in use, from 0 to 1; None is not known.
        """
        now, scope = time.monotonic_ns(), current_scope()
        where = scope.step, scope.phase
        if self._iterations and (where != self._where or now - self._begin_ns >= KEPT_NS):
            self.tell()
        if not self._iterations:
            self._where, self._begin_ns = where, now
        self._end_ns = now
        self._iterations += 1
        self._prefill += prefill_tokens
        self._decode += decode_tokens
        self._running = [self._running[0] + running, max(self._running[1], running)]
        self._waiting = [self._waiting[0] + waiting, max(self._waiting[1], waiting)]
        if cache_ratio is not None:
            total, largest = self._ratio or (0.0, 0.0)
            self._ratio = [total + cache_ratio, max(largest, cache_ratio)]

    def tell(self) -> None:
        """Tell what was added up, and begin anew; without an iteration nothing is told."""
        if not self._iterations:
            return
        step, within = self._where
        total_ratio, largest_ratio = self._ratio or (None, None)
        values: dict[str, Any] = {
            "source": self._source,
            "step": step,
            "phase": within,
            "role": ROLE,
            "begin_ns": self._begin_ns,
            "end_ns": self._end_ns,
            "iterations": self._iterations,
            "prefill_tokens": self._prefill,
            "decode_tokens": self._decode,
            "preempted": self._preempted,
            "total_running": self._running[0],
            "largest_running": self._running[1],
            "total_waiting": self._waiting[0],
            "largest_waiting": self._waiting[1],
            "total_cache_ratio": total_ratio,
            "largest_cache_ratio": largest_ratio,
        }
        self._preempted = 0
        self._begin()
        tell_engine_load(values)


class Loads:
    """Those of the schedulers of this process.

    Args:
        source: The function whose calls are iterations.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._known: weakref.WeakKeyDictionary[Any, Load] = weakref.WeakKeyDictionary()

    def of(self, scheduler: Any) -> Load:
        """The one of ``scheduler``.

        Args:
            scheduler: An object of the engine's.
        """
        found = self._known.get(scheduler)
        if found is None:
            found = self._known[scheduler] = Load(self._source)
        return found

    def preempted(self, requests: int) -> None:
        """Requests have lost their place in the cache of a scheduler that nobody names: of each of this process.

        Args:
            requests: How many.
        """
        for load in list(self._known.values()):
            load.preempted(requests)


def phases(*points: tuple[str, str, str, str]) -> list[Seam]:
    """Seams of functions that are phases of an engine.

    Args:
        *points: Module, name in it, point, and the phase's name.
    """
    return [Seam(module, name, point, _phase(called)) for module, name, point, called in points]


def _phase(called: str) -> Callable[[Call], Generator[None, None, None]]:
    def tell(call: Call) -> Generator[None, None, None]:
        del call
        with phase(called, role=ROLE):
            yield

    return tell
