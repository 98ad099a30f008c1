"""Snapshots of a device's memory from the moment in which it ran out: ``probe.start(oom_snapshot=True)``.

A device that can do so remembers what allocated its memory, each allocation with the step, phase and micro-batch that
it was made in, and calls us before the exception is raised. Its snapshot is written as torch's own tools read it
(https://pytorch.org/memory_viz): probe itself never reads one, since that format is pickle.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from probe._io import write_atomically
from probe.devices import Device
from probe.guard import Guard
from probe.hooks import Scope, silenced, spending
from probe.runs.layout import FAILURES_NAME

_log = logging.getLogger("probe.session")

#: Allocations and frees that the device remembers, beside what is allocated now.
ENTRIES: Final = 20_000

#: The largest snapshot that is kept, bytes. Of a larger one the history goes, then the stacks, then all of it.
LIMIT_BYTES: Final = 256 * 2**20

#: Snapshots of one process. A trainer may catch the exception and go on.
MOST: Final = 3

END: Final = ".snapshot.pickle"

Entered = Callable[[Scope, int, int], None]
Left = Callable[[Scope, Scope, int], None]


class Snapshots:
    """Takes them, for one process.

    Args:
        device: Of which.
        directory: The run directory.
        process: Gives the name of this process.
    """

    def __init__(self, device: Device, directory: Path, process: Callable[[], str]) -> None:
        self._device = device
        self._directory = directory
        self._process = process
        self._labels = _guard("the device's allocations can't be labelled")
        self._keeps = _guard("the device's memory snapshot can't be kept")
        self._watches = False
        self._count = 0
        self._newest = ""  # its path below the run directory, as long as no failure has taken it

    def following(self, entered: Entered | None, left: Left | None) -> tuple[Entered, Left]:
        """What is to follow the scopes, for :func:`probe.hooks.follow`, where these did so far.

        Args:
            entered: As there.
            left: As there.
        """

        def entered_too(at: Scope, thread: int, now_ns: int) -> None:
            if entered is not None:
                entered(at, thread, now_ns)
            self.label(at)

        def left_too(at: Scope, outer: Scope, thread: int) -> None:
            if left is not None:
                left(at, outer, thread)
            self.label(outer)

        return entered_too, left_too

    def label(self, at: Scope) -> None:
        """A scope is current from now on: what is allocated is allocated in it.

        Args:
            at: Which.
        """
        if self._labels.off:
            return
        with self._labels:
            if not self._watches and self._device.bind():  # the trainer has begun to use it
                self._watches = self._device.watch_out_of_memory(self._ran_out, ENTRIES)
            if self._watches:
                self._device.label_allocations(name_of(at))

    def taken(self) -> str:
        """The path, below the run directory, of the newest snapshot that this wasn't asked for; "" without one."""
        newest, self._newest = self._newest, ""
        return newest

    def close(self) -> None:
        """Nothing more is remembered or taken."""
        if self._watches:
            self._watches = False
            with self._labels:
                self._device.label_allocations("")
                self._device.ignore_out_of_memory(self._ran_out)

    def _ran_out(self) -> None:
        """In the thread that asked for memory, before it is told that there is none. Nothing may be raised here."""
        with self._keeps, spending(), silenced():
            if self._count < MOST:
                self._count += 1
                self._newest = self._kept()

    def _kept(self) -> str:
        data = packed(self._device.snapshot(), LIMIT_BYTES)
        if data is None:
            _log.warning("the device's memory snapshot is larger than %s bytes, and isn't kept", LIMIT_BYTES)
            return ""
        name = f"{FAILURES_NAME}/{self._process()}-{self._count}{END}"
        (self._directory / FAILURES_NAME).mkdir(exist_ok=True)
        write_atomically(self._directory / name, data)
        return name


def _guard(failed: str) -> Guard:
    return Guard("oom_snapshot", failed, log=_log, level=logging.WARNING)


def name_of(at: Scope) -> str:
    """What allocations of a scope are called.

    >>> from probe.hooks import current_scope
    >>> name_of(Scope("micro_batch", "2", current_scope(), step=3, role="actor", phase="update", micro_batch=2))
    'step 3, actor, update, micro-batch 2'
    """
    parts = (
        None if at.step is None else f"step {at.step}",
        at.role,
        at.phase,
        None if at.micro_batch is None else f"micro-batch {at.micro_batch}",
    )
    return ", ".join(part for part in parts if part)


def packed(snapshot: Mapping[str, Any], limit: int) -> bytes | None:
    """A snapshot as torch's tools read it, of at most ``limit`` bytes: where it is larger without the history, and then
    without stacks; None where that is larger still.

    Args:
        snapshot: As ``torch.cuda.memory._snapshot`` gives it.
        limit: Bytes.
    """
    for lighter in (dict, _without_history, _without_stacks):
        data = pickle.dumps(lighter(snapshot))
        if len(data) <= limit:
            return data
    return None


def _without_history(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    return {**snapshot, "device_traces": [[] for _ in snapshot.get("device_traces", ())]}


def _without_stacks(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    def bare(one: Mapping[str, Any]) -> dict[str, Any]:
        return {name: [] if name == "frames" else value for name, value in one.items()}

    segments = [{**bare(one), "blocks": [bare(block) for block in one["blocks"]]} for one in snapshot["segments"]]
    return {**_without_history(snapshot), "segments": segments}
