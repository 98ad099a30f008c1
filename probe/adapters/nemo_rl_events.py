"""NeMo-RL's data plane tells a callback of each operation: counted by phase and operation, with bytes and time.

An event is a flat dict: ``op`` (put, get, clear …), ``partition_id``, ``n_keys``, ``n_bytes``, ``wall_ms`` and
``status`` (ok, error or timeout). NeMo-RL emits them where ``observability.enabled`` is set. The client's own callback
is called as before, and what it raises is its caller's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from probe.adapters import automatic, telling
from probe.adapters.seams import Call
from probe.hooks import current_scope, spending
from probe.moments import Tally, tell_counted

#: What the client may call the function that it tells of its operations.
CALLBACKS: Final = ("callback", "_callback", "on_event", "_on_event")

#: How long counts are kept where no phase ends, nanoseconds.
KEPT_NS: Final = 5_000_000_000

_SOURCE: Final = "nemo_rl.data_plane"

_log = logging.getLogger("probe.adapters")
_lock = threading.Lock()


class _Counts:
    """What was counted for a session and isn't told yet."""

    def __init__(self) -> None:
        self.session: Any = None
        self.tallies: dict[tuple[int | None, str | None, str], Tally] = {}  # by step, phase and operation

    def of(self, session: Any) -> dict[tuple[int | None, str | None, str], Tally]:
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
    raise AttributeError(f"{type(client).__name__} has no callback by the name of {', '.join(CALLBACKS)}")


def _both(theirs: Callable[..., Any]) -> Callable[..., Any]:
    failures = 0

    def told(*args: Any, **kwargs: Any) -> Any:
        nonlocal failures
        result = theirs(*args, **kwargs)
        if failures < 3 and _is_attached() and automatic.is_recording(begin=True):
            try:
                with spending():
                    _count(args[0] if args else next(iter(kwargs.values())))
            except Exception:  # training goes on: what it can't read it says once
                failures += 1
                if failures == 1:
                    _log.exception("probe can't read an event of NeMo-RL's data plane; training goes on")
        return result

    return told


def _is_attached() -> bool:
    from probe.adapters.attachment import attached

    return any(one.framework == "nemo_rl" for one in attached())


def _count(event: Mapping[str, Any]) -> None:
    end_ns = time.monotonic_ns()
    begin_ns = end_ns - int(float(event["wall_ms"]) * 1e6)
    op, size_bytes, keys = str(event["op"]), int(event["n_bytes"]), int(event["n_keys"])
    where = current_scope()
    with _lock:
        tallies = _counts.of(telling.session())
        tally = tallies.setdefault((where.step, where.phase, op), Tally())
        tally.add(begin_ns, end_ns, failed=event.get("status", "ok") != "ok")
        tally.moved(size_bytes=size_bytes, keys=keys)
        due = op == "close" or end_ns - min(one.begin_ns for one in tallies.values()) > KEPT_NS
    if due:
        tell_events()


def tell_events() -> None:
    """Tell what was counted, and count anew: a phase has ended."""
    if not _counts.tallies:
        return
    with _lock:
        told = list(_counts.of(telling.session()).items())
        _counts.tallies = {}
    for (step, phase, op), tally in told:
        tell_counted(tally, name=op, source=_SOURCE, step=step, phase=phase)
