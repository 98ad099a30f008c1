"""Sessions of forked children: each begins one of its own with the first thing that it has to record."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from probe import devices
from probe.current import CURRENT
from probe.hooks import Event, Listener, begin_at_root, subscribe
from probe.own_cost import Budget
from probe.records import who
from probe.runs.attempts import take_place
from probe.runs.processes import describe
from probe.runs.row_types import bring
from probe.session.listening import Listening
from probe.session.recording import load_recorders
from probe.session.session import Session


class Heir(Listener):
    """Waits in a forked child for the first thing that happens there, and begins the child's own session with it.

    Args:
        parent: The session of the process that was forked.
    """

    def __init__(self, parent: Session) -> None:
        self._parent = parent
        points = {one for recorder in parent.recording.recorders for one in recorder.points}
        self._subscription = subscribe(self, *points)

    def __repr__(self) -> str:
        return "a forked child's session"

    def _begin(self, event: Event) -> list[Listening]:
        """Those that are to be told of this event, too: they subscribe too late for it."""
        self._subscription.close()
        session = _start_child(self._parent)
        return [] if session is None else [one for one in session.recording.listening if one in event.point.listeners]

    def enter(self, event: Event) -> Any:
        return [(one, one.enter(event)) for one in self._begin(event)]

    def leave(self, event: Event, state: Any) -> None:
        for one, its in state:
            one.leave(event, its)

    def fire(self, event: Event) -> None:
        for one in self._begin(event):
            one.fire(event)

    def failed(self, *_: object) -> None:
        self._subscription.close()


def _start_child(parent: Session) -> Session | None:
    """The session of a forked child: of the same run and attempt. It can't use the parent's accelerator."""
    with CURRENT.lock:
        if CURRENT.session is not None:
            return None  # it has begun one itself meanwhile
        before = parent.process
        child, role = _name_of_child()
        found = devices.detect("cpu")
        chosen = load_recorders(parent.asked, found, "observe")
        tables = bring(kind for recorder in chosen for kind in recorder.rows)
        process = describe(
            name=f"{who(before.rank, before.process)} {child}",
            role=role,
            device=found.name,
            device_name=found.description,
            tables=tables,
        )
        process.rank = process.local_rank = None  # the environment's are its parent's
        place = take_place(parent.directory, process, before.attempt)
        ours: dict[str, Any] = {"asked": parent.asked, "parquet_at_close": False}
        ours |= {"device": found, "save_failed_batch": parent.recording.failing.save_batch}
        ours["budget"] = None if parent.budget is None else Budget(parent.budget.ratio)
        CURRENT.session = opened = Session(parent.directory, chosen, process, place=place, **ours)
        opened.counts_alone = parent.counts_alone
        return opened


def _name_of_child() -> tuple[str, str | None]:
    """What a child goes by beside its parent, and its role."""
    data: Any = sys.modules.get("torch.utils.data")
    worker = None if data is None else data.get_worker_info()
    if worker is not None:
        return f"loader {worker.id}", "loader"
    processes: Any = sys.modules.get("multiprocessing.process")
    if processes is None or processes.parent_process() is None:
        return "child", None
    return processes.current_process().name, None


@functools.cache  # once in a process
def watch_forks() -> None:
    """Have forked children of this process record, too."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    """In a forked child the session is its parent's, and so are the files, the backends and the threads."""
    parent: Session | None = CURRENT.forked()
    if parent is not None:
        begin_at_root()
        parent.fork()
        Heir(parent)
