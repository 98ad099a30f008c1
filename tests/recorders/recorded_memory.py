"""What a session does with a memory recorder, at once and in one thread."""

from __future__ import annotations

from typing import Any, Literal

from probe.devices import Device
from probe.hooks import Listener, subscribe
from probe.recorders.memory import MemoryRecorder
from probe.records import Deferred, Memory, stamp


class Recording(Listener):
    """What a session does with a recorder, at once and in one thread."""

    def __init__(self, recorder: MemoryRecorder) -> None:
        self.recorder = recorder
        self.errors: list[BaseException] = []
        self._put: list[tuple[Any, Any, int]] = []

    def enter(self, event: Any) -> Any:
        return self.recorder.enter(event)

    def leave(self, event: Any, state: Any) -> None:
        item = self.recorder.leave(event, state)
        if item is not None:
            self._put.append((item, event.scope, event.end_ns))

    def failed(self, event: Any, error: BaseException, count: int, switched_off: bool) -> None:
        self.errors.append(error)

    def rows(self) -> list[Memory]:
        assert not self.errors
        rows: list[Any] = []
        for item, where, time_ns in self._put:
            assert isinstance(item, Deferred)
            rows += [stamp(row, where, rank=0, time_ns=time_ns) for row in item.build()]
        self._put.clear()
        return rows

    def leaves(self) -> dict[str, Memory]:
        return {row.name: row for row in self.rows() if row.edge == "leave"}


def watched(device: Device, peaks: Literal["nested", "observe"]) -> Any:
    recorder = MemoryRecorder(device, peaks)
    heard = Recording(recorder)
    return heard, subscribe(heard, *recorder.points)
