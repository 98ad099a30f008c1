"""What probe itself costs, billed to the steps in which it was spent.

Two things are counted, and their sum over the time of the steps is the run's own cost (quantity ``own_cost``):

* *Hooks*: the time of :func:`probe.hooks.spent_ns`, read by the thread of the step as the step begins and after it has
  ended. A collection of garbage is set off by whoever allocates the object that is one too many; so those that hooks
  set off are in their time, and in proportion to what they allocate.
* *Waiting for the interpreter's lock* that the writer's thread holds. It can't be measured without a cost of its own.
  While the writer runs, a step waits only if it wants the lock, and never longer than the writer's CPU time. Two sums
  are taken for it, and no more than that time: the writer's CPU time, times the share of the time in which the step's
  own thread used the CPU; and, each time that this thread had slept and woke up (for a device, for a file, for
  others), what is left on the average of the time for which the writer has the lock (:func:`_wait_ns`). (A step that
  computes outside the lock waits less than this says. Collections that the writer sets off are in its CPU time.)

Not counted: processes beside this one (the publisher), and threads of tracking backends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

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


class EndedStep(msgspec.Struct, gc=False):  # it waits for the writer
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


#: Kinds of scopes that a budget never leaves out.
_KEPT: Final = frozenset({"process", "step", "phase", "micro_batch"})

#: Of how many last steps the cost is held against a budget.
STEPS: Final = 20


class _Share:
    """CPU time of the writer, spread evenly over the time in which it was used, and how much of it steps waited."""

    __slots__ = ("begin_ns", "cpu_ns", "end_ns", "waited_ratio")

    def __init__(self, begin_ns: int, end_ns: int, cpu_ns: int, waited_ratio: float) -> None:
        self.begin_ns = begin_ns
        self.end_ns = end_ns
        self.cpu_ns = cpu_ns
        self.waited_ratio = waited_ratio

    def cut(self, until_ns: int) -> int:
        """Remove what lies before ``until_ns``; its CPU time, so that all cuts together are the whole."""
        until_ns = min(until_ns, self.end_ns)
        if until_ns <= self.begin_ns:
            return 0
        part = self.cpu_ns * (until_ns - self.begin_ns) // (self.end_ns - self.begin_ns)
        self.begin_ns = until_ns
        self.cpu_ns -= part
        return part


def _turn_ns() -> int:
    """After how long a thread that wants the interpreter's lock gets it from one that computes; 5 ms by default."""
    return round(sys.getswitchinterval() * 1e9)


class Activity(NamedTuple):
    """What a thread has done so far; None is unknown.

    Attributes:
        cpu_ns: CPU time that it has used, nanoseconds.
        waits: How often it has given up the CPU to wait for something.
    """

    cpu_ns: int | None = None
    waits: int | None = None


class Threads:
    """What threads do, asked by another one. A system that doesn't tell tells nothing."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[int | None, _Status]] = {}  # a clock, and where Linux tells of the thread

    def watch(self) -> int:
        """The number of the calling thread, which can be asked for from now on."""
        thread = threading.get_ident()
        if thread not in self._known:  # only the thread itself is sure that it is alive
            clock = getattr(time, "pthread_getcpuclockid", None)
            self._known[thread] = (None if clock is None else clock(thread), _Status(threading.get_native_id()))
        return thread

    def activity(self, thread: int) -> Activity:
        """What a thread has done; nothing of one that has ended.

        Args:
            thread: What :meth:`watch` returned.
        """
        clock, status = self._known.get(thread, (None, None))
        if clock is None or status is None:
            return Activity()
        try:
            return Activity(time.clock_gettime_ns(clock), status.waits())
        except OSError:  # the thread has ended
            self._known.pop(thread, None)
            return Activity()


class _Status:
    """What Linux tells of a thread of this process; kept open, which takes a third of opening it each time.

    Args:
        number: Of the thread, as the kernel counts them.
    """

    __slots__ = ("__weakref__", "_descriptor", "_path")

    def __init__(self, number: int) -> None:
        self._path = f"/proc/self/task/{number}/status"
        self._descriptor: int | None = None

    def waits(self) -> int | None:
        """How often the kernel says that the thread gave up the CPU of itself; None where it isn't Linux."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                weakref.finalize(self, os.close, self._descriptor)
            told = os.pread(self._descriptor, 8192, 0)
        except OSError:
            return None
        _, name, rest = told.rpartition(b"\nvoluntary_ctxt_switches:")
        return int(rest.split(None, 1)[0]) if name else None


class OwnCost:
    """Bills what probe takes to steps. Begun and ended on the training thread, billed on the writer's.

    Args:
        writer_cpu_ns: CPU time that the writer's threads have used so far.
        spent_ns: Time that hooks have taken so far, on all threads.
        clock: Monotonic nanoseconds.
        threads: Tell of the threads of steps.
        turn_ns: After how long a thread gets the interpreter's lock from one that computes.
    """

    def __init__(
        self,
        writer_cpu_ns: Callable[[], int],
        *,
        spent_ns: Callable[[], int] = hooks.spent_ns,
        clock: Callable[[], int] = time.monotonic_ns,
        threads: Threads | None = None,
        turn_ns: Callable[[], int] = _turn_ns,
    ) -> None:
        self._writer_cpu_ns = writer_cpu_ns
        self._spent_ns = spent_ns
        self._clock = clock
        self._threads = Threads() if threads is None else threads
        self._turn_ns = turn_ns
        self._watch = self._threads.watch
        self._told_ns = spent_ns()  # what belongs to the steps so far, and to the time before them
        self._first = True
        self._shares: list[_Share] = []
        self._billed_ns, self._billed_cpu_ns = clock(), writer_cpu_ns()
        self._seen: tuple[int, Activity] | None = None  # a thread, and what it had done then

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
        return EndedStep(step, begin_ns, self._clock(), spent_ns - before_ns, outside_ns, first, thread)

    def bill(self, ended: EndedStep) -> dict[str, float]:
        """The metrics of a step, in the writer's thread; steps come in the order in which they ended."""
        if ended.end_ns > self._billed_ns:
            self._share_out(ended.thread)
        cpu_ns = lock_ns = 0.0
        for share in self._shares:
            share.cut(ended.begin_ns)  # the writer's work between steps held up none
            part = share.cut(ended.end_ns)
            cpu_ns += part
            lock_ns += part * share.waited_ratio
        self._shares = [share for share in self._shares if share.begin_ns < share.end_ns]
        return _metrics(ended, cpu_ns, lock_ns)

    def _share_out(self, thread: int) -> None:
        """What the writer used since the last time is spread over all that time; it has served all steps in it."""
        now, cpu_ns = self._clock(), self._writer_cpu_ns()
        used_ns, took_ns = cpu_ns - self._billed_cpu_ns, now - self._billed_ns
        self._shares.append(_Share(self._billed_ns, now, used_ns, self._waited_ratio(thread, took_ns, used_ns)))
        self._billed_ns, self._billed_cpu_ns = now, cpu_ns

    def _waited_ratio(self, thread: int, took_ns: int, used_ns: int) -> float:
        """For how much of the writer's CPU time the thread waited; all of it where that isn't known."""
        now, seen = self._threads.activity(thread), self._seen
        self._seen = (thread, now)
        if seen is None or seen[0] != thread or now.cpu_ns is None or seen[1].cpu_ns is None:
            return 1.0
        if not 0 < used_ns < took_ns:
            return 1.0
        active = (now.cpu_ns - seen[1].cpu_ns) / (took_ns - used_ns)
        wakes = 0 if now.waits is None or seen[1].waits is None else now.waits - seen[1].waits
        return min(1.0, active + wakes * _wait_ns(took_ns, used_ns, self._turn_ns()) / used_ns)


def _wait_ns(took_ns: int, used_ns: int, turn_ns: int) -> float:
    """How long a thread waits on the average that wants the interpreter's lock at some moment of a stretch of time.

    Args:
        took_ns: The stretch.
        used_ns: For how long, in one go, another thread has the lock in it.
        turn_ns: After how long the other one gives it up when it is asked to.

    >>> _wait_ns(100, 10, 50), _wait_ns(100, 10, 4)
    (0.5, 0.32)
    """
    given_up = max(0, used_ns - turn_ns)
    return (used_ns**2 - given_up**2) / 2 / took_ns


class Budget:
    """Keeps the own cost of a session under a share of the time of its steps, by leaving out rows at inner points.

    An inner point is an observed call, or a scope that is no step, phase or micro-batch and has the role and the phase
    of the scope around it: so that the peak of each role and phase is known without it. All inner points of a step are
    left out, or none: no sum over a step is too low without being seen to be.

    Args:
        ratio: The share.

    Attributes:
        ratio: The share.
        spent_ratio: What the last steps cost of their time, all together.
        thins: Whether inner points are left out in the step that is open.
        left_out: How many rows were so far, by table and point.
    """

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self.spent_ratio = 0.0
        self.thins = False
        self.left_out: dict[tuple[str, str], int] = {}
        self._lock_ratio = 0.0
        self._steps: deque[EndedStep] = deque()
        self._time_ns = self._hooks_ns = 0

    def note(self, ended: EndedStep) -> None:
        """A step has ended, on the training thread: what the last ones cost says what the next one records."""
        if ended.first:
            return
        if len(self._steps) == STEPS:
            oldest = self._steps.popleft()
            self._time_ns -= oldest.end_ns - oldest.begin_ns
            self._hooks_ns -= oldest.hooks_ns
        self._steps.append(ended)
        self._time_ns += ended.end_ns - ended.begin_ns
        self._hooks_ns += ended.hooks_ns
        self.spent_ratio = self._hooks_ns / self._time_ns + self._lock_ratio if self._time_ns else 0.0
        self.thins = self.spent_ratio > self.ratio

    def note_bill(self, metrics: Mapping[str, float]) -> None:
        """What a step waited for the lock, which only the writer's thread knows."""
        if metrics.get(STEP):
            waited = (metrics[COST] - metrics[HOOKS]) / metrics[STEP]
            self._lock_ratio += (waited - self._lock_ratio) / STEPS

    def leaves_out(self, event: hooks.Event) -> bool:
        """Whether nothing is recorded at ``event``."""
        scope, around = event.scope, event.scope.parent
        if not self.thins or scope.step is None:
            return False
        if event.point is not hooks.SCOPE:
            return True
        return (
            around is not None and scope.kind not in _KEPT and (scope.role, scope.phase) == (around.role, around.phase)
        )

    def count(self, table: str, point: str, rows: int) -> None:
        """So many rows were left out."""
        self.left_out[table, point] = self.left_out.get((table, point), 0) + rows


def _metrics(ended: EndedStep, cpu_ns: float, lock_ns: float) -> dict[str, float]:
    step_ns, cost_ns = ended.end_ns - ended.begin_ns, ended.hooks_ns + lock_ns
    found = {HOOKS: ended.hooks_ns / 1e6, WRITER: cpu_ns / 1e6}
    if ended.outside_ns:
        found[OUTSIDE] = ended.outside_ns / 1e6
    if ended.first:
        return {**found, FIRST: cost_ns / 1e6}
    ratio = cost_ns / step_ns if step_ns else 0.0
    return {**found, COST: cost_ns / 1e6, STEP: step_ns / 1e6, RATIO: ratio}
