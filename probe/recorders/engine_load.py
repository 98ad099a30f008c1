"""How loaded an engine that samples is: its queue, its cache, and the tokens that it computes."""

from __future__ import annotations

from typing import ClassVar

from probe.hooks import Event
from probe.recorders.recorder import Recorder
from probe.records import Row


class EngineLoad(Row, kw_only=True, tag="engine_load"):
    """Iterations of one engine's scheduler within about a second. Several rows add up.

    Requests and the share of the cache are those of the moment before an iteration's results are taken in, when the
    cache holds most. Their means are the totals divided by ``iterations``.
    """

    source: str  #: the function whose calls these are
    begin_ns: int  #: end of the first of its iterations, monotonic
    end_ns: int  #: end of the last
    iterations: int  #: forward passes, empty ones included
    prefill_tokens: int  #: tokens computed in prefill, as the engine tells it from decoding
    decode_tokens: int  #: tokens computed in decoding; those that a draft has proposed are in it
    preempted: int  #: requests that lost their place in the cache, and are computed anew
    total_running: int  #: requests that ran, over all iterations
    largest_running: int
    total_waiting: int  #: requests that waited for their turn, over all iterations
    largest_waiting: int
    total_cache_ratio: float | None  #: the share of the KV cache in use, over all iterations; None where nobody tells
    largest_cache_ratio: float | None


class EngineLoadRecorder(Recorder):
    """A row for about each second in which an engine of this process computes."""

    rows: ClassVar[tuple[type[Row], ...]] = (EngineLoad,)
    points: ClassVar[tuple[str, ...]] = ("engine.loaded",)

    def fire(self, event: Event) -> EngineLoad:
        """The iterations as they were told, in the step and phase that they were told for."""
        return EngineLoad(**event.values)
