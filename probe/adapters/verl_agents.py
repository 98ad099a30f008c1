"""What verl's agent loops time for every sample, many at once in one thread: counted by step, and no scope of any.

When each sample begins and ends, and which engine it was sent to, is told along with that; and whether the tokens that
the trainer gets of it as the model's are those that engines sampled: agent loops may tokenise a conversation again.

Their processes record nothing else. A row for each step and timer is told when no sample of the step is under way any
more; where the driver sends a step's samples one after the other there are several, which add up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextvars import ContextVar
from typing import Final

from probe.adapters import automatic, telling
from probe.adapters.seams import Call
from probe.hooks import emit
from probe.moments import Tally, tell_counted
from probe.same_tokens import Compared, compared
from probe.sampled import TIMED

#: Who works, in the rows and in the process.
ROLE: Final = "agent_loop"


class Request:
    """One sample that is under way.

    Attributes:
        begin_ns: When it began, monotonic.
        replica: Name of the engine that it was last sent to; "" before.
        drawn: Ids that engines have sampled for it, in their order.
        compared: What the trainer gets of it, beside these: a name and the comparison of each trajectory.
    """

    __slots__ = ("begin_ns", "compared", "drawn", "replica")

    def __init__(self) -> None:
        self.begin_ns = time.monotonic_ns()
        self.replica = ""
        self.drawn: list[int] = []
        self.compared: list[tuple[str, Compared]] = []


class Samples:
    """The samples of one step that this process works on.

    Args:
        step: verl's own global step; None where it isn't told.
        phase: By verl's timer in the driver.

    Attributes:
        running: How many are under way.
        tallies: What was counted, by the timer's name.
        ended: Of each sample that has ended its begin, its end, both monotonic nanoseconds, its engine, and the tokens
            that were sampled.
        compared: Of these, by name.
    """

    def __init__(self, step: int | None, phase: str) -> None:
        self.step = step
        self.phase = phase
        self.running = 0
        self.tallies: dict[str, Tally] = {}
        self.ended: list[tuple[int, int, str, int]] = []
        self.compared: list[tuple[str, Compared]] = []


_REQUEST: ContextVar[Request | None] = ContextVar("probe_request", default=None)
_SAMPLES: ContextVar[Samples | None] = ContextVar("probe_samples", default=None)
_under_way: Final[dict[tuple[int | None, str], Samples]] = {}
_lock = threading.Lock()  # an actor may have several event loops


def made(call: Call) -> None:
    """A process has become an agent loop: it begins to record now, where no sample waits for that."""
    del call
    if automatic.is_counting():
        _be_an_agent_loop()


def sample(call: Call) -> Generator[None, None, None]:
    """One sample, from its first request to its reward. What is timed inside of it is counted for its step."""
    if not automatic.is_counting():
        return
    samples, request, failed = _begin(call), Request(), True
    tokens = _SAMPLES.set(samples), _REQUEST.set(request)
    try:
        yield
        failed = False
    finally:
        _SAMPLES.reset(tokens[0])
        _REQUEST.reset(tokens[1])
        _end(samples, None if failed else request)


def sent(call: Call) -> None:
    """A request goes to an engine, whose name its balancer has just told: that of its host and port, or its actor's."""
    request = _REQUEST.get()
    if request is not None and isinstance(call.result, tuple) and call.result:
        request.replica = str(call.result[0])


def generated(call: Call) -> None:
    """An engine has answered a request; one that was interrupted goes on in another one."""
    request = _REQUEST.get()
    ids = getattr(call.result, "token_ids", None)
    if request is not None and isinstance(ids, list):
        request.drawn += ids


def handed_over(call: Call) -> Generator[None, None, None]:
    """The trajectories of a sample get their reward, as the trainer gets them: which of their tokens are the model's is
    known here.
    """
    request, outputs = _REQUEST.get(), call.argument("outputs")
    if request is not None and request.drawn and isinstance(outputs, list):
        about = call.argument("kwargs") or {}
        known = [str(about[name]) for name in ("uid", "session_id") if name in about]
        for at, one in enumerate(outputs):
            if isinstance(getattr(one, "response_ids", None), list):  # pictures have none
                # A loop may try twice. What the mask leaves out is what tools said: equal lengths are chance.
                told = compared(one.response_ids, one.response_mask, request.drawn, parts=True, aligned=False)
                request.compared.append(("_".join([*known, str(at)]) if known else "", told))
    yield


def timed(name: str) -> Generator[None, None, None]:
    """A stretch that verl times in a task; outside of samples it is nobody's.

    Args:
        name: verl's own name for it.
    """
    samples = _SAMPLES.get()
    if samples is None:
        return
    begin_ns, failed = time.monotonic_ns(), True
    try:
        yield
        failed = False
    finally:
        with _lock:
            samples.tallies.setdefault(name, Tally()).add(begin_ns, time.monotonic_ns(), failed=failed)


def _begin(call: Call) -> Samples:
    trajectory = call.argument("trajectory")
    step, phase = int(trajectory["step"]), "testing" if trajectory["validate"] else "gen"
    with _lock:
        samples = _under_way.setdefault((step, phase), Samples(step, phase))
        samples.running += 1
    return samples


def _end(samples: Samples, request: Request | None) -> None:
    """A sample has ended; of one that failed there is no request."""
    with _lock:
        if request is not None:
            samples.ended.append((request.begin_ns, time.monotonic_ns(), request.replica, len(request.drawn)))
            samples.compared += request.compared
        samples.running -= 1
        if samples.running:
            return
        del _under_way[samples.step, samples.phase]
    for name, tally in samples.tallies.items():
        source = "verl.simple_timer"
        tell_counted(tally, name=name, source=source, step=samples.step, phase=samples.phase, role=ROLE)
    if TIMED.listeners and samples.ended and samples.phase != "testing":
        begin_ns, end_ns, replicas, tokens = zip(*samples.ended, strict=True)
        about = {"step": samples.step, "phase": samples.phase, "source": "verl.AgentLoopWorker"}
        names, found = zip(*samples.compared, strict=True) if samples.compared else ((), ())
        told = {"uids": list(names), "compared": list(found)}
        told |= {"begin_ns": list(begin_ns), "end_ns": list(end_ns), "replicas": list(replicas)}
        emit(TIMED, tokens=list(tokens) if all(tokens) else None, **told, **about)


def _be_an_agent_loop() -> None:
    open_now = telling.session()
    if open_now is not None and open_now.process.role is None:
        open_now.learn(role=ROLE)
