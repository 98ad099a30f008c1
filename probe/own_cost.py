"""What probe itself costs, billed to the steps in which it was spent.

Two things are counted, and their sum over the time of the steps is the run's own cost (quantity ``own_cost``):

* *Hooks*: the time of :func:`probe.hooks.spent_ns`, read by the thread of the step as the step begins and after it has
  ended. A collection of garbage is set off by whoever allocates the object that is one too many; so those that hooks
  set off are in their time, and in proportion to what they allocate.
* *Waiting for the interpreter's lock* that the writer's thread holds. It can't be measured without a cost of its own.
  While the writer runs, a step waits only if it wants the lock, and never longer than the writer's CPU time: that,
  times the share of the time in which the step's own thread used the CPU, is taken for it. (A step that waits for a
  device isn't held up; one that computes outside the lock is, by this estimate, a little too much. Collections
  that the writer sets off are in its CPU time.)

Not counted: processes beside this one (the publisher), and threads of tracking backends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from probe import hooks

#: Metrics of probe's own cost, of each step of a process.
HOOKS: Final = "probe/cost/hooks_ms"
WRITER: Final = "probe/cost/writer_cpu_ms"
#: Of each but the first, which imports, fills caches and warms up: hooks and waiting for the lock, the step's own time,
#: and the one as a share of the other.
COST: Final = "probe/cost/overhead_ms"
STEP: Final = "probe/cost/step_ms"
RATIO: Final = "probe/cost/overhead_ratio"
#: Of the first: hooks, and waiting for the lock.
FIRST: Final = "probe/cost/first_step_overhead_ms"
#: Hooks between the step before and this one.
OUTSIDE: Final = "probe/cost/outside_steps_ms"

KEYS: Final = (HOOKS, WRITER, COST, STEP, RATIO, FIRST, OUTSIDE)


class EndedStep(NamedTuple):
    """What the thread of a step saw of it.

    Attributes:
        step: Its number.
        begin_ns: Monotonic; before the first hook heard of it.
        end_ns: Monotonic; after the last hook heard of its end.
        hooks_ns: What hooks took in between.
        outside_ns: What they took between the step before and this one.
        first: Whether it is the first of the process.
        thread: Of the step.
    """

    step: int
    begin_ns: int
    end_ns: int
    hooks_ns: int
    outside_ns: int
    first: bool
    thread: int


_ended: Final = tuple.__new__


class _Share:
    """CPU time of the writer, spread evenly over the time in which it was used."""

    __slots__ = ("active_ratio", "begin_ns", "cpu_ns", "end_ns")

    def __init__(self, begin_ns: int, end_ns: int, cpu_ns: int, active_ratio: float) -> None:
        self.begin_ns = begin_ns
        self.end_ns = end_ns
        self.cpu_ns = cpu_ns
        self.active_ratio = active_ratio

    def cut(self, until_ns: int) -> int:
        """Remove what lies before ``until_ns``; its CPU time, so that all cuts together are the whole."""
        until_ns = min(until_ns, self.end_ns)
        if until_ns <= self.begin_ns:
            return 0
        part = self.cpu_ns * (until_ns - self.begin_ns) // (self.end_ns - self.begin_ns)
        self.begin_ns = until_ns
        self.cpu_ns -= part
        return part


class ThreadClocks:
    """CPU time of threads, read from any thread. A system that has no such clocks tells nothing."""

    __slots__ = ("_clocks",)

    def __init__(self) -> None:
        self._clocks: dict[int, int | None] = {}

    def watch(self) -> int:
        """The number of the calling thread, whose time can be asked for from now on."""
        thread = threading.get_ident()
        if thread not in self._clocks:  # only the thread itself is sure that it is alive
            found = getattr(time, "pthread_getcpuclockid", None)
            self._clocks[thread] = None if found is None else found(thread)
        return thread

    def cpu_ns(self, thread: int) -> int | None:
        """CPU time that the thread has used, nanoseconds; None where that isn't known.

        Args:
            thread: What :meth:`watch` returned.
        """
        clock = self._clocks.get(thread)
        if clock is None:
            return None
        try:
            return time.clock_gettime_ns(clock)
        except OSError:  # the thread has ended
            self._clocks.pop(thread, None)
            return None


class OwnCost:
    """Bills what probe takes to steps. Begun and ended on the training thread, billed on the writer's.

    Args:
        writer_cpu_ns: CPU time that the writer's threads have used so far.
        spent_ns: Time that hooks have taken so far, on all threads.
        clock: Monotonic nanoseconds.
        threads: CPU time of the threads of steps.
    """

    def __init__(
        self,
        writer_cpu_ns: Callable[[], int],
        *,
        spent_ns: Callable[[], int] = hooks.spent_ns,
        clock: Callable[[], int] = time.monotonic_ns,
        threads: ThreadClocks | None = None,
    ) -> None:
        self._writer_cpu_ns = writer_cpu_ns
        self._spent_ns = spent_ns
        self._clock = clock
        self._threads = ThreadClocks() if threads is None else threads
        self._watch = self._threads.watch
        self._told_ns = spent_ns()  # what belongs to the steps so far, and to the time before them
        self._first = True
        self._shares: list[_Share] = []
        self._billed_ns, self._billed_cpu_ns = clock(), writer_cpu_ns()
        self._thread_cpu: tuple[int, int] | None = None  # a thread, and what it had used then

    def begin(self) -> tuple[int, int]:
        """A step begins: the time, and what hooks have taken before."""
        return self._clock(), self._spent_ns()

    def end(self, step: int, begun: tuple[int, int]) -> EndedStep:
        """The step ended, its hooks included.

        Args:
            step: Its number.
            begun: What :meth:`begin` returned.
        """
        begin_ns, before_ns = begun
        spent_ns, thread = self._spent_ns(), self._watch()
        outside_ns, first = max(0, before_ns - self._told_ns), self._first
        self._told_ns, self._first = spent_ns, False
        found = (step, begin_ns, self._clock(), spent_ns - before_ns, outside_ns, first, thread)
        return _ended(EndedStep, found)  # a third of the class's own time

    def bill(self, ended: EndedStep) -> dict[str, float]:
        """The metrics of a step, in the writer's thread; steps come in the order in which they ended."""
        if ended.end_ns > self._billed_ns:
            self._share_out(ended.thread)
        cpu_ns = lock_ns = 0.0
        for share in self._shares:
            share.cut(ended.begin_ns)  # the writer's work between steps held up none
            part = share.cut(ended.end_ns)
            cpu_ns += part
            lock_ns += part * share.active_ratio
        self._shares = [share for share in self._shares if share.begin_ns < share.end_ns]
        return _metrics(ended, cpu_ns, lock_ns)

    def _share_out(self, thread: int) -> None:
        """What the writer used since the last time is spread over all that time; it has served all steps in it."""
        now, cpu_ns = self._clock(), self._writer_cpu_ns()
        used_ns = cpu_ns - self._billed_cpu_ns
        active = self._active(thread, now - self._billed_ns - used_ns)
        self._shares.append(_Share(self._billed_ns, now, used_ns, active))
        self._billed_ns, self._billed_cpu_ns = now, cpu_ns

    def _active(self, thread: int, free_ns: int) -> float:
        """The share of the time in which the writer didn't run that the thread used the CPU; 1 where it isn't known."""
        now, before = self._threads.cpu_ns(thread), self._thread_cpu
        self._thread_cpu = None if now is None else (thread, now)
        if now is None or before is None or before[0] != thread or free_ns <= 0:
            return 1.0
        return min(1.0, (now - before[1]) / free_ns)


def _metrics(ended: EndedStep, cpu_ns: float, lock_ns: float) -> dict[str, float]:
    step_ns, cost_ns = ended.end_ns - ended.begin_ns, ended.hooks_ns + lock_ns
    found = {HOOKS: ended.hooks_ns / 1e6, WRITER: cpu_ns / 1e6}
    if ended.outside_ns:
        found[OUTSIDE] = ended.outside_ns / 1e6
    if ended.first:
        return {**found, FIRST: cost_ns / 1e6}
    ratio = cost_ns / step_ns if step_ns else 0.0
    return {**found, COST: cost_ns / 1e6, STEP: step_ns / 1e6, RATIO: ratio}
