"""Every value that a trainer logs, whichever way it logs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import torch

from probe.core.metric import Metric
from probe.hooks import Event
from probe.recorders.packed import packed, unpacked
from probe.recorders.recorder import Recorder, Rows
from probe.records import Deferred, Later, Row, Scalar, Unbuilt

_PLAIN: Final = frozenset({float, int, bool})
_STR: Final = frozenset({str})


class ScalarsRecorder(Recorder):
    """Scalar rows of ``Tracking.log`` and ``Session.log``. What isn't a number is left out; Tracking reports it."""

    rows: ClassVar[tuple[type[Row], ...]] = (Scalar,)
    points: ClassVar[tuple[str, ...]] = ("tracking.log", "session.log")

    def fire(self, event: Event) -> Rows:
        """``session.log``: a session without backends."""
        return _rows(event.values["metrics"], event.values["step"])

    def leave(self, event: Event, state: Any) -> Rows:
        """``Tracking.log``."""
        del state  # none was made
        return None if event.error is not None else _rows(event.argument("data"), event.argument("step"))


def _rows(metrics: Mapping[str, Any], step: int) -> Unbuilt:
    """The values as they are now; those on a device travel behind the queued work, and nobody waits for them."""
    waiting: list[Any] = []
    keys, values = list(metrics), list(metrics.values())
    if _PLAIN.issuperset(map(type, values)) and _STR.issuperset(map(type, keys)):
        return _Logged(packed((keys, values)), int(step))
    logged = _Logged((keys, [_taken(value, waiting) for value in values]), int(step))
    if not waiting:
        return logged
    return Deferred(logged.build, lambda: all(event.query() for event in waiting))


def _taken(value: Any, waiting: list[Any]) -> Any:
    if isinstance(value, Metric):
        return value.aggregate()
    if not isinstance(value, torch.Tensor):
        return value.copy() if hasattr(value, "dtype") else value
    if value.numel() != 1:
        return None
    if value.device.type == "cpu":
        return value.item()
    if value.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return None
    landing = torch.empty((), dtype=value.dtype, pin_memory=True)
    landing.copy_(value.detach().reshape(()), non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(value.device))
    waiting.append(done)
    return landing


class _Logged(Later, gc=False):
    """What was logged in one call."""

    told: Any  #: keys and values, packed
    step: int

    def build(self) -> list[Scalar]:
        rows = []
        for key, value in zip(*unpacked(self.told), strict=True):
            if value is None or isinstance(value, str | bytes):
                continue
            try:
                rows.append(Scalar(key=key, value=float(value), step=self.step))
            except (TypeError, ValueError):  # not a number
                continue
        return rows
