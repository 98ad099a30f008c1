"""Every value that a trainer logs, whichever way it logs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch

from probe.core.metric import Metric
from probe.hooks import Event
from probe.recorders.recorder import Recorder, Rows
from probe.records import Deferred, Row, Scalar


class ScalarsRecorder(Recorder):
    """Scalar rows of ``Tracking.log`` and ``Session.log``. What isn't a number is left out; Tracking reports it."""

    rows: ClassVar[tuple[type[Row], ...]] = (Scalar,)
    points: ClassVar[tuple[str, ...]] = ("tracking.log", "session.log")

    def fire(self, event: Event) -> Rows:
        """``session.log``: a session without backends."""
        return _rows(event.values["metrics"], event.values["step"])

    def leave(self, event: Event, state: Any) -> Rows:  # noqa: ARG002  (the contract of a recorder)
        """``Tracking.log``."""
        return None if event.error is not None else _rows(event.argument("data"), event.argument("step"))


def _rows(metrics: Mapping[str, Any], step: int) -> Deferred:
    """The values as they are now; those on a device travel behind the queued work, and nobody waits for them."""
    waiting: list[Any] = []
    keys, values = list(metrics), [_taken(value, waiting) for value in metrics.values()]
    ready = (lambda: all(event.query() for event in waiting)) if waiting else None
    return Deferred(partial(_scalars, keys, values, int(step)), ready)


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


def _scalars(keys: Iterable[str], values: Iterable[Any], step: int) -> list[Scalar]:
    rows = []
    for key, value in zip(keys, values, strict=True):
        if value is None or isinstance(value, str | bytes):
            continue
        try:
            rows.append(Scalar(key=key, value=float(value), step=step))
        except (TypeError, ValueError):  # not a number
            continue
    return rows
