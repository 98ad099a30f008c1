"""What a memory scope costs on the calling thread, against a decorator that logs memory as formatted text.

Run it alone with ``python benchmarks/memory_scope.py``; ``benchmarks`` as a whole calls :func:`rows`.
"""

from __future__ import annotations

import functools
import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import Size
from probe.devices import CpuDevice, CudaDevice, Device
from probe.hooks import Listener, phase, scope, subscribe
from probe.recorders.memory import MemoryRecorder
from probe.testing import FakeDevice

#: Of one scope on CUDA, both ends together.
TARGET_S = 50e-6

_BLOCKS, _CALLS = 25, 200


class _Session(Listener):
    """As a session does: rows are built elsewhere, the calling thread only hands them over."""

    def __init__(self, recorder: MemoryRecorder) -> None:
        self._recorder = recorder
        self.items: list[Any] = []

    def enter(self, event: Any) -> Any:
        return self._recorder.enter(event)

    def leave(self, event: Any, state: Any) -> None:
        self.items.append(self._recorder.leave(event, state))


class _Nowhere(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)


def log_memory(device: Device, logger: logging.Logger) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """The baseline: read, format and log before and after each call, as trainers do today."""

    def line(head: str) -> None:
        now = device.read(whole=True)
        values = [f"{(value or 0) / 1024**3:.2f}" for value in now]
        logger.debug(
            f"{head}, memory allocated (GB): {values[0]}, memory reserved (GB): {values[1]}, "  # noqa: G004
            f"device memory used/total (GB): {values[4]}/{values[5]}"
        )

    def decorate(function: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(function)
        def logged() -> None:
            line(f"Before {function.__name__}")
            function()
            line(f"After {function.__name__}")

        return logged

    return decorate


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """One row for each device of this machine, and the fake: seconds for one scope or call, medians."""
    devices: list[Device] = [FakeDevice(), CpuDevice()]
    cuda = _cuda()
    if cuda is not None:
        devices.append(cuda)
    return [_row(device, size.pick(1, _BLOCKS)) for device in devices]


def _cuda() -> Device | None:
    import torch

    if not torch.cuda.is_available():
        return None
    torch.cuda.init()
    device = CudaDevice()
    device.bind()
    return device


def _row(device: Device, blocks: int) -> dict[str, Any]:
    ours, theirs = _interleaved(device, blocks)
    return {
        "name": f"memory scope, {device.source}",
        "ours_s": ours,
        "theirs_s": theirs,
        "ratio": ours / theirs,
        "target": f"at most {TARGET_S * 1e6:.0f} µs" if device.source == "cuda" else "",
        "note": f"entering and leaving with the recorder, against a decorator that logs text, on {device.description}",
    }


def _interleaved(device: Device, blocks: int) -> tuple[float, float]:
    """Medians over blocks, taken by turns so that both see the same machine."""
    logger = logging.getLogger("benchmarks.memory_scope")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    handler = _Nowhere()
    logger.addHandler(handler)
    decorated = log_memory(device, logger)(_nothing)
    recorder = MemoryRecorder(device)
    session = _Session(recorder)
    ours, theirs = [], []
    try:
        for _ in range(blocks):
            with subscribe(session, *recorder.points), scope("step", "step", step=0):
                ours.append(_seconds(_scoped))
            for item in session.items:  # in a session: the writer's thread
                item.build()
            session.items.clear()
            theirs.append(_seconds(decorated))
    finally:
        recorder.close()
        logger.removeHandler(handler)
    return statistics.median(ours), statistics.median(theirs)


def _seconds(call: Callable[[], None]) -> float:
    begin = time.perf_counter()
    for _ in range(_CALLS):
        call()
    return (time.perf_counter() - begin) / _CALLS


def _scoped() -> None:
    with phase("update"):
        pass


def _nothing() -> None:
    """What is measured around."""


if __name__ == "__main__":
    for row in rows():
        print(f"{row['name']:32} {row['ours_s'] * 1e6:8.1f} µs {row['theirs_s'] * 1e6:8.1f} µs  {row['target']}")
