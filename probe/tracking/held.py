"""Tracking of a process that doesn't know yet whether it is the one that tracks.

Of the ranks of a job only rank 0 sends. A process that is started without a rank, by srun, MPI or ``mp.spawn``, learns
it when the process group is made, which may be long after the first metrics. Until then calls are held, with the steps
and times that they came with; then either all of them go to the backends, or none.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probe import exits
from probe._check import whole_number
from probe.errors import InputTypeError
from probe.guard import on_error
from probe.tracking.backends import load_backend
from probe.tracking.numbers import Snapshot
from probe.tracking.stream import Entry
from probe.tracking.tracking import FINISH_S, Tracking, names_of
from probe.tracking.transfer import start_transfer

#: Calls that are held at most; then the oldest is dropped, as where a backend is away.
CAPACITY = 4096


class HeldTracking(Tracking):
    """A :class:`Tracking` that opens no backend before :meth:`begin`, and none at all after :meth:`drop`.

    Args:
        project_name: As of :class:`Tracking`.
        experiment_name: Likewise.
        default_backend: Likewise; a backend of which a package is missing raises at once, one that can't be used later
            is an incident.
        config: Likewise.
        at_the_end: Whether it tracks after all, asked where the process ends before it was told.
        **options: Likewise.
    """

    def __init__(
        self,
        project_name: str,
        experiment_name: str,
        default_backend: str | Sequence[str] = "console",
        config: Any = None,
        *,
        at_the_end: Callable[[], bool],
        **options: Any,
    ) -> None:
        names = names_of("default_backend", default_backend)
        for name in names:
            load_backend(name)
        self._asked = (project_name, experiment_name, names, config)
        self._options = options
        self._at_the_end = at_the_end
        self._calls: deque[tuple[str, tuple[Any, ...]]] = deque(maxlen=CAPACITY)
        self._opening = threading.Lock()  # is held while backends are opened, which takes seconds
        self._keeping = threading.RLock()  # and this one for as long as a call takes: threads that train wait for it
        self._begins = self._begun = self._dropped = False
        self._off = self._finished = False
        self._pid = os.getpid()
        self._backends: dict[str, Any] = {}
        self.logger: dict[str, Any] = {}
        self.locations: dict[str, str] = {}
        self.attempt = options.get("attempt", 1)
        self.home: Path | None = None
        self._forget_end = exits.at_end(self.finish)

    @property
    def waits(self) -> bool:
        """Whether nobody has decided yet."""
        return not self._begins and not self._dropped

    def begin(self) -> None:
        """It tracks: the backends are opened, and get what was held. Takes seconds; on no thread that trains.

        Raises:
            BackendError: As of :class:`Tracking`. What was held is dropped then.
        """
        with self._opening:
            if not self.waits:
                return
            self._begins = True
            self._forget_end()
            project, experiment, names, config = self._asked
            with on_error(lambda _: self._drop()):
                super().__init__(project, experiment, names, config, **self._options)
            with self._keeping:
                while self._calls:  # one may leave another
                    kind, given = self._calls.popleft()
                    if kind == "log":
                        self.calls += 1
                        self._stream.enqueue(given[0])
                    else:
                        getattr(super(), kind)(*given)
                self._begun = True

    def drop(self) -> None:
        """Another process tracks: what was held goes nowhere. One that has begun goes on."""
        if self.waits:
            self._drop()

    def _drop(self) -> None:
        with self._keeping:
            self._dropped = self._finished = True
            self._calls.clear()
        self._forget_end()

    def _keeps(self, kind: str, *given: Any) -> bool:
        """Whether the call is held, or dropped, and nothing else is to be done."""
        if self._begun:
            return False
        if os.getpid() != self._pid:  # a fork, in which the lock may be held for ever
            return True
        with self._keeping:
            if not self._begun and not self._dropped:
                self._calls.append((kind, given))
            return not self._begun

    def _log(self, data: Mapping[str, Any], step: int, backend: str | Sequence[str] | None) -> None:
        if self._begun:
            super()._log(data, step, backend)
            return
        if not isinstance(data, Mapping):
            raise InputTypeError(f"data: got {type(data).__name__}, expected a mapping of names to numbers")
        checked = whole_number("step", step, 0)
        names = None if backend is None else frozenset(names_of("backend", backend))
        if not self._keeps("log", Entry(Snapshot(data, start_transfer), checked, time.time_ns(), names)):
            super()._log(data, step, backend)

    def _note(self, kind: str, content: Any) -> None:
        if not self._keeps("_note", kind, content):
            super()._note(kind, content)

    def alert(self, title: str, text: str, step: int | None = None) -> None:
        """As of :class:`Tracking`."""
        if not self._keeps("alert", title, text, step):
            super().alert(title, text, step)

    def flush(self, timeout_s: float = 10.0) -> bool:
        """As of :class:`Tracking`; what is held isn't waited for."""
        return super().flush(timeout_s) if self._begun else not self._calls

    def finish(self, exit_code: int | None = None, timeout_s: float = FINISH_S) -> None:
        """As of :class:`Tracking`; who hasn't learnt it by now decides."""
        if os.getpid() != self._pid:
            return
        exit_code = exits.code() if exit_code is None else exit_code
        if self.waits and self._calls and self._at_the_end():
            self.begin()
        self.drop()
        with self._opening:  # by another thread
            pass
        if self._begun:
            super().finish(exit_code, timeout_s)
