"""What NeMo-RL tells others of itself: operations of its data plane, and spans, counted by step and phase.

Its data plane tells a callback of each operation. An event is a flat dict: ``op`` (put, get, clear …),
``partition_id``, ``n_keys``, ``n_bytes``, ``wall_ms`` and ``status`` (ok, error or timeout). NeMo-RL emits them where
``observability.enabled`` is set. The client's own callback is called as before, and what it raises is its caller's.

Spans are OpenTelemetry's, where NeMo-RL makes them. Which there are is NeMo-RL's to say: each name is counted as it is,
and none becomes a phase, which the timer's labels are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from probe.adapters import automatic, telling
from probe.adapters.seams import Call
from probe.guard import Guard
from probe.hooks import current_scope, spending
from probe.moments import Tally, tell_counted

#: What the client may call the function that it tells of its operations.
CALLBACKS: Final = ("callback", "_callback", "on_event", "_on_event")

#: How long counts are kept where no phase ends, nanoseconds.
KEPT_NS: Final = 5_000_000_000

_SOURCE: Final = "nemo_rl.data_plane"

#: Names of spans that are counted apart in a phase; more are counted under one.
MAX_SPANS: Final = 64

#: The name of those beyond.
OTHERS: Final = "(others)"

_log = logging.getLogger("probe.adapters")
_lock = threading.Lock()


class _Key(NamedTuple):
    step: int | None
    phase: str | None
    source: str
    name: str


class _Counts:
    """What was counted for a session and isn't told yet."""

    def __init__(self) -> None:
        self.session: Any = None
        self.tallies: dict[_Key, Tally] = {}

    def of(self, session: Any) -> dict[_Key, Tally]:
        """Those of ``session``; what another one left is nobody's."""
        if session is not self.session:
            self.session, self.tallies = session, {}
        return self.tallies


_counts: Final = _Counts()


def client_made(call: Call) -> None:
    """A client is there: its operations are told to us after its own callback.

    Raises:
        AttributeError: It has no callback by any name that is known.
    """
    client = call.args[0]
    for name in CALLBACKS:
        theirs = getattr(client, name, None)
        if callable(theirs):
            setattr(client, name, _both(theirs))
            return
    raise AttributeError(f"{type(client).__name__} has none of the callbacks {', '.join(CALLBACKS)}")


def _both(theirs: Callable[..., Any]) -> Callable[..., Any]:
    count = _guarded(_count_event, _SOURCE, "an event of NeMo-RL's data plane", begins=True)

    def told(*args: Any, **kwargs: Any) -> Any:
        result = theirs(*args, **kwargs)
        count(args[0] if args else next(iter(kwargs.values())))
        return result

    return told


def provider_made(call: Call) -> None:
    """A provider of tracers is there: its spans are told to us, after what its owner has given it."""
    from opentelemetry.sdk.trace import SpanProcessor

    count = _guarded(_count_span, "opentelemetry", "a span of OpenTelemetry", begins=False)

    class Spans(SpanProcessor):
        def on_end(self, span: Any) -> None:
            count(span)

    call.args[0].add_span_processor(Spans())


def _guarded(count: Callable[[Any], None], source: str, what: str, *, begins: bool) -> Callable[[Any], None]:
    """``count``, where somebody listens, and never raising: a source that can't be read isn't read any more.
    ``begins`` says whether it is reason enough for the process to begin to record.
    """
    guard = Guard(source, f"probe can't read {what}", kind="adapter", log=_log)

    def told(one: Any) -> None:
        if not guard.off and _is_attached() and automatic.is_recording(begin=begins):
            with guard, spending():
                count(one)

    return told


def _is_attached() -> bool:
    from probe.frameworks import attached

    return any(one.framework == "nemo_rl" for one in attached())


def _count_event(event: Mapping[str, Any]) -> None:
    end_ns = time.monotonic_ns()
    begin_ns = end_ns - int(float(event["wall_ms"]) * 1e6)
    op, size_bytes, keys = str(event["op"]), int(event["n_bytes"]), int(event["n_keys"])
    failed = event.get("status", "ok") != "ok"
    _count(_SOURCE, op, begin_ns, end_ns, failed=failed, moved=(size_bytes, keys), at_once=op == "close")


def _count_span(span: Any) -> None:
    took_ns = int(span.end_time) - int(span.start_time)
    end_ns = time.monotonic_ns()
    failed = span.status.status_code.name == "ERROR"
    maker = span.instrumentation_scope
    source = f"opentelemetry {maker.name if maker else ''}".rstrip()
    # Nothing ends later that would tell of one that stands around all phases.
    outermost = current_scope().phase is None and threading.current_thread() is threading.main_thread()
    _count(source, str(span.name), end_ns - took_ns, end_ns, failed=failed, at_once=outermost)


def _count(
    source: str,
    name: str,
    begin_ns: int,
    end_ns: int,
    *,
    failed: bool,
    moved: tuple[int, int] | None = None,
    at_once: bool = False,
) -> None:
    where = current_scope()
    with _lock:
        tallies = _counts.of(telling.session())
        key = _Key(where.step, where.phase, source, name)
        if key not in tallies and sum(one[:3] == key[:3] for one in tallies) >= MAX_SPANS:
            key = key._replace(name=OTHERS)
        tally = tallies.setdefault(key, Tally())
        tally.add(begin_ns, end_ns, failed=failed)
        if moved is not None:
            tally.moved(size_bytes=moved[0], keys=moved[1])
        due = at_once or end_ns - min(one.begin_ns for one in tallies.values()) > KEPT_NS
    if due:
        tell_events()


def tell_events() -> None:
    """Tell what was counted, and count anew: a phase has ended."""
    if not _counts.tallies:
        return
    with _lock:
        told = list(_counts.of(telling.session()).items())
        _counts.tallies = {}
    for key, tally in told:
        tell_counted(tally, name=key.name, source=key.source, step=key.step, phase=key.phase)
